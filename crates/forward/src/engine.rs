//! The dispatchers of an I/O node: threads that take batches from the queue and carry them out.
//!
//! A request goes in with its buffer ([`Transfer`]) and comes back from the dispatcher that carried it out, which answers it. Where
//! nothing else is to be issued before it or with it, who hands it in carries it out in place ([`Engine::hand_in`]): to take its
//! buffer away and to wake a dispatcher would take longer than a fast backend. A slow file keeps only the dispatchers that wait for it, and
//! never all of them. The queue is bounded in requests and in bytes: who
//! hands in more waits, and so does the connection that the request came by (back pressure). Idle dispatchers sleep.

use crate::backend::{self, File, Outcome};
use crate::dispatch::{Counts, Dispatch, Next};
use crate::queue::Batch;
use crate::request::{Asked, Number};
use crate::schedulers::Scheduler;
use bivouac_proto::Errno;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a request ends with that may not be issued here any more, and was not. No system has an error of this number.
pub const NOT_ISSUED: Errno = Errno(4094);

/// One of so many dispatchers is kept for other files than the one that has all others busy, and one at least if there are two.
const OTHERS: usize = 4;

/// A request's buffer, and the way its answer goes.
pub trait Transfer: Send {
    /// What is to be written, or the room for what is read; as long as what was asked for, or else the request fails with EIO.
    fn buffer(&mut self) -> &mut [u8];

    /// The request has been carried out: so many bytes, or an error and none.
    fn done(self: Box<Self>, outcome: Outcome);
}

/// How much may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Requests.
    pub requests: usize,
    /// Bytes; a single request may be longer.
    pub bytes: u64,
}

impl Default for Bounds {
    /// 4,096 requests, 256 MiB.
    fn default() -> Bounds {
        Bounds { requests: 4096, bytes: 256 << 20 }
    }
}

struct Waiting {
    file: Arc<dyn File>,
    transfer: Box<dyn Transfer>,
}

struct State {
    dispatch: Dispatch,
    waiting: HashMap<Number, Waiting>,
    /// Batches that are being carried out, and how many may be at once.
    running: usize,
    most: usize,
    /// Dispatchers that wait for work, and threads that wait for room: waking is a system call, also where nobody waits.
    idle: usize,
    crowded: usize,
    stopping: bool,
}

impl State {
    /// The requests of a batch that is to be carried out now.
    fn begin(&mut self, batch: &Batch) -> Vec<Waiting> {
        self.running += 1;
        batch.parts.iter().filter_map(|(number, _)| self.waiting.remove(number)).collect()
    }

    fn end(&mut self, batch: &Batch, now: Duration) {
        self.running -= 1;
        self.dispatch.done(batch, now);
    }

    fn has_more(&self) -> bool {
        self.dispatch.queue().ready().next().is_some()
    }
}

struct Shared {
    state: Mutex<State>,
    /// Something may be issued, or it is time to stop.
    work: Condvar,
    /// There is room for more.
    room: Condvar,
    bounds: Bounds,
    begun: Instant,
    may_issue: Box<dyn Fn() -> bool + Send + Sync>,
}

/// A queue with its dispatchers. Dropping it carries out what waits, and ends them.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Starts so many dispatchers, at least one. `may_issue` is asked before each batch: what may not be issued
    /// fails with [`NOT_ISSUED`].
    pub fn start(
        scheduler: Box<dyn Scheduler>,
        dispatchers: usize,
        bounds: Bounds,
        may_issue: impl Fn() -> bool + Send + Sync + 'static,
    ) -> std::io::Result<Engine> {
        let state = State {
            dispatch: Dispatch::new(scheduler),
            waiting: HashMap::new(),
            running: 0,
            most: 1,
            idle: 0,
            crowded: 0,
            stopping: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            bounds,
            begun: Instant::now(),
            may_issue: Box::new(may_issue),
        });
        let engine = Engine { shared, threads: Mutex::default() };
        engine.set_dispatchers(dispatchers)?;
        Ok(engine)
    }

    /// Has so many batches carried out at once from now on, at least one.
    ///
    /// # Errors
    /// There can be no more threads; those that there are go on.
    pub fn set_dispatchers(&self, dispatchers: usize) -> std::io::Result<()> {
        let most = dispatchers.max(1);
        // Ignores poisoning: each thread is pushed when it is there.
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.len() < most {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("dispatcher".into()).stack_size(256 << 10);
            threads.push(thread.spawn(move || shared.work())?);
        }
        let mut state = self.shared.lock();
        state.most = most;
        state.dispatch.set_most_of_a_file(most.saturating_sub((most / OTHERS).max(1)));
        drop(state);
        self.shared.work.notify_all();
        Ok(())
    }

    /// Hands in a request; waits while too much waits already. It is answered by [`Transfer::done`]: with EIO if its buffer
    /// is not as long as what was asked for, or the engine is being stopped.
    pub fn submit(&self, asked: Asked, file: Arc<dyn File>, transfer: Box<dyn Transfer>) {
        match self.arrive(asked) {
            Some((mut state, number)) => {
                state.waiting.insert(number, Waiting { file, transfer });
                self.shared.wake_one(state);
            }
            None => transfer.done(Err(Errno::IO)),
        }
    }

    /// The same, from a thread that has nothing else to do. If the request is to be issued now, by itself, the thread gets it
    /// back to carry it out; nobody has been asked for a [`Transfer`] then. If something else is to be issued, the thread does that.
    pub fn hand_in<T: Transfer + 'static>(
        &self,
        asked: Asked,
        file: &Arc<impl File + 'static>,
        later: impl FnOnce() -> Box<T>,
    ) -> Option<Alone<'_>> {
        let Some((mut state, number)) = self.arrive(asked) else {
            later().done(Err(Errno::IO));
            return None;
        };
        let next = match state.running < state.most {
            true => state.dispatch.next(self.shared.begun.elapsed()),
            false => Next::Nothing,
        };
        let is_alone = |batch: &Batch| matches!(batch.parts[..], [(only, _)] if only == number);
        match next {
            Next::Issue(batch) if is_alone(&batch) => {
                state.running += 1;
                if state.has_more() {
                    self.shared.wake_one(state);
                }
                return Some(Alone { shared: &self.shared, batch });
            }
            Next::Issue(batch) => {
                state.waiting.insert(number, Waiting { file: file.clone(), transfer: later() });
                self.shared.carry_out(state, &batch);
            }
            Next::Until(_) | Next::Nothing => {
                state.waiting.insert(number, Waiting { file: file.clone(), transfer: later() });
                self.shared.wake_one(state);
            }
        }
        None
    }

    /// Puts a request into the queue. `None`: it cannot be carried out.
    fn arrive(&self, asked: Asked) -> Option<(MutexGuard<'_, State>, Number)> {
        if asked.len == 0 {
            tracing::error!(?asked, "a request for nothing");
            return None;
        }
        let shared = &*self.shared;
        let mut state = shared.lock();
        while !state.stopping && shared.is_full(&state, asked.len) {
            state.crowded += 1;
            state = shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.crowded -= 1;
        }
        if state.stopping {
            return None;
        }
        let number = state.dispatch.arrive(asked, shared.begun.elapsed());
        Some((state, number))
    }

    /// Has another scheduler order what waits, and what will come.
    pub fn set_scheduler(&self, scheduler: Box<dyn Scheduler>) {
        self.shared.lock().dispatch.set_scheduler(scheduler, self.shared.begun.elapsed());
        self.shared.work.notify_all();
    }

    /// What has come and gone.
    pub fn counts(&self) -> Counts {
        self.shared.lock().dispatch.counts()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.work.notify_all();
        self.shared.room.notify_all();
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a dispatcher had panicked");
            }
        }
    }
}

/// A request that its thread is to carry out now.
pub struct Alone<'e> {
    shared: &'e Shared,
    batch: Batch,
}

impl Alone<'_> {
    /// Carries it out; `buffer` is as long as what was asked for.
    pub fn carry_out(self, file: &dyn File, buffer: &mut [u8]) -> Outcome {
        self.shared.try_batch(file, &self.batch, vec![buffer]).pop().unwrap_or(Err(Errno::IO))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.shared.ended(&self.batch);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Ignores poisoning: nothing that can panic runs under the lock but the scheduler, and the queue is whole then.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self, state: &State, more: u64) -> bool {
        let queue = state.dispatch.queue();
        !queue.is_empty() && (queue.len() >= self.bounds.requests || queue.bytes() + more > self.bounds.bytes)
    }

    /// Carries out a batch that is to be issued now.
    fn carry_out(&self, mut state: MutexGuard<'_, State>, batch: &Batch) {
        let parts = state.begin(batch);
        let (has_more, is_crowded) = (state.has_more(), state.crowded > 0);
        if has_more {
            self.wake_one(state);
        } else {
            drop(state);
        }
        if is_crowded {
            self.room.notify_all();
        }
        self.carry_out_parts(batch, parts);
        self.ended(batch);
    }

    /// A batch has been carried out.
    fn ended(&self, batch: &Batch) {
        let mut state = self.lock();
        state.end(batch, self.begun.elapsed());
        if state.stopping {
            drop(state);
            // All of them may wait for this one.
            self.work.notify_all();
        } else if state.has_more() {
            self.wake_one(state);
        }
    }

    /// Wakes a dispatcher, if one sleeps.
    fn wake_one(&self, state: MutexGuard<'_, State>) {
        let sleeps = state.idle > 0;
        drop(state);
        if sleeps {
            self.work.notify_one();
        }
    }

    /// Sleeps until there may be work, or for so long at most.
    fn sleep<'s>(
        &self,
        mut state: MutexGuard<'s, State>,
        longest: Option<Duration>,
    ) -> MutexGuard<'s, State> {
        state.idle += 1;
        let mut state = match longest {
            Some(longest) => self.work.wait_timeout(state, longest).unwrap_or_else(PoisonError::into_inner).0,
            None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
        state.idle -= 1;
        state
    }

    /// A dispatcher's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if state.running >= state.most {
                // Who ends one will say so.
                state = self.sleep(state, None);
                continue;
            }
            match state.dispatch.next(self.begun.elapsed()) {
                Next::Issue(batch) => {
                    self.carry_out(state, &batch);
                    state = self.lock();
                }
                Next::Nothing if state.stopping && state.dispatch.queue().is_empty() => {
                    // Others may wait for what this one has just done.
                    self.work.notify_all();
                    return;
                }
                Next::Nothing => state = self.sleep(state, None),
                Next::Until(time) => {
                    let pause = time.saturating_sub(self.begun.elapsed()).max(Duration::from_micros(1));
                    state = self.sleep(state, Some(pause));
                }
            }
        }
    }

    /// Carries out a batch, and answers its requests.
    fn carry_out_parts(&self, batch: &Batch, mut parts: Vec<Waiting>) {
        let Some(file) = parts.first().map(|first| first.file.clone()) else { return };
        let buffers = parts.iter_mut().map(|part| part.transfer.buffer()).collect();
        let outcomes = self.try_batch(&*file, batch, buffers);
        for (part, outcome) in parts.into_iter().zip(outcomes) {
            part.transfer.done(outcome);
        }
    }

    /// Carries out a batch. A backend that panics fails its requests, and leaves the thread to others.
    fn try_batch(&self, file: &dyn File, batch: &Batch, buffers: Vec<&mut [u8]>) -> Vec<Outcome> {
        let failed = || vec![Err(Errno::IO); batch.parts.len()];
        let fits = |((_, asked), buffer): (&(Number, Asked), &&mut [u8])| buffer.len() as u64 == asked.len;
        if buffers.len() != batch.parts.len() || !batch.parts.iter().zip(&buffers).all(fits) {
            tracing::error!(?batch, "a request whose buffer has another length");
            return failed();
        }
        if !(self.may_issue)() {
            return vec![Err(NOT_ISSUED); batch.parts.len()];
        }
        let carried = catch_unwind(AssertUnwindSafe(|| backend::carry_out(file, batch, buffers)));
        carried.unwrap_or_else(|_| {
            tracing::error!(?batch, "carrying out a batch panicked");
            failed()
        })
    }
}
