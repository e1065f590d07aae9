//! What a holder shows of blocks of which it is not the primary.
//!
//! A holder that is in step has everything that was acknowledged, and may have a change that others do not have yet.
//! Whoever saw that there, and asked another holder next, would see the old bytes again. So a holder shows a range only
//! if all have made what it has made of it:
//!
//! - A change that may not have been made by all has a mark ([`super::marks`]), which comes before the change itself. The
//!   bytes are read first, and then marks are looked for. If there are any, the primary is asked whether these changes
//!   are over.
//! - A truncation closes the file at all of its servers before any of them cuts its sub-file. Of a closed file only the
//!   primary shows anything.
//!
//! What a holder does not show, the program asks the primary for. A program on the holder's node reads the sub-file
//! itself, as long as the file has no marks and is not closed, and this server lacks nothing (fence page and lease).

use super::Copies;
use super::marks::Unsettled;
use bivouac_layout::{Group, Ino};
use bivouac_node::release::monotonic;
use bivouac_proto::copies::{CopyReply, CopyRequest};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::{Reply, Request};
use std::sync::atomic::{AtomicU64, Ordering};

/// Marks that keep nobody from reading through this server are cleared so often at most, nanoseconds.
const TIDIED: u64 = 50_000_000;

/// When marks were cleared last, by the monotonic clock.
#[derive(Default)]
pub(super) struct Tidied(AtomicU64);

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
        let length = match read {
            Ok(length) => length,
            Err(error) => {
                self.fails_here(group, ino, error.errno());
                return None;
            }
        };
        // In this order: a truncation that was over by the first look has left what all have.
        if self.ranges.is_closed(ino) {
            return None;
        }
        let range = offset..offset.saturating_add(len.into());
        let unsettled = self.marks.of_range(ino, &range);
        if !unsettled.is_empty() {
            self.ask_what_is_over(group);
            let now = self.marks.of_range(ino, &range);
            if unsettled.iter().any(|change| now.contains(change)) {
                return None;
            }
        }
        // Changes elsewhere in the file may have made it longer, and may be undone.
        let is_sure = self.marks.of_range(ino, &(0..u64::MAX)).is_empty();
        let end = if out.is_empty() { 0 } else { offset + out.len() as u64 };
        Some(if is_sure { length } else { end })
    }

    /// Clears marks of a file that was read through this server, so that programs of this node read it directly again.
    pub(crate) fn tidy(&self, ino: Ino) {
        let (now, last) = (monotonic(), self.tidied.0.load(Ordering::Relaxed));
        if now.saturating_sub(last) < TIDIED {
            return;
        }
        let changes = self.marks.of_range(ino, &(0..u64::MAX));
        if changes.is_empty()
            || self.tidied.0.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let mut groups: Vec<Group> = changes.into_iter().map(|change| change.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.into_iter().for_each(|group| self.ask_what_is_over(group));
    }

    /// Asks the primary of a group which of its changes are under way; the marks of others go.
    fn ask_what_is_over(&self, group: Group) {
        let before: Vec<Unsettled> = self.marks.unsettled();
        let Some(primary) = self.links.map().primary_of(group).filter(|primary| *primary != self.me) else {
            return;
        };
        let request = Request::Copy(CopyRequest::UnderWay { group });
        let answers = self.links.ask_each(&[primary], &request, &[]);
        if let [Ok(Reply::Copy(CopyReply::UnderWay { first, changes }))] = &answers[..] {
            self.marks.settle(&before, (primary, group), (*first, changes));
        }
    }
}
