//! Failures as Python's `OSError`, which makes of the errno one of its subclasses.

use bivouac_client::{ClientError, Fail};
use bivouac_proto::Errno;
use pyo3::PyErr;
use pyo3::exceptions::PyOSError;

/// A call on an open file.
pub(crate) fn of_file(errno: Errno) -> PyErr {
    PyOSError::new_err((i32::from(errno.0), text(errno)))
}

/// A call on a path.
pub(crate) fn of_path(fail: Fail, path: &[u8]) -> PyErr {
    let (errno, text) = match fail {
        Fail::Errno(errno) => (errno, text(errno)),
        Fail::Outside(to) => {
            let to = String::from_utf8_lossy(&to).into_owned();
            (Errno::XDEV, format!("a symbolic link leads out of the deployment, to {to}"))
        }
    };
    PyOSError::new_err((i32::from(errno.0), text, String::from_utf8_lossy(path).into_owned()))
}

/// Attaching.
pub(crate) fn of_client(error: &ClientError) -> PyErr {
    PyOSError::new_err((i32::from(error.errno().0), error.to_string()))
}

fn text(errno: Errno) -> String {
    let text = errno.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
