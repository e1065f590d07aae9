//! Which ranges of files are being changed, so that changes of the same bytes follow each other.
//!
//! A file can be *closed* for a truncation: changes that are under way end, and new ones wait until it is opened
//! again. So a truncation that closes a file at all of its servers first meets no change half-way between them. Who
//! closes a file opens it soon, or somebody else does in its place; but a request to close it may also arrive late, when
//! the truncation is over. So a file does not stay closed for longer than [`LONGEST`].

use bivouac_layout::Ino;
use bivouac_proto::Refusal;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PARTS: usize = 64;
/// Longest time that a file is closed: that in which a truncation whose server has died is finished by the next one.
const LONGEST: Duration = Duration::from_secs(15);
/// Time between two looks at whether a file is closed for too long.
const LOOK: Duration = Duration::from_millis(500);

/// The files that are being changed or closed.
type Files = HashMap<Ino, File>;

#[derive(Default)]
struct File {
    held: Vec<Range<u64>>,
    /// Since when.
    closed: Option<Instant>,
}

impl File {
    fn is_closed(&self) -> bool {
        self.closed.is_some_and(|since| since.elapsed() < LONGEST)
    }

    fn is_unused(&self) -> bool {
        self.held.is_empty() && !self.is_closed()
    }
}

/// See the module.
pub(crate) struct Ranges {
    parts: [(Mutex<Files>, Condvar); PARTS],
    /// How long a change waits for others.
    patience: Duration,
}

/// A range that nobody else changes until this is dropped.
pub(crate) struct Held<'r> {
    ranges: &'r Ranges,
    ino: Ino,
    range: Range<u64>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let (mut files, changed) = self.ranges.lock(self.ino);
        if let Some(file) = files.get_mut(&self.ino) {
            if let Some(at) = file.held.iter().position(|held| *held == self.range) {
                file.held.swap_remove(at);
            }
            if file.is_unused() {
                files.remove(&self.ino);
            }
        }
        drop(files);
        changed.notify_all();
    }
}

impl Ranges {
    /// With this patience.
    pub(crate) fn new(patience: Duration) -> Ranges {
        Ranges { parts: std::array::from_fn(|_| Default::default()), patience }
    }

    fn lock(&self, ino: Ino) -> (MutexGuard<'_, Files>, &Condvar) {
        let (files, changed) = &self.parts[ino.0 as usize % PARTS];
        (files.lock().unwrap_or_else(PoisonError::into_inner), changed)
    }

    /// Waits until `is_free`, and does something then. Busy if that takes too long.
    fn when(
        &self,
        ino: Ino,
        is_free: impl Fn(&File) -> bool,
        then: impl FnOnce(&mut File),
    ) -> Result<(), Refusal> {
        let until = Instant::now() + self.patience;
        let (mut files, changed) = self.lock(ino);
        loop {
            let file = files.entry(ino).or_default();
            if is_free(file) {
                then(file);
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Refusal::Busy);
            }
            files = changed.wait_timeout(files, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until nobody else changes anything of the range, and keeps others out.
    pub(crate) fn hold(&self, ino: Ino, range: Range<u64>) -> Result<Held<'_>, Refusal> {
        let overlaps = |held: &Range<u64>| held.start < range.end && range.start < held.end;
        let is_free = |file: &File| !file.is_closed() && !file.held.iter().any(overlaps);
        self.when(ino, is_free, |file| file.held.push(range.clone()))?;
        Ok(Held { ranges: self, ino, range })
    }

    /// Keeps new changes of a file waiting, and waits until none is under way.
    pub(crate) fn close(&self, ino: Ino) -> Result<(), Refusal> {
        self.when(ino, |_| true, |file| file.closed = Some(Instant::now()))?;
        self.when(ino, |file| file.held.is_empty(), |_| {})
    }

    /// Lets changes of a file begin again.
    pub(crate) fn open(&self, ino: Ino) {
        let (mut files, changed) = self.lock(ino);
        if let Some(file) = files.get_mut(&ino) {
            file.closed = None;
            if file.is_unused() {
                files.remove(&ino);
            }
        }
        drop(files);
        changed.notify_all();
    }

    /// The same for all files.
    pub(crate) fn open_all(&self) {
        for (files, changed) in &self.parts {
            let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
            files.values_mut().for_each(|file| file.closed = None);
            files.retain(|_, file| !file.is_unused());
            changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);
    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn changes_of_the_same_bytes_follow_each_other_and_others_do_not_wait() {
        let ranges = Ranges::new(SOON);
        let first = ranges.hold(FILE, 10..20).expect("nobody is there");
        for free in [0..10, 20..30] {
            drop(ranges.hold(FILE, free).expect("other bytes"));
        }
        drop(ranges.hold(Ino(8), 10..20).expect("another file"));
        for taken in [19..21, 0..11, 12..13] {
            assert_eq!(ranges.hold(FILE, taken).map(|_| ()), Err(Refusal::Busy));
        }
        drop(first);
        drop(ranges.hold(FILE, 0..100).expect("free again"));
    }

    #[test]
    fn a_file_is_closed_when_no_change_is_under_way_and_none_begins_until_it_is_open() {
        let ranges = Ranges::new(Duration::from_secs(60));
        let (tell, told) = std::sync::mpsc::channel();
        let under_way = ranges.hold(FILE, 0..5).expect("free");
        std::thread::scope(|scope| {
            let (ranges, tell) = (&ranges, &tell);
            scope.spawn(move || {
                ranges.close(FILE).expect("the change ends");
                tell.send("closed").expect("heard");
            });
            assert!(told.recv_timeout(SOON).is_err(), "a change is under way");
            drop(under_way);
            assert_eq!(told.recv(), Ok("closed"));
            scope.spawn(move || {
                drop(ranges.hold(FILE, 3..4).expect("it is opened"));
                tell.send("changed").expect("heard");
            });
            assert!(told.recv_timeout(SOON).is_err(), "it is closed");
            ranges.open(FILE);
            assert_eq!(told.recv(), Ok("changed"));
        });
        assert!(
            ranges.parts.iter().all(|(files, _)| files.lock().expect("sound").is_empty()),
            "nothing stays"
        );
    }
}
