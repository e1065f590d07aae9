//! How many bytes are on their way at once.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Time between two looks whether more may be on their way than before.
const LOOK: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Room {
    bytes: Mutex<u64>,
    freed: Condvar,
}

/// Bytes that are on their way until this is dropped.
pub(crate) struct Taken<'r>(&'r Room, u64);

impl Room {
    /// Waits until so many bytes more may be on their way; more than `most` at once may alone. `most`: at the moment.
    pub(crate) fn take(&self, bytes: u64, most: impl Fn() -> u64) -> Taken<'_> {
        let mut taken = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken > 0 && *taken + bytes > most() {
            taken = self.freed.wait_timeout(taken, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken += bytes;
        Taken(self, bytes)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.1;
        self.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_bytes_are_on_their_way_than_may_be_and_any_number_is_let_through_alone() {
        let (room, most) = (Room::default(), || 100);
        let first = room.take(200, most);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| drop(room.take(1, most)));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!second.is_finished());
            drop(first);
            second.join().expect("it goes on");
        });
        let all: Vec<_> = (0..10).map(|_| room.take(10, most)).collect();
        assert_eq!((all.len(), *room.bytes.lock().expect("no panic")), (10, 100));
        drop(all);
        assert_eq!(*room.bytes.lock().expect("no panic"), 0);
    }
}
