//! The file of results: a line of JSON for the characterization, and one for each measurement
//! (`docs/characterize.md`). Each line is written whole when its measurement is over; so whatever ends the
//! command, only the last line can be cut.

use super::protocol::Operation;
use crate::error::ExploreError;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Version of the file.
pub const VERSION: u32 = 1;

/// A line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// The first one.
    Characterization(Header),
    /// Reading or writing.
    Transfer(Transfer),
    /// A flood of small files.
    Flood(Flood),
    /// A rate of metadata operations.
    Metadata(Metadata),
}

/// What is measured, and where.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// When it began, seconds since 1970.
    pub started: f64,
    /// Memory of a node that its page cache can take, bytes.
    pub memory: u64,
    /// Processors of a node.
    pub cores: u64,
    /// What the order and random places follow from.
    pub seed: u64,
    /// The storages.
    pub storages: Vec<Storage>,
}

/// A storage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Storage {
    pub name: String,
    pub directory: String,
    pub file_system: String,
    pub capacity: u64,
    pub free: u64,
}

/// Reading or writing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Transfer {
    pub storage: String,
    pub operation: Direction,
    pub access: Access,
    pub fsync: bool,
    pub request: u64,
    pub nodes: u32,
    pub processes: u32,
    pub bytes: u64,
    pub requests: u64,
    pub seconds: f64,
    pub bandwidth: f64,
    pub repetition: u32,
    pub cached: bool,
}

/// Which way data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Direction {
    Write,
    Read,
}

/// In which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Access {
    Sequential,
    Random,
}

/// A flood of small files.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Flood {
    pub storage: String,
    pub files: u64,
    pub size: u64,
    pub processes: u32,
    pub create_seconds: f64,
    pub read_seconds: f64,
    pub present: u64,
    pub whole: u64,
    pub repetition: u32,
}

/// A rate of metadata operations.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Metadata {
    pub storage: String,
    pub operation: Operation,
    pub processes: u32,
    pub count: u64,
    pub seconds: f64,
    pub rate: f64,
    pub repetition: u32,
}

/// A file that lines are added to.
#[derive(Debug)]
pub struct Results {
    file: File,
    path: String,
}

impl Results {
    /// Makes the file, which must not be there.
    pub fn create(path: &Path) -> Result<Results, ExploreError> {
        let shown = path.display().to_string();
        match File::options().write(true).create_new(true).open(path) {
            Ok(file) => Ok(Results { file, path: shown }),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(ExploreError::Results(format!("{shown} is there already")))
            }
            Err(cause) => Err(ExploreError::File { what: format!("make {shown}"), cause }),
        }
    }

    /// Adds a line.
    pub fn add(&mut self, line: &Line) -> Result<(), ExploreError> {
        let mut text = serde_json::to_string(line)
            .map_err(|e| ExploreError::Results(format!("cannot write JSON: {e}")))?;
        text.push('\n');
        // Not buffered: one system call for each line.
        self.file
            .write_all(text.as_bytes())
            .map_err(|cause| ExploreError::File { what: format!("write {}", self.path), cause })
    }
}
