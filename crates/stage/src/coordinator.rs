//! The coordinator: the part of a preload or flush that decides what is copied, and which worker copies it.
//!
//! It is one loop over what workers say. It has all that is to be done in a [`Queue`], gives each worker as
//! much as its share of the streams to the backend allows, and collects the results. A worker that dies or
//! falls silent loses its tasks to the others: each task can be done twice.
//!
//! A copy goes through phases: the tree's files, then further names of files (hard links), then what is to be
//! deleted, and at last the modes and times of directories, deepest first, when nothing changes these any
//! more.

mod crew;
mod decide;
mod entries;
mod large;
mod lazy;
mod queue;
mod roots;

pub use crew::Link;

use crate::filter::Filter;
use crate::progress::Progress;
use crate::record::Record;
use crate::report::{Report, StageError};
use crate::tree::{Kind, Meta, State, join};
use crate::wire::{Copied, Direction, How, Item, Outcome, Task};
use crew::{Crew, Heard};
use large::Large;
use queue::Queue;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How to copy.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Most files that are read from or written to the backend at once, by all workers together; 0: four for
    /// each worker.
    pub streams: usize,
    /// Most bytes a second between the backend and all workers together.
    pub max_rate: Option<u64>,
    /// What is copied.
    pub filter: Filter,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Tell files that are the same by their contents instead of sizes and times, and read back what is
    /// written.
    pub checksum: bool,
    /// Delete at the destination what the source does not have.
    pub delete: bool,
    /// Copy only what was changed since it was staged; needs a record.
    pub changed: bool,
    /// With `changed`: what happens to files in the backend that others have changed.
    pub others: Others,
    /// Names, sizes and attributes first: contents are fetched when all of these are there.
    pub lazy: bool,
    /// With `lazy`: contents are fetched only when somebody opens a file.
    pub on_demand: bool,
    /// With `lazy`: is told when all names are there.
    pub when_named: Option<WhenNamed>,
    /// With `lazy`: once this is set, contents that are not there yet are left to who opens the files.
    pub enough: Arc<AtomicBool>,
    /// Show a progress bar if standard error is a terminal.
    pub progress: bool,
}

/// Is told how many files a lazy copy has made, and after how many seconds.
#[derive(Clone)]
pub struct WhenNamed(Arc<dyn Fn(u64, f64) + Send + Sync>);

impl WhenNamed {
    /// Has `tell` told.
    pub fn new(tell: impl Fn(u64, f64) + Send + Sync + 'static) -> WhenNamed {
        WhenNamed(Arc::new(tell))
    }
}

impl fmt::Debug for WhenNamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WhenNamed")
    }
}

/// What happens to files in the backend that are not as they were when they were staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Others {
    /// They are kept, and reported.
    #[default]
    Kept,
    /// So are those that were staged; those that the record does not know are overwritten.
    KeptIfStaged,
    /// They are overwritten.
    Overwritten,
}

/// What to copy, and where.
#[derive(Clone, Debug)]
pub struct Job {
    /// The deployment's name.
    pub name: String,
    /// Which way.
    pub direction: Direction,
    /// The root of what is copied: in the backend an absolute path; in the deployment, one relative to the
    /// mount.
    pub source: Vec<u8>,
    /// Where the copy goes, likewise.
    pub destination: Vec<u8>,
    /// The deployment's number: distinguishes the temporary names of its runs from others'.
    pub deployment: u64,
}

/// What is recorded of a file on one side: its inode's number, and its state.
type Noted = (u64, State);

/// A file that got further names.
struct Linked {
    names: Vec<Vec<u8>>,
    source: Noted,
    target: Noted,
}

/// How often a task is given to another worker when one has died over it.
const TASK_LIVES: u8 = 3;

struct Coordinator<'a> {
    job: Job,
    /// The root of the backend's tree, as the record knows it.
    backend: Vec<u8>,
    options: &'a Options,
    record: &'a mut Record,
    crew: Crew,
    queue: Queue,
    report: Report,
    progress: Progress,
    /// Directories whose attributes are set at the end.
    directories: Vec<(Vec<u8>, Meta)>,
    /// Those that could not be made or listed.
    broken: HashSet<Vec<u8>>,
    /// Files with several names: the first one.
    names: HashMap<(u64, u64), entries::First>,
    links: Vec<Item>,
    /// Files that got further names, by their first one.
    linked: HashMap<Vec<u8>, Linked>,
    /// What is deleted: files; directories.
    deleted: (Vec<Item>, Vec<Item>),
    large: HashMap<Vec<u8>, Large>,
    /// How often tasks were lost with workers.
    lost: HashMap<Vec<u8>, u8>,
    /// Directories that are made when what is in their way was removed.
    before: HashMap<Vec<u8>, Meta>,
    /// Paths of the list of files that were seen.
    seen: HashSet<Vec<u8>>,
    /// Files whose contents are to be fetched when all names are there, with their sizes.
    lazy: Vec<(Vec<u8>, u64)>,
    begun: Instant,
}

/// Copies a tree with the workers at the other ends of `links`.
pub fn copy(
    links: Vec<Link>,
    job: Job,
    options: &Options,
    record: &mut Record,
) -> Result<Report, StageError> {
    let begun = Instant::now();
    let mut job = job;
    let roots::Begun { crew, left_out, root, there, backend } = roots::assemble(links, &mut job, options)?;
    let mut coordinator = Coordinator {
        queue: Queue::default(),
        report: Report { nodes_left_out: left_out, ..Report::default() },
        progress: Progress::new(options.progress, "copying"),
        directories: Vec::new(),
        broken: HashSet::new(),
        names: HashMap::new(),
        links: Vec::new(),
        linked: HashMap::new(),
        deleted: Default::default(),
        large: HashMap::new(),
        lost: HashMap::new(),
        before: HashMap::new(),
        seen: HashSet::new(),
        lazy: Vec::new(),
        begun,
        job,
        backend,
        options,
        record,
        crew,
    };
    coordinator.report.nodes = coordinator.crew.len();
    let done = coordinator.all(root, there);
    coordinator.progress.end();
    let mut report = coordinator.report;
    if let Some(error) = coordinator.record.end() {
        report.failed.push((
            PathBuf::from("the record of what was staged"),
            format!("{error}: the next `flush --changed` copies more than it has to"),
        ));
    }
    coordinator.crew.end();
    done?;
    // In the order of their paths, whatever order they were found in.
    report.planned.sort();
    report.failed.sort();
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

impl Coordinator<'_> {
    fn all(&mut self, root: Meta, there: Option<Meta>) -> Result<(), StageError> {
        self.root(root, there);
        self.run()?;
        self.progress.stop_counting();
        for path in self.options.filter.listed() {
            if !path.is_empty() && !self.seen.contains(path) {
                let missing = "it is in the list of files, and not in the source";
                self.report.failed.push((shown(path), missing.to_owned()));
            }
        }
        let links = std::mem::take(&mut self.links);
        self.put_items(links);
        self.run()?;
        for (_, Linked { names, source, target }) in std::mem::take(&mut self.linked) {
            names.iter().for_each(|name| self.note(name, source, target));
        }
        self.delete()?;
        self.directory_metas()?;
        self.fetch_lazy()
    }

    /// Gives out work and takes results until nothing is left to do.
    fn run(&mut self) -> Result<(), StageError> {
        loop {
            if self.options.enough.load(Ordering::Relaxed) {
                self.report.lazy += self.queue.drop_fetches() + self.crew.abandon_fetches();
            }
            self.crew.assign(&mut self.queue)?;
            if self.crew.is_idle() && self.queue.is_empty() {
                return Ok(());
            }
            match self.crew.hear() {
                Heard::Done(done) => {
                    let crew::Done { task, outcome, left_out } = *done;
                    self.report
                        .left_out
                        .extend(left_out.into_iter().map(|(path, what)| (shown(&path), what)));
                    self.done(task, outcome);
                }
                Heard::Moved(bytes) => self.progress.moved(bytes),
                Heard::Lost { member, why, tasks } => self.lost(&member, &why, tasks)?,
                Heard::Nothing => {}
            }
        }
    }

    /// A worker has died: others get what it had.
    fn lost(&mut self, member: &str, why: &str, tasks: Vec<Task>) -> Result<(), StageError> {
        self.report.nodes_lost.push((member.to_owned(), why.to_owned()));
        if self.crew.len() == 0 {
            let nodes = std::mem::take(&mut self.report.nodes_lost);
            return Err(StageError::Workers(nodes));
        }
        // A worker may have had several sections of one file.
        let paths: HashSet<Vec<u8>> = tasks.iter().map(queue::path_of).collect();
        for path in paths {
            *self.lost.entry(path).or_default() += 1;
        }
        for task in tasks {
            if self.lost.get(&queue::path_of(&task)).is_none_or(|times| *times < TASK_LIVES) {
                self.queue.put_back(task);
            } else {
                self.give_up(task, "every worker that copied it has died");
            }
        }
        Ok(())
    }

    fn give_up(&mut self, task: Task, why: &str) {
        match task {
            Task::Items(items) => {
                let failed = items.iter().map(|item| (shown(&item.path), why.to_owned()));
                self.report.failed.extend(failed.collect::<Vec<_>>());
            }
            Task::Section { path, .. } => self.section_done(&path, Err(why.to_owned())),
            Task::Abandon { .. } => {}
            Task::Fetch(files) => files.iter().for_each(|(path, _)| self.failed(path, why)),
            other => self.failed(&queue::path_of(&other), why),
        }
    }

    fn done(&mut self, task: Task, outcome: Outcome) {
        match (task, outcome) {
            (Task::List { path, .. }, Outcome::Listed { failed, entries, node }) => {
                if let Some(why) = failed {
                    self.failed(&path, &why);
                    self.broken.insert(path);
                    return;
                }
                self.report.directories += 1;
                self.listed(&path, entries, node);
            }
            (Task::ListThere { path }, Outcome::Listed { failed, entries, .. }) => match failed {
                Some(why) => self.failed(&path, &why),
                None => self.listed_to_delete(&path, entries),
            },
            (Task::Items(items), Outcome::Items(results)) => {
                for (item, copied) in items.into_iter().zip(results) {
                    self.copied(&item.path, &item.how, copied);
                    if let Some(meta) = self.before.remove(&item.path) {
                        self.directory(item.path, meta);
                    }
                }
            }
            (Task::Begin { path, .. }, Outcome::Begun(begun)) => self.begun(path, begun),
            (Task::Section { path, .. }, Outcome::Section(done)) => self.section_done(&path, done),
            (Task::Finish { path, .. }, Outcome::Finished(copied)) => self.large_done(&path, copied),
            (Task::Fetch(files), Outcome::Fetched(results)) => {
                for ((path, size), fetched) in files.into_iter().zip(results) {
                    self.fetched(&path, size, fetched);
                }
            }
            (Task::Metas(_), Outcome::Metas(failed)) => {
                for (path, why) in failed {
                    self.failed(&path, &why);
                }
            }
            (Task::Abandon { .. }, _) => {}
            (other, _) => {
                self.failed(&queue::path_of(&other), "a worker answered something that was not asked");
            }
        }
    }

    fn failed(&mut self, path: &[u8], why: &str) {
        self.report.failed.push((shown(&join(&self.job.source, path)), why.to_owned()));
    }

    /// Modes and times of directories, those of one depth at a time.
    fn directory_metas(&mut self) -> Result<(), StageError> {
        if self.options.dry_run {
            return Ok(());
        }
        let mut all = std::mem::take(&mut self.directories);
        all.retain(|(path, _)| !self.broken.contains(path));
        let depth = |path: &[u8]| match path {
            b"" => 0,
            _ => 1 + path.iter().filter(|&&byte| byte == b'/').count(),
        };
        all.sort_by_key(|(path, _)| std::cmp::Reverse(depth(path)));
        for level in all.chunk_by(|(one, _), (other, _)| depth(one) == depth(other)) {
            for some in level.chunks(METAS_AT_ONCE) {
                self.queue.put_any(Task::Metas(some.to_vec()));
            }
            self.run()?;
        }
        Ok(())
    }

    /// Notes what came of an item or a large file.
    fn copied(&mut self, path: &[u8], how: &How, copied: Copied) {
        match copied {
            Copied::Done { kind, bytes, source, target, identity, target_identity } => {
                self.report.bytes += bytes;
                match kind {
                    Kind::Symlink => self.report.symlinks += 1,
                    Kind::Special(_) => self.report.special += 1,
                    _ => {
                        self.report.files += 1;
                        self.progress.done();
                    }
                }
                if *how == How::Lazy && source.size > 0 {
                    self.lazy.push((path.to_vec(), source.size));
                }
                let (source, target) = ((identity, source), (target_identity, target));
                match how {
                    How::Link(first) => self.linked(first, path, source, target),
                    _ => self.note(path, source, target),
                }
            }
            Copied::Same { source, target, identity, target_identity } => {
                self.report.unchanged += 1;
                self.progress.done();
                self.note(path, (identity, source), (target_identity, target));
            }
            Copied::Settled => self.report.deleted += 1,
            Copied::Failed(why) => self.failed(path, &why),
            Copied::LeftOut(why) => {
                self.report.left_out.push((shown(&join(&self.job.source, path)), why));
            }
            Copied::Changed => self.failed(path, CHANGED),
        }
    }

    /// A file got another name, and with it a new time of change: what it is with its last name counts for
    /// all of them.
    fn linked(&mut self, first: &[u8], path: &[u8], source: Noted, target: Noted) {
        let linked = self.linked.entry(first.to_vec());
        let linked = linked.or_insert_with(|| Linked { names: vec![first.to_vec()], source, target });
        linked.names.push(path.to_vec());
        if target.1.ctime > linked.target.1.ctime {
            (linked.source, linked.target) = (source, target);
        }
    }

    /// Records that a file is the same on both sides.
    fn note(&mut self, path: &[u8], source: Noted, target: Noted) {
        let outside = join(&self.backend, path);
        match self.job.direction {
            Direction::In => {
                let inside = join(&self.job.destination, path);
                self.record.note((target.0, &inside), target.1, &outside, source.1);
            }
            Direction::Out => {
                let inside = join(&self.job.source, path);
                self.record.note((source.0, &inside), source.1, &outside, target.1);
            }
        }
    }
}

/// Directories whose attributes one task sets.
const METAS_AT_ONCE: usize = 256;

const CHANGED: &str = "it was changed while it was read, each time it was tried";

fn shown(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}
