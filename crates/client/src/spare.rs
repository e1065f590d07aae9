//! A cell for one value that one thread at a time takes out.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A cell for one value. A thread that takes the value out has it alone, so that no thread waits.
pub(crate) struct Spare<T>(AtomicPtr<T>);

impl<T> Default for Spare<T> {
    fn default() -> Spare<T> {
        Spare(AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl<T> Spare<T> {
    pub(crate) fn take(&self) -> Option<Box<T>> {
        if self.0.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let taken = self.0.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: pointers here come from Box::into_raw, and the swap made this thread the only one that has
        // it.
        (!taken.is_null()).then(|| unsafe { Box::from_raw(taken) })
    }

    /// Puts a value into its place, or gives it back if there is another one.
    pub(crate) fn try_put(&self, value: Box<T>) -> Result<(), Box<T>> {
        let pointer = Box::into_raw(value);
        match self.0.compare_exchange(std::ptr::null_mut(), pointer, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            // SAFETY: it was not put, so it still is this thread's alone.
            Err(_) => Err(unsafe { Box::from_raw(pointer) }),
        }
    }

    /// Puts a value into its place; one that is there already stays.
    pub(crate) fn put(&self, value: Box<T>) {
        let _ = self.try_put(value);
    }
}

impl<T> Drop for Spare<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
