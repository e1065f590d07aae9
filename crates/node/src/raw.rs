//! System calls that do not go through libc.
//!
//! The preload library replaces libc's symbols, `fcntl` and `syscall` among them, so what runs beneath it
//! must not call them. rustix makes its calls itself; this is for what rustix does not offer.

use rustix::io::Errno;

/// Makes a system call. The result is what the kernel returned: negative error numbers from -4095 to -1.
///
/// # Safety
/// As for the system call: pointers among the arguments must be valid for what the kernel does with them, and
/// the call must not break what Rust assumes (closing a descriptor that something owns, unmapping memory in
/// use).
#[inline]
pub unsafe fn syscall6(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's calling convention: rcx and r11 are clobbered, memory may be read and written by
    // the call (so no `nomem`), the red zone is left alone by the `syscall` instruction. The rest is the
    // caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's calling convention: only x0 changes. The rest is the caller's promise.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("Bivouac knows the system call conventions of x86_64 and aarch64 only");
    result
}

/// Turns what the kernel returned into a result.
#[inline]
pub fn checked(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) {
        Err(Errno::from_raw_os_error(-result as i32))
    } else {
        Ok(result as usize)
    }
}
