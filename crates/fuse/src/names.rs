//! Operations on names: looking them up, making, removing, renaming, linking.

use crate::abi::Reply;
use crate::attrs::put_attr;
use crate::face::{Answer, Call};
use bivouac_client::{Changed, Fail};
use bivouac_proto::Errno;
use bivouac_proto::attr::Attr;
use bivouac_proto::meta::SetAttr;

/// Set-group-ID: in such a directory, new entries get its group.
const SET_GID: u16 = 0o2000;
const TYPE: u32 = 0o170_000;

impl Call<'_> {
    /// The answer that shows an entry. Neither name nor attributes may be kept: somebody else may change both
    /// at any moment.
    pub(crate) fn entry(&self, attr: &Attr) -> Reply {
        let mut reply = Reply::new();
        // Number, generation (numbers are not reused), and time-outs, all zero.
        reply.u64(self.face.tree.node(attr.ino)).u64(0).zeros(24);
        put_attr(self.face, &mut reply, attr);
        reply
    }

    pub(crate) fn lookup(&mut self) -> Result<Answer, Errno> {
        let name = self.fields.name()?;
        let client = &self.face.client;
        let attr = match name {
            // Walking a path never needs these two. They are for file handles, which the kernel makes from
            // inode numbers (`open_by_handle_at`).
            b"." => client.stat(self.ino()),
            b".." => client.stat(client.parent(self.ino())?),
            name => client.stat((self.ino(), name, false)),
        };
        Ok(Answer::Told(self.entry(&attr.map_err(Fail::errno)?)))
    }

    pub(crate) fn mkdir(&mut self) -> Result<Answer, Errno> {
        let mode = self.fields.u32()?;
        self.fields.skip(4)?;
        let name = self.fields.name()?;
        let made = self.face.client.mkdir(self.ino(), name, mode);
        let attr = self.give_to_caller(self.made(made)?)?;
        Ok(Answer::Told(self.entry(&attr)))
    }

    pub(crate) fn mknod(&mut self) -> Result<Answer, Errno> {
        let (mode, device) = (self.fields.u32()?, self.fields.u32()?);
        self.fields.skip(8)?;
        let name = self.fields.name()?;
        let (client, directory) = (&self.face.client, self.ino());
        let made = match mode & TYPE {
            0 | 0o100_000 | 0o010_000 | 0o140_000 => client.mknod(directory, name, mode),
            0o020_000 | 0o060_000 => client.make_device(directory, name, mode, device),
            _ => return Err(Errno::INVAL),
        };
        let attr = self.give_to_caller(self.made(made)?)?;
        Ok(Answer::Told(self.entry(&attr)))
    }

    pub(crate) fn symlink(&mut self) -> Result<Answer, Errno> {
        let (name, target) = (self.fields.name()?, self.fields.name()?);
        let made = self.face.client.symlink(target, self.ino(), name);
        let attr = self.give_to_caller(self.made(made)?)?;
        Ok(Answer::Told(self.entry(&attr)))
    }

    pub(crate) fn link(&mut self) -> Result<Answer, Errno> {
        let ino = self.other_ino()?;
        let name = self.fields.name()?;
        let attr = self.made(self.face.client.link(ino, self.ino(), name))?;
        Ok(Answer::Told(self.entry(&attr)))
    }

    pub(crate) fn unlink(&mut self) -> Result<Answer, Errno> {
        let name = self.fields.name()?;
        self.face.client.unlink(self.ino(), name).map_err(Fail::errno)?;
        Ok(Answer::Empty)
    }

    pub(crate) fn rmdir(&mut self) -> Result<Answer, Errno> {
        let name = self.fields.name()?;
        let before = self.face.client.stat((self.ino(), name, false)).map_err(Fail::errno)?;
        self.face.client.rmdir(self.ino(), name).map_err(Fail::errno)?;
        self.face.removed.note(before);
        Ok(Answer::Empty)
    }

    /// The kernel has forgotten an inode. Numbers are never reused, and nothing is kept for any but those
    /// that are gone.
    pub(crate) fn forget(&mut self) -> Result<Answer, Errno> {
        self.face.removed.forget(self.ino());
        Ok(Answer::None)
    }

    pub(crate) fn batch_forget(&mut self) -> Result<Answer, Errno> {
        let count = self.fields.u32().unwrap_or(0);
        let _ = self.fields.skip(4);
        for _ in 0..count {
            let (Ok(ino), Ok(_)) = (self.other_ino(), self.fields.u64()) else { break };
            self.face.removed.forget(ino);
        }
        Ok(Answer::None)
    }

    pub(crate) fn rename(&mut self, with_flags: bool) -> Result<Answer, Errno> {
        let to = self.other_ino()?;
        let mut flags = 0;
        if with_flags {
            flags = self.fields.u32()?;
            self.fields.skip(4)?;
        }
        let (old, new) = (self.fields.name()?, self.fields.name()?);
        self.face.client.rename(self.ino(), old, to, new, flags).map_err(Fail::errno)?;
        Ok(Answer::Empty)
    }

    pub(crate) fn readlink(&mut self) -> Result<Answer, Errno> {
        let target = self.face.client.readlink(self.ino()).map_err(Fail::errno)?;
        Ok(Answer::Told(Reply(target)))
    }

    /// What was made belongs to the caller, or its group to the directory's. The server made it for this
    /// process, which is somebody else when several users share the mount.
    pub(crate) fn give_to_caller(&self, made: Attr) -> Result<Attr, Errno> {
        let (uid, gid) = (self.asked.uid, self.asked.gid);
        if (uid, gid) == self.face.user {
            return Ok(made);
        }
        let directory = self.face.client.stat(self.ino()).map_err(Fail::errno)?;
        let gid = if directory.mode & SET_GID != 0 { directory.gid } else { gid };
        if (made.uid, made.gid) == (uid, gid) || self.face.user.0 != 0 {
            return Ok(made);
        }
        // Set the mode again, because a change of owner clears bits.
        let set = SetAttr { uid: Some(uid), gid: Some(gid), mode: Some(made.mode), ..SetAttr::default() };
        self.made(self.face.client.set_attr(made.ino, set))
    }

    /// The attributes of what an operation has made or changed.
    fn made(&self, changed: Result<Changed, Fail>) -> Result<Attr, Errno> {
        self.face.client.attr_after(changed.map_err(Fail::errno)?)
    }
}
