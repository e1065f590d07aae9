//! System calls, errno, and the one message that the library may print.

use bivouac_proto::Errno;
use std::ffi::{c_int, c_long};

/// Makes a system call.
///
/// # Safety
/// As for the system call: pointers must be valid for what the kernel does with them.
#[inline]
pub unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: promised by the caller.
    let result = unsafe { bivouac_node::raw::syscall6(number as usize, args) };
    if (-4095..0).contains(&result) { Err(Errno(-result as u16)) } else { Ok(result as usize) }
}

/// Fills up to six arguments.
#[inline]
pub fn padded<const N: usize>(args: [usize; N]) -> [usize; 6] {
    let mut all = [0; 6];
    for (to, from) in all.iter_mut().zip(args) {
        *to = from;
    }
    all
}

/// Makes `errno` say why a call failed.
#[inline]
pub fn set_errno(errno: Errno) {
    // SAFETY: libc's errno of this thread, always valid.
    unsafe { *libc::__errno_location() = c_int::from(errno.0) }
}

/// The value of `errno`.
pub fn errno() -> Errno {
    // SAFETY: as above.
    Errno(unsafe { *libc::__errno_location() } as u16)
}

/// C's way to return: -1 and errno, or the value.
pub trait Returned {
    /// What C calls -1.
    const FAILED: Self;
}

impl Returned for c_int {
    const FAILED: c_int = -1;
}

impl Returned for i64 {
    const FAILED: i64 = -1;
}

impl Returned for isize {
    const FAILED: isize = -1;
}

/// Hands a result to C, converting it to what the function returns.
#[inline]
pub fn result<T: Returned + FromValue<V>, V>(result: Result<V, Errno>) -> T {
    match result {
        Ok(value) => T::from_value(value),
        Err(errno) => {
            set_errno(errno);
            T::FAILED
        }
    }
}

/// Conversions from Rust results to what C functions return.
pub trait FromValue<V> {
    /// Converts. Values are known to fit: they are descriptors, counts and offsets.
    fn from_value(value: V) -> Self;
}

impl FromValue<()> for c_int {
    #[inline]
    fn from_value((): ()) -> c_int {
        0
    }
}

macro_rules! from_values {
    ($($from:ty => $to:ty),*) => {$(
        impl FromValue<$from> for $to {
            #[inline]
            fn from_value(value: $from) -> $to {
                value as $to
            }
        }
    )*};
}

from_values!(i32 => c_int, isize => isize, usize => c_int, i64 => i64, u64 => i64, usize => i64, usize => isize);

/// Prints a line on what the kernel has as descriptor 2, even if the program's stderr is in the mount.
pub fn complain(text: &str) {
    let line = format!("bivouac: {text}\n");
    let _ = sys!(SYS_write, 2, line.as_ptr(), line.len());
}
