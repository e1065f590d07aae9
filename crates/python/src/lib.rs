//! The Python extension behind the package `bivouac`: [`Deployment`] and [`File`], with the calls that the package makes of
//! them. Python's own conventions (modes of `open`, buffering, text, paths, iterators) are the package's.
//!
//! The interpreter's lock is released around everything that may wait. Data goes between the caller's memory and the
//! deployment without another copy.

mod deployment;
mod error;
mod file;
mod memory;

use deployment::Deployment;
use file::File;
use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _bivouac(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Deployment>()?;
    module.add_class::<File>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
