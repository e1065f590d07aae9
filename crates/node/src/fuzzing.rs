//! Fuzz targets for shared memory: any program of the node may write anything into it at any time. Functions
//! of bytes that panic if something is wrong; run as tests (below), and by `cargo fuzz` (in `fuzz/`).
//!
//! The bytes are steps: a number that says what is done, and its arguments. Some write over the memory, as a
//! stray pointer would; the others use it.

use crate::fences::{self, Against, FencePage, Fences, FencesOf};
use crate::memory::Memory;
use crate::table::{HEADER, LENGTH, OpenTable, SLOTS, SlotId, TableOf};
use crate::{VersionPage, versions};
use bivouac_layout::{Ino, NodeId, ServerId, ShardId};
use bivouac_proto::meta::{LockOwner, LockRange};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Takes a number off the bytes.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn kind(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> u64 {
        let Some((number, rest)) = self.0.split_first_chunk::<8>() else {
            self.0 = &[];
            return 0;
        };
        self.0 = rest;
        u64::from_le_bytes(*number)
    }
}

/// Writes a number somewhere.
fn scribble(memory: &Memory, length: usize, at: u64, value: u64) {
    let index = (at % (length as u64 / 8)) as usize;
    // SAFETY: the index lies in the memory, which is `length` bytes long and page-aligned; what lies in it is
    // atomic.
    unsafe { &*memory.base().cast::<AtomicU64>().add(index) }.store(value, Ordering::SeqCst);
}

/// The table of open descriptions: it answers, whatever is in it.
pub fn table(bytes: &[u8]) {
    // In memory: making and removing its directories of anchors takes longest of all.
    let dir = format!("/dev/shm/bivouac-fuzz-{}", std::process::id());
    let of = TableOf { deployment: 1, node: NodeId(2) };
    let table = OpenTable::create(dir.as_bytes(), of, 3).expect("a table can be made");
    let mut steps = Steps(bytes);
    let mut last = SlotId { index: 0, incarnation: 0 };
    let process = LockOwner::Process { session: 7, pid: 8 };
    // The slots that are used, more often than all.
    let slot_word = (HEADER / 8) as u64;
    while let Some(kind) = steps.kind() {
        match kind % 16 {
            0 => scribble(&table.memory, LENGTH, steps.number(), steps.number()),
            1 => scribble(&table.memory, LENGTH, steps.number() % slot_word, steps.number()),
            2 => scribble(&table.memory, LENGTH, slot_word + steps.number() % 64, steps.number()),
            3 => last = table.allocate().unwrap_or(last),
            4 => {
                let number = steps.number();
                last = SlotId { index: number as u32, incarnation: (number >> 32) as u32 };
            }
            5 => drop(table.retire(last)),
            6 => table.free(last),
            7 => drop(table.abandoned(last)),
            8 => {
                assert!(table.sweep().iter().all(|id| id.index < SLOTS));
                assert!(table.in_use().all(|id| id.index < SLOTS));
            }
            9 => {
                if let Some(name) = table.slot(last).and_then(|slot| slot.name()) {
                    assert!(name.1.len() <= crate::slot::NAME_ROOM);
                }
            }
            10 => {
                let (ino, start, len) = (Ino(steps.number() % 3), steps.number(), steps.number());
                let range = LockRange { start, end: start.saturating_add(len), exclusive: len & 1 == 0 };
                let _ = table.note_lock(ino, process, range);
            }
            11 => _ = table.note_unlock(Ino(steps.number() % 3), process, steps.number(), u64::MAX),
            12 => {
                for noted in table.all_noted(3) {
                    assert!(noted.range.start < noted.range.end);
                    let _ = table.noted_by(&noted);
                    table.lose_lock(noted.id);
                }
                table.free_unfinished_locks();
            }
            13 => {
                table.takes_note_of_loss(Ino(steps.number() % 3), process, 0, u64::MAX);
                table.forget_locks_of(last, Ino(steps.number() % 3));
            }
            14 => drop(table.placeholder(last, true).map(|fd| table.identify(rustix::fd::AsFd::as_fd(&fd)))),
            _ => {
                let server = ServerId(steps.number() as u16);
                table.set_down(server, true);
                let _ = table.is_down(server);
                let _ = table.absence(server).map(|absence| absence.lasts(steps.number()));
            }
        }
    }
    drop(table);
    let _ = std::fs::remove_dir_all(&dir);
}

/// The version page that a server hands out.
pub fn pages(bytes: &[u8]) {
    let server = VersionPage::create().expect("a page can be made");
    let descriptor = server.descriptor().expect("who made it has it");
    let reader = VersionPage::attach(descriptor).expect("attached");
    let mut steps = Steps(bytes);
    while let Some(kind) = steps.kind() {
        match kind % 8 {
            0 => scribble(&server.memory, versions::LENGTH, steps.number(), steps.number()),
            1 => scribble(&server.memory, versions::LENGTH, steps.number() % 32, steps.number()),
            2 => _ = server.changed(ShardId(steps.number() as u16)),
            3 => server.moved(Ino(steps.number()), steps.number()),
            4 => server.raise_namespace(steps.number()),
            5 => {
                let (after, until) = (steps.number(), steps.number());
                if let Some(moves) = reader.moves(after, until) {
                    assert_eq!(moves.len() as u64, until - after);
                }
            }
            6 => {
                let until = reader.namespace();
                let _ = reader.moves(until.saturating_sub(steps.number() % 100), until);
            }
            _ => drop((reader.is_live(), reader.total(), reader.shard(ShardId(steps.number() as u16)))),
        }
    }
}

/// The fence page that a server hands out: nobody waits for ever, whatever is in it.
pub fn fences(bytes: &[u8]) {
    let of = FencesOf { deployment: 1, server: ServerId(2) };
    let server = Fences::create(of).expect("a page can be made");
    let page = FencePage::attach(server.descriptor()).expect("attached");
    let mut steps = Steps(bytes);
    let mut under = page.before_pass(Ino(1));
    let header = (fences::FIRST_WORD / 8) as u64;
    while let Some(kind) = steps.kind() {
        match kind % 10 {
            0 => scribble(&page.memory, fences::LENGTH, steps.number(), steps.number()),
            1 => scribble(&page.memory, fences::LENGTH, steps.number() % header, steps.number()),
            2 => under = page.before_pass(Ino(steps.number())),
            3 => drop(page.read(&under).map(|reading| reading.counts())),
            4 => {
                if let Some(writing) = page.write(&under) {
                    writing.wrote(steps.number() as usize);
                    let _ = writing.counts();
                }
            }
            5 => {
                let fence = server.raise(Ino(steps.number()), Against::All);
                let _ = fence.wait(Duration::ZERO);
                fence.forget_late();
            }
            6 => {
                let fence = server.raise(Ino(steps.number()), Against::Readers);
                let _within = server.raise(Ino(steps.number()), Against::Writers);
                drop(fence);
            }
            7 => server.show_copies_until(steps.number()),
            8 => {
                page.count_read(steps.number() as usize);
                let _ = server.totals();
            }
            _ => {
                let again = rustix::io::dup(server.descriptor()).expect("a descriptor");
                let _ = Fences::adopt(of, again.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: bivouac_testing::fuzz::Counting = bivouac_testing::fuzz::Counting;

    fn steps(steps: &[(u8, &[u64])]) -> Vec<u8> {
        let one = |(kind, arguments): &(u8, &[u64])| {
            let numbers = arguments.iter().flat_map(|number| number.to_le_bytes());
            std::iter::once(*kind).chain(numbers).collect::<Vec<_>>()
        };
        steps.iter().flat_map(one).collect()
    }

    #[test]
    fn the_table_answers_whatever_is_written_over_it() {
        let life = steps(&[(3, &[]), (10, &[]), (7, &[]), (5, &[]), (6, &[]), (8, &[])]);
        let damaged = steps(&[
            (3, &[]),
            (2, &[0, u64::MAX]),
            (7, &[]),
            (8, &[]),
            (1, &[5, 7]),
            (4, &[1 << 32 | 3]),
            (9, &[]),
            (11, &[64]),
        ]);
        let names = steps(&[(3, &[]), (2, &[9, 7]), (2, &[10, u64::MAX]), (9, &[]), (0, &[0, 0]), (8, &[])]);
        bivouac_testing::fuzz::run("table", &[life, damaged, names], 16 << 20, table);
    }

    #[test]
    fn pages_answer_whatever_is_written_over_them() {
        let moves = steps(&[(4, &[10]), (3, &[7, 11]), (5, &[10, 11]), (6, &[3]), (2, &[4]), (7, &[4])]);
        let damaged = steps(&[(3, &[7, 11]), (1, &[8, u64::MAX]), (6, &[0]), (5, &[u64::MAX, u64::MAX])]);
        let low = steps(&[(4, &[3]), (5, &[90, 95]), (1, &[8, 0]), (5, &[u64::MAX - 1, u64::MAX])]);
        bivouac_testing::fuzz::run("pages", &[moves, damaged, low], 16 << 20, pages);
    }

    #[test]
    fn fence_pages_answer_whatever_is_written_over_them() {
        let usual = steps(&[(2, &[7]), (3, &[]), (4, &[5]), (5, &[7]), (6, &[7, 7]), (8, &[1]), (9, &[])]);
        let lanes = (fences::LENGTH / 8 - 1) as u64;
        let damaged = steps(&[(4, &[5]), (0, &[lanes, 7]), (0, &[header_word(), u64::MAX]), (5, &[7])]);
        let leased = steps(&[(7, &[u64::MAX]), (3, &[]), (7, &[1]), (4, &[5]), (8, &[u64::MAX])]);
        let refused = steps(&[(1, &[0, 0]), (9, &[]), (1, &[1, u64::MAX]), (9, &[]), (5, &[0])]);
        bivouac_testing::fuzz::run("fences", &[usual, damaged, leased, refused], 16 << 20, fences);
    }

    /// The first word behind the header.
    fn header_word() -> u64 {
        (fences::FIRST_WORD / 8) as u64
    }
}
