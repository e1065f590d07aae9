//! The reference's inodes, and how paths lead to them.

use std::collections::{BTreeMap, VecDeque};

/// The directory that programs work in.
pub const TOP: u64 = 1;

/// A path that leads out of the directory that programs work in: no error, but nothing to compare either.
pub const ESCAPED: i32 = -1;

/// Rights, as in mode bits.
pub const READ: u32 = 4;
/// Likewise.
pub const WRITE: u32 = 2;
/// Likewise; of a directory, to go through it.
pub const EXECUTE: u32 = 1;

/// Links that a path may lead through.
const MAX_LINKS: u32 = 40;

/// What is known of a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Time {
    /// It was set to this.
    Set(i64),
    /// It is of this test's time.
    Fresh,
    /// File systems differ.
    Any,
}

/// What an inode is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A regular file, with its bytes.
    File(Vec<u8>),
    /// A directory: its entries, and the directory above.
    Directory(BTreeMap<Vec<u8>, u64>, u64),
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A named pipe or a socket, as directory entries name it (DT_FIFO, DT_SOCK).
    Special(u8),
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// It has had another owner, or another mode.
    pub rights_changed: bool,
    /// When it was last given set-id bits, as the reference counts.
    pub set_id: u64,
    pub links: u64,
    pub atime: Time,
    pub mtime: Time,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Descriptions that are open.
    pub opens: u32,
    /// Those that were opened with O_PATH.
    pub paths: u32,
    /// It may get its first name yet (O_TMPFILE without O_EXCL).
    pub nameable: bool,
}

/// Where a path's last component is.
#[derive(Clone, Debug)]
pub enum Last {
    /// It ends with `.`, or is nothing but slashes.
    Here(u64),
    /// It ends with `..`.
    Above(u64),
    /// A name in a directory; with a slash behind it or not.
    Name(u64, Vec<u8>, bool),
}

/// All inodes.
pub struct Tree {
    pub nodes: BTreeMap<u64, Node>,
    /// Where paths begin.
    pub start: u64,
    /// Who makes the present call: user and group.
    pub caller: (u32, u32),
    next: u64,
}

impl Tree {
    /// An empty one of this user and group.
    pub fn new(owner: (u32, u32)) -> Tree {
        let mut tree = Tree { nodes: BTreeMap::new(), start: TOP, caller: owner, next: TOP };
        tree.add(Kind::Directory(BTreeMap::new(), TOP), 0o777);
        tree
    }

    /// A new inode without names.
    pub fn add(&mut self, kind: Kind, mode: u32) -> u64 {
        let number = self.next;
        self.next += 1;
        let links = if matches!(kind, Kind::Directory(..)) { 2 } else { 0 };
        let node = Node {
            kind,
            mode,
            owner: self.caller,
            rights_changed: false,
            set_id: 0,
            links,
            atime: Time::Fresh,
            mtime: Time::Fresh,
            xattrs: BTreeMap::new(),
            opens: 0,
            paths: 0,
            nameable: false,
        };
        self.nodes.insert(number, node);
        number
    }

    pub fn node(&self, number: u64) -> &Node {
        &self.nodes[&number]
    }

    pub fn node_mut(&mut self, number: u64) -> &mut Node {
        self.nodes.get_mut(&number).expect("an inode that exists")
    }

    pub fn is_directory(&self, number: u64) -> bool {
        matches!(self.node(number).kind, Kind::Directory(..))
    }

    /// A directory's entries. Panics on anything else.
    pub fn entries(&self, number: u64) -> &BTreeMap<Vec<u8>, u64> {
        match &self.node(number).kind {
            Kind::Directory(entries, _) => entries,
            other => panic!("not a directory: {other:?}"),
        }
    }

    /// The same, to be changed: which counts for its time.
    pub fn entries_mut(&mut self, number: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        let node = self.node_mut(number);
        node.mtime = Time::Fresh;
        match &mut node.kind {
            Kind::Directory(entries, _) => entries,
            other => panic!("not a directory: {other:?}"),
        }
    }

    /// The bytes of a regular file.
    pub fn data(&self, number: u64) -> Option<&Vec<u8>> {
        match &self.node(number).kind {
            Kind::File(data) => Some(data),
            _ => None,
        }
    }

    /// Whether the caller owns an inode, or is root.
    pub fn owns(&self, number: u64) -> bool {
        self.caller.0 == 0 || self.caller.0 == self.node(number).owner.0
    }

    /// Whether the caller is in an inode's group, or is root.
    pub fn is_of_group(&self, number: u64) -> bool {
        self.caller.0 == 0 || self.caller.1 == self.node(number).owner.1
    }

    /// Whether a change by the caller that takes set-user-ID off a file takes set-group-ID off, too.
    pub fn drops_group_bit(&self, number: u64) -> bool {
        self.node(number).mode & libc::S_IXGRP != 0 || !self.is_of_group(number)
    }

    /// The caller has changed what is in a file: unless he is root, it has no set-id bits any more.
    pub fn content_changes(&mut self, number: u64) {
        if self.caller.0 != 0 {
            let group = if self.drops_group_bit(number) { libc::S_ISGID } else { 0 };
            self.node_mut(number).mode &= !(libc::S_ISUID | group);
        }
    }

    /// EACCES unless the caller has these rights.
    pub fn may(&self, number: u64, rights: u32) -> Result<(), i32> {
        let (node, (user, group)) = (self.node(number), self.caller);
        let bits = match node.owner {
            (owner, _) if owner == user => node.mode >> 6,
            (_, owner) if owner == group => node.mode >> 3,
            _ => node.mode,
        };
        if user == 0 || bits & rights == rights { Ok(()) } else { Err(libc::EACCES) }
    }

    /// Whether the caller may take a name away from a directory.
    pub fn may_remove(&self, dir: u64, number: u64) -> Result<(), i32> {
        self.may(dir, WRITE | EXECUTE)?;
        let sticky = self.node(dir).mode & libc::S_ISVTX != 0;
        if sticky && !self.owns(dir) && !self.owns(number) { Err(libc::EPERM) } else { Ok(()) }
    }

    /// A setting of the kernel (`protected_symlinks`, `protected_regular`) may keep everybody, root too, from
    /// following and from opening with O_CREAT what is another's in a sticky directory; some cases it always
    /// refuses.
    pub fn unless_sheltered(&self, dir: u64, number: u64) -> Result<(), i32> {
        let (above, owner) = (self.node(dir), self.node(number).owner.0);
        let open = above.mode & libc::S_ISVTX != 0 && above.mode & 0o022 != 0;
        if open && owner != above.owner.0 && owner != self.caller.0 { Err(ESCAPED) } else { Ok(()) }
    }

    fn parent(&self, number: u64) -> Result<u64, i32> {
        match (number, &self.node(number).kind) {
            (TOP, _) => Err(ESCAPED),
            (_, Kind::Directory(_, above)) => Ok(*above),
            _ => Err(libc::ENOTDIR),
        }
    }

    /// What a name leads to. The name's length is looked at, as every file system does.
    pub fn look(&self, dir: u64, name: &[u8]) -> Result<Option<u64>, i32> {
        if name.len() > 255 {
            return Err(libc::ENAMETOOLONG);
        }
        Ok(self.entries(dir).get(name).copied())
    }

    /// Walks to the last component. `links` counts those that were followed.
    pub fn walk_from(&self, start: u64, path: &[u8], links: &mut u32) -> Result<Last, i32> {
        if path.is_empty() {
            return Err(libc::ENOENT);
        }
        if !self.is_directory(start) {
            return Err(libc::ENOTDIR);
        }
        let slash = path.ends_with(b"/");
        let split = |path: &[u8]| -> VecDeque<Vec<u8>> {
            path.split(|b| *b == b'/').filter(|c| !c.is_empty()).map(<[u8]>::to_vec).collect()
        };
        let (mut dir, mut rest) = (start, split(path));
        while let Some(name) = rest.pop_front() {
            self.may(dir, EXECUTE)?;
            let last = rest.is_empty();
            match &name[..] {
                b"." if last => return Ok(Last::Here(dir)),
                b"." => {}
                b".." => {
                    dir = self.parent(dir)?;
                    if last {
                        return Ok(Last::Above(dir));
                    }
                }
                _ if last => return Ok(Last::Name(dir, name, slash)),
                _ => {
                    let found = self.look(dir, &name)?.ok_or(libc::ENOENT)?;
                    match &self.node(found).kind {
                        Kind::Directory(..) => dir = found,
                        Kind::File(_) | Kind::Special(_) => return Err(libc::ENOTDIR),
                        Kind::Symlink(target) => {
                            count(links)?;
                            for component in split(target).into_iter().rev() {
                                rest.push_front(component);
                            }
                        }
                    }
                }
            }
        }
        Ok(Last::Here(dir))
    }

    pub fn walk(&self, path: &str) -> Result<Last, i32> {
        self.walk_from(self.start, path.as_bytes(), &mut 0)
    }

    /// What a path names, with what it goes through counted on.
    pub fn find(&self, path: &str, follow: bool) -> Result<u64, i32> {
        let mut links = 0;
        let last = self.walk_from(self.start, path.as_bytes(), &mut links)?;
        self.settle(last, follow, &mut links)
    }

    /// From a last component to the inode.
    pub fn settle(&self, mut last: Last, follow: bool, links: &mut u32) -> Result<u64, i32> {
        let mut must_be_directory = false;
        loop {
            let (dir, name, slash) = match last {
                Last::Here(dir) | Last::Above(dir) => return Ok(dir),
                Last::Name(dir, name, slash) => (dir, name, slash),
            };
            must_be_directory |= slash;
            let found = self.look(dir, &name)?.ok_or(libc::ENOENT)?;
            match &self.node(found).kind {
                Kind::Symlink(target) if follow || must_be_directory => {
                    self.unless_sheltered(dir, found)?;
                    count(links)?;
                    last = self.walk_from(dir, target, links)?;
                }
                Kind::Directory(..) => return Ok(found),
                _ if must_be_directory => return Err(libc::ENOTDIR),
                _ => return Ok(found),
            }
        }
    }

    /// Whether a directory is `inner`, or lies above it.
    pub fn holds(&self, outer: u64, inner: u64) -> bool {
        let mut at = inner;
        loop {
            if at == outer {
                return true;
            }
            match &self.node(at).kind {
                Kind::Directory(_, above) if at != TOP => at = *above,
                _ => return false,
            }
        }
    }

    /// Takes a name's count off an inode, which may be the end of it.
    pub fn drop_name(&mut self, number: u64) {
        let node = self.node_mut(number);
        node.links = if matches!(node.kind, Kind::Directory(..)) { 0 } else { node.links - 1 };
        self.forget_if_gone(number);
    }

    /// Forgets an inode that has neither names nor opens.
    pub fn forget_if_gone(&mut self, number: u64) {
        let node = self.node(number);
        if node.links == 0 && node.opens == 0 && node.paths == 0 {
            self.nodes.remove(&number);
        }
    }
}

fn count(links: &mut u32) -> Result<(), i32> {
    *links += 1;
    if *links > MAX_LINKS { Err(libc::ELOOP) } else { Ok(()) }
}
