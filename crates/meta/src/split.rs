//! Directories that outgrow one shard.
//!
//! A split first marks the directory in the log, so that changes of its entries wait. Then it installs all
//! entries as parts on all servers, and so replaces what an interrupted attempt may have left. Then one log
//! record makes the directory a split one and drops the entries here. Until then the entries are read where
//! they are. A split that is interrupted anywhere begins again from the start.

use crate::access::Owner;
use crate::draft::{Draft, wants_split};
use crate::error::Stop;
use crate::inode::{Body, Inode, Part, Spread};
use crate::mutation::Mutation;
use crate::shard::Key;
use crate::store::Core;
use bivouac_layout::namespace::{PARTS, cookie, part_of, part_shard};
use bivouac_layout::{Ino, Map, ServerId, Template};
use bivouac_proto::peer::{MovedEntry, PeerReply, PeerRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{FileKind, Time};
use std::collections::BTreeMap;

/// Most bytes of names in one message.
const MESSAGE: usize = 512 << 10;

/// The parts of one message, and their entries.
#[derive(Default)]
struct Load {
    parts: Vec<u16>,
    entries: Vec<MovedEntry>,
    bytes: usize,
}

impl Core {
    /// Splits a directory that has become too large, or whose split was interrupted; any other stays as it
    /// is.
    pub(crate) fn split_directory(&self, dir: Ino) -> Result<(), Failure> {
        let now = self.outside.now();
        let begun = self.partitions.with(dir.shard(), |locked| {
            let Some(inode) = locked.shard.inodes.get(dir) else {
                return Ok(None);
            };
            let state = inode.as_directory().map(|d| d.state);
            let due = wants_split(&inode) && inode.nlink > 0;
            match state {
                Some(Spread::Splitting) => {}
                Some(Spread::Packed) if due => {
                    if locked.shard.keys.contains_key(&Key::Content(dir)) {
                        // Intents that will change it have to finish first.
                        return Err(Stop::Wait);
                    }
                    let mut draft = Draft::new(now);
                    set_state(draft.inode(locked.shard, dir), Spread::Splitting);
                    locked.commit(draft)?;
                }
                _ => return Ok(None),
            }
            let inode = locked.shard.inode(dir)?;
            let entries: Vec<MovedEntry> = locked
                .shard
                .entries
                .of(dir, 0)
                .map(|e| MovedEntry { name: e.name.to_vec(), ino: e.named.ino, kind: e.named.kind })
                .collect();
            Ok(Some((inode.owner(), inode.template(), inode.mtime, entries)))
        })?;
        let Some((owner, layout, time, entries)) = begun else {
            return Ok(());
        };
        let installed = self.install_everywhere(dir, (owner, layout), time, entries);
        self.partitions.with(dir.shard(), |locked| {
            let mut draft = Draft::freeing(now);
            if installed.is_ok() {
                draft.push(Mutation::Unpack(dir));
                let inode = locked.shard.inode(dir)?;
                if (inode.owner(), inode.template()) != (owner, layout) {
                    // Owner, mode or layout have changed meanwhile.
                    draft.owe_announcement(locked.shard, dir);
                }
            } else {
                // Users need not wait until the server is back: the directory stays packed until the next
                // attempt.
                set_state(draft.inode(locked.shard, dir), Spread::Packed);
            }
            locked.commit(draft)
        })?;
        installed?;
        self.announce(dir)
    }

    fn install_everywhere(
        &self,
        dir: Ino,
        (owner, layout): (Owner, Template),
        time: Time,
        entries: Vec<MovedEntry>,
    ) -> Result<(), Failure> {
        let map = self.outside.map();
        for (server, loads) in deal(&map, dir, entries) {
            for load in loads {
                let request = PeerRequest::InstallParts {
                    dir,
                    owner: owner.triple(),
                    layout,
                    time,
                    parts: load.parts,
                    entries: load.entries,
                };
                self.ask(server, &request)?;
            }
        }
        Ok(())
    }

    /// Tells all parts of a split directory who owns it and what it says about new files.
    pub(crate) fn own_everywhere(&self, dir: Ino, owner: Owner, layout: Template) -> Result<(), Failure> {
        for (server, parts) in parts_by_server(&self.outside.map(), dir) {
            self.ask(server, &PeerRequest::OwnParts { dir, owner: owner.triple(), layout, parts })?;
        }
        Ok(())
    }

    /// Installs parts of a directory here.
    pub(crate) fn install_parts(
        &self,
        dir: Ino,
        ((mode, uid, gid), layout): ((u16, u32, u32), Template),
        time: Time,
        parts: &[u16],
        entries: &[MovedEntry],
    ) -> Result<(), Failure> {
        let now = self.outside.now();
        let mut by_part: BTreeMap<u16, Vec<&MovedEntry>> = BTreeMap::new();
        for entry in entries {
            by_part.entry(part_of(cookie(dir, &entry.name))).or_default().push(entry);
        }
        for number in parts.iter().copied().filter(|number| *number < PARTS) {
            let entries = by_part.remove(&number).unwrap_or_default();
            let directories = entries.iter().filter(|e| e.kind == FileKind::Directory).count();
            let part = Part {
                mode,
                uid,
                gid,
                entries: entries.len() as u32,
                subdirectories: directories as u32,
                mtime: time,
                layout,
            };
            self.partitions.with(part_shard(dir, number), |locked| {
                let mut draft = Draft::new(now);
                draft.push(Mutation::DropPart(dir, number));
                draft.push(Mutation::PutPart(dir, number, part));
                for entry in &entries {
                    let name = entry.name.as_slice().into();
                    draft.push(Mutation::PutEntry { dir, name, ino: entry.ino, kind: entry.kind });
                }
                locked.commit(draft)
            })?;
        }
        Ok(())
    }

    /// What parts of a directory that are here know.
    pub(crate) fn stat_parts(&self, dir: Ino, parts: &[u16]) -> Result<PeerReply, Failure> {
        let (mut entries, mut subdirectories, mut mtime) = (0, 0u32, Time::MIN);
        for number in parts.iter().copied() {
            let part = self.partitions.with(part_shard(dir, number), |locked| {
                Ok(locked.shard.parts.get(&(dir, number)).copied())
            })?;
            if let Some(part) = part {
                entries += u64::from(part.entries);
                subdirectories = subdirectories.saturating_add(part.subdirectories);
                mtime = mtime.max(part.mtime);
            }
        }
        Ok(PeerReply::Parts { entries, subdirectories, mtime })
    }

    /// Parts of a directory that are here have another owner, mode or layout.
    pub(crate) fn own_parts(
        &self,
        dir: Ino,
        (mode, uid, gid): (u16, u32, u32),
        layout: Template,
        parts: &[u16],
    ) -> Result<(), Failure> {
        let now = self.outside.now();
        for number in parts.iter().copied() {
            self.partitions.with(part_shard(dir, number), |locked| {
                let Some(part) = locked.shard.parts.get(&(dir, number)).copied() else {
                    return Ok(());
                };
                let mut draft = Draft::new(now);
                draft.push(Mutation::PutPart(dir, number, Part { mode, uid, gid, layout, ..part }));
                locked.commit(draft)
            })?;
        }
        Ok(())
    }
}

/// The parts of a directory by the servers that answer for them.
pub(crate) fn parts_by_server(map: &Map, dir: Ino) -> BTreeMap<ServerId, Vec<u16>> {
    let mut by_server: BTreeMap<ServerId, Vec<u16>> = BTreeMap::new();
    for part in 0..PARTS {
        by_server.entry(map.primary(part_shard(dir, part))).or_default().push(part);
    }
    by_server
}

fn set_state(inode: Option<&mut Inode>, state: Spread) {
    if let Some(Inode { body: Body::Directory(directory), .. }) = inode {
        directory.state = state;
    }
}

/// Which parts with which entries each server gets, in messages of bounded size. Empty parts are installed,
/// too.
fn deal(map: &Map, dir: Ino, entries: Vec<MovedEntry>) -> BTreeMap<ServerId, Vec<Load>> {
    let mut by_part: BTreeMap<u16, Vec<MovedEntry>> = (0..PARTS).map(|number| (number, Vec::new())).collect();
    for entry in entries {
        by_part.entry(part_of(cookie(dir, &entry.name))).or_default().push(entry);
    }
    let mut dealt: BTreeMap<ServerId, Vec<Load>> = BTreeMap::new();
    for (number, entries) in by_part {
        let bytes: usize = entries.iter().map(|e| e.name.len() + 16).sum();
        let loads = dealt.entry(map.primary(part_shard(dir, number))).or_default();
        if loads.last().is_none_or(|load| load.bytes + bytes > MESSAGE) {
            loads.push(Load::default());
        }
        if let Some(load) = loads.last_mut() {
            load.parts.push(number);
            load.entries.extend(entries);
            load.bytes += bytes;
        }
    }
    dealt
}
