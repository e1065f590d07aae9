//! What this machine lets tests do.

use crate::skip;
use std::process::Command;
use std::sync::OnceLock;

/// Whether this process is the superuser's.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether tests can mount here: as root, with a `/dev/fuse` that opens, and where the kernel lets this
/// process mount (a container's root often may not).
pub fn can_mount() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let device = || std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
        // In a mount namespace of its own, so that nothing is left.
        let mut attempt = Command::new("unshare");
        attempt.args(["--mount", "mount", "-t", "tmpfs", "none", "/tmp"]);
        is_root() && device() && attempt.output().is_ok_and(|done| done.status.success())
    })
}

/// Whether the calling test has to return because it cannot mount here; if so, that is recorded as a skip.
#[must_use]
#[track_caller]
pub fn skipped_without_mount() -> bool {
    if !can_mount() {
        skip("mounting needs root, /dev/fuse and the permission to mount");
    }
    !can_mount()
}

/// Whether the calling test has to return because it is not root's process; if so, that is recorded as a
/// skip. `what` needs root.
#[must_use]
#[track_caller]
pub fn skipped_without_root(what: &str) -> bool {
    if !is_root() {
        skip(&format!("{what} needs root"));
    }
    !is_root()
}
