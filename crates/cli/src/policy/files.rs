//! The files of a policy in the deployment's directory, and the process that carries it out.
//!
//! - `policy.json`: what the user wants ([`Settings`]).
//! - `policy-state.json`: what the process has to remember ([`Memory`]); only the process writes it.
//! - `policy.lock`: locked by the process as long as it lives, and says which process that is. So there is one at a time, and
//!   who finds the file knows whether that process lives, by number and start time.
//! - `policy.log`: what it did and why ([`super::journal`]).

use super::decide::State;
use super::settings::{Settings, VERSION};
use crate::error::Error;
use crate::home::{Directory, read_own, write_private};
use crate::process::ProcessId;
use bivouac_layout::ServerId;
use rustix::process::Signal;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

const SETTINGS: &str = "policy.json";
const STATE: &str = "policy-state.json";
const LOCK: &str = "policy.lock";
/// The log, and what it was before it became long.
pub(super) const LOG: &str = "policy.log";
pub(super) const LOG_BEFORE: &str = "policy.log.old";

/// All of them, for `down`.
pub const ALL: [&str; 7] =
    [SETTINGS, "policy.json.new", STATE, "policy-state.json.new", LOCK, LOG, LOG_BEFORE];

/// How long the process may take to end: it completes or takes back what it has begun.
const GRACE: Duration = Duration::from_secs(30);

/// What was begun, and is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Begun {
    /// Servers are added, with this number and later ones; then files are to be spread over them.
    Growing(u16),
    /// Files are spread over servers that were added.
    Spreading,
    /// A server leaves.
    Leaving(ServerId),
}

/// What the process has to remember.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Memory {
    /// For the decision.
    pub state: State,
    /// What was begun.
    pub begun: Option<Begun>,
}

impl Directory {
    /// What the user wants of the policy; `None`: nothing was ever said.
    pub fn policy(&self) -> Result<Option<Settings>, Error> {
        let settings: Option<Settings> = self.read_json(SETTINGS)?;
        match settings {
            Some(settings) if settings.version != VERSION => Err(Error::refused(
                format!("{} has version {}, this program reads {VERSION}", SETTINGS, settings.version),
                "use the Bivouac that started the deployment",
            )),
            settings => Ok(settings),
        }
    }

    /// Notes it.
    pub fn save_policy(&self, settings: &Settings) -> Result<(), Error> {
        self.write_json(SETTINGS, settings)
    }

    /// What an earlier process has remembered.
    pub fn policy_memory(&self) -> Result<Memory, Error> {
        Ok(self.read_json(STATE)?.unwrap_or_default())
    }

    /// Notes it.
    pub fn save_policy_memory(&self, memory: &Memory) -> Result<(), Error> {
        self.write_json(STATE, memory)
    }

    /// The policy's process, if it lives.
    pub fn policy_process(&self) -> Option<ProcessId> {
        let text = read_own(&self.path.join(LOCK)).ok()?;
        let process: ProcessId = serde_json::from_slice(&text).ok()?;
        process.is_alive().then_some(process)
    }

    /// Has this process be the policy's. `None`: there is another one. It lasts as long as the file is open.
    pub fn become_policy_process(&self) -> Result<Option<File>, Error> {
        let path = self.path.join(LOCK);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let mut file = options.open(&path).map_err(|cause| Error::file("open", &path, cause))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(cause)) => return Err(Error::file("lock", &path, cause)),
        }
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.write_all(&serde_json::to_vec(&ProcessId::own())?)
        };
        write(&mut file).map_err(|cause| Error::file("write", &path, cause))?;
        Ok(Some(file))
    }

    /// Ends the policy's process. It must not be the one that calls this.
    pub fn end_policy_process(&self) {
        if let Some(process) = self.policy_process() {
            process.signal(Signal::TERM);
            process.end(GRACE);
        }
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let path = self.path.join(name);
        let text = match read_own(&path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(Error::file("read", &path, cause)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|cause| {
            Error::refused(
                format!("{} is damaged: {cause}", path.display()),
                format!("remove it, and switch the policy on anew (`bivouac policy {} on`)", self.name),
            )
        })
    }

    fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), Error> {
        let path: PathBuf = self.path.join(name);
        let json =
            serde_json::to_vec_pretty(value).map_err(|cause| Error::file("write", &path, cause.into()))?;
        write_private(&path, &json)
    }
}
