//! What can go wrong at the command line: a cause, a remedy, an exit code.
//!
//! Every error that a user can meet says what to do about it. Exit codes are a contract
//! (`docs/operations.md`); they start at 64, so that they rarely meet those of the programs that `run` and
//! `exec` stand for.

use std::path::Path;

/// Exit codes of the command itself.
pub mod exit {
    /// Unknown deployment, or one that does not run.
    pub const UNKNOWN: u8 = 64;
    /// Something that was given is refused: storage, mount path, host, name.
    pub const REFUSED: u8 = 65;
    /// A daemon did not start.
    pub const LAUNCH: u8 = 66;
    /// The deployment does not answer, or not everything of it could be taken down.
    pub const UNANSWERED: u8 = 67;
    /// Files could not be copied.
    pub const COPY: u8 = 68;
    /// `run`: the command succeeded, but its results could not be flushed; the deployment is kept.
    pub const FLUSH: u8 = 69;
    /// Anything else, for example a full disk under the deployment's directory.
    pub const SYSTEM: u8 = 70;
    /// `bench`, `explore`, `characterize`: operations failed, or their results were wrong.
    pub const BENCH: u8 = 71;
    /// The command to run cannot be executed.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// The command to run does not exist.
    pub const NOT_FOUND: u8 = 127;
}

/// An error that ends the command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No deployment has this name.
    #[error("there is no deployment named {0:?}")]
    Unknown(String),
    /// It is there, and does not run.
    #[error("the deployment {name:?} does not run: {state}")]
    NotRunning {
        /// Its name.
        name: String,
        /// What it does instead.
        state: String,
    },
    /// What the user gave cannot be used.
    #[error("{cause}")]
    Refused {
        /// Why.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// A daemon did not start.
    #[error("{host}: {cause}")]
    Launch {
        /// Where.
        host: String,
        /// What the daemon or its launcher said.
        cause: String,
        /// What to do.
        remedy: String,
        /// The daemon refuses what the user gave.
        refused: bool,
    },
    /// The launcher did not get to a host: nothing was done there.
    #[error("{host}: {cause}")]
    Unreached {
        /// Where.
        host: String,
        /// What the launcher said.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// Something does not answer.
    #[error("{cause}")]
    Unanswered {
        /// What.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// Some files were not copied.
    #[error("{cause}")]
    Copy {
        /// How many, and the first.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// The command could not be executed.
    #[error("cannot execute {command:?}: {cause}")]
    Exec {
        /// Which.
        command: String,
        /// Why.
        cause: std::io::Error,
    },
    /// A signal ended the command before its work was done.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
    /// A measurement could not be made.
    #[error(transparent)]
    Bench(#[from] bivouac_bench::BenchError),
    /// A system call failed.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        cause: std::io::Error,
    },
}

impl Error {
    /// What the user gave cannot be used.
    pub fn refused(cause: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Refused { cause: cause.into(), remedy: remedy.into() }
    }

    /// The outcome of several things that were all tried: every failure but the last is shown, and the last
    /// one returned.
    pub fn of_all(results: impl IntoIterator<Item = Result<(), Error>>) -> Result<(), Error> {
        let mut last = Ok(());
        for failed in results.into_iter().filter_map(Result::err) {
            if let Err(earlier) = std::mem::replace(&mut last, Err(failed)) {
                earlier.show();
            }
        }
        last
    }

    /// A file operation failed.
    pub fn file(verb: &str, path: &Path, cause: std::io::Error) -> Error {
        Error::System { what: format!("cannot {verb} {}", path.display()), cause }
    }

    /// What the user can do about it.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Error::Unknown(_) => {
                Some("`bivouac status` lists the deployments, `bivouac up NAME` starts one".into())
            }
            Error::NotRunning { name, .. } => Some(format!(
                "`bivouac up {name}` brings it back with its data, `bivouac down {name}` removes what it left"
            )),
            Error::Refused { remedy, .. }
            | Error::Launch { remedy, .. }
            | Error::Unreached { remedy, .. }
            | Error::Unanswered { remedy, .. }
            | Error::Copy { remedy, .. } => Some(remedy.clone()),
            Error::Exec { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
                Some("check the spelling, or give the whole path".into())
            }
            Error::Exec { .. } => Some("is it an executable file?".into()),
            Error::System { cause, .. } => {
                match cause.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                    Some(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                        Some("free some space there, or set BIVOUAC_HOME to a directory with space".into())
                    }
                    Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
                        Some("check the permissions and the owner".into())
                    }
                    _ => None,
                }
            }
            Error::Bench(_) | Error::Interrupted(_) => None,
        }
    }

    /// What the process exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Unknown(_) | Error::NotRunning { .. } => exit::UNKNOWN,
            Error::Refused { .. } | Error::Launch { refused: true, .. } => exit::REFUSED,
            Error::Launch { .. } | Error::Unreached { .. } => exit::LAUNCH,
            Error::Unanswered { .. } => exit::UNANSWERED,
            Error::Copy { .. } => exit::COPY,
            Error::Exec { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => exit::NOT_FOUND,
            Error::Exec { .. } => exit::NOT_EXECUTABLE,
            Error::Interrupted(signal) => 128u8.saturating_add(*signal as u8),
            Error::Bench(_) | Error::System { .. } => exit::SYSTEM,
        }
    }

    /// Tells the user: cause, then remedy.
    pub fn show(&self) {
        eprintln!("bivouac: {self}");
        if let Some(remedy) = self.remedy() {
            for line in remedy.lines() {
                eprintln!("  {line}");
            }
        }
    }
}
