//! How faces are written.

/// Defines libc symbols: `faces! { fn close(fd: c_int) -> c_int { result(vfs::close(fd)) } }`.
///
/// Every face is unsafe as libc's function of that name is: the program passes pointers and lengths as that
/// function asks for. Its body relies on that, and on nothing else. In unit tests the names are not exported,
/// so that the test program itself goes on using libc. A thread that is cancelled in a libc function behind a
/// face is unwound through it.
///
/// A panic in a body sets errno to EIO and returns what a function of that type returns on failure
/// ([`crate::boundary`]): -1, NULL or WEOF; another value is given behind the type: `fn posix_fadvise(..) ->
/// c_int, else (libc::EIO) { .. }`.
macro_rules! faces {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty $(, else ($failed:expr))?)? $body:block)*) => {$(
        guarded! {
            $(#[$meta])*
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[allow(dead_code, non_snake_case)]
            [pub] "C-unwind" fn $name($($arg: $type),*) $(-> $result $(, else ($failed))?)? {
                #[allow(unused_unsafe)]
                // SAFETY: the program passes what the libc function of this name asks for.
                unsafe { $body }
            }
        }
    )*};
}

/// Defines functions that are handed to C to be called, in the same way: `callbacks! { fn read(cookie: *mut
/// c_void) -> isize { .. } }`.
macro_rules! callbacks {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty $(, else ($failed:expr))?)? $body:block)*) => {$(
        guarded! {
            $(#[$meta])*
            [] "C" fn $name($($arg: $type),*) $(-> $result $(, else ($failed))?)? $body
        }
    )*};
}

/// What both make: a function that lets its body be called by the guard of [`crate::boundary`].
macro_rules! guarded {
    ($(#[$meta:meta])* [$($visible:tt)*] $abi:literal fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty $(, else ($failed:expr))?)? $body:block) => {
        $(#[$meta])*
        #[cfg(target_arch = "x86_64")]
        #[allow(unused_variables, clippy::too_many_arguments)]
        #[unsafe(naked)]
        $($visible)* unsafe extern $abi fn $name($($arg: $type),*) $(-> $result)? {
            guarded!(@parts ($($arg: $type),*) ($($result $(, $failed)?)?) ($(-> $result)?) $body);
            core::arch::naked_asm!(
                "lea r10, [rip + {body}]",
                "lea r11, [rip + {stopped}]",
                "jmp bivouac_guarded",
                body = sym body,
                stopped = sym stopped,
            )
        }

        $(#[$meta])*
        #[cfg(target_arch = "aarch64")]
        #[allow(unused_variables, clippy::too_many_arguments)]
        #[unsafe(naked)]
        $($visible)* unsafe extern $abi fn $name($($arg: $type),*) $(-> $result)? {
            guarded!(@parts ($($arg: $type),*) ($($result $(, $failed)?)?) ($(-> $result)?) $body);
            core::arch::naked_asm!(
                "adrp x9, {body}",
                "add x9, x9, :lo12:{body}",
                "adrp x10, {stopped}",
                "add x10, x10, :lo12:{stopped}",
                "b bivouac_guarded",
                body = sym body,
                stopped = sym stopped,
            )
        }

        $(#[$meta])*
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        #[allow(clippy::too_many_arguments)]
        $($visible)* unsafe extern $abi fn $name($($arg: $type),*) $(-> $result)? $body
    };
    // Of those that lie on the stack, the body would not find more.
    (@parts ($($arg:ident: $type:ty),*) ($($failing:tt)*) ($($returned:tt)*) $body:block) => {
        const _: () = assert!(<[&str]>::len(&[$(stringify!($arg)),*]) <= 7);

        #[allow(clippy::too_many_arguments)]
        unsafe extern "C-unwind" fn body($($arg: $type),*) $($returned)* $body

        unsafe extern "C-unwind" fn stopped(panic: *mut std::ffi::c_void) $($returned)* {
            // SAFETY: jumped to by the guard with a panic that it has stopped.
            unsafe { $crate::boundary::stopped(panic, || on_panic!($($failing)*)) }
        }
    };
}

/// What C gets from a body that has panicked.
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

/// Forwards a call to the kernel: `sys!(SYS_read, fd, buffer, count)`, arguments as `usize`, `Result<usize,
/// Errno>`.
macro_rules! sys {
    ($number:ident $(, $arg:expr)* $(,)?) => {
        // A match, so that what the arguments point into lives until the call is done.
        match $crate::raw::padded([$(($arg) as usize),*]) {
            // SAFETY: the arguments are the program's own, or borrowed for the length of the call.
            args => unsafe { $crate::raw::call(libc::$number, args) },
        }
    };
}
