//! The order of the requests of one request slot.
//!
//! A sender has at most one request under way on each of its request slots, and numbers the slot's requests
//! and the attempts at each. When a connection breaks, its request may still be in a buffer of this server,
//! or be carried out by one of its threads, while the sender repeats it over another connection, gets the
//! answer, and goes on to other requests. So a request that changes something first takes a turn here. If a
//! later attempt or request of the slot has arrived, the attempt is not carried out any more, because nobody
//! waits for its answer. If an earlier attempt is being carried out, a later one waits until that has ended.
//! If a change of data was made already, it is answered again from memory. (Answers to changes of metadata
//! are in the log, with the change.)

use bivouac_proto::data::DataReply;
use bivouac_proto::header::RequestId;
use bivouac_transport::engine::budget::REMEMBERED;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The slots are divided among so many tables, each with a lock of its own.
const TABLES: usize = 64;
/// A table is not swept while it has fewer slots than this.
const FEW: usize = 256;

/// The latest request of each slot.
pub(crate) struct Order {
    tables: Box<[(Mutex<Table>, Condvar)]>,
    /// How long an attempt waits for an earlier one to end.
    patience: Duration,
}

struct Table {
    slots: HashMap<(u64, u32), Latest>,
    /// So many attempts wait for earlier ones.
    waiting: usize,
    /// The next sweep is due at so many slots.
    sweep_at: usize,
}

/// A slot's latest request.
struct Latest {
    sequence: u64,
    attempt: u16,
    running: bool,
    /// What it was answered, if it was a change of data.
    answer: Option<DataReply>,
    when: Instant,
}

/// The result of taking a turn.
pub(crate) enum Turn<'o> {
    /// The request is to be carried out; its turn ends when this is dropped.
    Begun(Running<'o>),
    /// An earlier attempt has changed the data already.
    Answered(DataReply),
    /// A later attempt or request has overtaken it, or an earlier attempt does not end.
    Overtaken,
}

impl Turn<'_> {
    /// The turn of a request that changes nothing.
    pub(crate) const NONE: Turn<'static> = Turn::Begun(Running { place: None, answer: None });
}

/// A request that is being carried out.
pub(crate) struct Running<'o> {
    /// `None` for a request without an identity.
    place: Option<(&'o Order, (u64, u32))>,
    answer: Option<DataReply>,
}

impl Running<'_> {
    /// Keeps the answer, for a repetition.
    pub(crate) fn answered(&mut self, answer: DataReply) {
        self.answer = Some(answer);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let Some((order, slot)) = self.place else { return };
        let (table, ended) = order.table(slot);
        let mut guard = lock(table);
        if let Some(latest) = guard.slots.get_mut(&slot) {
            latest.running = false;
            latest.answer = self.answer;
        }
        // To wake somebody is a system call, also if nobody waits.
        let is_waited_for = guard.waiting > 0;
        drop(guard);
        if is_waited_for {
            ended.notify_all();
        }
    }
}

impl Order {
    pub(crate) fn new(patience: Duration) -> Order {
        let table =
            || (Mutex::new(Table { slots: HashMap::new(), waiting: 0, sweep_at: FEW }), Condvar::new());
        Order { tables: (0..TABLES).map(|_| table()).collect(), patience }
    }

    fn table(&self, (session, slot): (u64, u32)) -> &(Mutex<Table>, Condvar) {
        let hash = (session ^ u64::from(slot)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.tables[(hash >> 32) as usize % TABLES]
    }

    /// Takes a turn for an attempt at a request.
    pub(crate) fn take(&self, id: RequestId, attempt: u16) -> Turn<'_> {
        if id.session == 0 {
            return Turn::Begun(Running { place: None, answer: None });
        }
        let slot = (id.session, id.slot);
        let (table, ended) = self.table(slot);
        let mut guard = lock(table);
        let now = Instant::now();
        loop {
            match guard.slots.entry(slot) {
                Entry::Vacant(entry) => {
                    let (sequence, running) = (id.sequence, true);
                    entry.insert(Latest { sequence, attempt, running, answer: None, when: now });
                    guard.sweep(now);
                }
                Entry::Occupied(mut entry) => {
                    let latest = entry.get_mut();
                    if (latest.sequence, latest.attempt) >= (id.sequence, attempt) {
                        return Turn::Overtaken;
                    }
                    if latest.running {
                        let left = self.patience.saturating_sub(now.elapsed());
                        if left.is_zero() {
                            return Turn::Overtaken;
                        }
                        guard.waiting += 1;
                        guard = ended.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
                        guard.waiting -= 1;
                        continue;
                    }
                    let answer = latest.answer.filter(|_| latest.sequence == id.sequence);
                    *latest = Latest {
                        sequence: id.sequence,
                        attempt,
                        running: answer.is_none(),
                        answer,
                        when: now,
                    };
                    if let Some(answer) = answer {
                        return Turn::Answered(answer);
                    }
                }
            }
            return Turn::Begun(Running { place: Some((self, slot)), answer: None });
        }
    }
}

impl Table {
    /// Forgets slots that have not been used for long. The next sweep comes only after as many new slots as
    /// this one leaves.
    fn sweep(&mut self, now: Instant) {
        if self.slots.len() >= self.sweep_at {
            self.slots.retain(|_, latest| latest.running || now - latest.when < REMEMBERED);
            self.sweep_at = (2 * self.slots.len()).max(FEW);
        }
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // Each change of a table is one assignment: a panic elsewhere leaves it sound.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    fn id(sequence: u64) -> RequestId {
        RequestId { session: 7, slot: 3, sequence }
    }

    fn begun(turn: Turn<'_>) -> Running<'_> {
        match turn {
            Turn::Begun(running) => running,
            Turn::Answered(_) => panic!("answered"),
            Turn::Overtaken => panic!("overtaken"),
        }
    }

    #[test]
    fn what_was_overtaken_is_not_carried_out() {
        let order = Order::new(SOON);
        drop(begun(order.take(id(5), 1)));
        for (sequence, attempt) in [(5, 0), (5, 1), (4, 9)] {
            assert!(matches!(order.take(id(sequence), attempt), Turn::Overtaken), "{sequence} {attempt}");
        }
        drop(begun(order.take(id(6), 0)));
        // Other slots and requests without an identity have nothing to do with it.
        drop(begun(order.take(RequestId { slot: 4, ..id(1) }, 0)));
        drop(begun(order.take(RequestId::default(), 0)));
        drop(begun(order.take(RequestId::default(), 0)));
    }

    #[test]
    fn a_repetition_waits_for_the_attempt_before_it_and_is_answered_the_same() {
        let order = Order::new(Duration::from_secs(60));
        let (tell, told) = std::sync::mpsc::channel();
        let mut first = begun(order.take(id(5), 0));
        std::thread::scope(|scope| {
            let repeated = scope.spawn(|| {
                tell.send(()).expect("heard");
                matches!(
                    order.take(id(5), 1),
                    Turn::Answered(DataReply::Written { count: 9, before: 1, undo: 0 })
                )
            });
            told.recv().expect("it begins");
            first.answered(DataReply::Written { count: 9, before: 1, undo: 0 });
            drop(first);
            assert!(repeated.join().expect("ends"));
        });
        // A failed change is tried again.
        drop(begun(order.take(id(6), 0)));
        drop(begun(order.take(id(6), 1)));
    }

    #[test]
    fn an_attempt_that_does_not_end_is_not_waited_for_for_ever() {
        let order = Order::new(SOON);
        let _running = begun(order.take(id(5), 0));
        assert!(matches!(order.take(id(5), 1), Turn::Overtaken));
        assert!(matches!(order.take(id(6), 0), Turn::Overtaken));
    }

    #[test]
    fn slots_that_rest_are_forgotten() {
        let mut table = Table { slots: HashMap::new(), waiting: 0, sweep_at: FEW };
        let start = Instant::now();
        for slot in 0..FEW as u32 {
            let latest = Latest { sequence: 1, attempt: 0, running: slot == 0, answer: None, when: start };
            table.slots.insert((1, slot), latest);
        }
        table.sweep(start + REMEMBERED / 2);
        assert_eq!((table.slots.len(), table.sweep_at), (FEW, 2 * FEW));
        table.sweep_at = FEW;
        table.sweep(start + REMEMBERED);
        assert_eq!(table.slots.len(), 1, "what runs stays");
    }
}
