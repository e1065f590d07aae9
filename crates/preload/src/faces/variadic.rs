//! Faces of C functions with `...`.
//!
//! Rust can't define such a function, so each is a few instructions that lay out the arguments as a `va_list`
//! (the platform's calling convention: registers saved into an area, the rest on the stack) and hand it to a
//! Rust function that takes the fixed arguments and a pointer to the list. That pointer is what C passes for
//! a `va_list` argument, so it can be given on to the `v..` functions of the C library, and [`next_pointer`]
//! reads from it.
//!
//! Only for x86_64 so far; elsewhere these faces are left out, and programs get the C library's.

use std::ffi::c_void;

/// A `va_list` of the System V calling convention.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VaList {
    general: u32,
    floating: u32,
    overflow: *mut u8,
    saved: *mut u8,
}

/// Bytes of the register area that hold general registers.
const GENERAL: u32 = 48;

/// Takes the next argument, a pointer, off the list.
///
/// # Safety
/// `list` is a live list, and its next argument is a pointer.
pub unsafe fn next_pointer(list: *mut VaList) -> *mut c_void {
    // SAFETY: the calling convention: pointers come from the register area until that is used up, then from
    // the stack, eight bytes each; the list is live (caller).
    unsafe {
        let list = &mut *list;
        let at = if list.general < GENERAL {
            let at = list.saved.add(list.general as usize);
            list.general += 8;
            at
        } else {
            let at = list.overflow;
            list.overflow = at.add(8);
            at
        };
        at.cast::<*mut c_void>().read()
    }
}

/// Defines C functions with a variable number of arguments: `name(fixed arguments..) => target`, where the
/// number is how many fixed arguments there are (1 to 4, all in general registers). `target` is an `extern
/// "C"` function that takes them and a `*mut VaList`.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    ($($(#[$doc:meta])* $name:ident, $fixed:tt => $target:path;)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As for the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    // 216 bytes: list at 0, register area at 32. The stack is then aligned to 16 bytes.
                    "sub rsp, 216",
                    "mov [rsp + 32], rdi",
                    "mov [rsp + 40], rsi",
                    "mov [rsp + 48], rdx",
                    "mov [rsp + 56], rcx",
                    "mov [rsp + 64], r8",
                    "mov [rsp + 72], r9",
                    "test al, al",
                    "je 2f",
                    "movaps [rsp + 80], xmm0",
                    "movaps [rsp + 96], xmm1",
                    "movaps [rsp + 112], xmm2",
                    "movaps [rsp + 128], xmm3",
                    "movaps [rsp + 144], xmm4",
                    "movaps [rsp + 160], xmm5",
                    "movaps [rsp + 176], xmm6",
                    "movaps [rsp + 192], xmm7",
                    "2:",
                    concat!("mov dword ptr [rsp], 8 * ", $fixed),
                    "mov dword ptr [rsp + 4], 48",
                    "lea rax, [rsp + 224]",
                    "mov [rsp + 8], rax",
                    "lea rax, [rsp + 32]",
                    "mov [rsp + 16], rax",
                    concat!("lea ", variadic!(@register $fixed), ", [rsp]"),
                    "call {target}",
                    "add rsp, 216",
                    "ret",
                    target = sym $target,
                )
            }
        )+
    };
    (@register 1) => { "rsi" };
    (@register 2) => { "rdx" };
    (@register 3) => { "rcx" };
    (@register 4) => { "r8" };
}

#[cfg(not(target_arch = "x86_64"))]
macro_rules! variadic {
    ($($tokens:tt)*) => {};
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    unsafe extern "C" fn collect(first: usize, out: *mut usize, list: *mut VaList) -> usize {
        let mut count = 0;
        loop {
            // SAFETY: the test ends its arguments with a null pointer, and `out` has room for all.
            unsafe {
                let next = next_pointer(list) as usize;
                if next == 0 {
                    return first + count;
                }
                *out.add(count) = next;
                count += 1;
            }
        }
    }

    variadic! {
        /// Collects its arguments.
        bivouac_test_collect, 2 => collect;
    }

    #[test]
    fn arguments_in_registers_and_on_the_stack_arrive_in_order() {
        let mut out = [0usize; 10];
        // SAFETY: the function is variadic by construction and gets what `collect` expects.
        let result = unsafe {
            let call: unsafe extern "C" fn(usize, *mut usize, ...) -> usize =
                std::mem::transmute(bivouac_test_collect as *const ());
            call(
                100,
                out.as_mut_ptr(),
                1usize,
                2usize,
                3usize,
                4usize,
                5usize,
                6usize,
                7usize,
                8usize,
                9usize,
                0usize,
            )
        };
        assert_eq!(result, 109);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
    }
}
