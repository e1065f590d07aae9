//! Which ranges of files are being changed, so that changes of the same bytes follow each other.
//!
//! Who wants a range that is being changed waits, and is served in the order in which it came.
//!
//! A file can be *closed* for a truncation: changes that are under way end, and new ones wait until it is opened
//! again. So a truncation that closes a file at all of its servers first, and opens it at all of them last, meets no
//! change half-way between them. Each truncation has a number. A request to close a file may arrive late, when the
//! truncation is over: the numbers of those are remembered for a while. And the server that has closed a file may die;
//! the next one closes it with a number of its own, which takes the place of the other. If there is none, the file does
//! not stay closed for longer than [`LONGEST`]. So a truncation says by its number whether the file has stayed closed.

use bivouac_layout::Ino;
use bivouac_node::Fences;
use bivouac_node::fences::{Against, Lasting};
use bivouac_proto::Refusal;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PARTS: usize = 64;
/// Longest time that a file is closed: that in which a truncation whose server has died is finished by the next one.
const LONGEST: Duration = Duration::from_secs(15);
/// Time between two looks at whether a file is closed for too long.
const LOOK: Duration = Duration::from_millis(500);
/// For so long the numbers of truncations that are over are remembered: longer than requests are repeated.
const MEMORY: Duration = Duration::from_secs(120);

/// Some of the files that are being changed or closed.
#[derive(Default)]
struct Part {
    files: HashMap<Ino, File>,
    /// Truncations that are over, and since when.
    over: VecDeque<(Instant, Ino, u64)>,
}

#[derive(Default)]
struct File {
    held: Vec<Wanted>,
    /// In the order in which they came.
    waiting: Vec<Wanted>,
    /// The truncation's number, and since when.
    closed: Option<(u64, Instant)>,
    /// While it is closed, it is not read directly.
    fence: Option<Lasting>,
}

/// A range that is held or waited for.
struct Wanted {
    number: u64,
    range: Range<u64>,
}

impl Wanted {
    fn overlaps(&self, other: &Range<u64>) -> bool {
        self.range.start < other.end && other.start < self.range.end
    }
}

impl File {
    fn is_closed(&self) -> bool {
        self.closed.is_some_and(|(_, since)| since.elapsed() < LONGEST)
    }

    /// Whether a change that waits may begin.
    fn is_next(&self, number: u64, range: &Range<u64>) -> bool {
        let earlier = self.waiting.iter().take_while(|waiting| waiting.number != number);
        !self.is_closed() && !self.held.iter().chain(earlier).any(|other| other.overlaps(range))
    }

    fn open(&mut self) {
        (self.closed, self.fence) = (None, None);
    }

    fn is_unused(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty() && !self.is_closed()
    }
}

/// See the module.
pub(crate) struct Ranges {
    parts: [(Mutex<Part>, Condvar); PARTS],
    /// How long a change waits for others.
    patience: Duration,
    /// Of this server.
    fences: Option<Arc<Fences>>,
}

/// A range that nobody else changes until this is dropped.
pub(crate) struct Held<'r> {
    ranges: &'r Ranges,
    ino: Ino,
    number: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.ranges.change(self.ino, |file| file.held.retain(|held| held.number != self.number));
    }
}

impl Ranges {
    /// With this patience, of a server with this fence page.
    pub(crate) fn new(patience: Duration, fences: Option<Arc<Fences>>) -> Ranges {
        Ranges { parts: std::array::from_fn(|_| Default::default()), patience, fences }
    }

    /// Whether a truncation keeps changes of a file out.
    pub(crate) fn is_closed(&self, ino: Ino) -> bool {
        self.lock(ino).0.files.get(&ino).is_some_and(|file| file.closed.is_some())
    }

    fn lock(&self, ino: Ino) -> (MutexGuard<'_, Part>, &Condvar) {
        let (part, changed) = &self.parts[ino.0 as usize % PARTS];
        (part.lock().unwrap_or_else(PoisonError::into_inner), changed)
    }

    /// Changes what is noted of a file, and tells those who wait.
    fn change(&self, ino: Ino, change: impl FnOnce(&mut File)) {
        let (mut part, changed) = self.lock(ino);
        if let Some(file) = part.files.get_mut(&ino) {
            change(file);
            if file.is_unused() {
                part.files.remove(&ino);
            }
        }
        drop(part);
        changed.notify_all();
    }

    /// Waits until something is so of a file. Busy if that takes too long.
    fn until(&self, ino: Ino, mut is_so: impl FnMut(&mut File) -> bool) -> Result<(), Refusal> {
        let until = Instant::now() + self.patience;
        let (mut part, changed) = self.lock(ino);
        loop {
            if is_so(part.files.entry(ino).or_default()) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Refusal::Busy);
            }
            part = changed.wait_timeout(part, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until nobody else changes anything of the range, and keeps others out.
    pub(crate) fn hold(&self, ino: Ino, range: Range<u64>) -> Result<Held<'_>, Refusal> {
        static NUMBERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut waits = false;
        let held = self.until(ino, |file| {
            if !waits {
                file.waiting.push(Wanted { number, range: range.clone() });
                waits = true;
            }
            let is_next = file.is_next(number, &range);
            if is_next {
                file.waiting.retain(|waiting| waiting.number != number);
                file.held.push(Wanted { number, range: range.clone() });
            }
            is_next
        });
        if held.is_err() {
            self.change(ino, |file| file.waiting.retain(|waiting| waiting.number != number));
        }
        held.map(|()| Held { ranges: self, ino, number })
    }

    /// Waits until all changes of a file have ended that are under way now, and until no truncation keeps it closed: one
    /// server may have been cut already, and another one not. Others may begin meanwhile.
    pub(crate) fn outlast(&self, ino: Ino) -> Result<(), Refusal> {
        self.outlast_these(ino, &self.under_way(ino))
    }

    fn under_way(&self, ino: Ino) -> Vec<u64> {
        let (part, _) = self.lock(ino);
        part.files.get(&ino).map_or(Vec::new(), |file| file.held.iter().map(|held| held.number).collect())
    }

    fn outlast_these(&self, ino: Ino, numbers: &[u64]) -> Result<(), Refusal> {
        let is_over = |file: &mut File| {
            !file.is_closed() && !file.held.iter().any(|held| numbers.contains(&held.number))
        };
        let waited = self.until(ino, is_over);
        self.change(ino, |_| ());
        waited
    }

    /// Keeps new changes of a file waiting for a truncation, and waits until none is under way.
    pub(crate) fn close(&self, ino: Ino, closing: u64) -> Result<(), Refusal> {
        let (mut part, _) = self.lock(ino);
        part.forget();
        if part.over.iter().any(|(_, of, over)| (*of, *over) == (ino, closing)) {
            return Ok(());
        }
        let file = part.files.entry(ino).or_default();
        file.closed = Some((closing, Instant::now()));
        if file.fence.is_none() {
            file.fence = self.fences.as_ref().map(|fences| fences.keep_up(ino, Against::Readers));
        }
        drop(part);
        self.until(ino, |file| file.held.is_empty())
    }

    /// Whether a file has stayed closed by a truncation: it does for longer then.
    pub(crate) fn stays_closed(&self, ino: Ino, closing: u64) -> bool {
        let (mut part, _) = self.lock(ino);
        let Some(file) = part.files.get_mut(&ino).filter(|file| file.is_closed()) else { return false };
        let stays = file.closed.is_some_and(|(number, _)| number == closing);
        if stays {
            file.closed = Some((closing, Instant::now()));
        }
        stays
    }

    /// A truncation is over: changes of the file may begin again.
    pub(crate) fn open(&self, ino: Ino, closing: u64) {
        let (mut part, _) = self.lock(ino);
        part.forget();
        part.over.push_back((Instant::now(), ino, closing));
        drop(part);
        self.change(ino, |file| {
            if file.closed.is_some_and(|(number, _)| number == closing) {
                file.open();
            }
        });
    }

    /// No file is closed any more.
    pub(crate) fn open_all(&self) {
        self.open_those(|_| true);
    }

    /// Nobody has finished these truncations, perhaps because the files are gone: they may be read directly again.
    pub(crate) fn open_what_is_closed_for_too_long(&self) {
        self.open_those(|file| file.closed.is_some() && !file.is_closed());
    }

    fn open_those(&self, is_meant: impl Fn(&File) -> bool) {
        for (part, changed) in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let mut any = false;
            for file in part.files.values_mut().filter(|file| is_meant(file)) {
                file.open();
                any = true;
            }
            if any {
                part.files.retain(|_, file| !file.is_unused());
                changed.notify_all();
            }
        }
    }
}

impl Part {
    /// Forgets what is long over, and files that are closed no more.
    fn forget(&mut self) {
        while self.over.front().is_some_and(|(since, ..)| since.elapsed() >= MEMORY) {
            if let Some((_, ino, _)) = self.over.pop_front()
                && self.files.get(&ino).is_some_and(File::is_unused)
            {
                self.files.remove(&ino);
            }
        }
    }
}

#[cfg(test)]
mod tests;
