//! Mapping files into memory. `munmap`, `msync`, `mremap` need no faces: what was mapped is the kernel's.

use crate::raw::set_errno;
use crate::vfs::map::{Wanted, mmap as map};
use std::ffi::{c_int, c_void};

fn mapped(wanted: Wanted, fd: c_int, offset: i64) -> *mut c_void {
    match map(wanted, fd, offset) {
        Ok(address) => address as *mut c_void,
        Err(errno) => {
            set_errno(errno);
            libc::MAP_FAILED
        }
    }
}

faces! {
    fn mmap(address: *mut c_void, len: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void, else (libc::MAP_FAILED) {
        mapped(Wanted { address: address as usize, len, protection, flags }, fd, offset)
    }
    fn mmap64(address: *mut c_void, len: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void, else (libc::MAP_FAILED) {
        mapped(Wanted { address: address as usize, len, protection, flags }, fd, offset)
    }
}
