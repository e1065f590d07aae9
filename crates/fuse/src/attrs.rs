//! Attributes: showing them, setting them; how full the storage is.

use crate::abi::{Asked, Reply, set};
use crate::face::{Answer, Call, Face};
use crate::tree::Tree;
use bivouac_client::Fail;
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FileKind, NAME_MAX, Time};
use bivouac_proto::meta::{CHOWN_AS_IT_IS, SetAttr, SetTime};
use std::time::{Duration, Instant};

/// What `st_blksize` recommends, as through the preload library.
const BLOCK_SIZE: u32 = 128 << 10;
/// The unit in which storage is counted.
const STATFS_UNIT: u64 = 4096;
/// What STATX fills in: all basic fields, and the time of creation.
const STATX_MASK: u32 = 0x7ff | 0x800;

/// How long a file that is open is looked for, and the time between two looks.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;

/// Seconds and nanoseconds.
fn split(time: Time) -> (i64, u32) {
    (time.div_euclid(1_000_000_000), time.rem_euclid(1_000_000_000) as u32)
}

/// Appends attributes as the kernel wants them.
pub(crate) fn put_attr(face: &Face, reply: &mut Reply, attr: &Attr) {
    note_privilege(face, attr);
    let times = [attr.atime, attr.mtime, attr.ctime].map(split);
    reply.u64(attr.ino.0).u64(attr.st_size()).u64(attr.st_blocks());
    for (seconds, _) in times {
        reply.u64(seconds as u64);
    }
    for (_, nanoseconds) in times {
        reply.u32(nanoseconds);
    }
    reply
        .u32(attr.kind.mode_bits() | u32::from(attr.mode))
        .u32(attr.nlink)
        .u32(attr.uid)
        .u32(face.groups.shown(attr.gid))
        .u32(attr.device())
        .u32(BLOCK_SIZE)
        .u32(0);
}

fn note_privilege(face: &Face, attr: &Attr) {
    let privileged = attr.kind == FileKind::File && attr.mode & (SET_UID | SET_GID) != 0;
    face.privileged.note(attr.ino, privileged);
    if privileged {
        face.shortcuts.detour(attr.ino);
    }
}

/// Whether the caller is the superuser or in this group. If its groups cannot be seen, it is in its own alone.
fn is_in_group(asked: &Asked, gid: u32) -> bool {
    let supplementary = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", asked.pid)).ok()?;
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
        Some(groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
    };
    asked.uid == 0 || asked.gid == gid || supplementary().unwrap_or(false)
}

impl Call<'_> {
    fn shown(&self, attr: &Attr) -> Answer {
        let mut reply = Reply::new();
        // How long the kernel may use them: zero.
        reply.zeros(16);
        put_attr(self.face, &mut reply, attr);
        Answer::Told(reply)
    }

    /// Attributes, also of a directory that was removed.
    fn attr(&self) -> Result<Attr, Errno> {
        match self.attr_of_open() {
            Err(Errno::NOENT | Errno::STALE) => {
                let (face, ino) = (self.face, self.ino());
                // Another client has removed it while it is open here: its attributes are not known any more.
                let open = || face.directories.any(|open| open.ino == ino);
                let known = face.removed.get(ino);
                known.or_else(|| open().then(|| face.client.removed(ino))).ok_or(Errno::NOENT)
            }
            other => other,
        }
    }

    /// Attributes, also of a file that is open here and that an I/O node which has just begun to serve this mount does not find for
    /// a moment. The kernel asks for those of a file that it has just made. It must not be told then that the file is gone: it would
    /// make it once more, and tell the program that it exists.
    fn attr_of_open(&self) -> Result<Attr, Errno> {
        let (face, ino) = (self.face, self.ino());
        let mut until = None;
        loop {
            let found = face.client.stat(ino).map_err(Fail::errno);
            let is_gone = matches!(found, Err(Errno::NOENT | Errno::STALE));
            if !is_gone
                || face.tree != Tree::Forwarded
                || Instant::now() >= *until.get_or_insert_with(|| Instant::now() + PATIENCE)
                || !face.files.any(|file| file.handle.ino() == ino)
            {
                return found;
            }
            std::thread::sleep(PAUSE);
        }
    }

    pub(crate) fn getattr(&mut self) -> Result<Answer, Errno> {
        let attr = self.attr()?;
        Ok(self.shown(&attr))
    }

    pub(crate) fn statx(&mut self) -> Result<Answer, Errno> {
        let attr = self.attr()?;
        note_privilege(self.face, &attr);
        let mut reply = Reply::new();
        reply.zeros(32);
        reply
            .u32(STATX_MASK)
            .u32(BLOCK_SIZE)
            .u64(0)
            .u32(attr.nlink)
            .u32(attr.uid)
            .u32(self.face.groups.shown(attr.gid));
        reply.u16(attr.kind.mode_bits() as u16 | attr.mode).u16(0);
        reply.u64(attr.ino.0).u64(attr.st_size()).u64(attr.st_blocks()).u64(0);
        for time in [attr.atime, attr.btime, attr.ctime, attr.mtime] {
            let (seconds, nanoseconds) = split(time);
            reply.u64(seconds as u64).u32(nanoseconds).u32(0);
        }
        let device = u64::from(attr.device());
        reply.u32(rustix::fs::major(device)).u32(rustix::fs::minor(device)).zeros(8 + 112);
        Ok(Answer::Told(reply))
    }

    pub(crate) fn setattr(&mut self) -> Result<Answer, Errno> {
        let fields = &mut self.fields;
        let valid = fields.u32()?;
        fields.skip(4)?;
        let (fh, size) = (fields.u64()?, fields.u64()?);
        fields.skip(8)?;
        let (atime, mtime) = (fields.u64()? as i64, fields.u64()? as i64);
        fields.skip(8)?;
        let (atime_nsec, mtime_nsec) = (fields.u32()?, fields.u32()?);
        fields.skip(4)?;
        let mode = fields.u32()?;
        fields.skip(4)?;
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        let has = |bit: u32| valid & bit != 0;
        let ino = self.ino();
        let client = &self.face.client;

        let mut shown = None;
        if has(set::SIZE) {
            if has(set::KILL_SUIDGID) {
                self.take_privileges_of_all(ino)?;
            }
            shown = Some(match self.face.files.get(fh) {
                Ok(file) if has(set::FH) => {
                    file.handle.truncate(size)?;
                    client.stat(ino).map_err(Fail::errno)?
                }
                _ => client.attr_after(client.truncate(ino, size).map_err(Fail::errno)?)?,
            });
        }
        let time = |wanted: u32, now: u32, seconds: i64, nanoseconds: u32| {
            let at = seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanoseconds));
            match (has(wanted), has(now)) {
                (false, _) => None,
                (true, true) => Some(SetTime::Now),
                (true, false) => Some(SetTime::To(at)),
            }
        };
        let wanted = SetAttr {
            mode: has(set::MODE).then_some(mode as u16 & 0o7777),
            uid: has(set::UID).then_some(uid),
            gid: has(set::GID).then_some(gid),
            atime: time(set::ATIME, set::ATIME_NOW, atime, atime_nsec),
            mtime: time(set::MTIME, set::MTIME_NOW, mtime, mtime_nsec),
        };
        // The kernel sends a request without anything to set when the owner is set to what it was, and when
        // the content is changed by a user whose changes clear set-id bits.
        let nothing = valid & !(set::FH | set::LOCKOWNER) == 0;
        let mut wanted = if nothing { CHOWN_AS_IT_IS } else { wanted };
        // The server takes the bits off as for the mount's user, who may be in more groups than the caller.
        let owner = wanted.uid.is_some() || wanted.gid.is_some();
        if owner && wanted.mode.is_none() && self.face.user.0 == 0 && self.asked.uid != 0 {
            let attr = client.stat(ino).map_err(Fail::errno)?;
            let mode = self.without_privileges(&attr);
            wanted.mode = (attr.kind != FileKind::Directory && mode != attr.mode).then_some(mode);
        }
        // A truncation sets mtime by itself.
        let wanted = match wanted {
            SetAttr { mtime: Some(SetTime::Now), .. } if shown.is_some() => SetAttr { mtime: None, ..wanted },
            other => other,
        };
        if wanted != SetAttr::default() {
            if wanted.mtime.is_some() {
                self.face.writers.time_is_set(ino);
            }
            shown = Some(client.attr_after(client.set_attr(ino, wanted).map_err(Fail::errno)?)?);
        }
        let attr = match shown {
            Some(attr) => attr,
            None => client.stat(ino).map_err(Fail::errno)?,
        };
        Ok(self.shown(&attr))
    }

    /// Clears set-user-ID and set-group-ID bits of a file whose content changes.
    pub(crate) fn take_privileges(&self, ino: bivouac_layout::Ino) -> Result<(), Errno> {
        match self.face.privileged.has(ino) {
            true => self.take_privileges_of_all(ino),
            false => Ok(()),
        }
    }

    /// The same for a change that is no mere write: also of a file that was given the bits elsewhere, unseen
    /// by this mount.
    pub(crate) fn take_privileges_of_all(&self, ino: bivouac_layout::Ino) -> Result<(), Errno> {
        let attr = self.face.client.stat(ino).map_err(Fail::errno)?;
        let mode = self.without_privileges(&attr);
        if mode != attr.mode {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            let client = &self.face.client;
            let changed = client.set_attr(ino, set).map_err(Fail::errno)?;
            note_privilege(self.face, &client.attr_after(changed)?);
        }
        Ok(())
    }

    /// The mode without the set-id bits that Linux takes off when the caller changes the content or the owner.
    /// Set-group-ID without group execution stays if the caller is in the group.
    fn without_privileges(&self, attr: &Attr) -> u16 {
        let mode = attr.mode & !SET_UID;
        let stays = mode & (SET_GID | 0o010) == SET_GID && is_in_group(&self.asked, attr.gid);
        if stays { mode } else { mode & !SET_GID }
    }

    pub(crate) fn statfs(&mut self) -> Result<Answer, Errno> {
        let found = self.face.client.statfs(self.ino()).map_err(Fail::errno)?;
        let free = found.available / STATFS_UNIT;
        let mut reply = Reply::new();
        reply.u64(found.total / STATFS_UNIT).u64(free).u64(free);
        reply.u64(found.inodes.saturating_add(found.free_inodes())).u64(found.free_inodes());
        reply.u32(STATFS_UNIT as u32).u32(NAME_MAX as u32).u32(STATFS_UNIT as u32).u32(0).zeros(24);
        Ok(Answer::Told(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_have_positive_nanoseconds() {
        assert_eq!(split(-1), (-1, 999_999_999));
        assert_eq!(split(1_500_000_000), (1, 500_000_000));
        assert_eq!(split(i64::MIN).1, (i64::MIN.rem_euclid(1_000_000_000)) as u32);
    }
}
