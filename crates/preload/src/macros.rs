//! How faces are written.

/// Defines libc symbols: `faces! { fn close(fd: c_int) -> c_int { result(vfs::close(fd)) } }`.
///
/// Every face is unsafe as libc's function of that name is: the program passes pointers and lengths as that function
/// asks for. Its body relies on that, and on nothing else. In unit tests the names are not exported, so that the test
/// program itself goes on using libc. A thread that is cancelled in a libc function behind a face is unwound through it.
///
/// A panic in a body sets errno to EIO and returns what a function of that type returns on failure ([`crate::boundary`]): -1, NULL
/// or WEOF; another value is given behind the type: `fn posix_fadvise(..) -> c_int, else (libc::EIO) { .. }`.
macro_rules! faces {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty $(, else ($failed:expr))?)? $body:block)*) => {$(
        $(#[$meta])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(unused_unsafe, dead_code, non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $result)? {
            $crate::boundary::run(
                // SAFETY: the program passes what the libc function of this name asks for.
                move || $(-> $result)? { unsafe { $body } },
                || on_panic!($($result $(, $failed)?)?),
            )
        }
    )*};
}

/// What a face returns whose body has panicked.
macro_rules! on_panic {
    () => {
        ()
    };
    ($result:ty) => {
        <$result as $crate::boundary::Failed>::failed()
    };
    ($result:ty, $failed:expr) => {
        $failed
    };
}

/// Defines functions that are handed to C to be called, in the same way: `callbacks! { fn read(cookie: *mut c_void) -> isize { .. } }`.
macro_rules! callbacks {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty $(, else ($failed:expr))?)? $body:block)*) => {$(
        $(#[$meta])*
        unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
            $crate::boundary::run(move || $(-> $result)? { $body }, || on_panic!($($result $(, $failed)?)?))
        }
    )*};
}

/// Forwards a call to the kernel: `sys!(SYS_read, fd, buffer, count)`, arguments as `usize`, `Result<usize, Errno>`.
macro_rules! sys {
    ($number:ident $(, $arg:expr)* $(,)?) => {
        // A match, so that what the arguments point into lives until the call is done.
        match $crate::raw::padded([$(($arg) as usize),*]) {
            // SAFETY: the arguments are the program's own, or borrowed for the length of the call.
            args => unsafe { $crate::raw::call(libc::$number, args) },
        }
    };
}
