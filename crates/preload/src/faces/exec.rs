//! Starting programs: the `exec` family, `posix_spawn`.
//!
//! What a process hands on needs nothing from us: descriptors of ours are kernel descriptors, and the working
//! directory is the kernel's as well. What the kernel can't do is read a program from the mount, so such a
//! program is copied into memory that has a descriptor, and that is executed ([`program`]). Scripts are read
//! here, as their interpreter gets the script's path and opens it through this library.
//!
//! - [`program`]: from a path to what the kernel is to execute.
//! - [`script`]: the `#!` line, read as the kernel does.
//! - [`search`]: the directories of `PATH`.
//! - [`spawn`]: `posix_spawn` and its file actions.
//! - [`unreached`]: warning of programs that this library will not be in.
//!
//! `system` and `popen` run `/bin/sh` and are the C library's.
//!
//! These functions are called in `vfork` children, which borrow their parent's memory: what is allocated here
//! is freed here, or lent ([`lend`]) where a call may not return, and no lock is held across such a call.

pub mod program;
pub mod script;
pub mod search;
pub mod spawn;
mod unreached;

use super::real::{handles, text};
use super::variadic::{VaList, next_pointer};
use crate::raw::set_errno;
use crate::vfs::borrow::lend;
use crate::vfs::{self, Errno};
use program::Program;
use std::ffi::{CStr, c_char, c_int};

pub use program::{PROGRAM_LINK, program_of_link};

/// A list of strings of C, ended by null.
type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// Executes a program. Returns only if that fails, with the error.
///
/// # Safety
/// The lists are valid lists of C strings, or null.
unsafe fn run(program: Program, argv: Strings, envp: Strings) -> Errno {
    lend(program, |program| {
        // SAFETY: the caller's promise.
        let arguments = unsafe { program.arguments(argv) };
        lend(arguments, |arguments| {
            let argv = if arguments.is_empty() { argv } else { arguments.as_ptr() };
            // SAFETY: the caller's promise.
            unsafe { kernel(program.path(), argv, envp) }
        })
    })
}

/// Executes something that the kernel can execute. Returns only if that fails, with the error.
///
/// # Safety
/// The list of the environment is valid, or null; the rest is the kernel's to check.
unsafe fn kernel(path: &CStr, argv: Strings, envp: Strings) -> Errno {
    unreached::warn(libc::AT_FDCWD, path);
    let execute = |envp: Strings| sys!(SYS_execve, path.as_ptr(), argv, envp);
    // SAFETY: the caller's promise.
    unsafe { with_locks(envp, execute) }
}

/// Executes with an environment that tells the new program which process locks to release, if there are any.
///
/// # Safety
/// The list is valid, or null.
unsafe fn with_locks(envp: Strings, execute: impl Fn(Strings) -> Result<usize, Errno>) -> Errno {
    vfs::state::tell_closes();
    let failed = match vfs::carried::variable() {
        None => execute(envp),
        Some(variable) => {
            // SAFETY: the caller's promise; the new list lives through the call.
            let list = unsafe { vfs::carried::with(envp, &variable) };
            execute(list.as_ptr())
        }
    };
    failed.err().unwrap_or(Errno::IO)
}

/// `execve`. Returns only if that fails, with the error.
///
/// # Safety
/// As for [`run`].
unsafe fn execute(path: &CStr, argv: Strings, envp: Strings) -> Errno {
    if !handles(libc::AT_FDCWD, path) {
        // SAFETY: the caller's promise.
        let errno = unsafe { kernel(path, argv, envp) };
        // A link into the mount, or a script whose interpreter is there.
        if !vfs::active() || !matches!(errno, Errno::NOENT | Errno::NOTDIR) {
            return errno;
        }
        return match Program::find(libc::AT_FDCWD, path) {
            // SAFETY: the caller's promise.
            Ok(program) if program.is_special() => unsafe { run(program, argv, envp) },
            _ => errno,
        };
    }
    match Program::find(libc::AT_FDCWD, path) {
        // SAFETY: the caller's promise.
        Ok(program) => unsafe { run(program, argv, envp) },
        Err(errno) => errno,
    }
}

/// `execvpe`. Returns only if that fails, with the error.
///
/// # Safety
/// As for [`run`].
unsafe fn execute_searched(file: &CStr, argv: Strings, envp: Strings) -> Errno {
    let attempt = |path: &CStr| {
        // SAFETY: the caller's promise; the shell's list is built of the same strings.
        unsafe {
            let errno = execute(path, argv, envp);
            if errno == search::NOEXEC {
                let arguments = search::for_shell(path, argv);
                return lend(arguments, |arguments| execute(search::SHELL, arguments.as_ptr(), envp));
            }
            errno
        }
    };
    if file.to_bytes().contains(&b'/') {
        return attempt(file);
    }
    lend(search::Candidates::of(file), |candidates| {
        let mut denied = false;
        for candidate in candidates.iter() {
            match lend(candidate, |candidate| attempt(candidate)) {
                Errno::ACCESS => denied = true,
                errno if search::goes_on_after(errno) => {}
                errno => return errno,
            }
        }
        if denied { Errno::ACCESS } else { Errno::NOENT }
    })
}

/// The arguments of the `execl` family, to the null that ends them.
///
/// # Safety
/// The list holds C strings, then null.
unsafe fn collect(first: *const c_char, list: *mut VaList) -> Vec<*const c_char> {
    let mut all = vec![first];
    if first.is_null() {
        return all;
    }
    loop {
        // SAFETY: the caller's promise.
        let next = unsafe { next_pointer(list) } as *const c_char;
        all.push(next);
        if next.is_null() {
            return all;
        }
    }
}

fn failed(errno: Errno) -> c_int {
    set_errno(errno);
    -1
}

faces! {
    /// Executes a program.
    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        failed(text(path).map_or_else(|errno| errno, |path| execute(path, argv, envp)))
    }

    /// Executes a program with this environment.
    fn execv(path: *const c_char, argv: Strings) -> c_int {
        execve(path, argv, environ)
    }

    /// Executes a program that is searched for in `PATH`.
    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        failed(text(file).map_or_else(|errno| errno, |file| {
            if file.is_empty() { Errno::NOENT } else { execute_searched(file, argv, envp) }
        }))
    }

    /// Likewise, with this environment.
    fn execvp(file: *const c_char, argv: Strings) -> c_int {
        execvpe(file, argv, environ)
    }

    /// Executes the program of an open descriptor.
    fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
        if argv.is_null() || envp.is_null() {
            return failed(Errno::INVAL);
        }
        execveat(fd, c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH)
    }

    /// Executes a program found from a directory's descriptor, or the descriptor's own.
    fn execveat(dirfd: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
        let name = match text(path) {
            Ok(name) => name,
            Err(errno) => return failed(errno),
        };
        let own = name.is_empty() && flags & libc::AT_EMPTY_PATH != 0;
        let ours = vfs::active() && if own { vfs::is_ours(dirfd) } else { handles(dirfd, name) };
        if !ours {
            if own { unreached::warn_of_descriptor(dirfd) } else { unreached::warn(dirfd, name) }
            return failed(with_locks(envp, |envp| sys!(SYS_execveat, dirfd, path, argv, envp, flags)));
        }
        let found = if own { Program::of_descriptor(dirfd) } else { Program::find_at(dirfd, name, flags) };
        failed(found.map_or_else(|errno| errno, |program| run(program, argv, envp)))
    }
}

callbacks! {
    fn execute_list(path: *const c_char, first: *const c_char, list: *mut VaList) -> c_int {
        // SAFETY: the arguments of `execl`.
        unsafe { lend(collect(first, list), |arguments| execve(path, arguments.as_ptr(), environ)) }
    }

    fn execute_list_searched(
        file: *const c_char,
        first: *const c_char,
        list: *mut VaList,
    ) -> c_int {
        // SAFETY: the arguments of `execlp`.
        unsafe { lend(collect(first, list), |arguments| execvpe(file, arguments.as_ptr(), environ)) }
    }

    fn execute_list_environment(
        path: *const c_char,
        first: *const c_char,
        list: *mut VaList,
    ) -> c_int {
        // SAFETY: the arguments of `execle`: the environment follows the null.
        unsafe {
            let arguments = collect(first, list);
            let envp = next_pointer(list) as Strings;
            lend(arguments, |arguments| execve(path, arguments.as_ptr(), envp))
        }
    }
}

variadic! {
    /// Executes a program with the arguments listed.
    execl, 2 => execute_list;
    /// Likewise, searched for in `PATH`.
    execlp, 2 => execute_list_searched;
    /// Likewise, with an environment.
    execle, 2 => execute_list_environment;
}
