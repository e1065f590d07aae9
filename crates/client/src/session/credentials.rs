//! Whom this process acts for, and what that one may do.

use super::Session;
use bivouac_proto::auth::Credentials;

impl Session {
    /// Whether it acts for who this process is now.
    pub(crate) fn acts_for_this_user(&self) -> bool {
        self.credentials == present_credentials()
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Whether permission bits grant `mask` (4 read, 2 write, 1 execute) to this process.
    pub(crate) fn allowed(&self, mode: u16, uid: u32, gid: u32, mask: u32, directory: bool) -> bool {
        let me = self.credentials();
        if me.uid == 0 {
            return mask & 1 == 0 || directory || mode & 0o111 != 0;
        }
        let shift = if me.uid == uid {
            6
        } else if me.gid == gid || me.groups.contains(&gid) {
            3
        } else {
            0
        };
        (u32::from(mode) >> shift) & mask == mask
    }
}

/// Who this process acts for.
pub(super) fn present_credentials() -> Credentials {
    Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: rustix::process::getgroups()
            .map(|groups| groups.iter().map(|g| g.as_raw()).collect())
            .unwrap_or_default(),
    }
}
