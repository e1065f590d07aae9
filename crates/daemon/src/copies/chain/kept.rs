//! Bytes that were sent ahead, until their change comes.

use bivouac_proto::copies::Sent;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long bytes are waited for of which no more come.
const SILENCE: Duration = Duration::from_secs(1);
/// Time between two looks at whether waiting still makes sense.
const LOOK: Duration = Duration::from_millis(50);
/// For so long bytes are kept at most: longer than a primary waits before it begins with a change.
const LONGEST: Duration = Duration::from_secs(15);
/// So many bytes are kept at most. What comes besides is not: its change brings the bytes along.
const MOST: usize = 128 << 20;

/// See the module.
#[derive(Default)]
pub(super) struct Kept {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    entries: HashMap<Sent, Entry>,
    /// In all entries.
    bytes: usize,
}

struct Entry {
    state: State,
    /// Of the latest news.
    heard: Instant,
}

enum State {
    Coming,
    Complete(Vec<u8>),
    /// They will not come.
    Lost,
}

impl Held {
    fn put(&mut self, key: Sent, state: State) {
        self.remove(&key);
        if let State::Complete(bytes) = &state {
            self.bytes += bytes.len();
        }
        self.entries.insert(key, Entry { state, heard: Instant::now() });
    }

    fn remove(&mut self, key: &Sent) -> Option<State> {
        let Entry { state, .. } = self.entries.remove(key)?;
        if let State::Complete(bytes) = &state {
            self.bytes -= bytes.len();
        }
        Some(state)
    }

    /// Forgets what nobody has asked for.
    fn forget_old(&mut self) {
        let is_old = |entry: &Entry| entry.heard.elapsed() >= LONGEST;
        let old: Vec<Sent> =
            self.entries.iter().filter(|(_, entry)| is_old(entry)).map(|(key, _)| *key).collect();
        old.iter().for_each(|key| drop(self.remove(key)));
    }
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes begin to come.
    pub(super) fn begin(self: &Arc<Self>, key: Sent) -> Arrival {
        let mut held = self.lock();
        held.forget_old();
        held.put(key, State::Coming);
        Arrival { kept: self.clone(), key }
    }

    /// Takes bytes, and waits for them as long as they come. Bytes that have not begun to come are waited for
    /// while `goes_on`.
    pub(super) fn take(&self, key: Sent, goes_on: impl Fn() -> bool) -> Option<Vec<u8>> {
        let asked = Instant::now();
        let mut held = self.lock();
        loop {
            let heard = match held.entries.get(&key) {
                Some(Entry { state: State::Coming, heard }) => (*heard).max(asked),
                Some(_) => break,
                None if goes_on() => asked,
                None => return None,
            };
            let left = SILENCE.saturating_sub(heard.elapsed());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(held, left.min(LOOK));
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match held.remove(&key) {
            Some(State::Complete(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// Bytes that are coming.
pub(crate) struct Arrival {
    kept: Arc<Kept>,
    key: Sent,
}

impl Arrival {
    /// More of them have come.
    pub(super) fn more(&self) {
        if let Some(entry) = self.kept.lock().entries.get_mut(&self.key) {
            entry.heard = Instant::now();
        }
    }

    /// All of them have come.
    pub(super) fn complete(self, bytes: &[u8]) {
        let copy = bytes.to_vec();
        let mut held = self.kept.lock();
        if held.bytes + copy.len() <= MOST {
            held.put(self.key, State::Complete(copy));
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut held = self.kept.lock();
        if held.entries.get(&self.key).is_some_and(|entry| matches!(entry.state, State::Coming)) {
            held.put(self.key, State::Lost);
        }
        drop(held);
        self.kept.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_proto::copies::Sender;

    const KEY: Sent = Sent { by: Sender::Program(1), number: 7 };

    fn never() -> bool {
        false
    }

    #[test]
    fn bytes_are_waited_for_while_they_come_and_are_taken_once() {
        let kept = Arc::<Kept>::default();
        let arrival = kept.begin(KEY);
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| kept.take(KEY, never));
            // Longer in all than anybody is silent.
            for _ in 0..8 {
                std::thread::sleep(SILENCE / 6);
                arrival.more();
            }
            arrival.complete(b"bytes");
            assert_eq!(taken.join().expect("ends").as_deref(), Some(&b"bytes"[..]));
        });
        assert_eq!(kept.take(KEY, never), None, "they are taken once");
        assert_eq!(kept.lock().bytes, 0);
    }

    #[test]
    fn bytes_that_begin_to_come_late_are_waited_for() {
        let kept = Arc::<Kept>::default();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| kept.take(KEY, || true));
            std::thread::sleep(SILENCE / 4);
            kept.begin(KEY).complete(b"late");
            assert_eq!(taken.join().expect("ends").as_deref(), Some(&b"late"[..]));
        });
        let begun = Instant::now();
        assert_eq!(kept.take(KEY, never), None);
        assert!(begun.elapsed() < SILENCE / 2, "what does not go on is not waited for");
    }

    #[test]
    fn who_waits_hears_at_once_that_a_chain_is_broken() {
        let kept = Arc::<Kept>::default();
        let arrival = kept.begin(KEY);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| kept.take(KEY, || true));
            std::thread::sleep(SILENCE / 10);
            drop(arrival);
            assert_eq!(taken.join().expect("ends"), None);
        });
        // And who asks later.
        drop(kept.begin(KEY));
        assert_eq!(kept.take(KEY, || true), None);
        assert!(begun.elapsed() < SILENCE, "{:?}", begun.elapsed());
    }

    #[test]
    fn bytes_of_which_no_more_come_are_given_up() {
        let kept = Arc::<Kept>::default();
        let _arrival = kept.begin(KEY);
        let begun = Instant::now();
        assert_eq!(kept.take(KEY, || true), None);
        assert!(begun.elapsed() >= SILENCE);
    }

    #[test]
    fn what_nobody_asks_for_is_bounded() {
        let kept = Arc::<Kept>::default();
        let bytes = vec![0; MOST / 4];
        for number in 0..6 {
            kept.begin(Sent { number, ..KEY }).complete(&bytes);
        }
        assert_eq!(kept.lock().bytes, MOST);
        assert_eq!(kept.take(Sent { number: 5, ..KEY }, never), None);
        let long_ago = Instant::now().checked_sub(LONGEST).expect("the machine runs for longer");
        kept.lock().entries.values_mut().for_each(|entry| entry.heard = long_ago);
        kept.begin(KEY).complete(b"bytes");
        let held = kept.lock();
        assert_eq!((held.entries.len(), held.bytes), (1, 5), "old ones are forgotten");
    }
}
