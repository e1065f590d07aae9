//! The libc functions behind the faces, for what glibc does beyond a system call.
//!
//! Looked up once, when first needed, with `dlsym(RTLD_NEXT)`; two threads that look at once find the same.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library that has it.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Names a function.
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; NULL when no library has it.
    pub fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a symbol is looked up by its name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }
}

/// The libc function of a name, as an `Option` of its type: `next!("fchmodat", fn(c_int, ...) -> c_int)`.
macro_rules! next {
    ($name:literal, fn($($arg:ty),*) -> $result:ty) => {{
        static NEXT: $crate::real::Next = $crate::real::Next::new(
            match ::std::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without NUL"),
            },
        );
        let address = NEXT.address();
        // Used inside and outside of unsafe blocks.
        #[allow(unused_unsafe)]
        // SAFETY: libc's function of this name has this type.
        let found = (!address.is_null()).then(|| unsafe {
            ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C" fn($($arg),*) -> $result>(address)
        });
        found
    }};
}
