//! Each operation, as a program would do it: paths and descriptors through the standard library, which calls
//! libc.
//!
//! The content of each file says which process wrote which file, so that a file that is another's, empty or
//! truncated is noticed. Nothing is allocated in a timed loop but what the standard library needs itself.

use crate::plan::{Op, Plan};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

/// Why an operation counts as failed.
#[derive(Debug)]
pub enum Trouble {
    /// The call said so.
    System(io::Error),
    /// It succeeded, and the result is not what must be there.
    Wrong(&'static str),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::System(error)
    }
}

/// What one operation moved.
#[derive(Default, Clone, Copy)]
pub struct Moved {
    /// Bytes of files read or written.
    pub bytes: u64,
    /// Directory entries seen.
    pub entries: u64,
}

/// One worker's files, and what has been done with them.
pub struct Load {
    plan: Plan,
    rank: u32,
    path: String,
    other: String,
    buffer: Vec<u8>,
    /// First letter of the files' names: renaming changes it.
    letter: char,
    /// Whether all files must be there: a listing is checked against it.
    has_files: bool,
    /// What this worker made itself and has not removed: files, directories, the file of `pwrite`, the plan's
    /// directory.
    made: Vec<bool>,
    made_dirs: Vec<bool>,
    made_data: bool,
    made_base: bool,
    open: Option<File>,
    order: Vec<u32>,
}

impl Load {
    /// The load of worker `rank`. Files are taken to be there if no phase makes them.
    pub fn new(plan: &Plan, rank: u32) -> Load {
        let room = plan.transfer.min(plan.size.max(8)) as usize;
        // A read must see a file that is longer than it should be.
        let buffer = (0..room + 1).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        Load {
            plan: plan.clone(),
            rank,
            path: String::new(),
            other: String::new(),
            buffer,
            letter: 'f',
            has_files: !plan.ops.contains(&Op::Create),
            made: Vec::new(),
            made_dirs: Vec::new(),
            made_data: false,
            made_base: false,
            open: None,
            order: Vec::new(),
        }
    }

    /// Makes the directories to work in. Worker 0 comes first.
    pub fn set_up(&mut self) -> io::Result<()> {
        if self.rank == 0 && !fs::exists(&self.plan.dir)? {
            fs::create_dir_all(&self.plan.dir)?;
            self.made_base = true;
        }
        self.directory(self.rank);
        if !self.plan.shared || self.rank == 0 {
            make_directory(&self.path)?;
        }
        Ok(())
    }

    /// Prepares what a phase needs and what must not be measured. Returns how many operations the phase has.
    pub fn prepare(&mut self, op: Op) -> io::Result<u64> {
        self.open = None;
        match op {
            Op::Pwrite | Op::Pread => {
                let write = op == Op::Pwrite;
                self.data(if write { self.rank } else { self.source() });
                // Not truncated: with one file, the others write it, too.
                self.open = Some(match OpenOptions::new().read(!write).write(write).open(&self.path) {
                    Err(error) if write && error.kind() == io::ErrorKind::NotFound => {
                        self.made_data = true;
                        OpenOptions::new().write(true).create(true).truncate(false).open(&self.path)?
                    }
                    other => other?,
                });
                let count = self.plan.transfers();
                self.order = order(count, self.plan.random, self.rank);
                Ok(count * u64::from(self.plan.passes.max(1)))
            }
            Op::List | Op::Liststat => Ok(1),
            Op::Create => {
                self.made.resize(self.plan.files as usize, false);
                Ok(self.plan.files)
            }
            Op::Mkdir => {
                self.made_dirs.resize(self.plan.files as usize, false);
                Ok(self.plan.files)
            }
            _ => Ok(self.plan.files),
        }
    }

    /// Does operation `index` of a phase.
    pub fn run(&mut self, op: Op, index: u64) -> Result<Moved, Trouble> {
        let source = self.source();
        match op {
            Op::Mkdir => {
                self.named('d', self.rank, index);
                fs::create_dir(&self.path)?;
                note(&mut self.made_dirs, index, true);
            }
            Op::Rmdir => {
                self.named('d', self.rank, index);
                fs::remove_dir(&self.path)?;
                note(&mut self.made_dirs, index, false);
            }
            Op::Create => {
                self.named(self.letter, self.rank, index);
                let file = OpenOptions::new().write(true).create_new(true).open(&self.path)?;
                note(&mut self.made, index, true);
                return self.fill(file, self.rank, index);
            }
            Op::Write => {
                self.named(self.letter, source, index);
                let file = OpenOptions::new().write(true).open(&self.path)?;
                return self.fill(file, source, index);
            }
            Op::Stat => {
                self.named(self.letter, source, index);
                if fs::symlink_metadata(&self.path)?.len() != self.plan.size {
                    return Err(Trouble::Wrong("a file does not have its size"));
                }
            }
            Op::Open => {
                self.named(self.letter, source, index);
                drop(File::open(&self.path)?);
            }
            Op::Read => {
                self.named(self.letter, source, index);
                return self.read(source, index);
            }
            Op::Pwrite | Op::Pread => return self.transfer(op, index),
            Op::List => return self.list(false),
            Op::Liststat => return self.list(true),
            Op::Rename => {
                self.named('r', source, index);
                std::mem::swap(&mut self.path, &mut self.other);
                self.named('f', source, index);
                fs::rename(&self.path, &self.other)?;
            }
            Op::Unlink => {
                self.named(self.letter, source, index);
                fs::remove_file(&self.path)?;
                if source == self.rank {
                    note(&mut self.made, index, false);
                }
            }
        }
        Ok(Moved::default())
    }

    /// Notes that a phase is over, whether or not its operations succeeded.
    pub fn finished(&mut self, op: Op) {
        self.open = None;
        match op {
            Op::Create => self.has_files = true,
            Op::Unlink => self.has_files = false,
            Op::Rename => self.letter = 'r',
            _ => {}
        }
    }

    /// Removes what this worker has made. Worker 0 comes last. What is gone already is fine.
    pub fn clean_up(&mut self) -> io::Result<()> {
        self.open = None;
        if self.plan.keep {
            return Ok(());
        }
        // Renaming may have been done in part, and removing by another worker.
        let letters: &[char] = if self.plan.ops.contains(&Op::Rename) { &['f', 'r'] } else { &['f'] };
        for index in made(&self.made) {
            for letter in letters {
                self.named(*letter, self.rank, index);
                gone(fs::remove_file(&self.path))?;
            }
        }
        for index in made(&self.made_dirs) {
            self.named('d', self.rank, index);
            gone(fs::remove_dir(&self.path))?;
        }
        if self.made_data {
            self.data(self.rank);
            gone(fs::remove_file(&self.path))?;
        }
        if !self.plan.shared || self.rank == 0 {
            self.directory(self.rank);
            remove_if_empty(&self.path)?;
        }
        if self.made_base {
            remove_if_empty(&self.plan.dir)?;
        }
        Ok(())
    }

    /// The worker whose files are read, looked at and removed.
    fn source(&self) -> u32 {
        ((u64::from(self.rank) + u64::from(self.plan.shift)) % u64::from(self.plan.procs)) as u32
    }

    /// The path of a worker's directory, into `path`.
    fn directory(&mut self, rank: u32) {
        self.path.clear();
        // Writing to a string cannot fail.
        let _ = match self.plan.shared {
            true => write!(self.path, "{}/bench.shared", self.plan.dir),
            false => write!(self.path, "{}/bench.{rank}", self.plan.dir),
        };
    }

    /// The path of a file or directory, into `path`.
    fn named(&mut self, letter: char, rank: u32, index: u64) {
        self.directory(rank);
        let _ = write!(self.path, "/{letter}{rank}.{index}");
    }

    /// The path of the file that `pwrite` and `pread` use, into `path`.
    fn data(&mut self, rank: u32) {
        let shared = self.plan.one_file;
        self.path.clear();
        let _ = match shared {
            true => write!(self.path, "{}/bench.data", self.plan.dir),
            false => write!(self.path, "{}/bench.data.{rank}", self.plan.dir),
        };
    }

    /// Writes a file from its start, and closes it.
    fn fill(&mut self, mut file: File, rank: u32, index: u64) -> Result<Moved, Trouble> {
        let mut written = 0;
        while written < self.plan.size {
            let count = self.plan.transfer.min(self.plan.size - written) as usize;
            if written == 0 {
                mark(&mut self.buffer[..count], rank, index);
            }
            file.write_all(&self.buffer[..count])?;
            written += count as u64;
        }
        Ok(Moved { bytes: written, entries: 0 })
    }

    /// Reads a file to its end, and closes it.
    fn read(&mut self, rank: u32, index: u64) -> Result<Moved, Trouble> {
        let mut file = File::open(&self.path)?;
        let mut seen = 0;
        let room =
            self.buffer.len() - usize::from(self.plan.size != 0 && self.plan.size < self.plan.transfer);
        loop {
            let count = file.read(&mut self.buffer[..room])?;
            if seen == 0 && !is_marked(&self.buffer[..count.min(self.plan.size as usize)], rank, index) {
                return Err(Trouble::Wrong("a file is not what was written"));
            }
            seen += count as u64;
            // A program that knows the size, as most do, does not read beyond it.
            if count == 0 || seen >= self.plan.size {
                break;
            }
        }
        if seen != self.plan.size {
            return Err(Trouble::Wrong("a file does not have its length"));
        }
        Ok(Moved { bytes: seen, entries: 0 })
    }

    /// One transfer of an open file.
    fn transfer(&mut self, op: Op, index: u64) -> Result<Moved, Trouble> {
        let len = self.plan.transfer;
        let (rank, checked) = match op {
            Op::Pwrite => (self.rank, false),
            // What another plan has written is not marked at these places.
            _ => (self.source(), self.plan.ops.contains(&Op::Pwrite)),
        };
        let place = self.order.get((index % self.order.len().max(1) as u64) as usize);
        let number = u64::from(place.copied().unwrap_or(0));
        let base = if self.plan.one_file { u64::from(rank) * self.plan.size } else { 0 };
        let Some(file) = &self.open else { return Err(Trouble::Wrong("no file is open")) };
        let buffer = &mut self.buffer[..len as usize];
        if op == Op::Pwrite {
            mark(buffer, rank, number);
            file.write_all_at(buffer, base + number * len)?;
        } else {
            file.read_exact_at(buffer, base + number * len)?;
            if checked && !is_marked(buffer, rank, number) {
                return Err(Trouble::Wrong("a transfer read is not what was written"));
            }
        }
        Ok(Moved { bytes: len, entries: 0 })
    }

    /// Lists the worker's directory and counts.
    fn list(&mut self, attributes: bool) -> Result<Moved, Trouble> {
        self.directory(self.source());
        let (mut entries, mut files) = (0, 0);
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            entries += 1;
            files += u64::from(entry.file_name().as_encoded_bytes().first() == Some(&(self.letter as u8)));
            if attributes {
                let kind = entry.metadata()?;
                if kind.is_file() && kind.len() != self.plan.size {
                    return Err(Trouble::Wrong("a file does not have its size"));
                }
            }
        }
        let many = if self.plan.shared { u64::from(self.plan.procs) } else { 1 };
        if self.has_files && files != self.plan.files * many {
            return Err(Trouble::Wrong("files are missing in a directory"));
        }
        Ok(Moved { bytes: 0, entries })
    }
}

/// Writes the numbers of worker and file into the first bytes, as far as there are any.
fn mark(buffer: &mut [u8], rank: u32, index: u64) {
    let mark = mark_of(rank, index);
    let count = buffer.len().min(mark.len());
    buffer[..count].copy_from_slice(&mark[..count]);
}

fn is_marked(buffer: &[u8], rank: u32, index: u64) -> bool {
    let count = buffer.len().min(8);
    buffer[..count] == mark_of(rank, index)[..count]
}

fn mark_of(rank: u32, index: u64) -> [u8; 8] {
    ((u64::from(rank) << 40) ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// In which order `count` places are visited: one after the other, or shuffled, the same in every run.
fn order(count: u64, random: bool, rank: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..u32::try_from(count).unwrap_or(u32::MAX)).collect();
    if random {
        let mut state = 0x2545_f491_4f6c_dd1d ^ (u64::from(rank) << 17);
        for last in (1..order.len()).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(last, (state % (last as u64 + 1)) as usize);
        }
    }
    order
}

fn make_directory(path: &str) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// An error only if it is still there.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn note(made: &mut [bool], index: u64, is_made: bool) {
    if let Some(entry) = made.get_mut(index as usize) {
        *entry = is_made;
    }
}

fn made(made: &[bool]) -> Vec<u64> {
    (0u64..).zip(made).filter(|(_, made)| **made).map(|(index, _)| index).collect()
}

/// Removes a directory, unless it contains something that this load did not make.
fn remove_if_empty(path: &str) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => gone(other),
    }
}

#[cfg(test)]
mod tests;
