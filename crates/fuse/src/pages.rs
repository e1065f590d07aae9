//! Writes beside pages of the same file that the kernel has in its cache.
//!
//! Mappings are the only users of the kernel's page cache here; `write` goes past it, straight to this
//! server. Around such a write the kernel writes back and drops the pages concerned, once before and once
//! after. That is not enough: in between another thread can fetch a page, store into it through a mapping,
//! and have it written back whole. The page was fetched before the write was done, so what is written back
//! has the old bytes in the place of those that were just written, and undoes the write.
//!
//! The server sees all three: pages that are fetched, writes, and pages that are written back. It therefore
//! keeps, for each open file, the bytes that were written since the page around them was fetched, and leaves
//! them out when the page is written back. That loses nothing: the kernel drops the page before the write
//! returns to the program, so all stores into that copy of the page came before the write had returned, and
//! may count as having come before it. When the page is fetched again, the copy has the written bytes, and
//! stores into them count.
//!
//! For the same reason a write and a write-back of the same bytes do not go to the data servers side by side,
//! where either might come last: each waits until the other is done ([`Pages::change`]). Neither waits for
//! the kernel, so that the wait always ends.

mod ranges;

use crate::face::lock;
use ranges::Ranges;
use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};

/// The unit in which the kernel fetches and writes back. Where its pages are larger, what is fetched is a
/// multiple of this.
const PAGE: u64 = 4096;

/// What the kernel has of one open file.
#[derive(Default)]
pub(crate) struct Pages {
    state: Mutex<State>,
    /// Signalled when a change has ended.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Pages that the kernel has fetched, and may still have.
    fetched: Ranges,
    /// Bytes that were written since their page was fetched.
    newer: Ranges,
    /// Changes under way.
    under_way: Vec<(Source, Range<u64>)>,
}

/// Where changed bytes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// A call of a program.
    Call,
    /// Pages of the kernel's cache.
    Cache,
}

impl Pages {
    /// The kernel fetches this range into its cache: to be called before it is read.
    pub(crate) fn fetch(&self, range: Range<u64>) {
        let pages = range.start / PAGE * PAGE..range.end.div_ceil(PAGE).saturating_mul(PAGE);
        let mut state = lock(&self.state);
        state.newer.remove(pages.clone());
        state.fetched.add(pages);
    }

    /// Begins a change of this range, when no change from the other source is under way in it.
    pub(crate) fn change(&self, source: Source, range: Range<u64>) -> Change<'_> {
        let mut state = lock(&self.state);
        let meets = |(other, theirs): &(Source, Range<u64>)| {
            *other != source && theirs.start < range.end && range.start < theirs.end
        };
        while state.under_way.iter().any(meets) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.under_way.push((source, range.clone()));
        Change { pages: self, source, range }
    }
}

/// A change that is under way until this value is dropped.
pub(crate) struct Change<'a> {
    pages: &'a Pages,
    source: Source,
    range: Range<u64>,
}

impl Change<'_> {
    /// The parts of the range that a page which is written back may change, in order.
    pub(crate) fn allowed(&self) -> Vec<Range<u64>> {
        lock(&self.pages.state).newer.outside(self.range.clone())
    }

    /// A call has changed these bytes: to be called before the program learns of it.
    pub(crate) fn written(&self, bytes: Range<u64>) {
        let mut state = lock(&self.pages.state);
        for part in state.fetched.inside(bytes) {
            state.newer.add(part);
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.pages.state);
        let own = state.under_way.iter().position(|other| *other == (self.source, self.range.clone()));
        if let Some(own) = own {
            state.under_way.swap_remove(own);
        }
        drop(state);
        self.pages.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn write(pages: &Pages, bytes: Range<u64>) {
        pages.change(Source::Call, bytes.clone()).written(bytes);
    }

    /// The ranges that are written: first byte, end.
    fn write_back(pages: &Pages, range: Range<u64>) -> Vec<(u64, u64)> {
        let allowed = pages.change(Source::Cache, range).allowed();
        allowed.into_iter().map(|part| (part.start, part.end)).collect()
    }

    #[test]
    fn a_page_fetched_before_a_write_does_not_undo_it() {
        let pages = Pages::default();
        pages.fetch(0..4096);
        write(&pages, 8..16);
        write(&pages, 100..101);
        assert_eq!(write_back(&pages, 0..4096), [(0, 8), (16, 100), (101, 4096)]);
        assert_eq!(write_back(&pages, 8..16), []);
    }

    #[test]
    fn a_page_fetched_after_a_write_is_written_back_whole() {
        let pages = Pages::default();
        write(&pages, 8..16);
        pages.fetch(0..8192);
        assert_eq!(write_back(&pages, 0..8192), [(0, 8192)]);
        write(&pages, 4000..5000);
        pages.fetch(4096..4097);
        assert_eq!(write_back(&pages, 0..8192), [(0, 4000), (4096, 8192)]);
    }

    #[test]
    fn nothing_is_kept_of_writes_where_no_page_was_fetched() {
        let pages = Pages::default();
        pages.fetch(8192..12288);
        write(&pages, 0..8192);
        write(&pages, 12288..u64::MAX);
        assert_eq!(write_back(&pages, 0..u64::MAX), [(0, u64::MAX)]);
    }

    #[test]
    fn writes_and_written_back_pages_wait_for_each_other_and_not_for_their_like() {
        let pages = Pages::default();
        for (first, second) in [(Source::Call, Source::Cache), (Source::Cache, Source::Call)] {
            let done = AtomicBool::new(false);
            let change = pages.change(first, 0..4096);
            drop((pages.change(first, 0..4096), pages.change(second, 4096..8192)));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    drop(pages.change(second, 4095..4097));
                    assert!(done.load(Ordering::Acquire));
                });
                std::thread::sleep(std::time::Duration::from_millis(20));
                done.store(true, Ordering::Release);
                drop(change);
            });
        }
    }
}
