//! The libc functions behind the faces: what the program would have got without this library.
//!
//! For what is not in the mount a face hands the call on to the next function of its name, where that does
//! more than make a system call: a blocking call of libc's ends when its thread is cancelled, a stream or a
//! directory stream is libc's own.
//!
//! Every such function is looked up when the library starts ([`find_all`]), none later: a lookup at another
//! time would empty what `dlerror` has to say to the program, and would not be allowed in a signal handler.
//! The variables that hold the addresses lie in a section of their own, so that all of them are found without
//! a list.
//!
//! A cancelled thread is unwound through these calls and the faces around them (`C-unwind`). So a face has
//! nothing to be dropped while a libc function that blocks is running.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library that has it.
pub struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

/// What stands for a function that no library has.
const ABSENT: usize = 1;

impl Real {
    /// Names a function.
    pub const fn new(name: &'static CStr) -> Real {
        Real { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; NULL when no library has it.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        self.get().map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    /// Its address, if a library has it.
    #[inline(always)]
    pub fn get(&self) -> Option<NonNull<c_void>> {
        self.ready().or_else(|| NonNull::new(self.unusual()))
    }

    /// Its address, if it was looked up before and is there.
    #[inline(always)]
    pub fn ready(&self) -> Option<NonNull<c_void>> {
        let found = self.found.load(Ordering::Relaxed);
        // SAFETY: greater than one.
        (found as usize > ABSENT).then(|| unsafe { NonNull::new_unchecked(found) })
    }

    #[cold]
    fn unusual(&self) -> *mut c_void {
        // Before the library's start: another library's code runs while this process is being put together.
        if self.found.load(Ordering::Relaxed).is_null() {
            self.find();
        }
        match self.found.load(Ordering::Relaxed) {
            found if found as usize == ABSENT => std::ptr::null_mut(),
            found => found,
        }
    }

    /// Looks it up; whether it is there.
    fn find(&self) -> bool {
        // SAFETY: the name is a C string. RTLD_NEXT is relative to the library that this code is part of.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let stored = if found.is_null() { ABSENT as *mut c_void } else { found };
        self.found.store(stored, Ordering::Relaxed);
        !found.is_null()
    }
}

unsafe extern "C" {
    // The linker's names for both ends of the section.
    static __start_bivouac_real: [u8; 0];
    static __stop_bivouac_real: [u8; 0];
}

/// Looks all of them up.
pub fn find_all() {
    let (mut at, end) =
        ((&raw const __start_bivouac_real).cast::<Real>(), (&raw const __stop_bivouac_real).cast::<Real>());
    let mut missing = false;
    while at < end {
        // SAFETY: the section holds nothing but `Real`s, one behind the other.
        missing |= unsafe { !(*at).find() };
        // SAFETY: likewise; at most its end.
        at = unsafe { at.add(1) };
    }
    if missing {
        // SAFETY: nobody else has asked yet; what it says is of no interest, but it would be said to the
        // program.
        unsafe { libc::dlerror() };
    }
}

/// The variable for a libc function's address.
macro_rules! real_variable {
    ($variable:ident, $name:expr) => {
        // Used: the compiler is not to take it apart, since the section is read as a whole.
        #[used]
        #[unsafe(link_section = "bivouac_real")]
        static $variable: $crate::real::Real = $crate::real::Real::new(
            match ::std::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without NUL"),
            },
        );
    };
}

/// The libc function of a name, as an `Option` of its type: `next!("fchmodat", fn(c_int, ...) -> c_int)`.
macro_rules! next {
    ($name:literal, fn($($arg:ty),*) -> $result:ty) => {{
        real_variable!(NEXT, $name);
        let address = NEXT.address();
        // Used inside and outside of unsafe blocks.
        #[allow(unused_unsafe)]
        // SAFETY: libc's function of this name has this type.
        let found = (!address.is_null()).then(|| unsafe {
            ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C-unwind" fn($($arg),*) -> $result>(address)
        });
        found
    }};
}

/// Declares functions `real_name(..)` that forward to libc's `name`. Where it has no such function, errno is
/// set to ENOSYS and the value behind `else` returned.
macro_rules! real {
    ($($function:ident = $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, else $fail:expr;)+) => {
        $(
            #[doc = concat!("libc's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As for the function itself.
            #[inline]
            #[allow(clippy::unused_unit)]
            unsafe fn $function($($arg: $type),*) -> $ret {
                real_variable!(REAL, stringify!($name));
                let Some(at) = REAL.get() else {
                    $crate::raw::set_errno($crate::vfs::Errno::NOSYS);
                    return $fail;
                };
                // SAFETY: the function of that name has this type in every libc that we are loaded into; the
                // arguments are the caller's promise.
                unsafe {
                    let call: unsafe extern "C-unwind" fn($($type),*) -> $ret = std::mem::transmute(at);
                    call($($arg),*)
                }
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_nobody_has_is_null_and_one_that_is_there_is_not() {
        for known in [false, true] {
            let (missing, present) = (Real::new(c"no_such_function_anywhere"), Real::new(c"fopen"));
            if known {
                assert!(!missing.find() && present.find());
            }
            assert!(missing.address().is_null() && !present.address().is_null());
        }
    }

    #[test]
    fn everything_that_is_used_is_found_at_the_start() {
        real! { real_strlen = strlen(text: *const std::ffi::c_char) -> usize, else 0; }
        real_variable!(ABSENT_ONE, "no_such_function_either");
        find_all();
        // SAFETY: after the start dlerror has nothing to say, and saying nothing is NULL.
        assert!(unsafe { libc::dlerror() }.is_null());
        assert!(ABSENT_ONE.found.load(Ordering::Relaxed) as usize == ABSENT);
        // SAFETY: a C string.
        assert_eq!(unsafe { real_strlen(c"four".as_ptr()) }, 4);
    }
}
