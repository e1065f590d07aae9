//! Loading libraries: `dlopen` of a file in the mount.
//!
//! The loader maps files by system calls of its own, so a library of the mount is copied into memory that has
//! a descriptor, as programs are (`exec::program`), and loaded from there. `dladdr` gives the path in the
//! mount.
//!
//! The loader looks at who calls `dlopen`: the caller's own search path counts. So the faces are a few
//! instructions that may exchange the name and then *jump* to the C library's function, which finds the
//! program's return address.
//!
//! One copy is kept for each state of a file, since loading it again must give the same library. The loader
//! knows libraries by name too, so no name is ever used twice, even when the program has closed the copy's
//! descriptor.
//!
//! What a library needs itself (DT_NEEDED) the loader looks for by system calls too. What of that lies in the
//! mount, by the library's own search path or LD_LIBRARY_PATH, is loaded here before, as the loader takes a
//! library that is there already under the name that is needed ([`needed`]).
//!
//! # Limits
//! A program finds no library of the mount when it starts, because then the loader works before this library
//! runs. Only for x86_64.

pub mod needed;

use super::exec::program;
use super::real::{handles, restore_errno, saved_errno, text};
use crate::boundary;
use crate::vfs::{self, Errno};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

real_variable!(DLOPEN, "dlopen");
real_variable!(DLMOPEN, "dlmopen");

/// A copy of a library.
struct Copy {
    /// What it was copied from: inode, modification time, size.
    origin: (u64, i64, i64, i64),
    /// Its descriptor and, to see whether the program has closed that, the memory's inode.
    memory: c_int,
    memory_inode: u64,
    /// The name that the loader gets.
    name: CString,
    /// The path in the mount.
    path: CString,
}

/// All copies, in the order in which they were made; never removed, as the loader may hold on to their names.
/// The lock is held while one is copied, and not while the loader runs.
static COPIES: Mutex<Vec<&'static Copy>> = Mutex::new(Vec::new());

/// A path of descriptor `fd` that was not used before: it contains `number`, with `./` and `/` for its bits.
fn unique_name(fd: c_int, number: usize) -> String {
    let mut name = String::from("/proc/self/fd/");
    let mut rest = number;
    while rest > 0 {
        name.push_str(if rest & 1 == 1 { "./" } else { "/" });
        rest >>= 1;
    }
    name.push_str(&fd.to_string());
    name
}

/// The copy of a library in the mount.
fn copy_of(path: &CStr) -> Result<&'static Copy, Errno> {
    let fd = vfs::openat(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    let found = copy_of_open(fd, path);
    let _ = vfs::close(fd);
    found
}

fn copy_of_open(fd: c_int, path: &CStr) -> Result<&'static Copy, Errno> {
    if !vfs::is_ours(fd) {
        return Err(Errno::NOENT);
    }
    let stat = vfs::fstat(fd)?;
    let origin = (stat.st_ino, stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
    let mut copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    let open = |copy: &&Copy| vfs::fstat(copy.memory).is_ok_and(|stat| stat.st_ino == copy.memory_inode);
    if let Some(copy) = copies.iter().copied().find(|copy| copy.origin == origin && open(copy)) {
        return Ok(copy);
    }
    let memory = program::copy(fd, path)?;
    let name = unique_name(memory, copies.len() + 1);
    let copy = Box::leak(Box::new(Copy {
        origin,
        memory,
        memory_inode: vfs::fstat(memory)?.st_ino,
        name: CString::new(name).map_err(|_| Errno::INVAL)?,
        path: path.to_owned(),
    }));
    copies.push(copy);
    Ok(copy)
}

/// The path of a library without a slash in its name, if the first directory of LD_LIBRARY_PATH that has it
/// is in the mount.
fn searched(name: &CStr) -> Option<CString> {
    // SAFETY: getenv returns null or a string of the environment, copied at once.
    let path = unsafe {
        let value = libc::getenv(c"LD_LIBRARY_PATH".as_ptr());
        if value.is_null() {
            return None;
        }
        CStr::from_ptr(value).to_bytes().to_vec()
    };
    let candidates =
        path.split(|&byte| byte == b':' || byte == b';').filter(|directory| !directory.is_empty());
    for directory in candidates {
        let candidate = CString::new([directory, b"/", name.to_bytes()].concat()).ok()?;
        if vfs::faccessat(libc::AT_FDCWD, &candidate, libc::R_OK).is_ok() {
            return handles(libc::AT_FDCWD, &candidate).then_some(candidate);
        }
    }
    None
}

/// How many libraries one library may need in all.
const MAX_NEEDED: usize = 1000;

/// Loads what a library needs and has in the mount. The handles are kept: what is needed stays.
fn load_needed(copy: &Copy, done: &mut Vec<CString>) {
    let needed = needed::of(copy.memory);
    for name in needed.names.iter().filter(|name| !name.contains(&b'/')) {
        let own = needed.directories.iter().filter_map(|directory| {
            let directory = needed::expand(directory, copy.path.to_bytes());
            CString::new([&directory[..], b"/", name].concat()).ok()
        });
        let place = own
            .filter(|path| handles(libc::AT_FDCWD, path))
            .find(|path| vfs::faccessat(libc::AT_FDCWD, path, libc::R_OK).is_ok())
            .or_else(|| searched(&CString::new(&name[..]).ok()?));
        let Some(path) = place else { continue };
        if done.contains(&path) || done.len() >= MAX_NEEDED {
            continue;
        }
        done.push(path.clone());
        if let Ok(copy) = copy_of(&path) {
            load_needed(copy, done);
            // SAFETY: the C library's function, with a name that lives for ever.
            unsafe { real_dlopen(copy.name.as_ptr(), libc::RTLD_LAZY) };
        }
    }
}

/// The name to give to the loader instead of the program's. After any failure it is the program's own: the
/// loader will then return an error.
fn exchanged(name: *const c_char, needs: bool) -> *const c_char {
    if !vfs::active() {
        return name;
    }
    // SAFETY: the program's string, or null.
    let Ok(path) = (unsafe { text(name) }) else {
        return name;
    };
    let errno = saved_errno();
    let found = if !path.to_bytes().contains(&b'/') {
        if path.is_empty() { None } else { searched(path).and_then(|path| copy_of(&path).ok()) }
    } else if handles(libc::AT_FDCWD, path) {
        copy_of(path).ok()
    } else {
        None
    };
    if let Some(copy) = found.filter(|_| needs) {
        load_needed(copy, &mut Vec::new());
    }
    restore_errno(errno);
    found.map_or(name, |copy| copy.name.as_ptr())
}

callbacks! {
    /// The name to give to the loader for the name that the program gave. On any failure that is the same:
    /// the loader will say what is wrong with it.
    fn exchange(name: *const c_char, needs: bool) -> *const c_char {
        boundary::attempt(|| exchanged(name, needs)).unwrap_or(name)
    }

    fn loader_open() -> *mut c_void {
        DLOPEN.address()
    }

    fn loader_open_in() -> *mut c_void {
        DLMOPEN.address()
    }
}

/// Loads a library.
///
/// # Safety
/// As for the C function.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(_name: *const c_char, _flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rsi",
        "mov esi, 1",
        "call {exchange}",
        "push rax",
        "sub rsp, 8",
        "call {function}",
        "add rsp, 8",
        "pop rdi",
        "pop rsi",
        // No such function: null, as if nothing was found.
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        exchange = sym exchange,
        function = sym loader_open,
    )
}

/// Loads a library into a namespace.
///
/// # Safety
/// As for the C function.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlmopen(
    _namespace: libc::c_long,
    _name: *const c_char,
    _flags: c_int,
) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rdx",
        "sub rsp, 8",
        "mov rdi, rsi",
        // What is needed would have to be loaded into that namespace.
        "xor esi, esi",
        "call {exchange}",
        "mov [rsp], rax",
        "call {function}",
        "pop rsi",
        "pop rdx",
        "pop rdi",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        exchange = sym exchange,
        function = sym loader_open_in,
    )
}

real! {
    real_dlopen = dlopen(name: *const c_char, flags: c_int) -> *mut c_void, else std::ptr::null_mut();
    real_dladdr = dladdr(address: *const c_void, info: *mut libc::Dl_info) -> c_int, else 0;
}

faces! {
    /// What library an address is in.
    fn dladdr(address: *const c_void, info: *mut libc::Dl_info) -> c_int, else (0) {
        let code = real_dladdr(address, info);
        if code != 0 && vfs::active() && let Ok(name) = text((*info).dli_fname) {
            let copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(copy) = copies.iter().find(|copy| copy.name.as_c_str() == name) {
                (*info).dli_fname = copy.path.as_ptr();
            }
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_even_for_the_same_descriptor() {
        let names: std::collections::HashSet<String> =
            (1..500).map(|number| unique_name(7, number)).collect();
        assert_eq!(names.len(), 499);
        assert!(names.iter().all(|name| name.ends_with("/7")));
    }
}
