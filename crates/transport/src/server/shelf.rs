//! Buffers between two requests that are answered later than their worker goes on.
//!
//! A worker whose buffer was taken away with a request takes another one from here; new memory would have to be cleared,
//! and its pages to be found, for each such request.

use std::sync::{Mutex, PoisonError};

/// Most bytes that lie here.
const ROOM: usize = 16 << 20;

/// The buffers, and how many bytes they are.
#[derive(Default)]
pub(super) struct Shelf(Mutex<(Vec<Vec<u8>>, usize)>);

impl Shelf {
    /// A buffer; an empty one if none is there.
    pub(super) fn take(&self) -> Vec<u8> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = all.0.pop().unwrap_or_default();
        all.1 -= buffer.capacity();
        buffer
    }

    /// Gives one back, with whatever is in it.
    pub(super) fn put(&self, buffer: Vec<u8>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.capacity() > 0 && all.1 + buffer.capacity() <= ROOM {
            all.1 += buffer.capacity();
            all.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_what_it_has_room_for() {
        let shelf = Shelf::default();
        shelf.put(Vec::new());
        assert_eq!(shelf.take().capacity(), 0);
        for _ in 0..3 {
            shelf.put(vec![1; ROOM / 2]);
        }
        for _ in 0..2 {
            assert_eq!(shelf.take().len(), ROOM / 2);
        }
        assert_eq!((shelf.take().capacity(), shelf.0.lock().unwrap().1), (0, 0));
    }
}
