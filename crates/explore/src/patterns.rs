//! Access patterns: what processes do, phase after phase, and the file that describes it.
//!
//! The file is JSON with a version (`docs/explore.md` describes it). Reading it refuses everything that this
//! version does not know, and every value that makes no sense, and names the place. So everything else in this
//! crate relies on: at least one node, process and request of each process in each phase; numbers of bytes that
//! can be added and multiplied without overflow; names that occur once.

mod parse;

use crate::error::ExploreError;
use serde::{Deserialize, Serialize};

/// Version of the file.
pub const VERSION: u64 = 1;
/// Most bytes of a request.
pub const REQUEST_MAX: u64 = 1 << 30;
/// Most bytes of a phase: a pebibyte.
pub const TOTAL_MAX: u64 = 1 << 50;
/// Most processes of a pattern.
pub const PROCESSES_MAX: u64 = 1 << 20;
/// Longest time that all processes work in a phase, seconds.
pub const STONEWALL_MAX: f64 = 86_400.0;
/// Longest time between two requests, seconds.
pub const THINK_MAX: f64 = 3_600.0;
/// What O_DIRECT needs requests to be a multiple of, bytes.
pub const SECTOR: u64 = 512;
/// Longest name, bytes.
pub const NAME_MAX: usize = 100;

/// One pattern.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pattern {
    /// Its name, which no other pattern of the file has.
    pub name: String,
    /// Nodes that its processes run on.
    pub nodes: u32,
    /// Processes on all nodes together: as many on each.
    pub processes: u32,
    /// What they do, one after the other.
    pub phases: Vec<Phase>,
}

/// A time in which all processes do the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// What requests do.
    pub operation: Operation,
    /// Whose the files are.
    pub layout: Layout,
    /// In which order a process goes through a file.
    pub spatiality: Spatiality,
    /// Bytes of a request.
    pub request: u64,
    /// Bytes over all processes; at least this or `stonewall` is there.
    pub total: Option<u64>,
    /// Seconds after which everybody stops.
    pub stonewall: Option<f64>,
    /// Of a mixed phase: the share of requests that read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_share: Option<f64>,
    /// With O_DIRECT.
    pub direct: bool,
    /// With an fsync of each process at the end, as a part of the phase.
    pub fsync: bool,
    /// Seconds between two requests of a process.
    pub think: f64,
}

/// What requests do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Operation {
    Write,
    Read,
    Mixed,
}

/// Whose files are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Each process has a file of its own.
    Own,
    /// All use one.
    Shared,
}

/// In which order a process goes through a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spatiality {
    /// One request after the other.
    Contiguous,
    /// With a gap between each two: in a shared file, where the others' requests are.
    Strided,
    /// In no order.
    Random,
}

impl Operation {
    /// The word of the file.
    pub fn word(self) -> &'static str {
        match self {
            Operation::Write => "write",
            Operation::Read => "read",
            Operation::Mixed => "mixed",
        }
    }

    /// Whether its files have to be there before.
    pub fn reads(self) -> bool {
        self != Operation::Write
    }
}

impl Pattern {
    /// Processes on each node.
    pub fn on_each_node(&self) -> u32 {
        self.processes / self.nodes.max(1)
    }
}

impl Phase {
    /// Requests of each process, if the phase is limited by bytes: the same for all, so that up to one request of each
    /// process less than the total is transferred.
    pub fn requests(&self, processes: u32) -> Option<u64> {
        self.total.map(|total| (total / self.request / u64::from(processes)).max(1))
    }
}

/// A patterns file's content.
pub fn parse(text: &str) -> Result<Vec<Pattern>, ExploreError> {
    parse::file(text)
}

/// The content of a file with these patterns.
pub fn print(patterns: &[Pattern]) -> Result<String, ExploreError> {
    #[derive(Serialize)]
    struct File<'a> {
        version: u64,
        patterns: &'a [Pattern],
    }
    serde_json::to_string_pretty(&File { version: VERSION, patterns })
        .map_err(|e| ExploreError::Results(format!("cannot write JSON: {e}")))
}

#[cfg(test)]
mod tests;
