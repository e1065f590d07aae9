//! How a command is to see the deployment, where nobody says it.
//!
//! That is the preload library: it is the fastest, and needs nothing. (Why not a mount: `docs/fuse.md`.) Only for a program into which
//! no library can be loaded it would do nothing, so that one gets a mount, if this machine lets us make one.

use crate::args::{Access, AccessArgs};
use crate::error::Error;
use rustix::thread::UnshareFlags;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How far scripts are followed to what interprets them.
const DEPTH: u32 = 4;
/// As much of a program as tells what it is.
const HEAD: u64 = 4096;
/// The kind of program header that names the loader.
const INTERPRETER: u32 = 3;

/// What is chosen for a command; says it, if that is wanted. `mounted`: there is a mount that it can use.
pub fn chosen(args: AccessArgs, words: &[OsString], mounted: impl FnOnce() -> bool) -> Result<Access, Error> {
    if args.catch_syscalls && matches!(args.access, Access::Fuse | Access::Both) {
        return Err(Error::refused(
            "with a mount, there is nothing for --catch-syscalls to catch",
            "leave it out, or use --access preload",
        ));
    }
    let (access, why) = match args.access {
        _ if args.fuse => (Access::Fuse, ""),
        Access::Auto if words.first().is_some_and(|program| is_deaf(program)) => {
            if mounted() || can_mount() {
                (Access::Both, " (no library can be loaded into the program)")
            } else {
                (Access::Preload, " (no library can be loaded into the program, and no mount made)")
            }
        }
        Access::Auto => (Access::Preload, ""),
        given => (given, ""),
    };
    if args.verbose {
        let name = match access {
            Access::Fuse => "fuse",
            Access::Both => "both",
            _ => "preload",
        };
        eprintln!("bivouac: access: {name}{why}");
    }
    Ok(access)
}

/// Whether a program is one into which no library is loaded: linked statically.
fn is_deaf(program: &OsStr) -> bool {
    let mut path = found(program);
    for _ in 0..DEPTH {
        let Some(head) = path.as_deref().and_then(head) else { return false };
        match script(&head) {
            Some(interpreter) => path = Some(interpreter),
            None => return is_static(&head),
        }
    }
    false
}

/// Where a shell would find a program.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_file())
}

fn head(path: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    // Not a FIFO, where opening would wait; and what becomes one meanwhile is not waited for either.
    let mut options = std::fs::File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok().filter(|meta| meta.is_file())?;
    file.take(HEAD).read_to_end(&mut head).ok()?;
    Some(head)
}

/// The interpreter that a script names.
fn script(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let word = line.split(|b| b" \t".contains(b)).find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(word).into())
}

/// Whether this is the beginning of a 64-bit program that names no loader.
fn is_static(head: &[u8]) -> bool {
    let number = |at: usize, len: usize| {
        let bytes = head.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte)))
    };
    let headers = || {
        let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let kind = |index: u64| number(usize::try_from(start + index * size).ok()?, 4);
        (0..count).map(kind).collect::<Option<Vec<_>>>()
    };
    let is_elf = head.starts_with(b"\x7fELF\x02\x01");
    is_elf && headers().is_some_and(|kinds| !kinds.contains(&u64::from(INTERPRETER)))
}

/// Whether a mount of a command's own can be made here.
fn can_mount() -> bool {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    let mut trial = Command::new("/bin/true");
    trial.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let separate = || {
        // SAFETY: no descriptors are unshared, and the process is about to execute another program.
        let unshare = |flags| unsafe { rustix::thread::unshare_unsafe(flags) };
        unshare(UnshareFlags::NEWNS).or_else(|_| unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS))?;
        Ok(())
    };
    // SAFETY: between fork and exec there are system calls only.
    unsafe { trial.pre_exec(separate) };
    device.is_ok() && trial.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_a_loader_and_scripts_for_them_can_load_libraries() {
        for program in ["sh", "/bin/sh", "env", "nosuchprogram", "/etc/passwd", "/"] {
            assert!(!is_deaf(OsStr::new(program)), "{program}");
        }
        assert_eq!(script(b"#! /usr/bin/env python3\nx"), Some("/usr/bin/env".into()));
        assert_eq!(script(b"#!\n"), None);
    }

    #[test]
    fn a_program_without_a_loader_cannot() {
        // A header, and one program header that is loaded.
        let mut program = b"\x7fELF\x02\x01".to_vec();
        program.resize(64 + 56, 0);
        program[32] = 64;
        program[54] = 56;
        program[56] = 1;
        program[64] = 1;
        assert!(is_static(&program));
        program[64] = INTERPRETER as u8;
        assert!(!is_static(&program));
        program[32] = 0xff;
        program[33] = 0xff;
        assert!(!is_static(&program) && !is_static(b"\x7fELF\x02\x01"));
    }
}
