//! A value that is replaced as a whole, while other threads may be using the old one.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that can be replaced. What was replaced is kept for those who use it, unless nobody can.
pub(super) struct Replaced<T>(AtomicPtr<T>);

impl<T> Replaced<T> {
    pub(super) fn new(value: T) -> Replaced<T> {
        Replaced(AtomicPtr::new(Box::into_raw(Box::new(value))))
    }

    #[inline]
    pub(super) fn get(&self) -> &T {
        // SAFETY: from Box::into_raw, and freed only where no other thread uses it (see `replace`).
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    /// Puts another value in its place.
    ///
    /// # Safety
    /// With `sole`, no other thread uses this, and the caller has no reference to the old value, which is freed.
    pub(super) unsafe fn replace(&self, value: T, sole: bool) {
        let old = self.0.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        if sole {
            // SAFETY: from Box::into_raw; replaced, and nobody has it, as the caller says.
            drop(unsafe { Box::from_raw(old) });
        }
    }
}

impl<T> Drop for Replaced<T> {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw, and `&mut self` excludes users.
        drop(unsafe { Box::from_raw(*self.0.get_mut()) });
    }
}
