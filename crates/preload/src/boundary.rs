//! The boundary between C and this library: no panic gets out.
//!
//! A program that knows nothing of Rust calls a face, and gets EIO if something in here panics. The macros
//! that define what C calls ([`faces!`] and [`callbacks!`]) make of each a few instructions that call its
//! body through a guard, so that none can be without.
//!
//! `std::panic::catch_unwind` alone will not do: it ends the process when what unwinds is not a Rust panic.
//! Through the faces there also pass the unwinding of a cancelled thread that was blocked in a libc function
//! behind a face, and exceptions of the program's own that a callback throws (`nftw`, `scandir`). Both have
//! to go on to who waits for them. So the guard is a function in assembler whose personality routine stops
//! panics of this library and nothing else; what it has stopped is thrown again where `catch_unwind` waits
//! for it, which does the bookkeeping of the standard library.
//!
//! A call that does not panic pays for a jump and a call, and 32 bytes of stack. On processors other than
//! x86_64 and aarch64 there is no guard: a panic ends the process.

use crate::raw::set_errno;
use crate::vfs::Errno;
use std::ffi::{c_int, c_void};

/// What a C function returns when it has failed.
pub trait Failed {
    /// The value.
    fn failed() -> Self;
}

macro_rules! failed {
    ($($type:ty: $value:expr),*) => {$(
        impl Failed for $type {
            #[inline]
            fn failed() -> $type {
                $value
            }
        }
    )*};
}

// Minus one; for characters too wide for `int` that is WEOF.
failed!((): (), c_int: -1, i64: -1, isize: -1, u32: u32::MAX);

impl<T> Failed for *const T {
    fn failed() -> *const T {
        std::ptr::null()
    }
}

impl<T> Failed for *mut T {
    fn failed() -> *mut T {
        std::ptr::null_mut()
    }
}

/// A panic has ended the body of what C calls, and was stopped: what C gets instead.
///
/// # Safety
/// The boundary gives this the panic that it has stopped, once.
#[cold]
#[inline(never)]
pub unsafe fn stopped<T>(panic: *mut c_void, failed: fn() -> T) -> T {
    // SAFETY: promised by the caller.
    unsafe { unwinding::forget(panic) };
    set_errno(Errno::IO);
    failed()
}

/// The body has panicked.
#[derive(Debug, PartialEq)]
pub struct Panicked;

/// A body to run, and then its result.
struct Place<F, T> {
    body: Option<F>,
    result: Option<T>,
}

/// # Safety
/// `place` is a place with a body of this type.
unsafe extern "C-unwind" fn run<F: FnOnce() -> T, T>(place: *mut c_void) -> usize {
    // SAFETY: promised by the caller.
    let place = unsafe { &mut *place.cast::<Place<F, T>>() };
    place.result = place.body.take().map(|body| body());
    0
}

/// Runs `body`, and says whether it panicked. For what goes on after a panic: the boundary itself needs
/// nobody to call this.
pub fn attempt<F: FnOnce() -> T, T>(body: F) -> Result<T, Panicked> {
    let mut place = Place { body: Some(body), result: None };
    // SAFETY: `run` gets a place with a body of its type, which nobody else uses meanwhile.
    unsafe { unwinding::call((&raw mut place).cast(), run::<F, T>) };
    place.result.ok_or(Panicked)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod unwinding {
    use std::arch::global_asm;
    use std::ffi::{c_int, c_void};

    // The interface of unwinders (the Itanium C++ ABI, level 1).
    const SEARCH_PHASE: c_int = 1;
    const HANDLER_FRAME: c_int = 4;
    const FORCE_UNWIND: c_int = 8;
    const HANDLER_FOUND: c_int = 6;
    const INSTALL_CONTEXT: c_int = 7;
    const CONTINUE_UNWIND: c_int = 8;
    /// The class of exceptions that are Rust's panics, of whichever copy of the standard library.
    const RUST: u64 = u64::from_ne_bytes(*b"MOZ\0RUST");
    /// The number of the register that brings the exception to where it is handled: rax, x0.
    const EXCEPTION_REGISTER: c_int = 0;

    unsafe extern "C" {
        fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
        fn _Unwind_SetIP(context: *mut c_void, address: usize);
    }

    type Body = unsafe extern "C-unwind" fn(*mut c_void) -> usize;

    unsafe extern "C-unwind" {
        fn _Unwind_RaiseException(exception: *mut c_void) -> c_int;
        // Defined below.
        /// Calls `body(place)`; if that panics, `stopped(panic)`.
        fn bivouac_call(place: *mut c_void, body: Body, stopped: Body) -> usize;
        /// Where `bivouac_guarded` goes on with a panic; no function.
        fn bivouac_stopped();
    }

    /// Calls `body` with a place; a panic ends here.
    ///
    /// # Safety
    /// `body` may be called with `place`.
    pub(super) unsafe fn call(place: *mut c_void, body: Body) {
        unsafe extern "C-unwind" fn stopped(panic: *mut c_void) -> usize {
            // SAFETY: it was stopped just now, and nobody else has it.
            unsafe { forget(panic) };
            1
        }
        // SAFETY: promised by the caller.
        unsafe { bivouac_call(place, body, stopped) };
    }

    /// Asked by the unwinder what to do about the frame of `bivouac_guarded`.
    unsafe extern "C" fn personality(
        _version: c_int,
        actions: c_int,
        class: u64,
        exception: *mut c_void,
        context: *mut c_void,
    ) -> c_int {
        // A panic of another copy of the standard library (a program in Rust) does not make this one panic.
        if actions & FORCE_UNWIND != 0 || class != RUST || !std::thread::panicking() {
            return CONTINUE_UNWIND;
        }
        if actions & SEARCH_PHASE != 0 {
            return HANDLER_FOUND;
        }
        if actions & HANDLER_FRAME == 0 {
            return CONTINUE_UNWIND;
        }
        // SAFETY: the unwinder's context for this frame, which goes on where it is told.
        unsafe {
            _Unwind_SetGR(context, EXCEPTION_REGISTER, exception as usize);
            _Unwind_SetIP(context, bivouac_stopped as *const () as usize);
        }
        INSTALL_CONTEXT
    }

    /// Ends a panic that was stopped.
    ///
    /// # Safety
    /// It was stopped by this thread just now.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn forget(exception: *mut c_void) {
        let _ = std::panic::catch_unwind(|| {
            // SAFETY: an exception of this standard library's; here it finds who drops it, and counts it as
            // ended.
            unsafe { _Unwind_RaiseException(exception) }
        });
    }

    // Both: `bivouac_guarded` is jumped to with a C call's arguments in their registers, the body's address
    // in a register of its own, and in another one the address of what is jumped to if the body panics, with
    // the panic as its argument. What the body returns is returned. (A face has seven arguments at most:
    // `syscall` has.)
    #[cfg(target_arch = "x86_64")]
    global_asm!(
        ".text",
        ".p2align 4",
        ".hidden bivouac_guarded",
        ".globl bivouac_guarded",
        ".hidden bivouac_stopped",
        ".globl bivouac_stopped",
        ".type bivouac_guarded, @function",
        "bivouac_guarded:",
        ".cfi_startproc",
        // 0x1b: relative to here, four bytes.
        ".cfi_personality 0x1b, {personality}",
        "push r11",
        ".cfi_adjust_cfa_offset 8",
        // Aligns the stack, which then has the seventh argument, if there is one, where the body looks for
        // it.
        "push r11",
        ".cfi_adjust_cfa_offset 8",
        "push [rsp + 24]",
        ".cfi_adjust_cfa_offset 8",
        "call r10",
        "add rsp, 24",
        ".cfi_remember_state",
        ".cfi_adjust_cfa_offset -24",
        "ret",
        "bivouac_stopped:",
        ".cfi_restore_state",
        "add rsp, 16",
        ".cfi_adjust_cfa_offset -16",
        "pop r11",
        ".cfi_adjust_cfa_offset -8",
        "mov rdi, rax",
        "jmp r11",
        ".cfi_endproc",
        ".size bivouac_guarded, . - bivouac_guarded",
        ".p2align 4",
        ".hidden bivouac_call",
        ".globl bivouac_call",
        ".type bivouac_call, @function",
        "bivouac_call:",
        "mov r10, rsi",
        "mov r11, rdx",
        "jmp bivouac_guarded",
        ".size bivouac_call, . - bivouac_call",
        personality = sym personality,
    );

    #[cfg(target_arch = "aarch64")]
    global_asm!(
        ".text",
        ".p2align 4",
        ".hidden bivouac_guarded",
        ".globl bivouac_guarded",
        ".hidden bivouac_stopped",
        ".globl bivouac_stopped",
        ".type bivouac_guarded, @function",
        "bivouac_guarded:",
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset 29, -32",
        ".cfi_offset 30, -24",
        "str x10, [sp, #16]",
        "mov x29, sp",
        "blr x9",
        "ldp x29, x30, [sp], #32",
        ".cfi_remember_state",
        ".cfi_restore 29",
        ".cfi_restore 30",
        ".cfi_def_cfa_offset 0",
        "ret",
        "bivouac_stopped:",
        ".cfi_restore_state",
        "ldr x10, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        ".cfi_restore 29",
        ".cfi_restore 30",
        ".cfi_def_cfa_offset 0",
        "br x10",
        ".cfi_endproc",
        ".size bivouac_guarded, . - bivouac_guarded",
        ".p2align 4",
        ".hidden bivouac_call",
        ".globl bivouac_call",
        ".type bivouac_call, @function",
        "bivouac_call:",
        "mov x9, x1",
        "mov x10, x2",
        "b bivouac_guarded",
        ".size bivouac_call, . - bivouac_call",
        personality = sym personality,
    );
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod unwinding {
    use std::ffi::c_void;

    /// # Safety
    /// `body` may be called with `place`.
    pub(super) unsafe fn call(place: *mut c_void, body: unsafe extern "C-unwind" fn(*mut c_void) -> usize) {
        // SAFETY: promised by the caller.
        unsafe { body(place) };
    }

    /// # Safety
    /// None is ever stopped.
    pub(super) unsafe fn forget(_exception: *mut c_void) {}
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;
    use crate::raw::errno;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    faces! {
        fn face_int(panics: bool) -> c_int { assert!(!panics); 7 }
        fn face_wide(panics: bool) -> u32 { assert!(!panics); 7 }
        fn face_size(panics: bool) -> isize { if panics { panic!("{panics}") } else { 7 } }
        fn face_pointer(panics: bool) -> *mut c_void { assert!(!panics); 7 as *mut c_void }
        fn face_nothing(panics: bool) { assert!(!panics) }
        fn face_seven(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize) -> isize {
            assert!(g > 0);
            (a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g) as isize
        }
        fn face_number(panics: bool) -> c_int, else (libc::EIO) { assert!(!panics); 0 }
    }

    #[test]
    fn a_panic_in_a_face_is_eio() {
        // SAFETY: they ask for nothing.
        unsafe {
            set_errno(Errno(0));
            assert_eq!((face_int(false), face_wide(false), face_size(false)), (7, 7, 7));
            assert_eq!((face_pointer(false) as usize, face_number(false)), (7, 0));
            face_nothing(false);
            assert_eq!(errno(), Errno(0));
            assert_eq!(face_seven(1, 10, 100, 1000, 10_000, 100_000, 1_000_000), 7_654_321);
            assert_eq!(face_seven(1, 10, 100, 1000, 10_000, 100_000, 0), -1);
            assert_eq!(errno(), Errno::IO);
            set_errno(Errno(0));
            assert_eq!(face_int(true), -1);
            assert_eq!(errno(), Errno::IO);
            assert_eq!((face_wide(true), face_size(true), face_number(true)), (u32::MAX, -1, libc::EIO));
            assert!(face_pointer(true).is_null());
            set_errno(Errno(0));
            face_nothing(true);
            assert_eq!(errno(), Errno::IO);
        }
        assert!(!std::thread::panicking(), "it has ended");
    }

    #[test]
    fn what_a_body_holds_is_dropped_once_whichever_way_it_ends() {
        struct Counted<'a>(&'a AtomicUsize);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        for panics in [false, true] {
            let count = AtomicUsize::new(0);
            let (given, text) = (Counted(&count), String::from("a result"));
            let done = attempt(|| {
                let _own = Counted(&count);
                let _given = given;
                assert!(!panics);
                text
            });
            assert_eq!(done, if panics { Err(Panicked) } else { Ok("a result".to_owned()) });
            assert_eq!(count.load(Ordering::Relaxed), 2);
        }
    }

    #[test]
    fn panics_within_panics_and_again_and_again_are_stopped() {
        for _ in 0..1000 {
            let outer: Result<(), _> = attempt(|| {
                assert_eq!(attempt(|| panic!("inner")), Err::<(), _>(Panicked));
                panic!("outer");
            });
            assert_eq!(outer, Err(Panicked));
        }
        assert!(!std::thread::panicking());
    }

    #[test]
    fn a_cancelled_thread_is_unwound_through_a_face() {
        static BEGUN: AtomicBool = AtomicBool::new(false);
        static UNWOUND: AtomicBool = AtomicBool::new(false);
        struct Last;
        impl Drop for Last {
            fn drop(&mut self) {
                UNWOUND.store(true, Ordering::Release);
            }
        }
        faces! {
            fn face_blocks() -> c_int {
                unsafe extern "C-unwind" {
                    // As the kernel of libc's functions that block: a cancellation point.
                    fn pause() -> c_int;
                }
                let _last = Last;
                BEGUN.store(true, Ordering::Release);
                pause()
            }
        }
        extern "C-unwind" fn thread(_: *mut c_void) -> *mut c_void {
            // SAFETY: it asks for nothing.
            unsafe { face_blocks() };
            std::ptr::null_mut()
        }
        unsafe extern "C" {
            fn pthread_create(
                id: *mut libc::pthread_t,
                attributes: *const c_void,
                start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                argument: *mut c_void,
            ) -> c_int;
            fn pthread_cancel(id: libc::pthread_t) -> c_int;
        }
        let (mut id, mut value) = (0, std::ptr::null_mut());
        // SAFETY: the thread is joined before anything that it uses is gone.
        unsafe {
            assert_eq!(pthread_create(&mut id, std::ptr::null(), thread, std::ptr::null_mut()), 0);
            while !BEGUN.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert_eq!(pthread_cancel(id), 0);
            assert_eq!(libc::pthread_join(id, &mut value), 0);
        }
        // PTHREAD_CANCELED
        assert_eq!(value as isize, -1);
        assert!(UNWOUND.load(Ordering::Acquire));
    }
}
