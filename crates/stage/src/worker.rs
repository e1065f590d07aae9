//! A worker: the process on each node that does the copying.
//!
//! It takes [tasks](crate::wire::Task) from its standard input and answers on its standard output. It decides
//! nothing: which files are copied, in which order, and on which node, the command knows. Each task is one
//! stream to the backend, and has a thread of its own; the command sees to it that there are not too many.
//!
//! The end of its standard input means that the command is gone, however that came. The worker then removes
//! the temporary files that it is writing, and ends in the middle of whatever it does; its process is not to
//! outlive the command. One that does not hear from the command any more [pauses](pulse), and before the
//! command gives its work to others: so a file is never written by two at once.

mod contents;
mod items;
mod large;
mod pulse;

use crate::rate::Throttle;
use crate::tree::{Kind, Meta, Tree, join, parent};
use crate::wire::{self, Answer, Entry, Order, Outcome, Setup, Side, Task};
use contents::Buffers;
use pulse::Pulse;
use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
use std::time::Duration;

/// How often a worker hears that the command is alive.
pub(crate) const PING: Duration = Duration::from_secs(2);

/// The two trees that a worker copies between, and its node's number.
pub(crate) struct Trees {
    pub(crate) from: Box<dyn Tree>,
    pub(crate) to: Box<dyn Tree>,
    pub(crate) node: u16,
}

struct Worker {
    setup: Setup,
    trees: Trees,
    /// The root of the copy.
    root: RwLock<Vec<u8>>,
    throttle: Throttle,
    /// Bytes moved so far.
    moved: AtomicU64,
    /// Temporary files that only this worker knows.
    parts: Mutex<HashSet<Vec<u8>>>,
    out: Mutex<Box<dyn Write + Send>>,
    pulse: Pulse,
}

/// Ends the process if its thread panics, so that others get its tasks.
struct EndsWithPanic;

impl Drop for EndsWithPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// What could not be kept, for a task's answer.
#[derive(Default)]
struct LeftOut(Vec<(Vec<u8>, String)>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Works until the command closes `input`. Threads that are in the middle of a task then are left behind: the
/// caller ends the process. `fence` is called if the command is not heard for very long: it ends the process
/// at once.
pub(crate) fn work(
    mut input: impl Read,
    output: impl Write + Send + 'static,
    fence: impl Fn() + Send + 'static,
    open: impl FnOnce(&Setup) -> Result<Trees, String>,
) -> io::Result<()> {
    let mut out: Box<dyn Write + Send> = Box::new(output);
    out.write_all(wire::MAGIC)?;
    let Some(Order::Setup(setup)) = wire::receive(&mut input)? else { return Ok(()) };
    let trees = match open(&setup) {
        Ok(trees) => trees,
        Err(why) => return wire::send(&mut out, &Answer::Unfit(why)),
    };
    wire::send(&mut out, &Answer::Ready { node: trees.node })?;
    let worker = Arc::new(Worker {
        throttle: Throttle::new(setup.rate),
        root: RwLock::new(setup.destination.clone()),
        setup,
        trees,
        moved: AtomicU64::new(0),
        parts: Mutex::default(),
        out: Mutex::new(out),
        pulse: Pulse::default(),
    });
    let (tasks, queue) = mpsc::channel();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..worker.setup.threads.max(1) {
        let (worker, queue) = (worker.clone(), queue.clone());
        std::thread::spawn(move || worker.serve(&queue));
    }
    let alive = worker.clone();
    let (stopped, stops) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        while let Err(mpsc::RecvTimeoutError::Timeout) = stops.recv_timeout(pulse::TICK) {
            let moved = alive.moved.load(Ordering::Relaxed);
            if alive.pulse.tick() {
                fence();
            }
            alive.answer(&Answer::Alive { moved, question: alive.pulse.question() });
        }
    });
    while let Some(order) = wire::receive(&mut input)? {
        worker.pulse.heard(match order {
            Order::Alive { answer } => Some(answer),
            _ => None,
        });
        match order {
            Order::Task(id, task) => drop(tasks.send((id, task))),
            Order::Destination(root) => *worker.root.write().unwrap_or_else(PoisonError::into_inner) = root,
            Order::Rate(rate) => worker.throttle.set(rate),
            Order::Setup(_) | Order::Alive { .. } => {}
        }
    }
    drop(stopped);
    worker.pulse.end();
    for part in lock(&worker.parts).drain() {
        let _ = worker.trees.to.remove(&part);
    }
    Ok(())
}

impl Worker {
    fn serve(&self, queue: &Mutex<mpsc::Receiver<(u64, Task)>>) {
        let mut buffers = Buffers::default();
        // A task that is never answered would be waited for without end.
        let _guard = EndsWithPanic;
        loop {
            let Ok((id, task)) = lock(queue).recv() else { return };
            if self.pulse.go_on().is_err() {
                return;
            }
            let mut left_out = LeftOut::default();
            let outcome = self.perform(task, &mut buffers, &mut left_out);
            self.answer(&Answer::Done { id, outcome, left_out: left_out.0 });
        }
    }

    /// Nobody is there to hear it if this fails, and the reading side will notice.
    fn answer(&self, answer: &Answer) {
        let _ = wire::send(&mut **lock(&self.out), answer);
    }

    fn source(&self, path: &[u8]) -> Vec<u8> {
        join(&self.setup.source, path)
    }

    fn destination(&self, path: &[u8]) -> Vec<u8> {
        join(&self.root.read().unwrap_or_else(PoisonError::into_inner), path)
    }

    fn perform(&self, task: Task, buffers: &mut Buffers, left_out: &mut LeftOut) -> Outcome {
        match task {
            Task::Stat { side, path, follow } => {
                let stat = match side {
                    Side::Source => self.trees.from.stat(&self.source(&path), follow),
                    Side::Destination => self.trees.to.stat(&self.destination(&path), follow),
                    Side::Backend => match self.setup.direction {
                        wire::Direction::In => self.trees.from.stat(&path, follow),
                        wire::Direction::Out => self.trees.to.stat(&path, follow),
                    },
                };
                Outcome::Stat(stat.map_err(|e| (e.raw_os_error().unwrap_or(0), e.to_string())))
            }
            Task::MakeParents { itself } => {
                let root = self.destination(b"");
                let last = if itself { &root[..] } else { parent(&root) };
                Outcome::Made(make_parents(&*self.trees.to, last).map_err(|e| e.to_string()))
            }
            Task::List { path, make } => self.list(&path, make, left_out),
            Task::ListThere { path } => self.list_there(&path),
            Task::Items(items) => {
                Outcome::Items(items.iter().map(|item| self.item(item, buffers, left_out)).collect())
            }
            Task::Begin { path, meta } => {
                Outcome::Begun(self.begin(&path, &meta, left_out).map_err(|e| e.to_string()))
            }
            Task::Section { path, meta, range, only } => {
                let done = self.section(&path, &meta, range, only.as_ref(), buffers);
                Outcome::Section(done.map_err(|e| e.to_string()))
            }
            Task::Finish { path, meta } => Outcome::Finished(self.finish(&path, &meta)),
            Task::Abandon { path } => {
                let part = self.trees.to.part_name(&self.destination(&path), &self.setup.run);
                Outcome::Made(self.trees.to.remove(&part).map_err(|e| e.to_string()))
            }
            Task::Fetch(files) => {
                Outcome::Fetched(files.iter().map(|(path, size)| self.fetch(path, *size)).collect())
            }
            Task::Metas(metas) => {
                let set = |(path, meta): (Vec<u8>, Meta)| {
                    let done = self.trees.to.set_meta(&self.destination(&path), &meta);
                    done.err().map(|error| (path, error.to_string()))
                };
                Outcome::Metas(metas.into_iter().filter_map(set).collect())
            }
        }
    }

    /// A directory's entries on both sides; with `make`, it is made at the destination first, and gets its
    /// extended attributes at once, because one of them is the layout of new files.
    fn list(&self, path: &[u8], make: bool, left_out: &mut LeftOut) -> Outcome {
        let (here, there) = (self.source(path), self.destination(path));
        let (from, to) = (&*self.trees.from, &*self.trees.to);
        let failed = |error: io::Error| Outcome::Listed {
            failed: Some(error.to_string()),
            entries: Vec::new(),
            node: None,
        };
        let meta = match from.stat(&here, true) {
            Ok(meta) => meta,
            Err(error) => return failed(error),
        };
        let mut is_new = false;
        if make {
            match to.make_directory(&there) {
                Ok(new) => is_new = new,
                Err(error) => return failed(error),
            }
            let set = |name: &[u8], value: &[u8]| to.set_attribute(&there, name, value);
            if let Err(error) = self.attributes(&here, &meta, set, left_out) {
                return failed(error);
            }
        }
        let listed = match from.list(&here) {
            Ok(listed) => listed,
            Err(error) => return failed(error),
        };
        // What cannot be listed is made anew.
        let existing = if is_new { Vec::new() } else { to.list(&there).unwrap_or_default() };
        let mut existing: std::collections::HashMap<Vec<u8>, Meta> =
            existing.into_iter().filter_map(|(name, meta)| Some((name, meta.ok()?))).collect();
        self.remove_abandoned(&there, &mut existing);
        let mut entries: Vec<Entry> = listed
            .into_iter()
            .map(|(name, meta)| {
                let there = existing.remove(&name);
                Entry { name, here: Some(meta.map_err(|e| e.to_string())), there }
            })
            .collect();
        let extra = existing.into_iter().map(|(name, meta)| Entry { name, here: None, there: Some(meta) });
        entries.extend(extra);
        // The node whose server holds the entries that are made.
        let mount_side = match self.setup.direction {
            wire::Direction::In => to.stat(&there, true).ok().and_then(|meta| to.node_of(&meta)),
            wire::Direction::Out => from.node_of(&meta),
        };
        Outcome::Listed { failed: None, entries, node: mount_side }
    }

    fn list_there(&self, path: &[u8]) -> Outcome {
        match self.trees.to.list(&self.destination(path)) {
            Ok(listed) => {
                let entry = |(name, meta): (Vec<u8>, io::Result<Meta>)| {
                    Some(Entry { name, here: None, there: Some(meta.ok()?) })
                };
                Outcome::Listed {
                    failed: None,
                    entries: listed.into_iter().filter_map(entry).collect(),
                    node: None,
                }
            }
            Err(error) => {
                Outcome::Listed { failed: Some(error.to_string()), entries: Vec::new(), node: None }
            }
        }
    }

    /// Removes what runs that were interrupted have left in a directory of the backend.
    fn remove_abandoned(&self, there: &[u8], existing: &mut std::collections::HashMap<Vec<u8>, Meta>) {
        if self.setup.direction == wire::Direction::In {
            return;
        }
        existing.retain(|name, meta| {
            let abandoned =
                meta.kind == Kind::File && crate::parts::is_abandoned(name, meta.mtime, &self.setup.run);
            !(abandoned && self.trees.to.remove(&join(there, name)).is_ok())
        });
    }
}

/// Makes a directory and those above it that are missing.
fn make_parents(tree: &dyn Tree, directory: &[u8]) -> io::Result<()> {
    let ends = directory.iter().enumerate().filter(|&(i, &b)| b == b'/' && i > 0).map(|(i, _)| i);
    for end in ends.chain([directory.len()]) {
        let part = &directory[..end];
        if !part.is_empty() && !tree.stat(part, true).is_ok_and(|m| m.kind == Kind::Directory) {
            tree.make_directory(part)?;
        }
    }
    Ok(())
}
