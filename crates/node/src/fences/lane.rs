//! Lanes: what one thread has marked, and how much it has transferred.
//!
//! A thread finds its lane by its number, at or a few places behind where that leads, and remembers where
//! that was. It claims one at its first access: a free one, or that of a thread that is dead. Lanes of
//! threads in other PID namespaces, whose fate is not known, stay theirs.

use super::protocol::Number;
use super::{FencePage, LANES};
use crate::owner::{Fate, OWNER_BITS};
use crate::process;
use crate::release::monotonic;
use bivouac_layout::Ino;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// How many writes of one thread can be under way at once: one, and those of signal handlers.
const MARKS: usize = 4;
/// At how many places a thread looks for its lane.
const REACH: usize = 8;
/// After a thread has found no lane, so many accesses go by until one looks again whether others are dead.
const PATIENCE: u32 = 256;
const OWNER: u64 = (1 << OWNER_BITS) - 1;

/// Pages of which a thread remembers its lanes: those of so many servers of a node.
const REMEMBERED: usize = 16;

thread_local! {
    static MINE: [Mine; REMEMBERED] = const { [const { Mine::nowhere() }; REMEMBERED] };
}

/// Where a thread has its lane in a page.
struct Mine {
    /// Where the page is mapped; 0 while the rest is being changed, because a signal handler may look.
    page: Cell<usize>,
    lane: Cell<usize>,
    me: Cell<u64>,
    /// A forked child has a copy of this, but not the lane.
    process: Cell<u32>,
}

impl Mine {
    const fn nowhere() -> Mine {
        Mine { page: Cell::new(0), lane: Cell::new(0), me: Cell::new(0), process: Cell::new(0) }
    }

    fn set(&self, page: usize, lane: usize, me: u64) {
        self.page.set(0);
        compiler_fence(Ordering::SeqCst);
        self.lane.set(lane);
        self.me.set(me);
        self.process.set(process::pid());
        compiler_fence(Ordering::SeqCst);
        self.page.set(page);
    }
}

/// A thread's part of the page.
#[repr(C, align(64))]
pub(super) struct Lane {
    /// The thread, as the module `owner` names it, and above that the program that it runs; 0: nobody.
    owner: AtomicU64,
    /// Inode numbers of files that it is writing; 0: none.
    pub marks: [AtomicU64; MARKS],
    read: AtomicU64,
    written: AtomicU64,
}

impl Lane {
    /// The thread that the lane belongs to, as the module `owner` names it.
    pub fn owner(&self) -> u32 {
        (self.owner.load(Ordering::Acquire) & OWNER) as u32
    }

    /// The marks that say that this file is being written.
    pub fn marks_of(&self, ino: Ino) -> impl Iterator<Item = &AtomicU64> {
        self.marks.iter().filter(move |mark| mark.get() == ino.0)
    }

    /// Its thread has written so many bytes.
    #[inline]
    pub fn count_written(&self, bytes: usize) {
        count(&self.written, bytes);
    }

    fn clear(&self) {
        self.marks.iter().for_each(Number::release);
    }
}

/// Differs between programs that a process has executed one after the other.
fn program() -> u64 {
    static PROGRAM: AtomicU64 = AtomicU64::new(0);
    match PROGRAM.load(Ordering::Relaxed) {
        0 => {
            let number = monotonic().max(1);
            let earlier = PROGRAM.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
            earlier.err().unwrap_or(number)
        }
        number => number,
    }
}

impl FencePage {
    /// This thread's lane. `None`: others have taken all that it could have.
    #[inline]
    pub(super) fn lane(&self) -> Option<&Lane> {
        let page = self.memory.base() as usize;
        let remembered = MINE.try_with(|mine| {
            let mine = mine.get(self.number % REMEMBERED)?;
            let known = mine.page.get() == page && mine.process.get() == process::pid();
            known.then(|| (mine.lane.get(), mine.me.get()))
        });
        if let Ok(Some((index, me))) = remembered
            && let Some(lane) = self.lanes().get(index)
            && lane.owner.load(Ordering::Relaxed) == me
        {
            return Some(lane);
        }
        self.find_lane()
    }

    #[cold]
    fn find_lane(&self) -> Option<&Lane> {
        let owner = self.here.owner(&self.header().namespaces, process::tid());
        let me = program() << OWNER_BITS | u64::from(owner);
        let mine = |lane: &&Lane| lane.owner.load(Ordering::Relaxed) == me;
        let lane = self.reach(owner).find(mine).or_else(|| self.claim(owner, me))?;
        let page = self.memory.base() as usize;
        let index = (std::ptr::from_ref(lane) as usize - self.lanes().as_ptr() as usize) / size_of::<Lane>();
        let _ = MINE.try_with(|mine| {
            if let Some(mine) = mine.get(self.number % REMEMBERED) {
                mine.set(page, index, me);
            }
        });
        Some(lane)
    }

    fn reach(&self, owner: u32) -> impl Iterator<Item = &Lane> {
        let (before, after) = self.lanes().split_at(owner as usize % LANES);
        after.iter().chain(before).take(REACH)
    }

    fn claim(&self, owner: u32, me: u64) -> Option<&Lane> {
        let take = |lane: &&Lane, from: u64| {
            let taken = lane.owner.compare_exchange(from, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if taken {
                lane.clear();
            }
            taken
        };
        let of_earlier_program = |lane: &&Lane| {
            let now = lane.owner.load(Ordering::Relaxed);
            now & OWNER == u64::from(owner) && take(lane, now)
        };
        let free = |lane: &&Lane| take(lane, 0);
        let found = self.reach(owner).find(of_earlier_program).or_else(|| self.reach(owner).find(free));
        if found.is_some() {
            return found;
        }
        if self.patience.load(Ordering::Relaxed) > 0 {
            self.patience.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let of_dead = |lane: &&Lane| {
            let now = lane.owner.load(Ordering::Acquire);
            self.fate((now & OWNER) as u32) == Fate::Dead && take(lane, now)
        };
        let found = self.reach(owner).find(of_dead);
        if found.is_none() {
            self.patience.store(PATIENCE, Ordering::Relaxed);
        }
        found
    }

    pub(super) fn fate(&self, owner: u32) -> Fate {
        self.here.fate(&self.header().namespaces, owner)
    }

    /// This thread has read so many bytes directly.
    #[inline]
    pub fn count_read(&self, bytes: usize) {
        match self.lane() {
            Some(lane) => count(&lane.read, bytes),
            None => drop(self.header().read.fetch_add(bytes as u64, Ordering::Relaxed)),
        }
    }

    /// Bytes read and written by all threads so far.
    pub fn totals(&self) -> (u64, u64) {
        let rest = (self.header().read.load(Ordering::Relaxed), 0);
        self.lanes().iter().fold(rest, |(read, written), lane| {
            let more = (lane.read.load(Ordering::Relaxed), lane.written.load(Ordering::Relaxed));
            (read.wrapping_add(more.0), written.wrapping_add(more.1))
        })
    }
}

/// Counts in a lane, which only its thread does.
#[inline]
fn count(sum: &AtomicU64, bytes: usize) {
    sum.store(sum.load(Ordering::Relaxed).wrapping_add(bytes as u64), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fences::{Against, Fences, FencesOf};
    use bivouac_layout::ServerId;
    use std::time::Duration;

    #[test]
    fn a_program_that_is_executed_takes_marks_off_that_the_one_before_it_has_left() {
        let server = Fences::create(FencesOf { deployment: 7, server: ServerId(3) }).expect("made");
        let (page, file) = (server.page(), Ino(5));
        let under = page.before_pass(file);
        std::mem::forget(page.write(&under).expect("begins"));
        let lane = page.lane().expect("has one");
        let mine = lane.owner.load(Ordering::Relaxed);
        // As if another program of this process had set the mark.
        lane.owner.store(mine ^ 1 << OWNER_BITS, Ordering::Relaxed);
        let fence = server.raise(file, Against::Writers);
        assert!(fence.wait(Duration::ZERO).is_err());
        assert!(std::ptr::eq(page.lane().expect("has one"), lane));
        assert_eq!((lane.owner.load(Ordering::Relaxed), fence.wait(Duration::ZERO)), (mine, Ok(())));
    }

    #[test]
    fn a_thread_remembers_its_lanes_in_the_pages_of_all_servers_of_a_node() {
        let server = Fences::create(FencesOf { deployment: 7, server: ServerId(3) }).expect("made");
        let attach = |number| {
            let page = FencePage::attach(server.descriptor()).expect("can be mapped");
            FencePage { number, ..page }
        };
        let pages: Vec<FencePage> = (0..REMEMBERED).map(attach).collect();
        let lanes: Vec<&Lane> = pages.iter().map(|page| page.lane().expect("has one")).collect();
        let is_remembered = |page: &FencePage| {
            MINE.with(|mine| mine.iter().any(|mine| mine.page.get() == page.memory.base() as usize))
        };
        assert!(pages.iter().all(is_remembered));
        assert!(
            pages.iter().zip(lanes).all(|(page, lane)| std::ptr::eq(page.lane().expect("has one"), lane))
        );
    }
}
