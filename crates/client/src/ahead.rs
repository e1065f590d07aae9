//! Looking ahead. A program that goes through a tree asks about one entry after the other, and lists one
//! directory after the other.
//!
//! A listing shows what its entries are, but attributes and listings of most subdirectories lie on other
//! servers, and each would cost a round trip of its own. So when a process asks about one entry of a
//! directory that it has listed, the client also asks about the next ones, with one request to each server.
//! It keeps the answers as facts ([`crate::facts`]), and the beginnings of listings here, until the program
//! asks for them. Both are valid only as long as nothing has changed in their shards, so that programs see no
//! difference. The client asks about few entries at first, then about more, and only asks servers of this
//! node, because it can keep only their answers.

use crate::facts::Before;
use crate::list::Entries;
use crate::rpc::To;
use crate::session::Client;
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::attr::{DirEntry, FileKind};
use bivouac_proto::meta::{LOOK_MAX, Looked, MetaReply, MetaRequest};
use std::collections::HashMap;
use std::sync::Mutex;

/// Inodes asked about together at first.
const FEW: usize = 4;

/// Entries of each directory that come along.
const BEGINNING: u32 = 64;

/// Directories whose entries are remembered.
const ROWS: usize = 4096;

/// Entries that are remembered of all of them.
const ENTRIES: usize = 1 << 17;

/// Listings that are kept.
const LISTINGS: usize = 512;

/// What a process may ask about next. The lock is held only for moments; a thread that does not get it does
/// without.
#[derive(Default)]
pub(crate) struct Ahead(Mutex<State>);

#[derive(Default)]
struct State {
    rows: HashMap<Ino, Row>,
    entries: usize,
    listings: HashMap<Ino, Kept>,
    /// The process lists directories that it found in listings.
    descends: bool,
    /// How many inodes are asked about together.
    many: usize,
}

/// The entries of a listed directory that the program has not asked about, in the listing's order.
#[derive(Default)]
struct Row {
    entries: Vec<Expected>,
    /// All entries before this index need not be asked about any more.
    start: usize,
}

struct Expected {
    ino: Ino,
    directory: bool,
    /// Its attributes came.
    seen: bool,
    /// There is nothing left to ask.
    done: bool,
}

/// The beginning of a listing, and the count of its shard.
struct Kept {
    entries: Vec<DirEntry>,
    end: bool,
    count: u64,
    /// The program has asked for it. It may ask again: some programs first look whether a directory is empty.
    used: bool,
}

impl Row {
    /// The next inodes to ask about, `ino` among them. They are asked about once.
    fn take(&mut self, ino: Ino, most: usize, listings: bool) -> Vec<Ino> {
        while self.entries.get(self.start).is_some_and(|e| e.done) {
            self.start += 1;
        }
        let Some(rest) = self.entries.get_mut(self.start..) else { return Vec::new() };
        let Some(at) = rest.iter().position(|e| e.ino == ino) else { return Vec::new() };
        let wanted = |e: &&mut Expected| !e.done && (!e.seen || listings && e.directory);
        // The program may ask for them in another order than the listing's.
        let (before, behind) = rest.split_at_mut(at);
        let next = behind.iter_mut().chain(before).filter(wanted).take(most);
        next.map(|e| {
            e.seen = true;
            e.done = listings || !e.directory;
            e.ino
        })
        .collect()
    }
}

impl State {
    fn add(&mut self, dir: Ino, begins: bool, (entries, attrs): (&[DirEntry], bool)) {
        if self.rows.len() >= ROWS || self.entries + entries.len() > ENTRIES {
            self.rows.clear();
            self.entries = 0;
        }
        let expected: Vec<Expected> = entries
            .iter()
            .map(|e| Expected {
                ino: e.ino,
                directory: e.kind == FileKind::Directory,
                seen: e.attr.is_some(),
                done: false,
            })
            .filter(|e| e.directory || attrs && !e.seen)
            .collect();
        if begins && let Some(old) = self.rows.remove(&dir) {
            self.entries -= old.entries.len();
        }
        if !expected.is_empty() {
            self.entries += expected.len();
            self.rows.entry(dir).or_default().entries.extend(expected);
        }
    }

    fn take(&mut self, dir: Ino, ino: Ino, listing: bool) -> Vec<Ino> {
        let Some(row) = self.rows.get_mut(&dir) else { return Vec::new() };
        self.many = (2 * self.many).clamp(FEW, LOOK_MAX);
        self.descends |= listing;
        let inos = row.take(ino, self.many, self.descends);
        if row.start >= row.entries.len() {
            self.entries -= row.entries.len();
            self.rows.remove(&dir);
        }
        inos
    }

    fn keep(&mut self, dir: Ino, kept: Kept) {
        if self.listings.len() >= LISTINGS {
            self.listings.retain(|_, kept| !kept.used);
        }
        if self.listings.len() >= LISTINGS {
            // The program has asked for none of them.
            self.listings.clear();
            self.descends = false;
        }
        self.listings.insert(dir, kept);
    }

    /// The first `most` entries of a kept listing, if the shard's count still is this.
    fn kept(&mut self, dir: Ino, most: usize, count: Option<u64>) -> Option<Entries> {
        let kept = self.listings.get_mut(&dir)?;
        if count != Some(kept.count) {
            self.listings.remove(&dir);
            return None;
        }
        kept.used = true;
        if kept.entries.len() <= most {
            return Some(Entries { entries: kept.entries.clone(), end: kept.end });
        }
        // Entries with the same cookie stay together.
        let last = kept.entries.get(most.checked_sub(1)?)?.cookie;
        let entries = kept.entries.iter().take_while(|e| e.cookie <= last).cloned().collect();
        Some(Entries { entries, end: false })
    }
}

impl Client {
    /// Entries of a directory were listed: they may be asked about. `begins`: they are its first. (Of a
    /// listing without attributes only subdirectories: the program has not asked about files.)
    pub(crate) fn expect(&self, dir: Ino, begins: bool, entries: (&[DirEntry], bool)) {
        if let Ok(mut state) = self.listing.ahead.0.try_lock() {
            state.add(dir, begins, entries);
        }
    }

    /// Asks about an entry of a directory and those behind it. What came is known then.
    pub(crate) fn look_ahead(&self, dir: Ino, ino: Ino, listing: bool) {
        let Ok(mut state) = self.listing.ahead.0.try_lock() else { return };
        let inos = state.take(dir, ino, listing);
        let limit = if state.descends { BEGINNING } else { 0 };
        drop(state);
        // A single one is asked about in the ordinary way.
        if inos.len() < 2 {
            return;
        }
        let map = self.map();
        let mut servers: Vec<ServerId> = inos.iter().map(|ino| map.primary(ino.shard())).collect();
        servers.sort();
        servers.dedup();
        for server in servers {
            let there = inos.iter().copied().filter(|ino| map.primary(ino.shard()) == server);
            self.look(there.collect(), limit);
        }
    }

    /// Asks one server about several of its inodes.
    fn look(&self, inos: Vec<Ino>, limit: u32) {
        let Some(first) = inos.first() else { return };
        let shard = first.shard();
        let before: Vec<_> = inos.iter().map(|ino| self.before(ino.shard())).collect();
        if before.iter().any(Option::is_none) {
            return;
        }
        let attrs = self.listing.wants_attributes();
        let request = MetaRequest::Look { inos, limit, attrs };
        let Ok((MetaReply::Looked(found), _)) = self.meta(To::Shard(shard), &request, &[], &mut []) else {
            // If the program asks for one of them, it will get the error.
            return;
        };
        for (before, looked) in before.into_iter().zip(found) {
            let Some(Looked { attr, target, place, listing }) = looked else { continue };
            let dir = attr.ino;
            self.learn_inode(before, &attr, &target);
            if let Some((parent, name)) = place {
                self.learn_place(before, dir, parent, &name);
            }
            let (Some((entries, end)), Some(count)) = (listing, before.map(|b| b.count())) else { continue };
            self.learn_listing(before, dir, false, (&entries, attrs));
            self.expect(dir, true, (&entries, attrs));
            if let Ok(mut state) = self.listing.ahead.0.try_lock() {
                state.keep(dir, Kept { entries, end, count, used: false });
            }
        }
    }

    /// Keeps a short listing that was not asked for ahead, to the question after `before`.
    pub(crate) fn keep_listing(&self, before: Option<Before>, dir: Ino, listed: &Entries) {
        if let Some(before) = before
            && listed.end
            && listed.entries.len() <= BEGINNING as usize
            && let Ok(mut state) = self.listing.ahead.0.try_lock()
        {
            let (entries, end) = (listed.entries.clone(), listed.end);
            state.keep(dir, Kept { entries, end, count: before.count(), used: true });
        }
    }

    /// The beginning of a directory's listing, if it is kept and nothing has changed since.
    pub(crate) fn listed_ahead(&self, dir: Ino, most: usize) -> Option<Entries> {
        let count = self.seen(dir.shard());
        self.listing.ahead.0.try_lock().ok()?.kept(dir, most, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, kind: FileKind) -> DirEntry {
        DirEntry { name: vec![b'n'], ino: Ino(number), kind, cookie: number, attr: None }
    }

    #[test]
    fn each_entry_is_asked_about_once_and_each_directory_listed_once() {
        let mut state = State::default();
        let entries: Vec<_> = (10..200)
            .map(|n| entry(n, if n % 2 == 0 { FileKind::Directory } else { FileKind::File }))
            .collect();
        state.add(Ino(1), true, (&entries, true));
        let mut asked = Vec::new();
        for number in 10..200 {
            if !asked.contains(&Ino(number)) {
                asked.extend(state.take(Ino(1), Ino(number), false));
            }
        }
        assert_eq!(asked, (10..200).map(Ino).collect::<Vec<_>>());
        let mut listed = Vec::new();
        for number in (10..200).step_by(2) {
            if !listed.contains(&Ino(number)) {
                listed.extend(state.take(Ino(1), Ino(number), true));
            }
        }
        assert_eq!(listed, (10..200).step_by(2).map(Ino).collect::<Vec<_>>());
        assert!(state.take(Ino(1), Ino(10), true).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut state = State::default();
        for dir in 0..3 * ROWS as u64 {
            state.add(Ino(dir), true, (&[entry(dir + 100_000, FileKind::Directory)], false));
            state.keep(Ino(dir), Kept { entries: Vec::new(), end: true, count: 0, used: dir % 2 == 0 });
            assert!(state.rows.len() <= ROWS && state.listings.len() <= LISTINGS);
        }
        let many: Vec<_> = (0..1000).map(|n| entry(n, FileKind::File)).collect();
        for _ in 0..300 {
            state.add(Ino(1), false, (&many, true));
            assert!(state.entries <= ENTRIES);
        }
    }
}
