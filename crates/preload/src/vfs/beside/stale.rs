//! Paths that lead to a directory which somebody else has moved.
//!
//! The kernel keeps each directory of a mount under one name. When a lookup finds it under another one,
//! because another node or the library has moved it, the kernel moves its own entry. It does that only if it
//! gets two locks without waiting: that of all renames in the mount, and that of the directory in which it
//! knew the entry. Otherwise the call fails with ESTALE. A `rename` from one directory to another always
//! holds the first lock when it looks its names up, and so always fails on a directory that was moved; every
//! other call fails when somebody else works in the old directory at that moment.
//!
//! Neither means that anything is gone, and nothing was done. So the names are looked up by a call that holds
//! no lock, and the call is repeated. (Who uses the mount without the library has to do that himself:
//! `docs/fuse.md`.)

use crate::vfs::state;
use bivouac_proto::Errno;
use std::ffi::CStr;

/// A path, and the descriptor of the directory that it starts from.
pub type Name<'a> = (i32, &'a CStr);

/// How long to wait before each repetition, microseconds: as long as others hold a directory for a request or
/// two, with room for a busy machine.
const PAUSES: [u32; 9] = [0, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000];

/// A call of the kernel's on these names, repeated while it fails only because a directory was moved.
#[inline]
pub fn persistent<T>(names: &[Name<'_>], call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match call() {
        Err(Errno::STALE) if state::beside() => repeated(names, &call),
        done => done,
    }
}

#[cold]
#[inline(never)]
fn repeated<T>(names: &[Name<'_>], call: &impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    for pause in PAUSES {
        if pause > 0 {
            let time = rustix::thread::Timespec { tv_sec: 0, tv_nsec: i64::from(pause) * 1_000 };
            let _ = rustix::thread::nanosleep(&time);
        }
        for name in names {
            look_up(*name);
        }
        match call() {
            Err(Errno::STALE) => {}
            done => return done,
        }
    }
    Err(Errno::STALE)
}

/// Has the kernel look a name up, so that it learns where the directory is that it leads to.
fn look_up((dirfd, path): Name<'_>) {
    // SAFETY: plain numbers, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    let _ = sys!(SYS_statx, dirfd, path.as_ptr(), flags, 0, &raw mut found);
}
