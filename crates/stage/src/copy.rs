//! The copying engine.
//!
//! Threads take work from one queue: a directory (list it, make it, queue what is in it), a file, or a
//! section of a large file ([`file`] copies both). Directories get their modes and times at the end, deepest
//! first, when nothing changes them any more. They get their extended attributes at once, because one of
//! these is the layout of new files.
//!
//! A failure concerns one entry: it is noted and the rest is copied. What the destination cannot hold
//! although nothing is wrong (a device, say) is noted as left out, and is no failure.
//!
//! Where a progress bar is shown, one more thread goes through the source ahead of the others and counts what
//! there is ([`count`]).

mod count;
mod file;

use crate::progress::Progress;
use crate::report::{Report, StageError};
use crate::tree::{Kind, Meta, Special, Tree, join};
use file::{Buffers, Large};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads, at least 1.
    pub threads: usize,
    /// Show a progress bar if standard error is a terminal.
    pub progress: bool,
}

impl Default for Options {
    /// Two threads for each processor, at least four: copying waits more than it computes. With progress.
    fn default() -> Options {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Options { threads: (2 * processors).max(4), progress: true }
    }
}

enum Work {
    /// A directory and its counterpart.
    Directory(Vec<u8>, Vec<u8>, Meta),
    File(Vec<u8>, Vec<u8>, Meta),
    Symlink(Vec<u8>, Vec<u8>, Meta),
    Special(Vec<u8>, Vec<u8>, Special, Meta),
    /// Another name of a file that is copied under the first one.
    HardLink(Vec<u8>, Vec<u8>, Vec<u8>),
    /// A section of a large file, from this offset on.
    Stretch(Arc<Large>, u64),
}

struct Queue {
    work: VecDeque<Work>,
    /// Work that was taken and is not finished: it may add more.
    under_way: usize,
}

struct Copy<'a> {
    from: &'a dyn Tree,
    to: &'a dyn Tree,
    queue: Mutex<Queue>,
    changed: Condvar,
    report: Mutex<Report>,
    bytes: AtomicU64,
    directories: Mutex<Vec<(Vec<u8>, Meta)>>,
    /// Files with several names: where the first one goes.
    names: Mutex<HashMap<(u64, u64), Vec<u8>>>,
    /// Further names, made when all files are there.
    links: Mutex<Vec<Work>>,
    progress: Progress,
}

/// Copies `source` of one tree to `destination` of another.
pub(crate) fn copy(
    from: &dyn Tree,
    source: &[u8],
    to: &dyn Tree,
    destination: &[u8],
    options: &Options,
) -> Result<Report, StageError> {
    let begun = Instant::now();
    let meta = from.stat(source, true).map_err(|e| StageError::Source { path: path(source), source: e })?;
    let mut destination = destination.to_vec();
    let no_place = |e, place: &[u8]| StageError::Destination { path: path(place), source: e };
    if meta.kind == Kind::Directory {
        make_parents(to, &destination).map_err(|e| no_place(e, &destination))?;
    } else {
        if destination.ends_with(b"/") || to.stat(&destination, true).is_ok_and(|m| m.kind == Kind::Directory)
        {
            let slash = source.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
            destination = join(&destination, &source[slash..]);
        }
        let slash = destination.iter().rposition(|&b| b == b'/').unwrap_or(0);
        make_parents(to, &destination[..slash]).map_err(|e| no_place(e, &destination))?;
    }
    let first = match meta.kind {
        Kind::Directory => Work::Directory(source.to_vec(), destination, meta),
        Kind::File => Work::File(source.to_vec(), destination, meta),
        Kind::Symlink | Kind::Special(_) => {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a directory");
            return Err(StageError::Source { path: path(source), source: why });
        }
    };
    let copy = Copy {
        from,
        to,
        queue: Mutex::new(Queue { work: VecDeque::new(), under_way: 0 }),
        changed: Condvar::new(),
        report: Mutex::default(),
        bytes: AtomicU64::new(0),
        directories: Mutex::default(),
        names: Mutex::default(),
        links: Mutex::default(),
        progress: Progress::new(options.progress, "copying"),
    };
    std::thread::scope(|scope| {
        if copy.progress.is_shown() {
            scope.spawn(|| count::count(from, source, meta, &copy.progress));
        }
        copy.put(first);
        copy.run(options.threads);
        // The progress bar can end.
        copy.progress.stop_counting();
    });
    for link in std::mem::take(&mut *lock(&copy.links)) {
        copy.put(link);
    }
    copy.run(options.threads);
    let mut directories = std::mem::take(&mut *lock(&copy.directories));
    directories.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    for (directory, meta) in directories {
        if let Err(error) = to.set_meta(&directory, &meta) {
            copy.failed(&directory, &error.to_string());
        }
    }
    copy.progress.end();
    let mut report = copy.report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.bytes = copy.bytes.into_inner();
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// Files and bytes below `source`, as they are counted ahead of a copy.
#[cfg(test)]
pub(crate) fn counted(tree: &dyn Tree, source: &[u8]) -> io::Result<(u64, u64)> {
    let progress = Progress::new(false, "");
    count::count(tree, source, tree.stat(source, true)?, &progress);
    Ok(progress.counted())
}

fn path(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Copy<'_> {
    fn run(&self, threads: usize) {
        if lock(&self.queue).work.is_empty() {
            return;
        }
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let mut buffers = Buffers::default();
                    while let Some(work) = self.take() {
                        self.work(work, &mut buffers);
                        lock(&self.queue).under_way -= 1;
                        self.changed.notify_all();
                    }
                });
            }
        });
    }

    fn put(&self, work: Work) {
        let mut queue = lock(&self.queue);
        // Sections first, directories last: so few files are open, and there is always work for all threads.
        match work {
            Work::Directory(..) => queue.work.push_back(work),
            _ => queue.work.push_front(work),
        }
        self.changed.notify_one();
    }

    fn take(&self) -> Option<Work> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(work) = queue.work.pop_front() {
                queue.under_way += 1;
                return Some(work);
            }
            if queue.under_way == 0 {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn failed(&self, at: &[u8], why: &str) {
        lock(&self.report).failed.push((path(at), why.to_owned()));
    }

    fn left_out(&self, at: &[u8], why: String) {
        lock(&self.report).left_out.push((path(at), why));
    }

    fn work(&self, work: Work, buffers: &mut Buffers) {
        let (from, done) = match work {
            Work::Directory(from, to, meta) => {
                let done = self.directory(&from, &to, meta).map(|()| lock(&self.report).directories += 1);
                (from, done)
            }
            Work::File(from, to, meta) => {
                let done = self.file(&from, &to, meta, buffers);
                (from, done)
            }
            Work::Symlink(from, to, meta) => {
                let done = self
                    .from
                    .read_link(&from)
                    .and_then(|target| self.to.make_symlink(&to, &target, &meta))
                    .map(|()| lock(&self.report).symlinks += 1);
                (from, done)
            }
            Work::Special(from, to, what, meta) => {
                let done = self.special(&from, &to, what, &meta);
                (from, done)
            }
            Work::HardLink(from, existing, to) => {
                let done = self.to.make_link(&existing, &to).map(|()| self.file_done());
                (from, done)
            }
            Work::Stretch(large, start) => return self.stretch(&large, start, buffers),
        };
        if let Err(error) = done {
            self.failed(&from, &error.to_string());
        }
    }

    fn file_done(&self) {
        lock(&self.report).files += 1;
        self.progress.done();
    }

    fn directory(&self, from: &[u8], to: &[u8], meta: Meta) -> io::Result<()> {
        self.to.make_directory(to)?;
        lock(&self.directories).push((to.to_vec(), meta));
        self.attributes(from, &meta, |name, value| self.to.set_attribute(to, name, value))?;
        for name in self.from.list(from)? {
            let (from, to) = (join(from, &name), join(to, &name));
            match self.from.stat(&from, false) {
                Ok(meta) => self.entry(from, to, meta),
                Err(error) => self.failed(&from, &error.to_string()),
            }
        }
        Ok(())
    }

    fn entry(&self, from: Vec<u8>, to: Vec<u8>, meta: Meta) {
        match meta.kind {
            Kind::Directory => self.put(Work::Directory(from, to, meta)),
            Kind::Symlink => self.put(Work::Symlink(from, to, meta)),
            Kind::File => {
                if meta.links > 1 {
                    let mut names = lock(&self.names);
                    if let Some(first) = names.get(&meta.identity) {
                        lock(&self.links).push(Work::HardLink(from, first.clone(), to));
                        return;
                    }
                    names.insert(meta.identity, to.clone());
                }
                self.put(Work::File(from, to, meta));
            }
            Kind::Special(what) => self.put(Work::Special(from, to, what, meta)),
        }
    }

    fn special(&self, from: &[u8], to: &[u8], what: Special, meta: &Meta) -> io::Result<()> {
        match self.to.make_special(to, what, meta) {
            Ok(()) => lock(&self.report).special += 1,
            Err(error) if is_not_offered(&error) => {
                self.left_out(
                    from,
                    format!("a {}, which cannot be made at the destination: {error}", what.name()),
                );
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Copies the user's extended attributes of a file or directory.
    fn attributes(
        &self,
        from: &[u8],
        meta: &Meta,
        set: impl Fn(&[u8], &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        if !meta.attributes {
            return Ok(());
        }
        for (name, value) in self.from.attributes(from)? {
            let Err(error) = set(&name, &value) else { continue };
            let layout = name.starts_with(LAYOUT_ATTRIBUTES);
            if !is_not_offered(&error) && !layout {
                return Err(error);
            }
            let name = String::from_utf8_lossy(&name);
            self.left_out(
                from,
                format!("its attribute {name}, which cannot be set at the destination: {error}"),
            );
        }
        Ok(())
    }
}

/// Attributes that say how a deployment spreads new files; another one may have too few servers for it.
const LAYOUT_ATTRIBUTES: &[u8] = b"user.bivouac.";

/// Whether an error says that a file system does not offer something, or not to this user.
fn is_not_offered(error: &io::Error) -> bool {
    let not_permitted = rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::PERM);
    not_permitted || error.kind() == io::ErrorKind::Unsupported
}
