//! Permission checks: the mode bits of POSIX, and user 0, who is not subject to them.

use bivouac_proto::Errno;
use bivouac_proto::auth::Credentials;

/// Permission to read.
pub(crate) const READ: u16 = 4;
/// Permission to write.
pub(crate) const WRITE: u16 = 2;
/// Permission to execute, or to search a directory.
pub(crate) const EXECUTE: u16 = 1;

/// Mode bits beyond rwx.
pub(crate) const SET_UID: u16 = 0o4000;
pub(crate) const SET_GID: u16 = 0o2000;
pub(crate) const STICKY: u16 = 0o1000;

/// What permission checks look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    pub(crate) fn triple(self) -> (u16, u32, u32) {
        (self.mode, self.uid, self.gid)
    }

    pub(crate) fn from_triple((mode, uid, gid): (u16, u32, u32)) -> Owner {
        Owner { mode, uid, gid }
    }

    /// Whether all of `wanted` (bits of rwx) is granted; EACCES if not.
    pub(crate) fn check(self, who: &Credentials, wanted: u16) -> Result<(), Errno> {
        if who.uid == 0 {
            return Ok(());
        }
        let granted = if who.uid == self.uid {
            self.mode >> 6
        } else if in_group(who, self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        if granted & wanted == wanted { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Whether `who` may do what only the owner may; EPERM if not.
    pub(crate) fn check_owner(self, who: &Credentials) -> Result<(), Errno> {
        if who.uid == 0 || who.uid == self.uid { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Whether `who` is the owner, or `wanted` (bits of rwx) is granted; EACCES if neither.
    pub(crate) fn check_owner_or(self, who: &Credentials, wanted: u16) -> Result<(), Errno> {
        if self.check_owner(who).is_ok() { Ok(()) } else { self.check(who, wanted) }
    }

    /// Whether removing an entry of this directory asks for the owner of what it names.
    pub(crate) fn is_restricted(self, who: &Credentials) -> bool {
        self.mode & STICKY != 0 && who.uid != 0 && who.uid != self.uid
    }

    /// Group and mode of what `who` makes in this directory. In a set-group-ID directory that is the
    /// directory's group, and a new directory becomes set-group-ID, too.
    pub(crate) fn inherit(self, who: &Credentials, mode: u16, directory: bool) -> Owner {
        let mode = mode & 0o7777;
        if self.mode & SET_GID == 0 {
            return Owner { mode, uid: who.uid, gid: who.gid };
        }
        let mode = if directory { mode | SET_GID } else { mode };
        Owner { mode, uid: who.uid, gid: self.gid }
    }
}

/// Whether `gid` is one of the caller's groups.
pub(crate) fn in_group(who: &Credentials, gid: u32) -> bool {
    who.gid == gid || who.groups.contains(&gid)
}

/// The mode that a regular file keeps when somebody but user 0 changes its content.
pub(crate) fn mode_after_write(owner: Owner, who: &Credentials) -> u16 {
    if who.uid == 0 { owner.mode } else { mode_after_chown(owner, who) }
}

/// The mode that anything but a directory keeps when `who` sets its owner, even to the same one. Set-group-ID
/// without group execution is not a privilege; it stays if `who` would be allowed to set it. `owner` is the
/// owner before.
pub(crate) fn mode_after_chown(owner: Owner, who: &Credentials) -> u16 {
    let mode = owner.mode & !SET_UID;
    let may_keep = mode & 0o010 == 0 && (who.uid == 0 || in_group(who, owner.gid));
    if may_keep { mode } else { mode & !SET_GID }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_id_bits_go_as_linux_takes_them() {
        let root = Credentials::default();
        let member = Credentials { uid: 7, gid: 7, groups: vec![50] };
        let stranger = Credentials { uid: 7, gid: 7, groups: vec![] };
        let owner = |mode| Owner { mode, uid: 7, gid: 50 };
        for (mode, by_member, by_stranger) in [
            (0o6666, 0o2666, 0o666),
            (0o6777, 0o777, 0o777),
            (0o4755, 0o755, 0o755),
            (0o7711, 0o1711, 0o1711),
        ] {
            assert_eq!(mode_after_chown(owner(mode), &root), by_member);
            assert_eq!(mode_after_chown(owner(mode), &member), by_member);
            assert_eq!(mode_after_chown(owner(mode), &stranger), by_stranger);
            assert_eq!(mode_after_write(owner(mode), &stranger), by_stranger);
            assert_eq!(mode_after_write(owner(mode), &root), mode);
        }
    }
}
