//! How faces are written.

/// Defines libc symbols: `faces! { fn close(fd: c_int) -> c_int { result(vfs::close(fd)) } }`.
///
/// Every face is unsafe as libc's function of that name is: the program passes pointers and lengths as that function
/// asks for. Its body relies on that, and on nothing else. In unit tests the names are not exported, so that the test
/// program itself goes on using libc. A thread that is cancelled in a libc function behind a face is unwound through it.
macro_rules! faces {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {$(
        $(#[$meta])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(unused_unsafe, dead_code, non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $result)? {
            // SAFETY: the program passes what the libc function of this name asks for.
            unsafe { $body }
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
