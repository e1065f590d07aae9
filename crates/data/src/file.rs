//! One open sub-file.

use crate::error::DataError;
use crate::undo::Writers;
use bivouac_proto::attr::FILE_MAX;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open sub-file. It stays usable after its removal, and after its descriptor left the cache: the bytes
/// go when the last holder drops it. Its descriptor's own offset means nothing; use positioned calls only.
#[derive(Debug)]
pub struct SubFile {
    fd: OwnedFd,
    /// Whether the directory entry that leads to it is known to be on stable storage.
    entry_synced: AtomicBool,
    writers: Writers,
}

impl AsFd for SubFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl SubFile {
    /// From a descriptor that is open for reading and writing.
    pub(crate) fn new(fd: OwnedFd) -> SubFile {
        SubFile { fd, entry_synced: AtomicBool::new(false), writers: Writers::default() }
    }

    /// Its length, bytes: the end of the last byte that the server was given.
    pub fn length(&self) -> Result<u64, DataError> {
        Ok(u64::try_from(rustix::fs::fstat(&self.fd)?.st_size).unwrap_or(0))
    }

    /// Reads into the whole of `into`, as far as the sub-file goes; returns how many bytes.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, DataError> {
        // Beyond the largest offset there is nothing, and the kernel would refuse to look.
        let room = usize::try_from(FILE_MAX.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = into.len().min(room);
        let Some(into) = into.get_mut(..wanted) else {
            return Ok(0);
        };
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.fd, rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(done)
    }

    /// Writes `from`; returns how many bytes, which is fewer than given only when the storage (or a quota, or
    /// the largest offset) is reached on the way. Nothing at all is an error, unless `from` is empty. Any
    /// other failure on the way is an error too, however much went well before.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<usize, DataError> {
        let room = usize::try_from(FILE_MAX.saturating_sub(offset)).unwrap_or(usize::MAX);
        let from = from.get(..room).unwrap_or(from);
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(&self.fd, rest, offset + done as u64) {
                Ok(0) => {
                    return if done > 0 { Ok(done) } else { Err(Errno::NOSPC.into()) };
                }
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(done)
    }

    /// Keeps track of the writes through this server, so that they can be undone.
    pub(crate) fn writers(&self) -> &Writers {
        &self.writers
    }

    /// Whether no directory entry leads to it any more.
    pub(crate) fn is_removed(&self) -> Result<bool, DataError> {
        Ok(rustix::fs::fstat(&self.fd)?.st_nlink == 0)
    }

    /// Puts content and length on stable storage; the first time also, by `sync_entry`, the entry that leads
    /// to it.
    pub(crate) fn sync(&self, sync_entry: impl FnOnce() -> Result<(), DataError>) -> Result<(), DataError> {
        rustix::fs::fdatasync(&self.fd)?;
        if !self.entry_synced.load(Ordering::Acquire) {
            sync_entry()?;
            self.entry_synced.store(true, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_proto::Errno as Wire;

    fn open(path: &str) -> SubFile {
        SubFile::new(std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap().into())
    }

    #[test]
    fn device_errors_are_surfaced() {
        // The first page of a process's memory is never mapped: the kernel says EIO.
        let broken = open("/proc/self/mem");
        assert_eq!(broken.read_at(0, &mut [0; 10]), Err(DataError::Io(Wire::IO)));
        assert_eq!(broken.write_at(0, b"x"), Err(DataError::Io(Wire::IO)));
    }

    #[test]
    fn a_write_of_which_nothing_fits_is_an_error() {
        assert_eq!(open("/dev/full").write_at(0, b"x"), Err(DataError::Io(Wire::NOSPC)));
        assert_eq!(open("/dev/full").write_at(0, b""), Ok(0));
    }
}
