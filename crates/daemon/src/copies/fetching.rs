//! Fetching: what a server lacks of a file comes from the primary of each stretch, while programs go on changing it.
//!
//! A change may come between the fetching of bytes and their writing, and is newer then: the bytes are fetched again.
//! So each range that is being fetched is noted ([`Fetches`]), and every change of a sub-file goes through
//! [`Fetches::apply`], one after the other.

use super::Copies;
use crate::links::Whom;
use bivouac_data::DataError;
use bivouac_layout::{Group, Ino, ServerId};
use bivouac_proto::copies::{CopyReply, CopyRequest, DIGESTED};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Request, Time};
use bivouac_transport::engine::To;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sub-files are divided among so many locks.
const PARTS: usize = 64;
/// Most bytes that are fetched at once, where so many in a row differ.
const FETCHED: u64 = 1 << 20;

/// What is being fetched. Under the lock of its part, one change of a sub-file is made after the other.
pub(super) struct Fetches {
    parts: [Mutex<Vec<Fetching>>; PARTS],
    begun: AtomicU64,
}

/// A range that is being fetched, and whether it was changed since that began.
struct Fetching {
    number: u64,
    ino: Ino,
    range: Range<u64>,
    is_changed: bool,
}

impl Default for Fetches {
    fn default() -> Fetches {
        Fetches { parts: std::array::from_fn(|_| Mutex::default()), begun: AtomicU64::new(0) }
    }
}

impl Fetches {
    fn part(&self, ino: Ino) -> MutexGuard<'_, Vec<Fetching>> {
        self.parts[ino.0 as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change of a range of a sub-file, while no other change of the sub-file is made.
    pub(super) fn apply<T>(&self, ino: Ino, range: Range<u64>, make: impl FnOnce() -> T) -> T {
        let mut part = self.part(ino);
        for fetching in part.iter_mut().filter(|fetching| fetching.ino == ino) {
            let overlaps = fetching.range.start < range.end && range.start < fetching.range.end;
            fetching.is_changed |= overlaps;
        }
        make()
    }

    /// From now on it is noted whether the range is changed.
    pub(super) fn begin(&self, ino: Ino, range: Range<u64>) -> Begun<'_> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        self.part(ino).push(Fetching { number, ino, range, is_changed: false });
        Begun { fetches: self, ino, number }
    }
}

/// A range whose fetching has begun.
pub(super) struct Begun<'a> {
    fetches: &'a Fetches,
    ino: Ino,
    number: u64,
}

impl Begun<'_> {
    /// Makes what was fetched, unless the range was changed meanwhile: `None`.
    pub(super) fn end<T>(self, make: impl FnOnce() -> T) -> Option<T> {
        let part = self.fetches.part(self.ino);
        let is_as_it_was = |fetching: &Fetching| fetching.number == self.number && !fetching.is_changed;
        let made = part.iter().any(is_as_it_was).then(make);
        drop(part);
        made
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.fetches.part(self.ino).retain(|fetching| fetching.number != self.number);
    }
}

/// Where a stretch of a file is fetched from.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) group: Group,
    pub(super) primary: ServerId,
    pub(super) ino: Ino,
    /// The version of the file's layout.
    pub(super) layout: u32,
    /// When the primary's sub-file was written last.
    pub(super) written: Option<Time>,
}

impl Copies {
    /// Compares a range with its primary's, and fetches what differs. Notes that something is fetched: whatever becomes of
    /// it, there may be a sub-file then.
    pub(super) fn compare(
        &self,
        from: &Source,
        (offset, len): (u64, u64),
        has_fetched: &AtomicBool,
    ) -> Result<(), Failure> {
        let Source { group, primary, ino, layout, .. } = *from;
        let to = Whom::from(To::Primary(primary, group)).of_layout(layout);
        let mut theirs = vec![0; len.div_ceil(DIGESTED) as usize * 4];
        let request = Request::Copy(CopyRequest::Digest { group, ino, offset, len });
        let turn = self.catching.pace.turn();
        let own = self.digests(ino, offset, len).map_err(|error| error.errno())?;
        match self.links.ask_into(to, &request, &[], &mut theirs)? {
            (Reply::Copy(CopyReply::Read), count) if count == theirs.len() => {}
            _ => return Err(Errno::PROTO.into()),
        }
        turn.end(theirs.len() as u64, self.links.map().heal_rate);
        let (theirs, _) = theirs.as_chunks::<4>();
        let differing = runs_that_differ(&own, theirs);
        if !differing.is_empty() {
            has_fetched.store(true, Ordering::Relaxed);
        }
        for run in differing {
            let end = (run.end * DIGESTED).min(len);
            for at in (run.start * DIGESTED..end).step_by(FETCHED as usize) {
                self.fetch(from, offset + at, (end - at).min(FETCHED))?;
            }
        }
        Ok(())
    }

    fn fetch(&self, from: &Source, offset: u64, len: u64) -> Result<(), Failure> {
        let Source { group, primary, ino, layout, .. } = *from;
        let to = Whom::from(To::Primary(primary, group)).of_layout(layout);
        let mut bytes = vec![0; len as usize];
        loop {
            let turn = self.catching.pace.turn();
            let begun = self.catching.fetches.begin(ino, offset..offset + len);
            let request = Request::Copy(CopyRequest::Fetch { group, ino, offset, len: len as u32 });
            let count = match self.links.ask_into(to, &request, &[], &mut bytes)? {
                (Reply::Copy(CopyReply::Read), count) if count <= bytes.len() => count,
                _ => return Err(Errno::PROTO.into()),
            };
            let count = self.keep_what_is_right(from, offset, &mut bytes, count)?;
            let made = begun.end(|| self.take_in(from, offset..offset + len, &bytes[..count]));
            turn.end(count as u64, self.links.map().heal_rate);
            if let Some(made) = made {
                self.catching.fetched.fetch_add(count as u64, Ordering::Relaxed);
                return made;
            }
        }
    }

    /// A range becomes as it is at its primary.
    fn take_in(&self, from: &Source, range: Range<u64>, bytes: &[u8]) -> Result<(), Failure> {
        if self.has_newer(from.ino, from.layout) {
            // What is here may not be the primary's any more.
            return Err(Refusal::StaleLayout.into());
        }
        let end = range.start + bytes.len() as u64;
        let is_hole = bytes.iter().all(|byte| *byte == 0);
        self.unseen(from.ino, from.written, || {
            self.marks.reaches(from.ino, end);
            self.copy_mirror(from.ino, range.clone(), if is_hole { &[] } else { bytes }, None)?;
            if !bytes.is_empty() && self.store.extent(from.ino)?.length < end {
                self.store.truncate(from.ino, end, true)?;
            }
            // Whatever was damaged here is replaced.
            self.store.renew_sums(from.ino, range)
        })
        .map_err(|error| error.errno().into())
    }

    /// Makes a change that is not one of the file: when it was written last stays, or becomes `theirs` if that is
    /// later.
    pub(crate) fn unseen(
        &self,
        ino: Ino,
        theirs: Option<Time>,
        change: impl FnOnce() -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let own = self.store.extent(ino)?.written.map(|written| written.at);
        change()?;
        own.max(theirs).map_or(Ok(()), |written| self.store.set_written(ino, written))
    }
}

/// Where two rows of checksums differ: runs of stretches, by their numbers.
fn runs_that_differ(own: &[u32], theirs: &[[u8; 4]]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let differs = |(_, (own, theirs)): &(u64, (&u32, &[u8; 4]))| **own != u32::from_le_bytes(**theirs);
    for (number, _) in (0..).zip(own.iter().zip(theirs)).filter(differs) {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_found_in_runs() {
        let runs = |own: &[u32], theirs: &[u32]| {
            runs_that_differ(own, &theirs.iter().map(|sum| sum.to_le_bytes()).collect::<Vec<_>>())
        };
        assert_eq!(runs(&[1, 2, 3, 4, 5], &[1, 0, 0, 4, 0]), [1..3, 4..5]);
        assert_eq!(runs(&[1, 2, 3], &[3, 4, 3]), std::slice::from_ref(&(0..2)));
        assert!(runs(&[1, 2], &[1, 2]).is_empty() && runs(&[], &[]).is_empty());
    }

    #[test]
    fn a_change_spoils_the_fetches_that_it_overlaps_and_no_others() {
        let fetches = Fetches::default();
        let (ino, same_part) = (Ino(7), Ino(7 + PARTS as u64));
        let [changed, beside, other] =
            [(ino, 0..10), (ino, 10..20), (same_part, 0..10)].map(|(ino, range)| fetches.begin(ino, range));
        assert_eq!(fetches.apply(ino, 5..10, || 1), 1);
        let later = fetches.begin(ino, 0..10);
        assert_eq!(
            [changed, beside, other, later].map(|begun| begun.end(|| ())),
            [None, Some(()), Some(()), Some(())]
        );
        assert!(fetches.part(ino).is_empty(), "what has ended is forgotten");
        drop(fetches.begin(ino, 0..1));
        assert!(fetches.part(ino).is_empty(), "also what was given up");
    }
}
