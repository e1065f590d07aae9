//! How far the rebuild of a deployment through the backend is: what is kept of it outside the deployment's
//! directory, which goes in between. It is written before each step that it allows, so that a command that
//! was killed can go on.

use crate::error::Error;
use crate::home::{Home, Record, read_own, write_private};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

/// Version of its form.
const VERSION: u32 = 1;

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Copy everything out. The deployment is as it was.
    Flush,
    /// Take the deployment down, and bring it up on the new servers. The copy is complete.
    Restart,
    /// Copy everything in.
    Preload,
    /// Let programs use the deployment, which is complete, and remove the copy.
    Remove,
}

/// The journal.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Journal {
    version: u32,
    /// What is to be done next.
    pub phase: Phase,
    /// The number that the deployment had before.
    pub old: u64,
    /// The directory that is made for the copy, and removed.
    pub copy: PathBuf,
    /// What the deployment is to be: its servers, which have not been started, and its options.
    pub record: Record,
    /// Seconds that each step has taken: flush, restart, preload.
    pub seconds: [f64; 3],
    /// Files and directories that were copied out.
    pub counts: [u64; 2],
    /// Bytes per second that are copied at most for each server; 0: as many as there can be.
    pub rate: u64,
}

impl Journal {
    /// At the beginning.
    pub fn new(old: u64, copy: PathBuf, record: Record, rate: u64) -> Journal {
        Journal {
            version: VERSION,
            phase: Phase::Flush,
            old,
            copy,
            record,
            seconds: [0.0; 3],
            counts: [0; 2],
            rate,
        }
    }

    /// That of a deployment, if there is one.
    pub fn load(home: &Home, name: &str) -> Result<Option<Journal>, Error> {
        let path = home.rebuilding(name);
        let text = match read_own(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file("read", &path, error)),
        };
        let damaged = |what: String| {
            Error::refused(
                format!("{} says how far the rebuild of {name:?} is, and {what}", path.display()),
                "use the Bivouac that began it; the file names the directory with the copy, which can be preloaded by hand",
            )
        };
        let journal: Journal =
            serde_json::from_slice(&text).map_err(|error| damaged(format!("is damaged: {error}")))?;
        match journal.version {
            VERSION => Ok(Some(journal)),
            other => Err(damaged(format!("has version {other}, and not {VERSION}"))),
        }
    }

    /// Writes it down.
    pub fn save(&self, home: &Home) -> Result<(), Error> {
        let path = home.rebuilding(&self.record.name);
        if let Some(parent) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(|error| Error::file("make the directory", parent, error))?;
        }
        let json = serde_json::to_vec_pretty(self).map_err(|e| Error::file("write", &path, e.into()))?;
        write_private(&path, &json)
    }

    /// Goes on to the next step.
    pub fn goes_to(&mut self, phase: Phase, home: &Home) -> Result<(), Error> {
        self.phase = phase;
        self.save(home)
    }

    /// Removes it.
    pub fn remove(&self, home: &Home) -> Result<(), Error> {
        let path = home.rebuilding(&self.record.name);
        std::fs::remove_file(&path).map_err(|error| Error::file("remove", &path, error))?;
        let _ = std::fs::remove_file(home.rebuilding(&lock_of(&self.record.name)));
        if let Some(parent) = path.parent() {
            // Others may have theirs there.
            let _ = std::fs::remove_dir(parent);
        }
        Ok(())
    }
}

fn lock_of(name: &str) -> String {
    // No deployment's name starts with a dot.
    format!(".{name}.lock")
}

/// Taken by a command that rebuilds a deployment through the backend; it ends with the process at the latest.
pub fn lock(home: &Home, name: &str) -> Result<File, Error> {
    let path = home.rebuilding(&lock_of(name));
    if let Some(parent) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|error| Error::file("make the directory", parent, error))?;
    }
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let file = options.open(&path).map_err(|error| Error::file("open", &path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::refused(
            format!("another bivouac command rebuilds {name:?} through the backend"),
            "wait until it is done",
        )),
        Err(TryLockError::Error(error)) => Err(Error::file("lock", &path, error)),
    }
}

/// Refuses to begin or change a deployment that a rebuild through the backend has taken down, or is about to.
pub fn check_none(home: &Home, name: &str) -> Result<(), Error> {
    match Journal::load(home, name)? {
        None => Ok(()),
        Some(journal) => Err(Error::refused(
            format!(
                "{name:?} is being rebuilt through the backend, or that was interrupted: its files are in {} as well, or only there",
                journal.copy.display()
            ),
            format!("`bivouac rebuild {name} --rebuild backend` goes on with it"),
        )),
    }
}
