//! What a measurement does: the same in every worker but for its number.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What all workers do, phase after phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The directory to work in. It is made if it is missing, and then removed at the end.
    pub dir: String,
    /// Workers.
    pub procs: u32,
    /// Files (or directories) of each worker.
    pub files: u64,
    /// Bytes of each file.
    pub size: u64,
    /// Bytes of each read and write, at most.
    pub transfer: u64,
    /// All files in one directory, rather than a directory for each worker.
    pub shared: bool,
    /// `pwrite` and `pread` use one file, each worker its own stretch of it.
    pub one_file: bool,
    /// `pwrite` and `pread` go through the file in an order that looks random, and is the same in every run.
    pub random: bool,
    /// Times that each worker of `pwrite` and `pread` goes through its file.
    pub passes: u32,
    /// `stat`, `open`, `read`, `pread`, `rename` and `unlink` are about what the worker this much further on
    /// made.
    pub shift: u32,
    /// The phases.
    pub ops: Vec<Op>,
    /// What is left after the last phase stays.
    pub keep: bool,
}

impl Plan {
    /// Whether it can be done.
    pub fn check(&self) -> Result<(), String> {
        if self.dir.is_empty() {
            return Err("the directory has no name".into());
        }
        if self.procs == 0 || self.files == 0 {
            return Err("there is nothing to do: at least one process and one file".into());
        }
        if self.transfer == 0 || self.transfer > 1 << 30 {
            return Err("a transfer has 1 byte to 1 GiB".into());
        }
        if self.ops.iter().any(|op| matches!(op, Op::Pwrite | Op::Pread)) && self.size < self.transfer {
            return Err("pwrite and pread need files of at least one transfer (--size, --transfer)".into());
        }
        Ok(())
    }

    /// Reads or writes in one pass over a worker's stretch, for `pwrite` and `pread`.
    pub fn transfers(&self) -> u64 {
        self.size / self.transfer
    }
}

/// One kind of operation: a phase of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Make a directory.
    Mkdir,
    /// Create a file, write `size` bytes (none: leave it empty), close it.
    Create,
    /// Open an existing file, write `size` bytes from its start, close it.
    Write,
    /// Ask for a file's attributes by its name; the size must be right.
    Stat,
    /// Open a file for reading and close it.
    Open,
    /// Open a file, read all of it, close it; the length and the mark in it must be right.
    Read,
    /// Write one transfer to a file that is open.
    Pwrite,
    /// Read one transfer from a file that is open.
    Pread,
    /// List the directory; no file may be missing.
    List,
    /// List the directory and ask for the attributes of every entry.
    Liststat,
    /// Give a file another name in the same directory.
    Rename,
    /// Remove a file.
    Unlink,
    /// Remove a directory.
    Rmdir,
}

impl Op {
    /// All, with the word for each.
    pub const ALL: [(Op, &'static str); 13] = [
        (Op::Mkdir, "mkdir"),
        (Op::Create, "create"),
        (Op::Write, "write"),
        (Op::Stat, "stat"),
        (Op::Open, "open"),
        (Op::Read, "read"),
        (Op::Pwrite, "pwrite"),
        (Op::Pread, "pread"),
        (Op::List, "list"),
        (Op::Liststat, "liststat"),
        (Op::Rename, "rename"),
        (Op::Unlink, "unlink"),
        (Op::Rmdir, "rmdir"),
    ];
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Op::ALL.iter().find(|(op, _)| op == self).map_or("", |(_, word)| word);
        f.pad(word)
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Op, String> {
        let found = Op::ALL.iter().find(|(_, word)| *word == text).map(|(op, _)| *op);
        found.ok_or_else(|| {
            let words: Vec<&str> = Op::ALL.iter().map(|(_, word)| *word).collect();
            format!("one of {}", words.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_word_that_reads_back() {
        for (op, word) in Op::ALL {
            assert_eq!((op.to_string().as_str(), word.parse()), (word, Ok(op)));
        }
        assert!("".parse::<Op>().is_err() && "Create".parse::<Op>().is_err());
    }
}
