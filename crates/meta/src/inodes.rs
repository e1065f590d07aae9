//! The inodes of a shard.
//!
//! Most are small files without anything special. These lie packed, in a few dozen bytes ([`Runs`]), and are
//! unpacked when they are looked at; the others lie as they are.

use crate::inode::{Body, Inode};
use crate::runs::{Record, Runs};
use bivouac_layout::Ino;
use bivouac_proto::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Deref;

/// Files with more data than this are not packed, bytes: moving it would cost more than it saves.
const PACKED: usize = 160;

/// Room for a packed inode, bytes.
const ROOM: usize = 96 + PACKED;

/// All inodes of a shard.
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    /// By (0, number).
    packed: Runs,
    others: BTreeMap<Ino, Box<Inode>>,
    /// How many of the others are lazy, and their bytes.
    lazy: (u64, u64),
}

/// An inode to look at.
#[derive(Debug)]
pub(crate) enum Seen<'a> {
    Here(&'a Inode),
    Unpacked(Inode),
}

impl Deref for Seen<'_> {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        match self {
            Seen::Here(inode) => inode,
            Seen::Unpacked(inode) => inode,
        }
    }
}

impl Seen<'_> {
    /// An inode of one's own.
    pub(crate) fn into_box(self) -> Box<Inode> {
        match self {
            Seen::Here(inode) => Box::new(inode.clone()),
            Seen::Unpacked(inode) => Box::new(inode),
        }
    }
}

/// What is kept of a packed inode. Times are as they are usually alike.
#[derive(Serialize, Deserialize)]
struct Packed<'a> {
    kind: PackedKind,
    mode: u16,
    nlink: u32,
    uid: u32,
    gid: u32,
    size_version: u32,
    btime: Time,
    /// This and the following times are differences from the time before them, wrapping.
    ctime: Time,
    mtime: Time,
    atime: Time,
    #[serde(borrow, with = "serde_bytes")]
    data: &'a [u8],
}

#[derive(Serialize, Deserialize)]
enum PackedKind {
    Inline,
    Symlink,
    Fifo,
    Socket,
    CharDevice(u32),
    BlockDevice(u32),
}

impl Inodes {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.packed.len() + self.others.len()
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Seen<'_>> {
        // The directories are among these, which every operation looks at.
        if let Some(inode) = self.others.get(&ino) {
            return Some(Seen::Here(inode));
        }
        self.packed.with((0, ino.0)).next().and_then(unpack).map(Seen::Unpacked)
    }

    /// How many are lazy, and how many bytes these have.
    pub(crate) fn lazy(&self) -> (u64, u64) {
        self.lazy
    }

    fn count_in(&mut self, inode: &Inode) {
        if let Some(source) = inode.as_lazy() {
            self.lazy = (self.lazy.0 + 1, self.lazy.1.saturating_add(source.size));
        }
    }

    fn count_out(&mut self, inode: Option<&Inode>) {
        if let Some(source) = inode.and_then(Inode::as_lazy) {
            self.lazy = (self.lazy.0.saturating_sub(1), self.lazy.1.saturating_sub(source.size));
        }
    }

    /// Adds or replaces one.
    pub(crate) fn put(&mut self, ino: Ino, inode: Box<Inode>) {
        let key = (0, ino.0);
        self.count_in(&inode);
        match pack(&inode, &mut [0; ROOM]) {
            Some(bytes) => {
                if !self.packed.put(key, |_| true, bytes) {
                    let before = self.others.remove(&ino);
                    self.count_out(before.as_deref());
                }
            }
            None => match self.others.insert(ino, inode) {
                None => drop(self.packed.remove(key, |_| true)),
                before => self.count_out(before.as_deref()),
            },
        }
    }

    pub(crate) fn remove(&mut self, ino: Ino) {
        if !self.packed.remove((0, ino.0), |_| true) {
            let before = self.others.remove(&ino);
            self.count_out(before.as_deref());
        }
    }

    /// Changes one, if it is there. Where it lies afterwards depends on what it has become alone, so that equal shards are
    /// equal in their images too.
    pub(crate) fn modify(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        if let Some(inode) = self.others.get_mut(&ino).filter(|inode| inode.as_lazy().is_none()) {
            change(inode);
            if let Some(bytes) = pack(inode, &mut [0; ROOM]) {
                self.packed.put((0, ino.0), |_| true, bytes);
                self.others.remove(&ino);
            }
        } else if let Some(mut inode) = self.get(ino).map(Seen::into_box) {
            change(&mut inode);
            self.put(ino, inode);
        }
    }

    /// Directories and files in blocks, and some others.
    pub(crate) fn unpacked(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.others.iter().map(|(ino, inode)| (*ino, &**inode))
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ino, Box<Inode>)> {
        let open = |record: Record<'_>| Some((Ino(record.key.1), Box::new(unpack(record.bytes)?)));
        let packed = self.packed.from((0, 0)).filter_map(open);
        packed.chain(self.others.iter().map(|(ino, inode)| (*ino, inode.clone())))
    }
}

/// The inode packed, if it is one of those that are.
fn pack<'a>(inode: &Inode, room: &'a mut [u8; ROOM]) -> Option<&'a [u8]> {
    if inode.extra.is_some() {
        return None;
    }
    let none: &[u8] = &[];
    let (kind, data) = match &inode.body {
        Body::Inline(data) => (PackedKind::Inline, &**data),
        Body::Symlink(target) => (PackedKind::Symlink, &**target),
        Body::Fifo => (PackedKind::Fifo, none),
        Body::Socket => (PackedKind::Socket, none),
        Body::CharDevice(number) => (PackedKind::CharDevice(*number), none),
        Body::BlockDevice(number) => (PackedKind::BlockDevice(*number), none),
        Body::Blocks(_) | Body::Directory(_) | Body::Lazy(_) => return None,
    };
    if data.len() > PACKED || inode.size != data.len() as u64 {
        return None;
    }
    let packed = Packed {
        kind,
        mode: inode.mode,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        size_version: inode.size_version,
        btime: inode.btime,
        ctime: inode.ctime.wrapping_sub(inode.btime),
        mtime: inode.mtime.wrapping_sub(inode.ctime),
        atime: inode.atime.wrapping_sub(inode.btime),
        data,
    };
    postcard::to_slice(&packed, room).ok().map(|bytes| &*bytes)
}

fn unpack(bytes: &[u8]) -> Option<Inode> {
    let packed: Packed<'_> = postcard::from_bytes(bytes).ok()?;
    let ctime = packed.btime.wrapping_add(packed.ctime);
    Some(Inode {
        size: packed.data.len() as u64,
        atime: packed.btime.wrapping_add(packed.atime),
        mtime: ctime.wrapping_add(packed.mtime),
        ctime,
        btime: packed.btime,
        nlink: packed.nlink,
        uid: packed.uid,
        gid: packed.gid,
        size_version: packed.size_version,
        mode: packed.mode,
        body: match packed.kind {
            PackedKind::Inline => Body::Inline(packed.data.into()),
            PackedKind::Symlink => Body::Symlink(packed.data.into()),
            PackedKind::Fifo => Body::Fifo,
            PackedKind::Socket => Body::Socket,
            PackedKind::CharDevice(number) => Body::CharDevice(number),
            PackedKind::BlockDevice(number) => Body::BlockDevice(number),
        },
        extra: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Owner;
    use crate::inode::Extra;
    use bivouac_layout::{ShardId, Template};
    use bivouac_proto::lazy::Source;

    fn inodes() -> Vec<Inode> {
        let owner = Owner { mode: 0o4755, uid: u32::MAX, gid: 1000 };
        let mut made = Vec::new();
        for len in [0, 1, 8, PACKED, PACKED + 1, 4096] {
            made.push(Inode::new(owner, 1_700_000_000_000_000_000, Body::Inline(vec![b'd'; len].into())));
            made.push(Inode::new(owner, 0, Body::Symlink(vec![b'd'; len].into())));
        }
        made.extend([Body::Fifo, Body::Socket].map(|body| Inode::new(owner, -1, body)));
        made.push(Inode::new(owner, 5, Body::CharDevice(u32::MAX)));
        made.push(Inode::new(owner, 5, Body::BlockDevice(7)));
        made.push(Inode::directory(owner, 5, Ino::ROOT, b"name", Template::default()));
        let mut special = made[2].clone();
        special.extra = Some(Box::new(Extra { linkable: true, ..Extra::default() }));
        made.push(special);
        for size in [1, 1 << 40] {
            let source = Source { path: b"/work/a".to_vec(), ino: 7, size, mtime: -1 };
            made.push(Inode::new(owner, 5, Body::Lazy(Box::new(source))));
        }
        let mut far = made[4].clone();
        (far.atime, far.mtime, far.ctime, far.btime) = (Time::MIN, Time::MAX, -3, Time::MAX);
        (far.nlink, far.size_version) = (0, u32::MAX);
        made.push(far);
        made
    }

    #[test]
    fn an_inode_comes_back_as_it_was_put() {
        let mut store = Inodes::default();
        let made = inodes();
        // Each kind of inode replaces each other kind, packed or not.
        for first in &made {
            for (counter, inode) in (1..).zip(&made) {
                let ino = Ino::new(ShardId(9), counter);
                store.put(ino, Box::new(first.clone()));
                store.put(ino, Box::new(inode.clone()));
                assert_eq!(&*store.get(ino).unwrap(), inode);
            }
            assert_eq!(store.len(), made.len());
            assert_eq!(store.lazy(), (2, 1 + (1 << 40)));
        }
        let mut all: Vec<_> = store.iter().map(|(ino, inode)| (ino, *inode)).collect();
        all.sort_by_key(|(ino, _)| *ino);
        assert_eq!(all.iter().map(|(_, inode)| inode.clone()).collect::<Vec<_>>(), made);
        for (ino, inode) in all {
            store.modify(ino, |inode| inode.nlink = 77);
            assert_eq!(*store.get(ino).unwrap(), Inode { nlink: 77, ..inode });
            store.remove(ino);
            assert!(store.get(ino).is_none());
        }
        assert_eq!((store.len(), store.lazy()), (0, (0, 0)));
    }

    #[test]
    fn an_inode_that_has_become_small_and_plain_is_packed() {
        let (mut changed, mut put) = (Inodes::default(), Inodes::default());
        let ino = Ino::new(ShardId(9), 1);
        for inode in inodes() {
            let plain =
                Inode { size: 3, body: Body::Inline(b"new".as_slice().into()), extra: None, ..inode.clone() };
            changed.put(ino, Box::new(inode));
            changed.modify(ino, |inode| *inode = plain.clone());
            put.put(ino, Box::new(plain));
            assert_eq!((changed.len(), changed.others.len()), (1, 0));
            assert_eq!(changed.iter().collect::<Vec<_>>(), put.iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_small_plain_file_takes_few_bytes() {
        let owner = Owner { mode: 0o644, uid: 1000, gid: 1000 };
        let mut file =
            Inode::new(owner, 1_700_000_000_000_000_000, Body::Inline(b"8 bytes.".to_vec().into()));
        (file.mtime, file.ctime) = (file.mtime + 90_000, file.ctime + 90_000);
        assert!(pack(&file, &mut [0; ROOM]).unwrap().len() <= 34);
    }
}
