//! A process's knowledge of one file's layout, which can become outdated while the file is open.
//!
//! When servers come or leave, ranges of files go to other servers, and a file's layout gets a newer version
//! ([`bivouac_layout::restripe`]). Each request for blocks states the version by which it was made. A server that blocks have
//! left refuses an older one; for who accesses sub-files directly, its fence page says that the descriptor is stale, and the
//! server refuses a new one for the same reason. Then the process asks the inode's server for the newer layout
//! ([`Layouts::learn`]), and does the whole access again: what it has done of it so far it does once more, with the same
//! bytes.
//!
//! Other threads may be using an older layout at that moment. So layouts stay as long as the open file; there is one for each
//! time that this process has found its own outdated.

use bivouac_layout::FileLayout;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The layouts of one file, the newest first.
#[derive(Default)]
pub(crate) struct Layouts {
    newest: AtomicPtr<Known>,
}

/// A layout.
pub(crate) struct Known {
    pub(crate) layout: FileLayout,
    outdated: AtomicBool,
    before: *mut Known,
}

impl Layouts {
    /// The newest one; `None` before the first.
    #[inline]
    pub(crate) fn newest(&self) -> Option<&Known> {
        // SAFETY: null, or installed from Box::into_raw and freed only when `self` is dropped.
        unsafe { self.newest.load(Ordering::Acquire).as_ref() }
    }

    /// Takes over a layout that is newer than all that are known.
    pub(crate) fn learn(&self, layout: FileLayout) {
        let mut before = self.newest.load(Ordering::Acquire);
        let new = Box::into_raw(Box::new(Known { layout, outdated: AtomicBool::new(false), before }));
        loop {
            // SAFETY: as in `newest`; and `new` is this thread's alone until it is installed.
            let is_newer = unsafe {
                (*new).before = before;
                before.as_ref().is_none_or(|known| (*new).layout.version > known.layout.version)
            };
            if !is_newer {
                // SAFETY: it was not installed.
                drop(unsafe { Box::from_raw(new) });
                return;
            }
            match self.newest.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
    }
}

impl Drop for Layouts {
    fn drop(&mut self) {
        let mut next = *self.newest.get_mut();
        while !next.is_null() {
            // SAFETY: installed from Box::into_raw; `&mut self` excludes users.
            let known = unsafe { Box::from_raw(next) };
            next = known.before;
        }
    }
}

// SAFETY: it owns what its pointers lead to, and gives shared references to it only.
unsafe impl Sync for Layouts {}
// SAFETY: it owns what its pointers lead to.
unsafe impl Send for Layouts {}

impl Known {
    /// A server has refused an access by this layout: it is to be done again by a newer one.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Relaxed)
    }

    /// See [`Known::is_outdated`].
    #[cold]
    pub(crate) fn outdate(&self) {
        self.outdated.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::{GenerationId, Ino};

    fn layout(version: u32) -> FileLayout {
        FileLayout { version, ..FileLayout::spread(Ino(7), 4096, GenerationId(0)) }
    }

    #[test]
    fn only_newer_layouts_are_taken_over_and_older_ones_can_still_be_used() {
        let layouts = Layouts::default();
        assert!(layouts.newest().is_none());
        layouts.learn(layout(3));
        let first = layouts.newest().expect("a layout");
        first.outdate();
        for (version, newest) in [(2, 3), (3, 3), (5, 5), (4, 5)] {
            layouts.learn(layout(version));
            assert_eq!(layouts.newest().map(|known| known.layout.version), Some(newest));
        }
        assert_eq!((first.layout.version, first.is_outdated()), (3, true));
        assert!(!layouts.newest().expect("a layout").is_outdated());
    }

    #[test]
    fn threads_that_learn_at_once_end_with_the_newest() {
        let layouts = Layouts::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let layouts = &layouts;
                scope
                    .spawn(move || (0..1000).for_each(|version| layouts.learn(layout(version * 4 + thread))));
            }
        });
        assert_eq!(layouts.newest().map(|known| known.layout.version), Some(3999));
    }
}
