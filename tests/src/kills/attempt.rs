//! Does a step in the file system.

use super::step::{Outcome, Step, pattern};
use super::tree::{Tree, parent};
use super::{RECORD, SHARED};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest time until a file that was closed in a mount is unlocked.
const CLOSING: Duration = Duration::from_millis(800);

/// A program's descriptors, and where it works.
pub struct Hands {
    /// The mount.
    mount: PathBuf,
    /// The program's directory.
    base: PathBuf,
    /// Which program it is.
    who: String,
    files: BTreeMap<u8, File>,
    shared: Option<File>,
}

impl Hands {
    /// For this program.
    pub fn new(mount: &str, who: &str) -> Hands {
        let mount = PathBuf::from(mount);
        Hands { base: mount.join(who), mount, who: who.to_owned(), files: BTreeMap::new(), shared: None }
    }

    /// Does a step, and compares what it answers with the reference.
    pub fn attempt(&mut self, step: &Step, tree: &Tree) -> Outcome {
        self.done(step, tree).unwrap_or_else(|error| match error.raw_os_error() {
            Some(number) => Outcome::Failed(number),
            None => Outcome::Wrong(error.to_string()),
        })
    }

    fn path(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }

    fn done(&mut self, step: &Step, tree: &Tree) -> Result<Outcome> {
        let mut count = 0;
        match step {
            Step::Create { slot, path, append } => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).append(*append).create_new(true);
                self.files.insert(*slot, options.open(self.path(path))?);
            }
            Step::Open { slot, path, append, truncate } => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).append(*append);
                // The standard library does not have both.
                options.custom_flags(if *truncate { libc::O_TRUNC } else { 0 });
                self.files.insert(*slot, options.open(self.path(path))?);
            }
            Step::Close { slot } => drop(self.files.remove(slot)),
            Step::Write { slot, offset, len, seed } => {
                count = self.files[slot].write_at(&pattern(*seed, *len), *offset)? as u64;
            }
            Step::Append { slot, len, seed } => {
                count = (&self.files[slot]).write(&pattern(*seed, *len))? as u64;
            }
            Step::Truncate { path, size } => truncate(&self.path(path), *size)?,
            Step::TruncateOpen { slot, size } => self.files[slot].set_len(*size)?,
            Step::Sync { slot } => self.files[slot].sync_all()?,
            Step::Lock { slot } => lock_soon(&self.files[slot])?,
            Step::Read { path } => {
                let file = File::open(self.path(path))?;
                return compare(&file, &tree.nodes[&tree.names[path]].content);
            }
            Step::ReadOpen { slot } => {
                return compare(&self.files[slot], &tree.nodes[&tree.slots[slot].node].content);
            }
            Step::List { path } => return self.list(path, tree),
            Step::Rename { from, to } => std::fs::rename(self.path(from), self.path(to))?,
            Step::Link { from, to } => std::fs::hard_link(self.path(from), self.path(to))?,
            Step::Unlink { path } => std::fs::remove_file(self.path(path))?,
            Step::Mkdir { path } => std::fs::create_dir(self.path(path))?,
            Step::Rmdir { path } => std::fs::remove_dir(self.path(path))?,
            Step::Share { number } => {
                if self.shared.is_none() {
                    let options = OpenOptions::new().append(true).open(self.mount.join(SHARED));
                    self.shared = Some(options?);
                }
                count = self.shared.as_mut().expect("just opened").write(&record(&self.who, *number))? as u64;
            }
        }
        Ok(Outcome::Done(count))
    }

    fn list(&self, path: &str, tree: &Tree) -> Result<Outcome> {
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(self.path(path))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !found.insert(name.clone()) {
                return Ok(Outcome::Wrong(format!("{name:?} is listed twice")));
            }
        }
        let expected: BTreeSet<String> = tree
            .below(path)
            .filter(|below| parent(below) == path)
            .map(|below| below.rsplit('/').next().unwrap_or_default().to_owned())
            .collect();
        if found == expected {
            return Ok(Outcome::Done(found.len() as u64));
        }
        Ok(Outcome::Wrong(format!("there are {found:?}, and should be {expected:?}")))
    }
}

/// What a program appends to the file that all share.
pub fn record(who: &str, number: u64) -> [u8; RECORD] {
    let width = RECORD - 2 - who.len();
    let text = format!("{who} {number:>width$}");
    let mut record = [b'\n'; RECORD];
    record[..RECORD - 1].copy_from_slice(text.as_bytes());
    record
}

fn truncate(path: &std::path::Path, size: u64) -> Result<()> {
    let path = std::ffi::CString::new(path.to_string_lossy().as_bytes()).expect("no NUL in it");
    // SAFETY: the path ends with a NUL and lives during the call.
    if unsafe { libc::truncate64(path.as_ptr(), size as i64) } == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

/// A whole-file lock and one of all bytes, both exclusive, without waiting.
pub fn lock(file: &File) -> Result<()> {
    // SAFETY: all zeros is a value that the structure may have.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as i16;
    // SAFETY: the descriptor is open, and the structure lives during the call.
    let done = unsafe {
        libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0
            && libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &range) == 0
    };
    if done { Ok(()) } else { Err(Error::last_os_error()) }
}

/// The same, although the kernel does not wait until a mount has heard that another descriptor was closed.
fn lock_soon(file: &File) -> Result<()> {
    let begin = Instant::now();
    loop {
        match lock(file) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && begin.elapsed() < CLOSING => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// All that is in a file, and its size as `fstat` tells it.
pub fn contents(file: &File) -> Result<(u64, Vec<u8>)> {
    let size = file.metadata()?.len();
    let (mut content, mut piece) = (Vec::new(), vec![0; 128 << 10]);
    loop {
        let count = file.read_at(&mut piece, content.len() as u64)?;
        if count == 0 {
            return Ok((size, content));
        }
        content.extend_from_slice(&piece[..count]);
    }
}

fn compare(file: &File, expected: &[u8]) -> Result<Outcome> {
    let (size, content) = contents(file)?;
    if size as usize == expected.len() && content == expected {
        return Ok(Outcome::Done(size));
    }
    Ok(Outcome::Wrong(format!("size {size}, {}", difference(expected, &content))))
}

/// Where two contents differ, in words.
pub fn difference(expected: &[u8], found: &[u8]) -> String {
    let first = expected.iter().zip(found).position(|(e, f)| e != f);
    let last = expected.iter().zip(found).rposition(|(e, f)| e != f);
    let range = match (first, last) {
        (Some(first), Some(last)) => {
            let zeros = found[first..=last].iter().filter(|byte| **byte == 0).count();
            format!("bytes {first} to {last} differ, {zeros} of them are zero")
        }
        _ => "no byte differs".to_owned(),
    };
    format!("{} bytes instead of {}: {range}", found.len(), expected.len())
}
