//! How a command sees the deployment if the user does not say it.
//!
//! The default is the preload library, which is the fastest and needs nothing. (Why not a mount:
//! `docs/fuse.md`.) A program into which no library can be loaded gets a mount instead, if one can be made on
//! this machine.

use crate::args::{Access, AccessArgs};
use crate::error::Error;
use bivouac_node::Environment;
use bivouac_node::bypass::{self, Bypass};
use rustix::thread::UnshareFlags;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Chooses the way of access for a command, and prints it if that is asked for. `mounted`: there is a mount
/// that the command can use.
pub fn chosen(args: AccessArgs, words: &[OsString], mounted: impl FnOnce() -> bool) -> Result<Access, Error> {
    if args.catch_syscalls && matches!(args.access, Access::Fuse | Access::Both) {
        return Err(Error::refused(
            "with a mount, there is nothing for --catch-syscalls to catch",
            "leave it out, or use --access preload",
        ));
    }
    let (access, why) = match args.access {
        _ if args.fuse => (Access::Fuse, ""),
        Access::Auto if words.first().and_then(|program| bypass(program)) == Some(Bypass::Static) => {
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

/// Why no library can be loaded into a program.
fn bypass(program: &OsStr) -> Option<Bypass> {
    let path = CString::new(found(program)?.into_os_string().into_vec()).ok()?;
    bypass::of(rustix::fs::CWD, &path)
}

/// Warns, once in a deployment, if a command gets the library and that cannot be loaded into it.
pub fn warn(environment: &Environment, words: &[OsString]) {
    let Some(program) = words.first() else { return };
    if let Some(bypass) = bypass(program)
        && bypass::is_first(environment, program.as_bytes())
    {
        let name = program.to_string_lossy();
        eprintln!("bivouac: {}", bypass.warning(&name, &environment.mount, &environment.name));
    }
}

/// Where a shell would find a program.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_file())
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
