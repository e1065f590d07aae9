//! Paths that lead to a directory which somebody else has moved.
//!
//! The kernel keeps each directory of a mount under one name. When a lookup finds it under another one,
//! because another node or the library has moved it, the kernel moves its own entry. It does that only if it
//! gets two locks without waiting: that of all renames in the mount, and that of the directory in which it
//! knew the entry. Otherwise the call fails with ESTALE. A `rename` from one directory to another always
//! holds the first lock when it looks its names up, and so always fails on a directory that was moved; every
//! other call fails when somebody else works in the old directory at that moment.
//!
//! In both cases nothing is lost, and the call has done nothing. So the library looks the names up by a call
//! that holds no lock, and repeats the call. (Programs that use the mount without the library have to do that
//! themselves: `docs/fuse.md`.)

use crate::vfs::state;
use bivouac_proto::Errno;
use std::ffi::CStr;

/// A path, and the descriptor of the directory that it starts from.
pub type Name<'a> = (i32, &'a CStr);

/// How long to wait before each repetition, microseconds: others hold a directory for the time of a request
/// or two, on a busy machine longer.
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

/// Makes the kernel look up a name, so that it learns where the directory is now.
fn look_up((dirfd, path): Name<'_>) {
    // SAFETY: plain numbers, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    let _ = sys!(SYS_statx, dirfd, path.as_ptr(), flags, 0, &raw mut found);
}
