//! Memory of Python objects, as it is.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

/// Memory that an object exports: it stays where it is for as long as this lives.
pub(crate) struct Memory {
    buffer: PyUntypedBuffer,
}

// SAFETY: exported memory may be used by any thread; only taking and giving back the export needs the interpreter, which
// pyo3 sees to.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Of an object with the buffer protocol.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the memory has gaps (it is not C-contiguous)"));
        }
        Ok(Memory { buffer })
    }

    /// The same, for writing to it.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let memory = Memory::of(object)?;
        if memory.buffer.readonly() {
            return Err(PyTypeError::new_err("the memory is read-only"));
        }
        Ok(memory)
    }

    fn parts(&self) -> (*mut u8, usize) {
        (self.buffer.buf_ptr().cast(), self.buffer.len_bytes())
    }

    /// What is there.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.parts() {
            (_, 0) => &[],
            // SAFETY: the export is valid for so many bytes while it is held. That nobody writes there meanwhile is the
            // program's promise, as with every file object of Python that releases the interpreter's lock.
            (start, length) => unsafe { std::slice::from_raw_parts(start, length) },
        }
    }

    /// The same, to be filled.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        match self.parts() {
            (_, 0) => &mut [],
            // SAFETY: as above; it is writable, and others do not use it, likewise.
            (start, length) => unsafe { std::slice::from_raw_parts_mut(start, length) },
        }
    }
}
