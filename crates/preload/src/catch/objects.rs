//! The loaded libraries whose system calls are caught.

use super::functions::{Functions, Image};
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

/// Beginnings of the names of libc's family: before glibc 2.34 threads and some more were libraries of their
/// own.
const NAMES: [&[u8]; 5] =
    [b"libc.so.6", b"libc-2.", b"ld-linux-x86-64.so", b"libpthread.so.0", b"librt.so.1"];

/// A loaded library.
pub struct Object {
    /// What of it can be read.
    pub image: Image<'static>,
    /// Its code.
    pub code: Range<usize>,
    /// Where its table of functions is.
    table: usize,
}

impl Object {
    /// Its functions; none if it has no table of them that is understood.
    pub fn functions(&self) -> Functions<'_> {
        Functions::new(&self.image, self.table)
    }
}

/// Finds them. (The loader's list is in memory: no file is read.)
pub fn of_libc() -> Vec<Object> {
    let mut found: Vec<Object> = Vec::new();
    // SAFETY: the callback gets what it is told here, and is done when the function is.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast::<c_void>()) };
    found
}

callbacks! {
    fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int, else (-1) {
        // SAFETY: the loader passes a description that is valid for the call, and `of_libc` its list.
        // Segments stay loaded: libc is never unloaded, and what is loadable and readable is mapped to its
        // full length in the file.
        unsafe {
            let (info, found) = (&*info, &mut *data.cast::<Vec<Object>>());
            if info.dlpi_name.is_null() || !is_of_libc(CStr::from_ptr(info.dlpi_name).to_bytes()) {
                return 0;
            }
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
            let base = info.dlpi_addr as usize;
            let (mut code, mut table, mut image) = (None, None, Image::default());
            for header in headers {
                let start = base + header.p_vaddr as usize;
                match header.p_type {
                    libc::PT_LOAD if header.p_flags & libc::PF_R != 0 && header.p_flags & libc::PF_W == 0 => {
                        let len = header.p_filesz as usize;
                        image.add(start, std::slice::from_raw_parts(start as *const u8, len));
                        if header.p_flags & libc::PF_X != 0 {
                            code = Some(start..start + len);
                        }
                    }
                    libc::PT_GNU_EH_FRAME => table = Some(start),
                    _ => {}
                }
            }
            if let (Some(code), Some(table)) = (code, table) {
                found.push(Object { image, code, table });
            }
            0
        }
    }
}

fn is_of_libc(path: &[u8]) -> bool {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    NAMES.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_and_the_loader_are_found_and_have_functions() {
        let objects = of_libc();
        assert!(objects.len() >= 2);
        for object in &objects {
            assert!(object.functions().len() > 20);
        }
        let getpid = libc::getpid as *const () as usize;
        assert!(objects.iter().any(|object| object.code.contains(&getpid)));
    }

    #[test]
    fn other_libraries_are_left_alone() {
        for other in [&b"/usr/lib/libcrypt.so.1"[..], b"", b"/lib/libc.so.6/libm.so.6", b"linux-vdso.so.1"] {
            assert!(!is_of_libc(other));
        }
    }
}
