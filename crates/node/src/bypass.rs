//! Recognising, before a program starts, that the preload library will not be loaded into it.
//!
//! A program that is linked statically has no loader, and so loads no library. Where a program gets rights
//! that its caller does not have (set-user-ID, set-group-ID, file capabilities), the loader leaves out
//! libraries that the caller names. Both then see the kernel's files only: below the mount path nothing, or
//! files that do not belong to the deployment. That is no error, so the user would not notice it. Therefore
//! the library and the command line look at what they are about to execute ([`of`]), and warn of each program
//! once in a deployment ([`is_first`]).
//!
//! What a program does by its own system calls although it is linked with libc (Go's runtime with cgo) cannot
//! be seen from here.

use crate::fd::Fd;
use crate::names::Environment;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// So many bytes of a program are looked at: its header, and far more program headers than linkers make.
const HEAD: usize = 1024;
/// How many scripts that interpret each other are followed: as many as the kernel follows.
const DEPTH: usize = 5;
/// The kind of program header that names the loader.
const INTERPRETER: u64 = 3;
/// What the names of loaders begin with. A loader names no loader itself, but does load libraries.
const LOADERS: [&[u8]; 2] = [b"ld-", b"ld.so"];
/// Beginning of the names of the files by which [`is_first`] remembers, in the run directory.
pub const MARK: &str = "bypass-";

/// Why the library does not get into a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bypass {
    /// It is linked statically.
    Static,
    /// It gets rights that its caller does not have.
    Privileged,
}

impl Bypass {
    /// What to tell whoever executes `program` in a deployment that programs see at `mount`.
    pub fn warning(self, program: &str, mount: &str, deployment: &str) -> String {
        let why = match self {
            Bypass::Static => "is linked statically",
            Bypass::Privileged => "changes its user, group or capabilities",
        };
        format!(
            "{program} {why}, so that the preload library is not loaded into it: it does not see {mount}, and what it writes there is \
             not in the file system\n  start the command with --fuse (bivouac exec {deployment} --fuse -- CMD, or bivouac run --fuse), so that it does"
        )
    }
}

/// Whether the library will not be loaded into what `execve` would execute, and why. A file that cannot be
/// opened or executed is no reason to warn.
pub fn of(directory: BorrowedFd<'_>, path: &CStr) -> Option<Bypass> {
    let mut program = open(directory, path)?;
    let mut name = path.to_owned();
    for _ in 0..DEPTH {
        let stat = rustix::fs::fstat(&program).ok()?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_mode & 0o111 == 0 {
            return None;
        }
        let mut head = [0u8; HEAD];
        let count = rustix::io::pread(&program, &mut head, 0).ok()?;
        let head = head.get(..count)?;
        let Some(interpreter) = interpreter(head) else {
            let privileged = gives_rights(program.as_fd(), &stat);
            let is_static = is_static(head) && !is_loader(name.to_bytes());
            return match (is_static, privileged) {
                (true, _) => Some(Bypass::Static),
                (_, true) => Some(Bypass::Privileged),
                _ => None,
            };
        };
        name = CString::new(interpreter).ok()?;
        program = open(rustix::fs::CWD, &name)?;
    }
    None
}

/// Whether no process of this user on this machine has asked about this program in this deployment before.
pub fn is_first(environment: &Environment, program: &[u8]) -> bool {
    let base = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let base = base.get(..base.len().min(200)).unwrap_or_default();
    let Some(run_dir) = Path::new(&environment.key_path).parent() else { return true };
    let mark = run_dir.join(OsStr::from_bytes(&[MARK.as_bytes(), base].concat()));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = rustix::fs::open(mark, flags, Mode::from_raw_mode(0o600)).map(Fd::from);
    !matches!(made, Err(Errno::EXIST))
}

fn open(directory: BorrowedFd<'_>, path: &CStr) -> Option<Fd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::openat(directory, path, flags, Mode::empty()).ok().map(Fd::from)
}

fn is_loader(path: &[u8]) -> bool {
    let base = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    LOADERS.iter().any(|loader| base.starts_with(loader))
}

/// The interpreter that a script names.
fn interpreter(head: &[u8]) -> Option<&[u8]> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    line.split(|byte| b" \t\0".contains(byte)).find(|word| !word.is_empty())
}

/// Whether this is the beginning of a 64-bit program that names no loader.
fn is_static(head: &[u8]) -> bool {
    let number = |at: usize, len: usize| {
        let bytes = head.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte)))
    };
    let names_loader = || {
        let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        for index in 0..count {
            let at = start.checked_add(index * size)?;
            if number(usize::try_from(at).ok()?, 4)? == INTERPRETER {
                return Some(true);
            }
        }
        Some(false)
    };
    head.starts_with(b"\x7fELF\x02\x01") && names_loader() == Some(false)
}

/// Whether the kernel gives a program rights that this process does not have (and tells the loader, by
/// AT_SECURE).
fn gives_rights(program: BorrowedFd<'_>, stat: &rustix::fs::Stat) -> bool {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let sets_user = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != user.as_raw();
    let group_bits = libc::S_ISGID | libc::S_IXGRP;
    let sets_group = stat.st_mode & group_bits == group_bits && stat.st_gid != group.as_raw();
    let capable = || {
        let mut none = [0u8; 0];
        !user.is_root() && rustix::fs::fgetxattr(program, c"security.capability", &mut none).is_ok()
    };
    if !(sets_user || sets_group || capable()) {
        return false;
    }
    let ignored = rustix::fs::fstatvfs(program)
        .is_ok_and(|system| system.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    !ignored && !rustix::thread::no_new_privs().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A header, and one program header of this kind.
    fn program(kind: u8) -> Vec<u8> {
        let mut program = b"\x7fELF\x02\x01".to_vec();
        program.resize(64 + 56, 0);
        (program[32], program[54], program[56], program[64]) = (64, 56, 1, kind);
        program
    }

    fn look(path: &Path) -> Option<Bypass> {
        of(rustix::fs::CWD, &CString::new(path.as_os_str().as_bytes()).unwrap())
    }

    #[test]
    fn programs_with_a_loader_and_scripts_for_them_load_libraries() {
        for program in
            ["/bin/sh", "/usr/bin/env", "/nosuchprogram", "/etc/passwd", "/", "/lib64/ld-linux-x86-64.so.2"]
        {
            assert_eq!(look(Path::new(program)), None, "{program}");
        }
    }

    #[test]
    fn programs_without_a_loader_and_scripts_for_them_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8], mode: u32| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        let fixed = write("fixed", &program(1), 0o755);
        assert_eq!(look(&fixed), Some(Bypass::Static));
        let script = write("script", format!("#! {} -x\nrest", fixed.display()).as_bytes(), 0o755);
        assert_eq!(look(&script), Some(Bypass::Static));
        assert_eq!(look(&write("loaded", &program(INTERPRETER as u8), 0o755)), None);
        assert_eq!(look(&write("ld-own.so", &program(1), 0o755)), None);
        assert_eq!(look(&write("data", &program(1), 0o644)), None);
        assert_eq!(look(&write("strange", b"#!\n", 0o755)), None);
        let circle =
            write("circle", format!("#!{}\n", dir.path().join("circle").display()).as_bytes(), 0o755);
        assert_eq!(look(&circle), None);
    }

    #[test]
    fn a_header_that_is_truncated_or_points_anywhere_is_no_reason_to_warn() {
        let whole = program(1);
        for end in 0..whole.len() {
            assert!(!is_static(&whole[..end]) || end >= 68, "{end}");
        }
        let mut far = program(1);
        far[32..40].fill(0xff);
        assert!(!is_static(&far) && is_static(&whole));
    }

    #[test]
    fn a_warning_is_due_once_for_each_name() {
        let dir = tempfile::tempdir().unwrap();
        let key_path = dir.path().join("key").to_string_lossy().into_owned();
        let environment = Environment {
            name: "job".into(),
            mount: "/m".into(),
            key_path,
            mounted: None,
            forwarded: None,
            job: None,
        };
        let first = |program: &[u8]| is_first(&environment, program);
        assert!(first(b"/bin/a") && !first(b"/other/a") && first(b"b") && !first(b"/bin/a"));
        assert!(first(&[b'x'; 4000]) && !first(&[b'x'; 4000]));
    }
}
