//! What a holder shows of blocks of which it is not the primary.
//!
//! A holder that is in step has everything that was acknowledged, and may have a change that others do not have yet.
//! Whoever saw that there, and asked another holder next, would see the old bytes again. So a holder shows a range only
//! if all have made what it has made of it:
//!
//! - A change that may not have been made by all has a mark ([`super::marks`]), which comes before the change itself. The
//!   bytes are read first, and then marks are looked for. If there are any, the primary is asked whether these changes
//!   are over, and the bytes are read once more: a change that is over may have been undone.
//! - A truncation closes the file at all of its servers before any of them cuts its sub-file. Of a closed file only the
//!   primary shows anything.
//!
//! What a holder does not show, the program asks the primary for. A program on the holder's node reads the sub-file
//! itself, as long as the file has no marks and is not closed, and this server lacks nothing (fence page and lease).

use super::Copies;
use super::holder::is_of_blocks;
use super::marks::Unsettled;
use bivouac_layout::{Group, Ino};
use bivouac_node::release::monotonic;
use bivouac_proto::copies::{CopyReply, CopyRequest};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::{Refusal, Reply, Request};
use bivouac_transport::engine::To;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Marks that keep nobody from reading through this server are cleared so often at most, nanoseconds.
const TIDIED: u64 = 50_000_000;

/// Most questions in a row.
const ASKED: usize = 16;

/// Most questions at once.
const ASKED_AT_ONCE: usize = 8;

/// When marks were cleared last, by the monotonic clock; whether somebody is at it; and how many ask primaries.
#[derive(Default)]
pub(super) struct Tidied {
    last: AtomicU64,
    is_at_it: AtomicBool,
    asking: AtomicUsize,
}

/// Somebody asks a primary, until this is dropped.
struct Asking<'t>(&'t Tidied);

impl Tidied {
    /// `None`: enough ask already.
    fn ask(&self) -> Option<Asking<'_>> {
        let asking = Asking(self);
        (self.asking.fetch_add(1, Ordering::Relaxed) < ASKED_AT_ONCE).then_some(asking)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Copies {
    /// Whether this server has everything of a group, by the map, and as far as it knows itself.
    fn has_all_of(&self, group: Group) -> bool {
        let map = self.links.map();
        let is_in_step = map.serving(group).any(|holder| holder == self.me);
        is_in_step && self.links.lease.is_valid() && !self.faults.is_suspect(group, self.me)
    }

    /// Reads blocks of a group into `out`; the length that the answer is to state. `None`: this server cannot show them.
    pub(crate) fn show(
        &self,
        group: Group,
        ino: Ino,
        (offset, len): (u64, u32),
        out: &mut Vec<u8>,
    ) -> Option<u64> {
        let range = offset..offset.saturating_add(len.into());
        // A change that was under way at the first look may have been undone since: what it had made is read again.
        for is_last in [false, true] {
            let undone = self.marks.undone();
            let length = self.read_here(group, ino, (offset, len), out)?;
            // In this order: a truncation that was over by the first look has left what all have.
            if self.ranges.is_closed(ino) {
                return None;
            }
            if self.marks.of_range(ino, &range).is_empty() && self.marks.undone() == undone {
                // Changes elsewhere in the file may have made it longer, and may be undone.
                let is_sure = self.marks.of_range(ino, &(0..u64::MAX)).is_empty();
                let end = if out.is_empty() { 0 } else { offset + out.len() as u64 };
                return Some(if is_sure { length } else { end });
            }
            if !is_last {
                self.ask_what_is_over(group);
            }
        }
        None
    }

    /// Reads what there is, whoever else has it; returns the length of the sub-file.
    fn read_here(&self, group: Group, ino: Ino, (offset, len): (u64, u32), out: &mut Vec<u8>) -> Option<u64> {
        if !self.has_all_of(group) {
            return None;
        }
        let read = self.store.extent(ino).and_then(|extent| {
            let there = extent.length.saturating_sub(offset).min(u64::from(len.min(MAX_PAYLOAD)));
            out.resize(there as usize, 0);
            let count = self.store.read(ino, offset, out)?;
            out.truncate(count);
            Ok(extent.length)
        });
        match read {
            Ok(length) => Some(length),
            Err(error) => {
                self.fails_here(group, ino, error.errno());
                None
            }
        }
    }

    /// Clears marks, now and then, when something was read through this server: it may be read directly then. (Files share
    /// fences, so the marks of any file may be in its way.)
    pub(crate) fn tidy(&self) {
        let (now, last) = (monotonic(), self.tidied.last.load(Ordering::Relaxed));
        if now.saturating_sub(last) < TIDIED || self.tidied.is_at_it.swap(true, Ordering::Acquire) {
            return;
        }
        self.tidied.last.store(now, Ordering::Relaxed);
        self.ranges.open_what_is_closed_for_too_long();
        let mut asked: Vec<Group> = Vec::new();
        // An answer is about all changes of that primary.
        while asked.len() < ASKED
            && let Some(change) =
                self.marks.unsettled().into_iter().find(|change| !asked.contains(&change.group))
        {
            asked.push(change.group);
            self.ask_what_is_over(change.group);
        }
        self.tidied.is_at_it.store(false, Ordering::Release);
    }

    /// Before this server says how long its sub-file of a file is: clears marks of changes that are over, where that may matter.
    /// Most often it does not: the primary of what is marked counts it. But one that is catching up with other blocks of the
    /// file is not asked.
    pub(crate) fn settle_length(&self, ino: Ino) -> Result<(), Refusal> {
        let map = self.links.map();
        if !map.behind.iter().any(|lag| is_of_blocks(&lag.group)) {
            return Ok(());
        }
        let marked = self.marks.of_range(ino, &(0..u64::MAX)).into_iter().map(|change| change.group);
        // For one that is down, others are about to answer, or nobody does.
        let groups: BTreeSet<Group> =
            marked.filter(|group| map.primary_of(*group).is_some_and(|primary| map.is_up(primary))).collect();
        // Whoever asks, a program or a server, comes again.
        groups.into_iter().try_for_each(|group| self.ask_what_is_over(group).ok_or(Refusal::OldServer))
    }

    /// Asks the primary of a group which of its changes are under way; the marks of others go. `None`: it was not asked, or has
    /// not answered.
    fn ask_what_is_over(&self, group: Group) -> Option<()> {
        let before: Vec<Unsettled> = self.marks.unsettled();
        let primary = self.links.map().primary_of(group)?;
        if primary == self.me {
            // What is left was refused, or settled when this server took the group over.
            self.serving(group).ok()?;
            self.marks.settle(&before, (self.me, group), (0, &[]));
            return Some(());
        }
        // A primary that hangs is not to hang all who read here: they ask it themselves. Nor is one that is not the primary
        // any more, or does not serve the group yet, asked again and again: the program's next request waits for this.
        let _asking = self.tidied.ask()?;
        let request = Request::Copy(CopyRequest::UnderWay { group });
        match self.links.ask_once(To::Primary(primary, group), &request)? {
            Reply::Copy(CopyReply::UnderWay { first, changes }) => {
                self.marks.settle(&before, (primary, group), (first, &changes));
                Some(())
            }
            _ => None,
        }
    }
}
