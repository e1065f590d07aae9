//! What functions return, and the text of a thread's last failure.

use bivouac_client::{ClientError, Fail};
use bivouac_proto::Errno;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Why a call has failed.
pub(crate) struct Failed {
    pub(crate) errno: Errno,
    text: String,
}

impl Failed {
    /// With a text that says more than the number.
    pub(crate) fn new(errno: Errno, text: impl Into<String>) -> Failed {
        Failed { errno, text: text.into() }
    }

    /// What the function returns.
    pub(crate) fn number(&self) -> i64 {
        -i64::from(self.errno.0)
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        Failed { errno, text: errno.to_string() }
    }
}

impl From<Fail> for Failed {
    fn from(fail: Fail) -> Failed {
        match fail {
            Fail::Errno(errno) => errno.into(),
            Fail::Outside(path) => {
                let path = String::from_utf8_lossy(&path);
                Failed::new(Errno::XDEV, format!("a symbolic link leads out of the deployment, to {path}"))
            }
        }
    }
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Failed {
        Failed::new(error.errno(), error.to_string())
    }
}

/// Runs a function's body. What it returns, or the negative errno.
pub(crate) fn answer(body: impl FnOnce() -> Result<i64, Failed>) -> i64 {
    let failed = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(done)) => return done,
        Ok(Err(failed)) => failed,
        Err(_) => Failed::new(Errno::IO, "the library has a defect: please report it"),
    };
    // A text has no NUL inside; and a thread that is about to end has none any more.
    let text = CString::new(failed.text.replace('\0', "?")).unwrap_or_default();
    let _ = LAST.try_with(|last| last.replace(text));
    failed.number()
}

/// The same for functions that return an `int`.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Failed>) -> i32 {
    answer(|| body().map(|()| 0)) as i32
}

/// See `bivouac.h`.
#[unsafe(no_mangle)]
pub extern "C" fn bivouac_error() -> *const c_char {
    // It stays where it is until the next failure of this thread.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
