//! What one process does to files: with the calls of the standard library, so through libc, as any program.

use crate::content::{Author, Buffer};
use crate::patterns::{Layout, Operation, Phase};
use crate::protocol::{Outcome, Task};
use crate::random::share;
use crate::scheme::Scheme;
use bivouac_bench::{cpu, interruption};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, String>;

/// One process's files and buffers.
#[derive(Debug)]
pub struct Load {
    task: Task,
    rank: u32,
    file: Option<File>,
    /// What is written, or what is expected.
    right: Buffer,
    /// What is read.
    read: Buffer,
}

impl Load {
    /// The part of process `rank`. The first one makes the directory, and the one that it lies in; what earlier runs have
    /// left there goes.
    pub fn begin(task: Task, rank: u32) -> Result<Load> {
        let load = Load { file: None, right: Buffer::new(0, 0), read: Buffer::new(0, 0), task, rank };
        if rank == 0 {
            let above = load.above();
            match fs::remove_dir_all(above) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            }
            .and_then(|()| fs::create_dir(above))
            .and_then(|()| fs::create_dir(&load.task.directory))
            .map_err(|e| format!("cannot make {}: {e}", load.task.directory))?;
        }
        Ok(load)
    }

    /// The directory of the whole exploration.
    fn above(&self) -> &Path {
        let directory = Path::new(&self.task.directory);
        directory.parent().unwrap_or(directory)
    }

    /// Makes the files of a phase: empty where it only writes; otherwise with what is going to be read, synced. How many
    /// requests there are.
    pub fn prepare(&mut self, number: usize) -> Result<u64> {
        let phase = self.phase(number)?;
        let room = usize::try_from(phase.request).map_err(|e| e.to_string())?;
        self.right = Buffer::new(room, self.task.run);
        self.read = Buffer::new(room, self.task.run);
        let path = self.path(number, &phase, self.rank);
        let file = open(&path, &phase, true)?;
        if !phase.operation.reads() {
            return Ok(0);
        }
        let scheme = self.scheme(number, &phase);
        let author = self.author(number, self.rank, false);
        let mut limit = Limit::new(&phase);
        let mut written = 0;
        while written < scheme.window() && !interruption::came() {
            let offset = scheme.offset(self.rank, written);
            self.right.stamp(&author, offset);
            file.write_all_at(self.right.bytes(), offset).map_err(|e| failed("write", &path, offset, &e))?;
            written += 1;
            if phase.total.is_none() && limit.is_over() {
                break;
            }
        }
        file.sync_all().map_err(|e| format!("cannot sync {path}: {e}"))?;
        forget(&file);
        Ok(written)
    }

    /// Opens what a phase uses.
    pub fn open(&mut self, number: usize) -> Result<()> {
        let phase = self.phase(number)?;
        let path = self.path(number, &phase, self.worked_on(&phase));
        self.file = Some(open(&path, &phase, false)?);
        Ok(())
    }

    /// Does the phase.
    pub fn go(&mut self, number: usize, prepared: u64) -> Result<Outcome> {
        let phase = self.phase(number)?;
        let file = self.file.take().ok_or("was not prepared")?;
        let scheme = self.scheme(number, &phase);
        let whose = self.worked_on(&phase);
        let path = self.path(number, &phase, whose);
        let window = if phase.operation.reads() { prepared.min(scheme.window()) } else { scheme.window() };
        if window == 0 {
            return Err(format!("nothing was prepared in {path}"));
        }
        let most = phase.total.map_or(u64::MAX, |_| window);
        let mut outcome = Outcome { began: cpu::now(), ..Outcome::default() };
        let mut limit = Limit::new(&phase);
        while outcome.requests < most && !interruption::came() {
            let index = outcome.requests % window;
            let offset = scheme.offset(whose, index);
            if self.writes(number, &phase, whose, index) {
                self.right.stamp(&self.author(number, whose, true), offset);
                let written = file.write_all_at(self.right.bytes(), offset);
                written.map_err(|e| failed("write", &path, offset, &e))?;
            } else {
                self.check(&file, &path, self.author(number, whose, false), offset)?;
            }
            outcome.requests += 1;
            outcome.bytes += phase.request;
            if limit.is_over() {
                break;
            }
            limit.think(phase.think);
        }
        if phase.fsync {
            file.sync_all().map_err(|e| format!("cannot sync {path}: {e}"))?;
        }
        outcome.ended = cpu::now();
        Ok(outcome)
    }

    /// Reads what another process has written in a phase. `done`: how many requests each has done.
    pub fn verify(&mut self, number: usize, done: &[u64]) -> Result<()> {
        let phase = self.phase(number)?;
        let (scheme, whose) = (self.scheme(number, &phase), self.other());
        let path = self.path(number, &phase, whose);
        let file = open(&path, &phase, false)?;
        let done = done.get(whose as usize).copied().unwrap_or(0);
        for index in (0..done.min(scheme.window())).take_while(|_| !interruption::came()) {
            if self.writes(number, &phase, whose, index) {
                let author = self.author(number, whose, true);
                self.check(&file, &path, author, scheme.offset(whose, index))?;
            }
        }
        Ok(())
    }

    /// Removes the files of a phase.
    pub fn clean(&mut self, number: usize) -> Result<()> {
        self.file = None;
        let phase = self.phase(number)?;
        if phase.layout == Layout::Shared && self.rank != 0 {
            return Ok(());
        }
        let path = self.path(number, &phase, self.rank);
        fs::remove_file(&path).map_err(|e| format!("cannot remove {path}: {e}"))
    }

    /// Removes the directory, when all files are gone.
    pub fn end(&mut self) -> Result<()> {
        if self.rank != 0 {
            return Ok(());
        }
        let directory = &self.task.directory;
        fs::remove_dir(directory)
            .and_then(|()| fs::remove_dir(self.above()))
            .map_err(|e| format!("cannot remove {directory}: {e}"))
    }

    /// Removes whatever there is: nobody gives orders any more. All processes of the run do this, so that one is enough; and
    /// no other run has the directory, so that a process may be late.
    pub fn give_up(&mut self) {
        self.file = None;
        let _ = fs::remove_dir_all(&self.task.directory);
        let _ = fs::remove_dir(self.above());
    }

    /// Reads a request, and compares it with what has to be there.
    fn check(&mut self, file: &File, path: &str, author: Author, offset: u64) -> Result<()> {
        file.read_exact_at(self.read.room(), offset).map_err(|e| failed("read", path, offset, &e))?;
        self.right.stamp(&author, offset);
        match self.read.differs(&self.right) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{path} is wrong at byte {}: that is not what process {} has written there in this run",
                offset + at as u64,
                author.rank
            )),
        }
    }

    /// Whether a request writes: of a mixed phase, always the same ones.
    fn writes(&self, number: usize, phase: &Phase, rank: u32, index: u64) -> bool {
        match phase.operation {
            Operation::Write => true,
            Operation::Read => false,
            Operation::Mixed => {
                let seed = self.task.run ^ ((number as u64) << 48) ^ (u64::from(rank) << 24);
                share(seed.wrapping_add(index)) >= phase.read_share.unwrap_or(0.5)
            }
        }
    }

    /// Whose requests this process does. It reads what another one has written, on another node if there is one, so that
    /// no cache of its own node answers.
    fn worked_on(&self, phase: &Phase) -> u32 {
        if phase.operation == Operation::Read { self.other() } else { self.rank }
    }

    fn other(&self) -> u32 {
        let pattern = &self.task.pattern;
        let further = if pattern.nodes > 1 { pattern.on_each_node() } else { 1 };
        // Both are at most 2^20.
        (self.rank + further) % pattern.processes.max(1)
    }

    fn phase(&self, number: usize) -> Result<Phase> {
        self.task.pattern.phases.get(number).cloned().ok_or_else(|| format!("there is no phase {number}"))
    }

    fn scheme(&self, number: usize, phase: &Phase) -> Scheme {
        Scheme::new(phase, self.task.pattern.processes, self.task.run.wrapping_add(number as u64))
    }

    fn author(&self, number: usize, rank: u32, measured: bool) -> Author {
        Author { run: self.task.run, phase: number as u64, rank, measured }
    }

    fn path(&self, number: usize, phase: &Phase, rank: u32) -> String {
        match phase.layout {
            Layout::Own => format!("{}/{number}.{rank}", self.task.directory),
            Layout::Shared => format!("{}/{number}.shared", self.task.directory),
        }
    }
}

/// When a phase is over.
struct Limit {
    until: Option<Instant>,
}

impl Limit {
    fn new(phase: &Phase) -> Limit {
        Limit { until: phase.stonewall.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds)) }
    }

    fn is_over(&mut self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Pauses between two requests, not longer than there is time, nor than until a signal comes.
    fn think(&self, seconds: f64) {
        if seconds <= 0.0 {
            return;
        }
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let end = self.until.map_or(end, |until| until.min(end));
        while !interruption::came() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}

fn open(path: &str, phase: &Phase, create: bool) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(create).truncate(false);
    if phase.direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options.open(path).map_err(|e| {
        let with = if phase.direct { " with O_DIRECT" } else { "" };
        format!("cannot open {path}{with}: {e}")
    })
}

fn failed(verb: &str, path: &str, offset: u64, error: &io::Error) -> String {
    format!("cannot {verb} {path} at byte {offset}: {error}")
}

/// Drops what this node has of a file in its page cache. What is refused is refused: it is a hint.
pub(crate) fn forget(file: &File) {
    // SAFETY: the descriptor is open; the call changes nothing that the program sees.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

#[cfg(test)]
mod tests;
