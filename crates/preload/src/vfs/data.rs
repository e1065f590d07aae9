//! Reading, writing, and what else is done with an open file's bytes.
//!
//! These take slices and serve both kinds of descriptors, for callers within the library; the faces forward
//! the program's own pointers to the kernel before they come here.

use super::{fds, state};
use bivouac_client::Entries;
use bivouac_proto::Errno;
use std::io::{IoSlice, IoSliceMut};

/// `read(2)`.
pub fn read(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    match fds::get(fd)? {
        Some(file) => state::apart(|| file.read(&mut [IoSliceMut::new(buffer)])),
        None => sys!(SYS_read, fd, buffer.as_mut_ptr(), buffer.len()),
    }
}

/// `write(2)`.
pub fn write(fd: i32, buffer: &[u8]) -> Result<usize, Errno> {
    let kernel = || sys!(SYS_write, fd, buffer.as_ptr(), buffer.len());
    fds::on(fd, kernel, |file| state::apart(|| file.write(&[IoSlice::new(buffer)])))
}

/// `pread(2)`.
pub fn pread(fd: i32, buffer: &mut [u8], offset: i64) -> Result<usize, Errno> {
    preadv(fd, &mut [IoSliceMut::new(buffer)], offset)
}

/// `pwrite(2)`.
pub fn pwrite(fd: i32, buffer: &[u8], offset: i64) -> Result<usize, Errno> {
    pwritev(fd, &[IoSlice::new(buffer)], offset)
}

/// `preadv(2)`.
pub fn preadv(fd: i32, buffers: &mut [IoSliceMut<'_>], offset: i64) -> Result<usize, Errno> {
    match fds::get(fd)? {
        Some(file) => {
            let offset = position(offset)?;
            state::apart(|| file.pread(offset, buffers))
        }
        None => sys!(SYS_preadv, fd, buffers.as_mut_ptr(), buffers.len(), offset, 0),
    }
}

/// `pwritev(2)`.
pub fn pwritev(fd: i32, buffers: &[IoSlice<'_>], offset: i64) -> Result<usize, Errno> {
    let kernel = || sys!(SYS_pwritev, fd, buffers.as_ptr(), buffers.len(), offset, 0);
    fds::on(fd, kernel, |file| {
        let offset = position(offset)?;
        state::apart(|| file.pwrite(offset, buffers))
    })
}

/// An offset that the program gave.
pub fn position(offset: i64) -> Result<u64, Errno> {
    u64::try_from(offset).map_err(|_| Errno::INVAL)
}

/// `lseek(2)`.
#[inline]
pub fn lseek(fd: i32, offset: i64, whence: i32) -> Result<i64, Errno> {
    let kernel = || sys!(SYS_lseek, fd, offset, whence).map(|offset| offset as i64);
    fds::on(fd, kernel, |file| state::apart(|| file.seek(offset, whence)).map(|offset| offset as i64))
}

/// `ftruncate(2)`.
pub fn ftruncate(fd: i32, size: i64) -> Result<(), Errno> {
    let kernel = || sys!(SYS_ftruncate, fd, size).map(|_| ());
    fds::on(fd, kernel, |file| {
        let size = position(size)?;
        state::apart(|| file.truncate(size))
    })
}

/// `fallocate(2)`.
pub fn fallocate(fd: i32, mode: i32, offset: i64, len: i64) -> Result<(), Errno> {
    fallocate_by(fd, mode, offset, len, || sys!(SYS_fallocate, fd, mode, offset, len).map(|_| ()))
}

/// As above; `kernel` does what is not ours.
pub fn fallocate_by(
    fd: i32,
    mode: i32,
    offset: i64,
    len: i64,
    kernel: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    fds::on(fd, kernel, |file| state::apart(|| file.fallocate(mode, offset, len)))
}

/// `fsync(2)`, and `fdatasync(2)` with `data_only`.
pub fn fsync(fd: i32, data_only: bool) -> Result<(), Errno> {
    let number = if data_only { libc::SYS_fdatasync } else { libc::SYS_fsync };
    // SAFETY: a call with a plain number.
    fsync_by(fd, || unsafe { crate::raw::call(number, [fd as usize, 0, 0, 0, 0, 0]) }.map(|_| ()))
}

/// As above; `kernel` does what is not ours.
pub fn fsync_by(fd: i32, kernel: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    fds::on(fd, kernel, |file| state::apart(|| file.sync()))
}

/// The next entries of a directory of ours, about `max`, from the position that all its descriptors share;
/// none at the end.
pub fn list(fd: i32, max: usize) -> Result<Entries, Errno> {
    match fds::get(fd)? {
        Some(file) => state::apart(|| file.list(max)),
        None => Err(Errno::BADF),
    }
}
