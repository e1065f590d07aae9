//! Open files.

use crate::deployment::{Stat, stat_of};
use crate::error::of_file;
use crate::memory::Memory;
use bivouac_client::host::OwnFd;
use bivouac_client::{Client, Handle, LockKind};
use bivouac_proto::Errno;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A file that a deployment has opened. It belongs to the process that opened it.
#[pyclass(frozen, weakref)]
pub(crate) struct File {
    client: Arc<Client>,
    handle: Arc<Handle>,
    /// How often the process had been forked.
    forks: u64,
    closed: AtomicBool,
    held: Mutex<Option<OwnFd>>,
}

impl File {
    pub(crate) fn new(client: Arc<Client>, (handle, held): (Arc<Handle>, OwnFd)) -> File {
        let forks = client.forks();
        File { client, handle, forks, closed: AtomicBool::new(false), held: Mutex::new(Some(held)) }
    }

    /// Does something with it, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&Handle) -> Result<T, Errno> + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            if self.closed.load(Ordering::Acquire) || self.forks != self.client.forks() {
                return Err(Errno::BADF);
            }
            body(&self.handle)
        })
        .map_err(of_file)
    }

    fn finish(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) && self.forks == self.client.forks() {
            self.client.close_alone(self.handle.id());
            self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.finish();
    }
}

#[pymethods]
impl File {
    /// Closes it.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.finish());
    }

    /// Whether it was opened in this process, and not before a fork.
    fn is_own(&self) -> bool {
        self.forks == self.client.forks()
    }

    /// Reads at the file's position into memory. How many bytes.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut memory = Memory::writable(buffer)?;
        self.with(py, |handle| handle.read(&mut [IoSliceMut::new(memory.room())]))
    }

    /// Reads at an offset into memory. How many bytes.
    fn preadinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let mut memory = Memory::writable(buffer)?;
        self.with(py, |handle| handle.pread(offset, &mut [IoSliceMut::new(memory.room())]))
    }

    /// Reads so many bytes at an offset; fewer only at the end of the file.
    fn pread<'py>(&self, py: Python<'py>, length: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        // Nobody knows of the object before it is filled. Its memory is as long as the file has bytes there, at most.
        let most = self.with(py, |handle| match handle.size_seen() {
            seen if seen >= offset.saturating_add(length as u64) => Ok(length),
            _ => Ok(handle.attr()?.size.saturating_sub(offset).min(length as u64) as usize),
        })?;
        let mut count = 0;
        let bytes = PyBytes::new_with(py, most, |room| {
            count = self.with(py, |handle| handle.pread(offset, &mut [IoSliceMut::new(room)]))?;
            Ok(())
        })?;
        Ok(if count == most { bytes } else { PyBytes::new(py, &bytes.as_bytes()[..count]) })
    }

    /// Writes at the file's position. How many bytes.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let memory = Memory::of(data)?;
        self.with(py, |handle| handle.write(&[IoSlice::new(memory.bytes())]))
    }

    /// Writes at an offset. How many bytes.
    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let memory = Memory::of(data)?;
        self.with(py, |handle| handle.pwrite(offset, &[IoSlice::new(memory.bytes())]))
    }

    /// Writes at the end, wherever that is by then. Where the data begins, and how many bytes were written.
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<(u64, usize)> {
        let memory = Memory::of(data)?;
        let (end, count) = self.with(py, |handle| handle.append_for_end(&[IoSlice::new(memory.bytes())]))?;
        Ok((end - count as u64, count))
    }

    /// Moves the position.
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        self.with(py, |handle| handle.seek(offset, whence))
    }

    /// Sets the length, bytes.
    fn truncate(&self, py: Python<'_>, length: u64) -> PyResult<()> {
        self.with(py, |handle| handle.truncate(length))
    }

    /// As `fallocate(2)`.
    fn allocate(&self, py: Python<'_>, mode: i32, offset: i64, length: i64) -> PyResult<()> {
        self.with(py, |handle| handle.fallocate(mode, offset, length))
    }

    /// Puts data and attributes on stable storage.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Handle::sync)
    }

    /// What the package makes a `os.stat_result` of.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.with(py, |handle| Ok(stat_of(&handle.attr()?)))
    }

    /// Locks a range for this open file; to the end of the file, wherever it is, without a length. With `wait`, it waits for half
    /// a second at most. Whether it has got the lock.
    #[pyo3(signature = (exclusive, start, length, wait))]
    fn lock(
        &self,
        py: Python<'_>,
        exclusive: bool,
        start: u64,
        length: Option<u64>,
        wait: bool,
    ) -> PyResult<bool> {
        let end = length.map_or(u64::MAX, |length| start.saturating_add(length));
        let done = self.with(py, |handle| {
            let kind = LockKind::Description;
            match wait {
                false => Ok(handle.lock(kind, exclusive, start, end)),
                true => Ok(handle.lock_waiting(kind, exclusive, start, end, &|_| false)),
            }
        })?;
        match done {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(of_file(errno)),
        }
    }

    /// Unlocks a range.
    #[pyo3(signature = (start, length))]
    fn unlock(&self, py: Python<'_>, start: u64, length: Option<u64>) -> PyResult<()> {
        let end = length.map_or(u64::MAX, |length| start.saturating_add(length));
        self.with(py, |handle| handle.unlock(LockKind::Description, start, end))
    }
}
