//! The C++ library's copies of `stdin`, `stdout` and `stderr`.
//!
//! `std::cout` and its relatives write, unless a program asks otherwise, through a small buffer object that holds
//! a `FILE` pointer, copied when the library starts. When a standard stream is exchanged later (`freopen`, `dup2`), the
//! copy has to follow. The objects' layout is part of libstdc++'s ABI and has not changed since its version 3.4 of 2004;
//! each step is checked all the same: an object is touched only if it is of the expected class, known by its virtual
//! table, and holds the very pointer that is to be replaced.

use super::stream::FILE;
use std::ffi::{CStr, c_void};

/// Bytes from the beginning of a stream object to its `ios` part: `istream` has a count before it, `ostream` has not.
const OSTREAM_IOS: usize = 8;
const ISTREAM_IOS: usize = 16;
/// Bytes from the `ios` part to the pointer to its buffer object.
const IOS_BUFFER: usize = 232;
/// Bytes from a buffer object's beginning to its `FILE` pointer: virtual table, six pointers, a locale.
const BUFFER_FILE: usize = 64;
/// Bytes from a virtual table's symbol to what objects point at.
const TABLE_START: usize = 16;

const NARROW: &CStr = c"_ZTVN9__gnu_cxx18stdio_sync_filebufIcSt11char_traitsIcEEE";
const WIDE: &CStr = c"_ZTVN9__gnu_cxx18stdio_sync_filebufIwSt11char_traitsIwEEE";

/// The standard stream objects, where their `ios` part is, and the class of their buffers.
const OBJECTS: [(&CStr, usize, &CStr); 8] = [
    (c"_ZSt4cout", OSTREAM_IOS, NARROW),
    (c"_ZSt3cin", ISTREAM_IOS, NARROW),
    (c"_ZSt4cerr", OSTREAM_IOS, NARROW),
    (c"_ZSt4clog", OSTREAM_IOS, NARROW),
    (c"_ZSt5wcout", OSTREAM_IOS, WIDE),
    (c"_ZSt4wcin", ISTREAM_IOS, WIDE),
    (c"_ZSt5wcerr", OSTREAM_IOS, WIDE),
    (c"_ZSt5wclog", OSTREAM_IOS, WIDE),
];

fn symbol(name: &CStr) -> *mut u8 {
    // SAFETY: looks up a name among the loaded libraries.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).cast() }
}

/// Makes the C++ library's streams that use `old` use `new`. Does nothing where that library is not loaded.
///
/// # Safety
/// No other thread uses the stream objects' buffers to be changed at this moment (as for `freopen`).
pub unsafe fn follow(old: *mut FILE, new: *mut FILE) {
    let (narrow, wide) = (symbol(NARROW), symbol(WIDE));
    if narrow.is_null() || wide.is_null() {
        return;
    }
    for (name, ios, class) in OBJECTS {
        let object = symbol(name);
        if object.is_null() {
            continue;
        }
        let table = if class == NARROW { narrow } else { wide };
        // SAFETY: the objects are as large as the ABI says (whole stream objects, buffer pointer inside). Before the
        // library has started they are zero, and the pointer null. A buffer object has at least its virtual table;
        // one of the expected class has the `FILE` pointer.
        unsafe {
            let buffer = object.add(ios + IOS_BUFFER).cast::<*mut u8>().read();
            if buffer.is_null() || buffer.cast::<*mut u8>().read() != table.add(TABLE_START) {
                continue;
            }
            let file = buffer.add(BUFFER_FILE).cast::<*mut c_void>();
            if *file == old.cast() {
                *file = new.cast();
            }
        }
    }
}
