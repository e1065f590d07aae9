//! The file of results: a line of JSON for the exploration, and one for each run (`docs/explore.md`). Each line is
//! written whole when its run is over; so whatever ends the program, only the last line can be cut, and an exploration
//! that is started again with the same file goes on with the runs that are missing.

mod read;

use crate::error::ExploreError;
use crate::patterns::{Operation, Pattern};
use crate::run::{Counts, Measured};
use crate::sequence::Entry;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

pub use read::{Recorded, read};

/// Version of the file.
pub const VERSION: u32 = 1;

/// A line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// The first one.
    Exploration(Header),
    /// Another sitting begins.
    Continued {
        /// When, seconds since 1970.
        started: f64,
    },
    /// A run.
    Run(Run),
    /// A run that failed.
    Failed(Failed),
}

/// What is explored.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// The deployment's name.
    pub deployment: String,
    /// The directory of the backend that is used.
    pub directory: String,
    /// The kind of its file system.
    pub file_system: String,
    /// The nodes that programs run on.
    pub nodes: Vec<String>,
    /// The numbers of I/O nodes.
    pub io_nodes: Vec<u32>,
    /// How often each is measured.
    pub repetitions: u32,
    /// What the order follows from.
    pub seed: u64,
    /// When it began, seconds since 1970.
    pub started: f64,
    /// What orders requests in I/O nodes.
    pub scheduler: String,
    /// By what requests are dealt to I/O nodes.
    pub assign: String,
    /// The patterns, as they are run.
    pub patterns: Vec<Pattern>,
}

/// A run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Run {
    pub pattern: String,
    pub io_nodes: u32,
    pub repetition: u32,
    pub order: u64,
    pub begun: f64,
    pub load: f64,
    pub seconds: f64,
    pub bytes: u64,
    pub requests: u64,
    pub bandwidth: f64,
    pub phases: Vec<PhaseResult>,
    pub requests_in: Option<u64>,
    pub requests_out: Option<u64>,
    pub bytes_in: Option<u64>,
    pub bytes_out: Option<u64>,
    pub verified: bool,
}

/// A phase of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PhaseResult {
    pub operation: Operation,
    pub seconds: f64,
    pub bytes: u64,
    pub requests: u64,
    pub bandwidth: f64,
}

/// A run that failed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Failed {
    pub pattern: String,
    pub io_nodes: u32,
    pub repetition: u32,
    pub order: u64,
    pub begun: f64,
    pub error: String,
}

fn bandwidth(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }
}

impl PhaseResult {
    /// With the bandwidth that follows.
    pub fn new(operation: Operation, seconds: f64, bytes: u64, requests: u64) -> PhaseResult {
        PhaseResult { operation, seconds, bytes, requests, bandwidth: bandwidth(bytes, seconds) }
    }
}

impl Line {
    /// A run's line.
    pub fn run(entry: &Entry, pattern: &Pattern, begun: f64, measured: Measured, verified: bool) -> Line {
        let seconds = measured.phases.iter().map(|phase| phase.seconds).sum();
        let bytes = measured.phases.iter().map(|phase| phase.bytes).sum();
        let counted = |of: fn(&Counts) -> u64| measured.counts.as_ref().map(of);
        Line::Run(Run {
            pattern: pattern.name.clone(),
            io_nodes: entry.io_nodes,
            repetition: entry.repetition,
            order: entry.order,
            begun,
            load: measured.load,
            seconds,
            bytes,
            requests: measured.phases.iter().map(|phase| phase.requests).sum(),
            bandwidth: bandwidth(bytes, seconds),
            requests_in: counted(|counts| counts.requests_in),
            requests_out: counted(|counts| counts.requests_out),
            bytes_in: counted(|counts| counts.bytes_in),
            bytes_out: counted(|counts| counts.bytes_out),
            phases: measured.phases,
            verified,
        })
    }

    /// The line of a run that failed.
    pub fn failed(entry: &Entry, pattern: &Pattern, begun: f64, error: String) -> Line {
        Line::Failed(Failed {
            pattern: pattern.name.clone(),
            io_nodes: entry.io_nodes,
            repetition: entry.repetition,
            order: entry.order,
            begun,
            error,
        })
    }
}

/// A file of results that runs are added to. Nobody else adds to it meanwhile.
#[derive(Debug)]
pub struct Results {
    file: File,
    path: String,
    done: HashSet<(String, u32, u32)>,
    /// What the first line says, if the file was there.
    pub before: Option<Header>,
    /// The last line was cut, and is gone.
    pub was_cut: bool,
}

impl Results {
    /// Opens a file, and reads what is in it. Nothing is written yet, so that what is found wrong later leaves no file with a
    /// line in it.
    pub fn open(path: &Path) -> Result<Results, ExploreError> {
        let shown = path.display().to_string();
        let failed = |verb: &str| {
            let what = format!("{verb} {shown}");
            move |cause| ExploreError::File { what, cause }
        };
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ExploreError::Results(format!("another exploration writes {shown}")));
            }
            Err(TryLockError::Error(cause)) => return Err(failed("lock")(cause)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed("read"))?;
        let content = read::Content::of(&shown, &bytes)?;
        let mut results = Results {
            file,
            path: shown,
            done: HashSet::new(),
            before: content.header,
            was_cut: content.was_cut,
        };
        for (_, line) in content.lines {
            // What failed is done again.
            if let Line::Run(run) = line {
                results.done.insert((run.pattern, run.io_nodes, run.repetition));
            }
        }
        Ok(results)
    }

    /// Whether a run is in it, and did not fail.
    pub fn has(&self, entry: &Entry, pattern: &Pattern) -> bool {
        self.done.contains(&(pattern.name.clone(), entry.io_nodes, entry.repetition))
    }

    /// Begins an exploration, or goes on with the one that the file has, which has to be the same.
    pub fn begin(&mut self, header: Header) -> Result<(), ExploreError> {
        if let Some(before) = &self.before {
            let differs = [
                (before.patterns != header.patterns, "patterns"),
                (before.seed != header.seed, "seed"),
                (before.io_nodes != header.io_nodes, "numbers of I/O nodes"),
            ];
            if let Some((_, what)) = differs.iter().find(|(differs, _)| *differs) {
                let cause = format!("{} has results of an exploration with other {what}", self.path);
                return Err(ExploreError::Results(cause));
            }
        }
        // A line that was cut goes.
        let end = |file: &mut File| -> std::io::Result<()> {
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(0))?;
            file.read_to_end(&mut bytes)?;
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::End(0)).map(drop)
        };
        end(&mut self.file).map_err(|cause| self.unwritten(cause))?;
        match self.before {
            Some(_) => self.add(&Line::Continued { started: header.started }),
            None => self.add(&Line::Exploration(header)),
        }
    }

    /// Adds a line.
    pub fn add(&mut self, line: &Line) -> Result<(), ExploreError> {
        let mut text = serde_json::to_vec(line).map_err(|e| self.unwritten(e.into()))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(|cause| self.unwritten(cause))
    }

    fn unwritten(&self, cause: std::io::Error) -> ExploreError {
        ExploreError::File { what: format!("write {}", self.path), cause }
    }
}

#[cfg(test)]
mod tests;
