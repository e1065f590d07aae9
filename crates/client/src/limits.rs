//! The process's limit on the size of files (RLIMIT_FSIZE), as the kernel applies it to local ones: a write
//! that reaches it is shortened; one that begins beyond it, or a truncation beyond it, fails with EFBIG after
//! SIGXFSZ.
//!
//! The preload library, which stands in for the kernel, sets the limit here. Other faces set none: in a mount
//! the kernel has checked the limit already, and the command line has none. It belongs to the process, and is
//! read at every write: one load.

use bivouac_proto::Errno;
use rustix::process::Signal;
use std::sync::atomic::{AtomicU64, Ordering};

static FILE_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);

/// This process must not make a file longer than so many bytes; `u64::MAX`: no limit.
pub fn set_file_size_limit(bytes: u64) {
    FILE_SIZE.store(bytes, Ordering::Relaxed);
}

/// The limit in bytes, if there is one.
#[inline]
pub fn file_size_limit() -> Option<u64> {
    Some(FILE_SIZE.load(Ordering::Relaxed)).filter(|limit| *limit != u64::MAX)
}

/// How much of a write at `offset` is within the limit; EFBIG if nothing is.
#[inline]
pub(crate) fn clipped(offset: u64, data: &[u8]) -> Result<&[u8], Errno> {
    match file_size_limit() {
        Some(limit) => clipped_to(limit, offset, data).ok_or_else(exceeded),
        None => Ok(data),
    }
}

fn clipped_to(limit: u64, offset: u64, data: &[u8]) -> Option<&[u8]> {
    let room = limit.checked_sub(offset).filter(|room| *room > 0)?;
    Some(&data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))])
}

/// Something would go beyond the limit: SIGXFSZ, and if the process outlives that, the error.
#[cold]
pub(crate) fn exceeded() -> Errno {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::XFSZ);
    Errno::FBIG
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_may_reach_the_limit_and_not_begin_at_it() {
        assert_eq!(clipped_to(10, 0, &[7; 20]).map(<[u8]>::len), Some(10));
        assert_eq!(clipped_to(10, 9, &[7; 20]).map(<[u8]>::len), Some(1));
        assert_eq!(clipped_to(10, 4, &[7; 3]).map(<[u8]>::len), Some(3));
        assert_eq!(clipped_to(10, 10, &[7; 20]), None);
        assert_eq!(clipped_to(10, 11, &[7; 20]), None);
        assert_eq!(clipped_to(0, 0, &[7]), None);
    }
}
