//! What the command, the nodes and the processes say to each other: lines of JSON over standard input and output,
//! which anything passes on that starts programs elsewhere.

use crate::characterize::protocol::{Answer as Tried, Place, Trial};
use crate::patterns::Pattern;
use serde::{Deserialize, Serialize};

/// What processes are started for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Work {
    /// A run of an exploration.
    Run(Task),
    /// Measuring a storage.
    Storage(Place),
}

/// What all processes of a run have to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The directory for the run's files, below one for the exploration. Process 0 makes both.
    pub directory: String,
    /// A number that no other run has.
    pub run: u64,
    /// What is done.
    pub pattern: Pattern,
}

/// What the command says to the part on a node.
#[derive(Debug, Serialize, Deserialize)]
pub enum NodeOrder {
    /// Say what is to be known of the node.
    Look {
        /// Which directory is going to be used.
        directory: String,
    },
    /// Start processes.
    Start {
        /// The deployment that they are started in; `None`: as ordinary processes of the machine.
        deployment: Option<String>,
        /// The number of the first one.
        first: u32,
        /// How many.
        count: u32,
        /// What they are to do.
        work: Box<Work>,
    },
    /// Pass this on to all processes.
    Pass(Order),
    /// Drop the page cache.
    DropCaches,
    /// See that all processes end.
    Stop,
}

/// What the part on a node answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum NodeAnswer {
    /// To `Look`.
    Seen(Seen),
    /// To `Start`: all have begun.
    Started {
        /// The directory that is forwarded for them, if one is.
        forwarded: Option<String>,
    },
    /// To `Pass`: each process's answer.
    Answers(Vec<Answer>),
    /// To `DropCaches`: whether that was allowed.
    Dropped(bool),
    /// To `Stop`.
    Stopped,
    /// It could not be done.
    Failed(String),
}

/// What is to be known of a node.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Which boot of which machine it is: clocks can be compared within one.
    pub boot: String,
    /// The load of the last minute.
    pub load: f64,
    /// On which kind of file system the directory lies, if it is there.
    pub file_system: Option<String>,
}

/// What a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Comes first: the work, and the process's number in it.
    Begin(Box<Work>, u32),
    /// Do a step of measuring a storage; the only order of that work, beside `End`.
    Try(Box<Trial>),
    /// Make what the files of a phase are before it.
    Prepare(usize),
    /// Open what the phase uses.
    Open(usize),
    /// Do the phase.
    Go {
        /// Which.
        phase: usize,
        /// How many requests each process has prepared.
        prepared: u64,
    },
    /// Check what another process has written in the phase.
    Verify {
        /// Which.
        phase: usize,
        /// How many requests each process has done.
        done: Vec<u64>,
    },
    /// Remove the phase's files.
    Clean(usize),
    /// Remove the directory, and end.
    End,
}

/// What a process answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Ready,
    /// To `Prepare`: so many requests.
    Prepared(u64),
    /// To `Go`.
    Done(Outcome),
    /// To `Try`.
    Tried(Tried),
    /// It could not be done, or what was read is wrong.
    Failed(String),
}

/// What a process has done in a phase.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// When it began and ended, on the machine's clock, nanoseconds.
    pub began: u64,
    /// See `began`.
    pub ended: u64,
    /// Requests done.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}
