//! The process's limit on the size of files (RLIMIT_FSIZE), as the kernel applies it to local ones: a write
//! may reach it and is cut short there; what would begin or grow beyond it fails with EFBIG, after SIGXFSZ.
//!
//! A face that stands in for the kernel says what the limit is; for others, whose callers the kernel has
//! asked already or who act for nobody, there is none. It belongs to the process, and is read at every write:
//! one load.

use bivouac_proto::Errno;
use rustix::process::Signal;
use std::sync::atomic::{AtomicU64, Ordering};

static FILE_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);

/// No file may grow beyond so many bytes by this process's doing; `u64::MAX` is no limit.
pub fn set_file_size_limit(bytes: u64) {
    FILE_SIZE.store(bytes, Ordering::Relaxed);
}

/// The limit in bytes, if there is one.
#[inline]
pub fn file_size_limit() -> Option<u64> {
    Some(FILE_SIZE.load(Ordering::Relaxed)).filter(|limit| *limit != u64::MAX)
}

/// What of a write at `offset` is within the limit; EFBIG when nothing of it is.
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
