//! What a process may ask about next, and what it was told without having asked.
//!
//! `namespace::ahead` says when entries are asked about in advance, and why. Here are the entries of listed directories
//! that the program has not asked about yet, and the beginnings of listings that came before it has asked for them.

use super::listing::Entries;
use bivouac_layout::Ino;
use bivouac_proto::attr::{DirEntry, FileKind};
use bivouac_proto::meta::LOOK_MAX;
use std::collections::HashMap;
use std::sync::Mutex;

/// Inodes asked about together at first.
const FEW: usize = 4;

/// Entries of each directory that come along.
pub(crate) const BEGINNING: u32 = 64;

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
pub(crate) struct Kept {
    pub(crate) entries: Vec<DirEntry>,
    pub(crate) end: bool,
    pub(crate) count: u64,
    /// The program has asked for it. It may ask again: some programs first look whether a directory is empty.
    pub(crate) used: bool,
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

impl Ahead {
    /// Entries of a directory were listed: they may be asked about. `begins`: they are its first. (Of a
    /// listing without attributes only subdirectories: the program has not asked about files.)
    pub(crate) fn expect(&self, dir: Ino, begins: bool, entries: (&[DirEntry], bool)) {
        if let Ok(mut state) = self.0.try_lock() {
            state.add(dir, begins, entries);
        }
    }

    /// The inodes to ask about when the program asks about one, and how many entries of each that is a directory.
    pub(crate) fn next(&self, dir: Ino, ino: Ino, listing: bool) -> Option<(Vec<Ino>, u32)> {
        let mut state = self.0.try_lock().ok()?;
        let inos = state.take(dir, ino, listing);
        Some((inos, if state.descends { BEGINNING } else { 0 }))
    }

    /// Keeps the beginning of a listing.
    pub(crate) fn keep(&self, dir: Ino, kept: Kept) {
        if let Ok(mut state) = self.0.try_lock() {
            state.keep(dir, kept);
        }
    }

    /// The beginning of a directory's listing, if it is kept, and its shard's count still is this one.
    pub(crate) fn kept(&self, dir: Ino, most: usize, count: Option<u64>) -> Option<Entries> {
        self.0.try_lock().ok()?.kept(dir, most, count)
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
