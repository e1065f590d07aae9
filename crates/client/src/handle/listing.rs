//! Listing an open directory.

use super::Handle;
use crate::memory::listing::Entries;
use bivouac_proto::Errno;
use bivouac_proto::attr::{DirEntry, FileKind};
use std::sync::atomic::Ordering;

impl Handle {
    /// The next entries from the shared position, about `max` of them, and moves it behind them. `.` and `..`
    /// come first; nothing at the end.
    pub fn list(&self, max: usize) -> Result<Entries, Errno> {
        let slot = self.data().usable()?;
        if !self.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let _guard = self.lock_offset(slot)?;
        let mut after = slot.offset.load(Ordering::Relaxed);
        let mut entries = Vec::new();
        let mut end = false;
        let listing = &self.client.memory().listing();
        let mut above_here = None;
        if after < 2 {
            let here = self.ino();
            listing.begin(here);
            let above = match self.client.namespace().parent(here) {
                Ok((parent, _)) => parent,
                // A directory that was removed is empty.
                Err(Errno::STALE | Errno::NOENT) => return Ok(Entries { entries, end: true }),
                Err(errno) => return Err(errno),
            };
            above_here = Some(above);
            for (cookie, name, ino) in [(1, &b"."[..], here), (2, b"..", above)] {
                if after < cookie {
                    let name = name.to_vec();
                    entries.push(DirEntry { name, ino, kind: FileKind::Directory, cookie, attr: None });
                }
            }
            after = 2;
        }
        if entries.len() < max {
            let more =
                self.client.namespace().next_entries(self.ino(), above_here, after, max - entries.len())?;
            end = more.end;
            entries.extend(more.entries);
        }
        if let Some(last) = entries.last() {
            slot.offset.store(last.cookie, Ordering::Relaxed);
        }
        Ok(Entries { entries, end })
    }
}
