//! Entries, where one shard is enough: lookup, open and create, special files, unlink.

use crate::access::{EXECUTE, READ, WRITE};
use crate::answers::repeated;
use crate::draft::{Draft, wants_split};
use crate::error::Op;
use crate::inode::{Body, Inode};
use crate::mutation::Mutation;
use crate::partition::LockedShard;
use crate::restripe;
use crate::shard::{Home, Named, Opened};
use crate::store::{Caller, Core};
use crate::truncate::Setting;
use bivouac_layout::{Ino, Map, ShardId, namespace};
use bivouac_proto::attr::{NAME_MAX, PATH_MAX};
use bivouac_proto::header::OpenId;
use bivouac_proto::meta::{At, MetaReply, OpenHow};
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, Errno, FileKind, Refusal, Reply, Time};

/// Whether a name may stand in a directory.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_MAX {
        Err(Errno::NAMETOOLONG)
    } else if name.is_empty() || name == b"." || name == b".." || name.iter().any(|b| matches!(b, b'/' | 0)) {
        Err(Errno::INVAL)
    } else {
        Ok(())
    }
}

/// The shard of an entry.
pub(crate) fn shard_of(at: &At<'_>) -> ShardId {
    namespace::entry_shard(at.dir, at.split, at.name)
}

/// The result of the first attempt to open an entry.
enum Look {
    Answered(Reply),
    /// It is a file in blocks. It is open now, and still has to be truncated to 0.
    Truncate(Ino),
    /// It was made in a directory that has become too large to be packed.
    Grown(Reply),
}

impl Core {
    pub(crate) fn lookup(&self, caller: &Caller, at: At<'_>) -> Result<Reply, Failure> {
        check_name(at.name)?;
        // Both may change between the look-up of the name and that of the inode in another shard: then look
        // again.
        for _ in 0..8 {
            let (named, here) = self.partitions.with(shard_of(&at), |locked| {
                let (_, owner) = locked.shard.home(at.dir, at.split, at.name)?;
                owner.check(&caller.credentials, EXECUTE)?;
                locked.shard.entry_is_free(at.dir, at.name)?;
                let named = locked.shard.find(at.dir, at.name).ok_or(Errno::NOENT)?;
                let here =
                    if named.ino.shard() == locked.id { Some(shown(locked, named.ino)?) } else { None };
                Ok((named, here))
            })?;
            let shown = match here {
                Some(shown) => shown,
                None if !self.is_mine(named.ino.shard()) => {
                    return Ok(Reply::Meta(MetaReply::Elsewhere { ino: named.ino, kind: named.kind }));
                }
                None => match self.partitions.with(named.ino.shard(), |locked| shown(locked, named.ino)) {
                    Err(Failure::Errno(Errno::NOENT)) => continue,
                    other => other?,
                },
            };
            let attr = Box::new(self.with_parts(shown.attr, shown.mtime_set)?);
            return Ok(Reply::Meta(MetaReply::Entry { attr, target: shown.target }));
        }
        Err(Errno::NOENT.into())
    }

    pub(crate) fn open_entry(
        &self,
        caller: &Caller,
        at: At<'_>,
        how: OpenHow,
        open: OpenId,
        out: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        check_name(at.name)?;
        let now = self.outside.now();
        let map = (how.write || how.create.is_some()).then(|| self.outside.map());
        let look = self.partitions.with(shard_of(&at), |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                // The open it answers may have been lost with a restart.
                if let Reply::Meta(MetaReply::Opened { attr, .. }) = &reply {
                    register(locked, now, attr.ino, opened(how, open))?;
                }
                return Ok(Look::Answered(reply));
            }
            let (home, owner) = locked.shard.home(at.dir, at.split, at.name)?;
            owner.check(&caller.credentials, EXECUTE)?;
            locked.shard.entry_is_free(at.dir, at.name)?;
            match (locked.shard.find(at.dir, at.name), how.create) {
                (Some(_), Some(create)) if create.exclusive => Err(Errno::EXIST.into()),
                // A directory is opened by its number, if at all: most clients only look at it.
                (Some(named), _) if named.ino.shard() != locked.id || named.kind == FileKind::Directory => {
                    let elsewhere = MetaReply::Elsewhere { ino: named.ino, kind: named.kind };
                    Ok(Look::Answered(Reply::Meta(elsewhere)))
                }
                (Some(named), _) => {
                    open_existing((locked, map.as_deref()), caller, now, named.ino, how, open, out)
                }
                (None, None) => Err(Errno::NOENT.into()),
                (None, Some(create)) => {
                    locked.shard.is_wanted(open)?;
                    locked.shard.may_change(home)?;
                    owner.check(&caller.credentials, EXECUTE | WRITE)?;
                    let owner = owner.inherit(&caller.credentials, create.mode, false);
                    let inode = Inode::new(owner, now, Body::Inline(Box::default()));
                    make(locked, caller, now, (home, at.name), inode, map.as_deref(), |attr| {
                        MetaReply::Opened { attr, created: true, target: Vec::new() }
                    })
                    .inspect(|(ino, _, _)| {
                        locked.keep_quietly(Mutation::PutOpen(*ino, opened(how, open)));
                    })
                    .map(
                        |(_, reply, grown)| {
                            if grown { Look::Grown(reply) } else { Look::Answered(reply) }
                        },
                    )
                }
            }
        })?;
        self.after_look(caller, at.dir, open, look)
    }

    pub(crate) fn open_inode(
        &self,
        caller: &Caller,
        ino: Ino,
        how: OpenHow,
        open: OpenId,
        out: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        let now = self.outside.now();
        let map = how.write.then(|| self.outside.map());
        let look = self.partitions.with(ino.shard(), |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                register(locked, now, ino, opened(how, open))?;
                return Ok(Look::Answered(reply));
            }
            let how = OpenHow { create: None, ..how };
            open_existing((locked, map.as_deref()), caller, now, ino, how, open, out)
        })?;
        self.after_look(caller, ino, open, look)
    }

    fn after_look(&self, caller: &Caller, dir: Ino, open: OpenId, look: Look) -> Result<Reply, Failure> {
        match look {
            Look::Answered(reply) => Ok(reply),
            Look::Grown(reply) => {
                self.keeper.split(dir);
                Ok(reply)
            }
            Look::Truncate(ino) => {
                let reply =
                    |attr| MetaReply::Opened { attr: Box::new(attr), created: false, target: Vec::new() };
                let setting = Setting { who: &caller.credentials, id: &caller.id, reply };
                match self.set_size(ino, 0, &setting) {
                    Ok(attr) => Ok(Reply::Meta(reply(attr))),
                    Err(failure) => {
                        // It is not open: nobody will close it.
                        let _ = self.release(None, ino, open, None);
                        Err(failure)
                    }
                }
            }
        }
    }

    /// Makes a file without a name, and opens it.
    pub(crate) fn make_temporary(
        &self,
        caller: &Caller,
        dir: Ino,
        how: OpenHow,
        open: OpenId,
    ) -> Result<Reply, Failure> {
        let create = how.create.filter(|_| how.write).ok_or(Errno::INVAL)?;
        let now = self.outside.now();
        let map = self.outside.map();
        self.partitions.with(dir.shard(), |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                if let Reply::Meta(MetaReply::Opened { attr, .. }) = &reply {
                    register(locked, now, attr.ino, opened(how, open))?;
                }
                return Ok(reply);
            }
            locked.shard.is_wanted(open)?;
            let directory = locked.shard.inodes.get(dir).ok_or(Refusal::UnknownDirectory)?;
            directory.as_directory().ok_or(Errno::NOTDIR)?;
            if directory.nlink == 0 {
                return Err(Errno::NOENT.into());
            }
            let owner = directory.owner();
            owner.check(&caller.credentials, EXECUTE | WRITE)?;
            let mut draft = Draft::new(now);
            let ino = draft.next_ino(locked.shard, locked.id);
            let owner = owner.inherit(&caller.credentials, create.mode, false);
            let mut inode = Inode::new(owner, now, Body::Inline(Box::default()));
            inode.nlink = 0;
            inode.set_template(directory.template().placed(&map, caller.node, ino));
            inode.change_extra(|extra| extra.linkable = !create.exclusive);
            let attr = Box::new(inode.attr(ino));
            let reply = Reply::Meta(MetaReply::Opened { attr, created: true, target: Vec::new() });
            draft.put_inode(ino, inode);
            draft.push(Mutation::PutOrphan(ino, vec![open]));
            draft.answer(&caller.id, &reply);
            locked.commit(draft)?;
            locked.keep_quietly(Mutation::PutOpen(ino, opened(how, open)));
            Ok(reply)
        })
    }

    pub(crate) fn make_node(
        &self,
        caller: &Caller,
        at: At<'_>,
        kind: FileKind,
        mode: u16,
        target: &[u8],
    ) -> Result<Reply, Failure> {
        check_name(at.name)?;
        let body = match kind {
            FileKind::Symlink if target.is_empty() => return Err(Errno::NOENT.into()),
            FileKind::Symlink if target.len() > PATH_MAX => return Err(Errno::NAMETOOLONG.into()),
            FileKind::Symlink => Body::Symlink(target.into()),
            FileKind::Fifo => Body::Fifo,
            FileKind::Socket => Body::Socket,
            FileKind::File => Body::Inline(Box::default()),
            FileKind::CharDevice | FileKind::BlockDevice => device(caller, kind, target)?,
            FileKind::Directory => return Err(Errno::INVAL.into()),
        };
        let mode = if kind == FileKind::Symlink { 0o777 } else { mode };
        let now = self.outside.now();
        let map = (kind == FileKind::File).then(|| self.outside.map());
        let (reply, grown) = self.partitions.with(shard_of(&at), |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                return Ok((reply, false));
            }
            let home = may_make(locked, caller, &at)?;
            let (_, owner) = locked.shard.home(at.dir, at.split, at.name)?;
            let owner = owner.inherit(&caller.credentials, mode, false);
            let inode = Inode::new(owner, now, body.clone());
            let target = inode.target().to_vec();
            let entry = |attr| MetaReply::Entry { attr, target };
            let (_, reply, grown) = make(locked, caller, now, (home, at.name), inode, map.as_deref(), entry)?;
            Ok((reply, grown))
        })?;
        if grown {
            self.keeper.split(at.dir);
        }
        Ok(reply)
    }

    pub(crate) fn unlink(&self, caller: &Caller, at: At<'_>) -> Result<Reply, Failure> {
        check_name(at.name)?;
        let now = self.outside.now();
        let map = self.outside.map();
        let done = self.partitions.with(shard_of(&at), |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                return Ok(Some(reply));
            }
            let (home, owner) = locked.shard.home(at.dir, at.split, at.name)?;
            owner.check(&caller.credentials, EXECUTE)?;
            locked.shard.entry_is_free(at.dir, at.name)?;
            let named = locked.shard.find(at.dir, at.name).ok_or(Errno::NOENT)?;
            owner.check(&caller.credentials, WRITE)?;
            if named.kind == FileKind::Directory {
                return Err(Errno::ISDIR.into());
            }
            if named.ino.shard() != locked.id {
                return Ok(None);
            }
            locked.shard.may_change(home)?;
            locked.shard.inode_is_free(named.ino)?;
            if owner.is_restricted(&caller.credentials) {
                locked.shard.inode(named.ino)?.owner().check_owner(&caller.credentials)?;
            }
            let mut draft = Draft::freeing(now);
            draft.drop_entry(home, at.name, named.kind);
            draft.drop_link(locked.shard, &map, named.ino);
            draft.answer(&caller.id, &Reply::Done);
            locked.commit_for(caller, draft)?;
            Ok(Some(Reply::Done))
        })?;
        match done {
            Some(reply) => {
                if self.partitions.removed_much() {
                    self.keeper.give_back();
                }
                Ok(reply)
            }
            None => self.unlink_far(caller, at),
        }
    }

    pub(crate) fn read_link(&self, ino: Ino, out: &mut Vec<u8>) -> Result<Reply, Failure> {
        self.partitions.with(ino.shard(), |locked| match &locked.shard.inode(ino)?.body {
            Body::Symlink(target) => {
                out.extend_from_slice(target);
                Ok(Reply::Done)
            }
            _ => Err(Errno::INVAL.into()),
        })
    }

    /// What an entry names and who owns its directory, from this server's shards. Waits while an intent holds
    /// it.
    pub(crate) fn entry_here(
        &self,
        dir: Ino,
        split: bool,
        name: &[u8],
    ) -> Result<(Option<Named>, crate::access::Owner), Failure> {
        self.partitions.with(namespace::entry_shard(dir, split, name), |locked| {
            let (_, owner) = locked.shard.home(dir, split, name)?;
            locked.shard.entry_is_free(dir, name)?;
            Ok((locked.shard.find(dir, name), owner))
        })
    }
}

/// A device node; only user 0 may make one.
fn device(caller: &Caller, kind: FileKind, number: &[u8]) -> Result<Body, Errno> {
    if caller.credentials.uid != 0 {
        return Err(Errno::PERM);
    }
    let number = u32::from_le_bytes(number.try_into().map_err(|_| Errno::INVAL)?);
    Ok(match kind {
        FileKind::BlockDevice => Body::BlockDevice(number),
        _ => Body::CharDevice(number),
    })
}

/// What a reply shows of an inode.
pub(crate) struct Shown {
    pub attr: Attr,
    pub mtime_set: Time,
    pub target: Vec<u8>,
}

/// What a reply shows of an inode in this shard. Waits while the inode is losing a link.
pub(crate) fn shown(locked: &LockedShard<'_>, ino: Ino) -> Op<Shown> {
    locked.shard.is_not_leaving(ino)?;
    let inode = locked.shard.inode(ino)?;
    locked.shard.has_a_size(ino, &inode)?;
    let mtime_set = inode.as_directory().map_or(Time::MIN, |d| d.mtime_set);
    Ok(Shown { attr: inode.attr(ino), mtime_set, target: inode.target().to_vec() })
}

/// Checks that an entry can be made: its directory is there and may be written, and the name is free.
pub(crate) fn may_make(locked: &LockedShard<'_>, caller: &Caller, at: &At<'_>) -> Op<Home> {
    let (home, owner) = locked.shard.home(at.dir, at.split, at.name)?;
    owner.check(&caller.credentials, EXECUTE)?;
    locked.shard.entry_is_free(at.dir, at.name)?;
    if locked.shard.find(at.dir, at.name).is_some() {
        return Err(Errno::EXIST.into());
    }
    owner.check(&caller.credentials, WRITE)?;
    locked.shard.may_change(home)?;
    Ok(home)
}

/// Makes an inode and its entry in one shard; a file (`map` is given) takes its directory's layout over. Says
/// also whether the directory should be split now.
pub(crate) fn make(
    locked: &mut LockedShard<'_>,
    caller: &Caller,
    now: Time,
    (home, name): (Home, &[u8]),
    mut inode: Inode,
    map: Option<&Map>,
    reply: impl FnOnce(Box<Attr>) -> MetaReply,
) -> Op<(Ino, Reply, bool)> {
    let mut draft = Draft::new(now);
    let ino = draft.next_ino(locked.shard, locked.id);
    if let Some(map) = map {
        inode.set_template(locked.shard.template(home).placed(map, caller.node, ino));
    }
    let reply = Reply::Meta(reply(Box::new(inode.attr(ino))));
    draft.put_entry(home, name, Named { ino, kind: inode.kind() }, None);
    draft.put_inode(ino, inode);
    draft.answer(&caller.id, &reply);
    locked.commit_for(caller, draft)?;
    let grown = match home {
        Home::Packed(dir) => locked.shard.inodes.get(dir).is_some_and(|inode| wants_split(&inode)),
        Home::Part(..) => false,
    };
    Ok((ino, reply, grown))
}

fn opened(how: OpenHow, id: OpenId) -> Opened {
    Opened { id, write: how.write, append: how.append }
}

fn open_existing(
    (locked, map): (&mut LockedShard<'_>, Option<&Map>),
    caller: &Caller,
    now: Time,
    ino: Ino,
    how: OpenHow,
    open: OpenId,
    out: &mut Vec<u8>,
) -> Op<Look> {
    locked.shard.is_not_leaving(ino)?;
    let inode = locked.shard.inode(ino)?;
    let kind = inode.kind();
    if kind == FileKind::Symlink {
        let reply = MetaReply::Opened {
            attr: Box::new(inode.attr(ino)),
            created: false,
            target: inode.target().to_vec(),
        };
        return Ok(Look::Answered(Reply::Meta(reply)));
    }
    if kind == FileKind::Directory && (how.write || how.truncate || how.create.is_some()) {
        return Err(Errno::ISDIR.into());
    }
    if kind != FileKind::Directory && how.directory {
        return Err(Errno::NOTDIR.into());
    }
    let wanted = if how.read { READ } else { 0 } | if how.write || how.truncate { WRITE } else { 0 };
    inode.owner().check(&caller.credentials, wanted)?;
    let truncate = how.truncate && kind == FileKind::File;
    let is_lazy = inode.as_lazy().is_some();
    if is_lazy && !truncate {
        return Err(Refusal::Unfetched { ino }.into());
    }
    if truncate {
        locked.shard.is_not_busy(ino)?;
    } else {
        locked.shard.has_a_size(ino, &inode)?;
    }
    if let Some(map) = map.filter(|_| how.write) {
        locked.shard.may_be_written(ino)?;
        restripe::continue_elsewhere(locked, map, ino, now)?;
    }
    register(locked, now, ino, opened(how, open))?;
    let inode = locked.shard.inode(ino)?;
    match &inode.body {
        Body::Blocks(_) if truncate => return Ok(Look::Truncate(ino)),
        // A file that is empty already still gets a new time.
        Body::Inline(_) | Body::Lazy(_) if truncate => {
            let mut draft = Draft::freeing(now);
            if let Some(inode) = draft.inode(locked.shard, ino) {
                crate::inline::resize_inline(inode, 0, now, &caller.credentials);
            }
            let reply = locked.shard.inode(ino)?.attr(ino);
            let attr =
                Attr { size: 0, mtime: now, ctime: now, size_version: reply.size_version + 1, ..reply };
            let reply = MetaReply::Opened { attr: Box::new(attr), created: false, target: Vec::new() };
            let reply = Reply::Meta(reply);
            draft.answer(&caller.id, &reply);
            locked.commit(draft)?;
            return Ok(Look::Answered(reply));
        }
        Body::Inline(data) if how.read => out.extend_from_slice(data),
        _ => {}
    }
    let reply = MetaReply::Opened { attr: Box::new(inode.attr(ino)), created: false, target: Vec::new() };
    Ok(Look::Answered(Reply::Meta(reply)))
}

/// Registers an open file description; again is fine.
pub(crate) fn register(locked: &mut LockedShard<'_>, now: Time, ino: Ino, opened: Opened) -> Op<()> {
    crate::opens::register(locked, now, ino, opened)
}
