//! The reference: what each call has to answer, for all clients, from a file system in memory.
//!
//! [`Reference::settle`] makes a call of a random program one that can be judged; [`Reference::expect`]
//! carries it out and says what must come of it; [`Reference::judge`] compares. Errors are Linux's, in the
//! order in which Linux finds them: the same programs are run on a local file system to show that. It takes
//! the liberties of the semantics page and no others: a directory's size is its number of entries, and
//! reading leaves access times alone.

mod files;
mod locking;
mod names;
mod paths;
mod users;

use super::call::{Answer, Call, Held, SLOTS, Seen, Stamp, Target, pattern};
use super::locks::{Locks, Owner};
use super::tree::{ESCAPED, EXECUTE, Kind, Last, READ, TOP, Time, Tree, WRITE};
use locking::Waiting;
use std::collections::{BTreeMap, HashMap};

/// What a call must come to.
#[derive(Clone, Debug)]
pub enum Expected {
    /// This.
    Exactly(Answer),
    /// The attributes of an inode.
    Attributes(u64),
    /// Where data (or a hole) begins at or after an offset: file systems may differ, but a reported hole must
    /// be one.
    Begin { node: u64, description: u64, offset: u64, hole: bool },
    /// The attributes of an inode that was removed, or the error that says so.
    Gone(u64),
    /// One of these locks, in part or whole.
    OneOf(Vec<Held>),
    /// Whatever it answers.
    Anything,
    /// No answer yet.
    Later,
}

/// What differs from one file system to the other.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A directory's size is its number of entries.
    pub directory_sizes: bool,
    /// `fallocate` can zero a range.
    pub zero_range: bool,
    /// Not everybody may link what is another's.
    pub protected_links: bool,
    /// A descriptor that was opened with O_PATH keeps an inode.
    pub paths_keep: bool,
}

struct Description {
    /// When it was opened, as the reference counts.
    number: u64,
    node: u64,
    flags: i32,
    offset: u64,
    /// Only the kernel knows the offset: after an append through a mount it counts from the end of the file
    /// as the kernel knows it.
    strayed: bool,
    holders: u32,
}

/// The file system, and what its clients have open.
pub struct Reference {
    rules: Rules,
    tree: Tree,
    descriptions: BTreeMap<u64, Description>,
    next: u64,
    slots: Vec<[Option<u64>; SLOTS as usize]>,
    /// Which clients work in a kernel mount.
    mounts: Vec<bool>,
    /// Who they are: user and group.
    users: Vec<(u32, u32)>,
    locks: Locks,
    /// What clients wait for.
    waiting: BTreeMap<usize, Waiting>,
    /// Inode numbers that were seen, by the reference's own.
    numbers: HashMap<u64, u64>,
    /// Times before this are of another day, nanoseconds since 1970.
    begin: i64,
    /// A directory went to another one.
    directories_moved: bool,
}

/// Either what to expect, or an error's number (or [`ESCAPED`]).
type Outcome = Result<Expected, i32>;

fn done() -> Outcome {
    Ok(Expected::Exactly(Answer::Done))
}

fn count(count: u64) -> Outcome {
    Ok(Expected::Exactly(Answer::Count(count)))
}

impl Reference {
    /// An empty one. `mounts`: which of the clients work in a kernel mount; `users`: who they are (the first
    /// one owns the directory); `begin`: the present, nanoseconds since 1970.
    pub fn new(mounts: Vec<bool>, users: Vec<(u32, u32)>, rules: Rules, begin: i64) -> Reference {
        Reference {
            rules,
            tree: Tree::new(users[0]),
            descriptions: BTreeMap::new(),
            next: 0,
            slots: vec![[None; SLOTS as usize]; mounts.len()],
            mounts,
            users,
            locks: Locks::default(),
            waiting: BTreeMap::new(),
            numbers: HashMap::new(),
            directories_moved: false,
            begin,
        }
    }

    /// Makes the call one that can be made: its slots are open (or, for an open, free). `None`: that is not
    /// possible.
    pub fn settle(&self, client: usize, mut call: Call) -> Option<Call> {
        let open = |slot: &mut u8| {
            let found =
                (0..SLOTS).map(|i| (*slot + i) % SLOTS).find(|s| self.slots[client][*s as usize].is_some());
            found.map(|found| *slot = found)
        };
        match &mut call {
            Call::Open { slot, .. } | Call::Reopen { slot, .. } => {
                match (0..SLOTS).find(|s| self.slots[client][*s as usize].is_none()) {
                    Some(free) => *slot = free,
                    None => return Some(Call::Close { slot: *slot % SLOTS }),
                }
                if let Call::Reopen { from, .. } = &mut call {
                    open(from)?;
                }
            }
            Call::Dup { from, to } => {
                open(from)?;
                *to %= SLOTS;
                if from == to {
                    return None;
                }
            }
            Call::Copy { from, to, .. } => {
                open(from)?;
                open(to)?;
            }
            Call::Close { slot }
            | Call::Append { slot, .. }
            | Call::Read { slot, .. }
            | Call::Pread { slot, .. }
            | Call::Write { slot, .. }
            | Call::Pwrite { slot, .. }
            | Call::Seek { slot, .. }
            | Call::Allocate { slot, .. }
            | Call::Sync { slot }
            | Call::LinkSlot { slot, .. }
            | Call::ReadlinkSlot { slot }
            | Call::MapRead { slot, .. }
            | Call::MapWrite { slot, .. }
            | Call::Lock { slot, .. }
            | Call::TestLock { slot, .. } => open(slot)?,
            Call::Truncate { target: Target::Slot(slot), .. }
            | Call::Chown { target: Target::Slot(slot), .. }
            | Call::Stat { target: Target::Slot(slot) }
            | Call::StatEmpty { slot }
            | Call::TimesEmpty { slot, .. }
            | Call::Chmod { target: Target::Slot(slot), .. }
            | Call::Times { target: Target::Slot(slot), .. }
            | Call::List { target: Target::Slot(slot) }
            | Call::SetXattr { target: Target::Slot(slot), .. }
            | Call::GetXattr { target: Target::Slot(slot), .. }
            | Call::ListXattr { target: Target::Slot(slot) }
            | Call::RemoveXattr { target: Target::Slot(slot), .. } => open(slot)?,
            _ => {}
        }
        match &mut call {
            Call::MapWrite { .. } if !self.mounts[client] => return None,
            Call::MapRead { slot, offset, len } | Call::MapWrite { slot, offset, len, .. } => {
                (*offset, *len) = self.mapped(client, *slot, *offset, *len)?;
            }
            Call::At { slot, enter, call } => return self.settle_at(client, *slot, *enter, call),
            _ => {}
        }
        // Not all kernels let others than root do that.
        if let Call::LinkSlot { empty, .. } = &mut call
            && self.users[client].0 != 0
        {
            *empty = false;
        }
        if matches!(call, Call::Lock { wait: true, .. }) && self.is_not_to_wait(client, &call) {
            return None;
        }
        // It closes a duplicate: of a file, that would give up locks.
        if let Call::List { target: Target::Slot(slot) } = &call
            && !self.tree.is_directory(self.description(client, *slot).node)
        {
            return None;
        }
        // What a directory's descriptor can do besides being looked at differs among local file systems, too.
        let on_file = match &call {
            Call::Seek { slot, .. } | Call::Lock { slot, .. } | Call::TestLock { slot, .. } => Some(*slot),
            Call::Append { slot, .. } => Some(*slot),
            _ => None,
        };
        if let Some(slot) = on_file {
            let description = self.description(client, slot);
            if !description.path_only() && self.tree.is_directory(description.node) {
                return None;
            }
        }
        Some(call)
    }

    /// A call with paths from a directory that is open; if none is, one is opened instead.
    fn settle_at(&self, client: usize, slot: u8, enter: bool, call: &Call) -> Option<Call> {
        let inner = self.settle(client, call.clone())?;
        let enter = enter && self.may_come_back(client);
        let slots = (0..SLOTS).map(|i| (slot + i) % SLOTS);
        let directory = slots.into_iter().find(|slot| {
            let number = self.slots[client][*slot as usize];
            let description = number.map(|number| &self.descriptions[&number]);
            description.is_some_and(|description| {
                let node = description.node;
                if self.tree.is_directory(node) {
                    self.tree.node(node).links > 0
                } else {
                    description.path_only() && !self.lost(node)
                }
            })
        });
        Some(match directory {
            Some(slot) if !matches!(inner, Call::Close { .. }) => {
                Call::At { slot, enter, call: Box::new(inner) }
            }
            None => {
                let entries = self.tree.entries(TOP).iter();
                let names = entries.filter(|(name, node)| self.tree.is_directory(**node) && name.len() < 9);
                let path = names.map(|(name, _)| String::from_utf8_lossy(name).into_owned()).next();
                let path = path.unwrap_or_else(|| ".".to_owned());
                let how = if slot.is_multiple_of(2) { libc::O_RDONLY } else { libc::O_PATH };
                let flags = how | libc::O_DIRECTORY;
                return self.settle(client, Call::Open { slot, path, flags, mode: 0 });
            }
            _ => inner,
        })
    }

    /// Carries the call out, and says what it must answer. `None`: it is not to be made, and nothing has
    /// changed.
    pub fn expect(&mut self, client: usize, call: &Call) -> Option<Expected> {
        if let Call::At { slot, enter, call } = call {
            let node = self.description(client, *slot).node;
            self.tree.caller = self.users[client];
            // Where a directory that another client has moved lies, the kernel of a mount hears when it looks
            // up its name.
            if self.directories_moved && self.mounts[client] && format!("{call:?}").contains("\"..") {
                return None;
            }
            if *enter && !self.tree.is_directory(node) {
                return Some(Expected::Exactly(Answer::Failed(libc::ENOTDIR)));
            }
            if *enter && let Err(errno) = self.tree.may(node, EXECUTE) {
                return Some(Expected::Exactly(Answer::Failed(errno)));
            }
            self.tree.start = node;
            let expected = self.expect(client, call);
            self.tree.start = TOP;
            return expected;
        }
        self.tree.caller = self.users[client];
        if self.depends_on_an_old_look(client, call) || self.may_leave_set_id_bits(client, call) {
            return None;
        }
        if let Some(expected) = self.through_a_path(client, call) {
            return Some(expected);
        }
        let outcome = match call {
            Call::Open { slot, path, flags, mode } => self.open(client, *slot, path, *flags, *mode),
            Call::Reopen { slot, from, flags } => self.reopen(client, *slot, *from, *flags),
            Call::Close { slot } => self.close(client, *slot),
            Call::Dup { from, to } => self.dup(client, *from, *to),
            Call::Append { slot, on } => {
                let description = self.description_mut(client, *slot);
                description.flags = if *on {
                    description.flags | libc::O_APPEND
                } else {
                    description.flags & !libc::O_APPEND
                };
                done()
            }
            Call::Read { slot, len } => self.read(client, *slot, None, *len),
            Call::Pread { slot, offset, len } => self.read(client, *slot, Some(*offset), *len),
            Call::Write { slot, len, seed } => self.write(client, *slot, None, *len, *seed),
            Call::Pwrite { slot, offset, len, seed } => self.write(client, *slot, Some(*offset), *len, *seed),
            Call::Seek { slot, offset, whence } => self.seek(client, *slot, *offset, *whence),
            Call::Copy { from, at, to, to_at, len } => self.copy(client, (*from, *at), (*to, *to_at), *len),
            Call::Truncate { target, size } => self.truncate(client, target, *size),
            Call::Allocate { slot, mode, offset, len } => self.allocate(client, *slot, *mode, *offset, *len),
            Call::Sync { .. } => done(),
            Call::Stat { target } => self.target(client, target).map(|node| self.stat(node)),
            Call::StatEmpty { slot } => Ok(self.stat(self.description(client, *slot).node)),
            Call::Chmod { target, mode } => self.target(client, target).and_then(|node| {
                self.alive(node)?;
                if !self.tree.owns(node) {
                    return Err(libc::EPERM);
                }
                self.chmod(node, *mode)
            }),
            Call::Chown { target, uid, gid } => {
                self.target(client, target).and_then(|node| self.chown(node, *uid, *gid))
            }
            // Nothing is looked at then.
            Call::Times { atime: Stamp::Omit, mtime: Stamp::Omit, .. }
            | Call::TimesEmpty { atime: Stamp::Omit, mtime: Stamp::Omit, .. } => done(),
            Call::Times { target, atime, mtime } => {
                self.target(client, target).and_then(|node| self.times(node, *atime, *mtime))
            }
            Call::TimesEmpty { slot, atime, mtime } => {
                self.times(self.description(client, *slot).node, *atime, *mtime)
            }
            Call::Rename { from, to, flags } => self.rename(from, to, *flags),
            Call::Link { from, to, follow } => self.link(from, to, *follow),
            Call::LinkSlot { slot, to, .. } => self.link_slot(client, *slot, to),
            Call::Symlink { target, path } => self.symlink(target, path),
            Call::Readlink { path } => {
                self.tree.find(path, false).and_then(|node| match &self.tree.node(node).kind {
                    Kind::Symlink(target) => Ok(Expected::Exactly(Answer::Bytes(target.clone()))),
                    _ => Err(libc::EINVAL),
                })
            }
            Call::ReadlinkSlot { slot } => match &self.tree.node(self.description(client, *slot).node).kind {
                Kind::Symlink(target) => Ok(Expected::Exactly(Answer::Bytes(target.clone()))),
                _ => Err(libc::ENOENT),
            },
            Call::Unlink { path } => self.unlink(path),
            Call::Mkdir { path, mode } => self.mkdir(path, *mode),
            Call::Mknod { path, mode } => self.mknod(path, *mode),
            Call::Rmdir { path } => self.rmdir(path),
            Call::List { target } => self.target(client, target).and_then(|node| self.list(node, target)),
            Call::SetXattr { target, name, value, flags } => {
                self.target(client, target).and_then(|node| self.set_xattr(node, name, value, *flags))
            }
            Call::GetXattr { target, name } => self.target(client, target).and_then(|node| {
                self.alive(node)?;
                if !self.is_link(node) {
                    self.tree.may(node, READ)?;
                }
                let value = self.tree.node(node).xattrs.get(name).ok_or(libc::ENODATA)?;
                Ok(Expected::Exactly(Answer::Bytes(value.clone())))
            }),
            Call::ListXattr { target } => self.target(client, target).and_then(|node| {
                self.alive(node)?;
                let names = self.tree.node(node).xattrs.keys();
                Ok(Expected::Exactly(Answer::Names(names.map(|n| (n.clone().into_bytes(), 0)).collect())))
            }),
            Call::RemoveXattr { target, name } => self.target(client, target).and_then(|node| {
                self.alive(node)?;
                self.may_set_xattr(node)?;
                self.tree.node_mut(node).xattrs.remove(name).ok_or(libc::ENODATA)?;
                done()
            }),
            Call::Lock { slot, domain, hold, start, len, wait } => {
                self.lock(client, *slot, *domain, *hold, (*start, *len), *wait)
            }
            Call::TestLock { slot, domain, exclusive, start, len } => {
                let (node, owner, held) = self.wanted(client, *slot, *domain, *exclusive, (*start, *len));
                Ok(Expected::OneOf(self.locks.in_the_way(node, owner, held)))
            }
            Call::MapRead { slot, offset, len } => self.map_read(client, *slot, *offset, *len),
            Call::MapWrite { slot, offset, len, seed } => self.map_write(client, *slot, *offset, *len, *seed),
            // Seen to above, and by who plays.
            Call::At { .. } | Call::Interrupt => Err(ESCAPED),
        };
        match outcome {
            Ok(expected) => Some(expected),
            Err(ESCAPED) => None,
            Err(errno) => Some(Expected::Exactly(Answer::Failed(errno))),
        }
    }

    /// Compares, and takes over what only the answer tells. The error says what is wrong.
    pub fn judge(&mut self, expected: &Expected, answer: &Answer) -> Result<(), String> {
        let right = match (expected, answer) {
            (Expected::Anything, _) => true,
            (Expected::Exactly(exactly), _) => exactly == answer,
            (Expected::Attributes(node) | Expected::Gone(node), Answer::Seen(seen)) => {
                return self.judge_attributes(*node, seen);
            }
            // The kernel's number for it, and the library's.
            (Expected::Gone(_), _) => matches!(answer, Answer::Failed(libc::ESTALE | libc::ENOENT)),
            (Expected::Begin { node, description, offset, hole }, _) => {
                let right = self.judge_begin(*node, *offset, *hole, answer);
                if let (true, Answer::Count(to)) = (right, answer) {
                    let description = self.descriptions.get_mut(description).expect("open");
                    (description.offset, description.strayed) = (*to, false);
                }
                right
            }
            (Expected::OneOf(held), Answer::Held(None)) => held.is_empty(),
            (Expected::OneOf(held), Answer::Held(Some(told))) => held.contains(told),
            _ => false,
        };
        if right { Ok(()) } else { Err(format!("expected {}", short(&format!("{expected:?}")))) }
    }

    /// Checks that a reported hole contains no data, and that no data was skipped.
    fn judge_begin(&self, node: u64, offset: u64, hole: bool, answer: &Answer) -> bool {
        let data = self.tree.data(node).expect("a file");
        let size = data.len() as u64;
        match answer {
            _ if offset >= size => *answer == Answer::Failed(libc::ENXIO),
            Answer::Failed(libc::ENXIO) if !hole => data[offset as usize..].iter().all(|b| *b == 0),
            Answer::Count(at) if hole => {
                *at >= offset && (*at == size || *at < size && data[*at as usize] == 0)
            }
            Answer::Count(at) => {
                (offset..size).contains(at) && data[offset as usize..*at as usize].iter().all(|b| *b == 0)
            }
            _ => false,
        }
    }

    fn judge_attributes(&mut self, number: u64, seen: &Seen) -> Result<(), String> {
        let node = self.tree.node(number);
        let (kind, size) = match &node.kind {
            Kind::File(data) => (libc::DT_REG, Some(data.len() as u64)),
            Kind::Directory(entries, _) => {
                (libc::DT_DIR, self.rules.directory_sizes.then_some(entries.len() as u64))
            }
            Kind::Symlink(target) => (libc::DT_LNK, Some(target.len() as u64)),
            Kind::Special(kind) => (*kind, Some(0)),
        };
        let time = |time: Time, seen: i64| match time {
            Time::Any => true,
            Time::Set(to) => seen == to,
            Time::Fresh => seen >= self.begin,
        };
        let wrong = if seen.kind != kind {
            "kind"
        } else if kind != libc::DT_LNK && seen.mode != node.mode {
            "mode"
        } else if seen.owner != node.owner {
            "owner"
        } else if seen.links != node.links {
            "links"
        } else if size.is_some_and(|size| size != seen.size) {
            "size"
        } else if !time(node.atime, seen.atime) {
            "atime"
        } else if !time(node.mtime, seen.mtime) {
            "mtime"
        } else if *self.numbers.entry(number).or_insert(seen.ino) != seen.ino {
            "inode number"
        } else {
            return Ok(());
        };
        let (mode, owner, links, atime, mtime) = (node.mode, node.owner, node.links, node.atime, node.mtime);
        Err(format!(
            "wrong {wrong}; expected kind {kind}, mode {mode:o}, owner {owner:?}, links {links}, size {size:?}, atime {atime:?}, mtime {mtime:?}, \
             inode {:?}",
            self.numbers.get(&number)
        ))
    }

    fn description(&self, client: usize, slot: u8) -> &Description {
        let number = self.slots[client][slot as usize].expect("a slot that is open");
        &self.descriptions[&number]
    }

    fn description_mut(&mut self, client: usize, slot: u8) -> &mut Description {
        let number = self.slots[client][slot as usize].expect("a slot that is open");
        self.descriptions.get_mut(&number).expect("open")
    }

    fn target(&self, client: usize, target: &Target) -> Result<u64, i32> {
        match target {
            Target::Path(path) => self.tree.find(path, true),
            Target::Link(path) => self.tree.find(path, false),
            Target::Slot(slot) => Ok(self.description(client, *slot).node),
        }
    }

    fn is_link(&self, node: u64) -> bool {
        matches!(self.tree.node(node).kind, Kind::Symlink(_))
    }

    /// A directory that was removed can be looked at only.
    fn alive(&self, node: u64) -> Result<(), i32> {
        if self.tree.is_directory(node) && self.tree.node(node).links == 0 { Err(ESCAPED) } else { Ok(()) }
    }

    fn list(&self, node: u64, target: &Target) -> Outcome {
        let Kind::Directory(entries, _) = &self.tree.node(node).kind else {
            return Err(libc::ENOTDIR);
        };
        match target {
            Target::Slot(_) => {}
            Target::Path(_) | Target::Link(_) => self.tree.may(node, READ)?,
        }
        let kind = |node: &u64| match self.tree.node(*node).kind {
            Kind::File(_) => libc::DT_REG,
            Kind::Directory(..) => libc::DT_DIR,
            Kind::Symlink(_) => libc::DT_LNK,
            Kind::Special(kind) => kind,
        };
        Ok(Expected::Exactly(Answer::Names(
            entries.iter().map(|(name, node)| (name.clone(), kind(node))).collect(),
        )))
    }

    fn stat(&self, node: u64) -> Expected {
        match &self.tree.node(node).kind {
            Kind::Directory(..) if self.tree.node(node).links == 0 => Expected::Anything,
            _ if self.lost(node) => Expected::Gone(node),
            _ => Expected::Attributes(node),
        }
    }

    fn times(&mut self, node: u64, atime: Stamp, mtime: Stamp) -> Outcome {
        self.alive(node)?;
        if self.lost(node) {
            return Err(ESCAPED);
        }
        if !self.tree.owns(node) {
            if (atime, mtime) != (Stamp::Now, Stamp::Now) {
                return Err(libc::EPERM);
            }
            self.tree.may(node, WRITE)?;
        }
        let node = self.tree.node_mut(node);
        for (time, stamp) in [(&mut node.atime, atime), (&mut node.mtime, mtime)] {
            match stamp {
                Stamp::Now => *time = Time::Fresh,
                Stamp::Omit => {}
                Stamp::To(to) => *time = Time::Set(to),
            }
        }
        done()
    }

    fn set_xattr(&mut self, node: u64, name: &str, value: &[u8], flags: i32) -> Outcome {
        self.alive(node)?;
        self.may_set_xattr(node)?;
        let xattrs = &mut self.tree.node_mut(node).xattrs;
        match flags {
            libc::XATTR_CREATE if xattrs.contains_key(name) => return Err(libc::EEXIST),
            libc::XATTR_REPLACE if !xattrs.contains_key(name) => return Err(libc::ENODATA),
            _ => xattrs.insert(name.to_owned(), value.to_vec()),
        };
        done()
    }
}

/// A text that fits on a screen.
pub fn short(text: &str) -> String {
    if text.len() < 400 {
        text.to_owned()
    } else {
        format!("{}... ({} characters)", &text[..400], text.len())
    }
}
