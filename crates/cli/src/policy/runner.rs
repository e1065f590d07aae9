//! The policy's process: looks at the servers, decides, and does what was decided.
//!
//! What it does is what `bivouac expand` and `bivouac shrink` do, by the same code and under the same lock. It holds that lock
//! only while servers are started or told to leave; files and shards then move by themselves, and it looks on until that is
//! done. It notes what it begins before it does: if it is killed, the next process completes or forgets it.
//!
//! It ends when it is told to (SIGTERM), and when the deployment is not there any more. Servers, or a controller, that do not
//! answer only make it wait.

use super::act::{Deed, Growth};
use super::decide::{Action, Cause, Obstacle, Sample, UnderWay, decide};
use super::files::{Begun, Memory};
use super::journal;
use super::sample::{self, Meter, in_words, percent};
use super::settings::Settings;
use super::spares::Failed;
use crate::error::Error;
use crate::home::{Directory, Home, Record, State};
use crate::mount::let_go;
use crate::{rebuild, signals};
use bivouac_proto::auth::Key;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Carries out a deployment's policy, until it is told to end.
pub fn run(home: &Home, name: &str) -> Result<(), Error> {
    let (stop, stopped) = mpsc::channel();
    let on_signal = move |taken: signals::Taken| {
        if taken.is_final() {
            signals::interrupt(taken.number);
            let _ = stop.send(());
        }
    };
    signals::take(on_signal)
        .map_err(|cause| Error::System { what: "cannot wait for signals".into(), cause })?;
    let directory = home.deployment(name);
    let off =
        || Error::refused(format!("{name:?} has no policy"), format!("see `bivouac policy {name} --help`"));
    let settings = directory.policy()?.filter(|settings| settings.on).ok_or_else(off)?;
    let (record, key, memory) = (directory.load()?, directory.key()?, directory.policy_memory()?);
    let Some(_alone) = directory.become_policy_process()? else {
        return Err(Error::refused(format!("the policy of {name:?} runs already"), "there is nothing to do"));
    };
    println!("ready");
    let_go();
    let mut runner = Runner::new(directory, settings, record.deployment, key, memory);
    runner.journal("begin", "looks at the servers", "");
    let every = Duration::from_secs(runner.settings.every);
    loop {
        match runner.round() {
            Ok(Going::On) => {}
            Ok(Going::Gone) => return Ok(()),
            Err(error) => runner.wait(&error.to_string(), ""),
        }
        match stopped.recv_timeout(every) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    runner.journal("end", "was told to end", "");
    Ok(())
}

/// Whether there is still something to look at.
enum Going {
    On,
    /// The deployment was taken down.
    Gone,
}

/// The process's state.
pub(super) struct Runner {
    pub(super) directory: Directory,
    pub(super) settings: Settings,
    pub(super) key: Key,
    pub(super) memory: Memory,
    pub(super) failed: Failed,
    deployment: u64,
    meter: Meter,
    begun: Instant,
    /// What it waits for, as was said last.
    waits_for: Option<String>,
    /// When it last began something.
    pub(super) acted: Instant,
    /// Since when servers are arriving that an earlier process has added.
    pub(super) arriving_since: Option<Instant>,
}

impl Runner {
    fn new(directory: Directory, settings: Settings, deployment: u64, key: Key, memory: Memory) -> Runner {
        let now = Instant::now();
        Runner {
            directory,
            settings,
            key,
            memory,
            failed: Failed::default(),
            deployment,
            meter: Meter::default(),
            begun: now,
            waits_for: None,
            acted: now,
            arriving_since: None,
        }
    }

    pub(super) fn journal(&self, event: &str, text: &str, saw: &str) {
        journal::write(&self.directory, event, text, saw);
    }

    /// Says once that it waits, and for what.
    pub(super) fn wait(&mut self, what: &str, saw: &str) {
        if self.waits_for.as_deref() != Some(what) {
            self.journal("wait", what, saw);
            self.waits_for = Some(what.to_owned());
        }
    }

    /// Time since the process began.
    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Remembers it for the next process, too.
    pub(super) fn remember(&mut self, begun: Option<Begun>) -> Result<(), Error> {
        self.memory.begun = begun;
        self.directory.save_policy_memory(&self.memory)
    }

    fn round(&mut self) -> Result<Going, Error> {
        let record = match self.directory.load() {
            Ok(record) => record,
            Err(Error::Unknown(_)) => return Ok(Going::Gone),
            Err(error) => return Err(error),
        };
        if record.deployment != self.deployment || record.state == State::Stopped {
            return Ok(Going::Gone);
        }
        if record.state != State::Running {
            return Ok(Going::On);
        }
        let map = rebuild::look(&record, &self.key)?;
        let spares = self.failed.usable(&self.settings.spares, &map, self.now());
        let when = (self.now(), spares.len());
        let sample = sample::look(&record, &self.key, &map, &self.settings, &mut self.meter, when);
        if self.finish(record.clone(), &map, &sample)? {
            // What was seen is out of date.
            return Ok(Going::On);
        }
        let most = self.memory.state.most;
        let (state, action) = decide(&self.settings.limits, self.memory.state.clone(), &sample);
        self.memory.state = state;
        if self.memory.state.most > most + most / 10 {
            self.directory.save_policy_memory(&self.memory)?;
        }
        let saw = self.saw(&sample);
        match action {
            Action::Nothing => self.waits_for = None,
            Action::Blocked(cause, obstacle) => self.blocked(cause, &obstacle, &sample, &saw),
            Action::Grow { count, cause } => {
                let why = self.why(cause, &sample);
                self.act(record, &saw, Deed::Grow(Growth { count, hosts: spares, why }))?;
            }
            Action::Shrink(server) => self.act(record, &saw, Deed::Shrink(server))?,
        }
        Ok(Going::On)
    }

    /// Takes the deployment's lock, looks whether still nothing else is under way, and does it.
    fn act(&mut self, mut record: Record, saw: &str, deed: Deed) -> Result<(), Error> {
        let lock = match self.directory.lock() {
            Ok(lock) => lock,
            Err(Error::Refused { .. }) => {
                self.memory.state.failed(self.now());
                self.wait(&obstacle_in_words(&Obstacle::UnderWay(UnderWay::Command)), saw);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        record = self.directory.load().unwrap_or(record);
        let map = rebuild::look(&record, &self.key).ok();
        let Some(map) = map.filter(|map| sample::under_way(map).is_none()) else {
            self.memory.state.failed(self.now());
            return Ok(());
        };
        (self.waits_for, self.acted) = (None, Instant::now());
        match deed {
            Deed::Grow(growth) => self.grow(&mut record, &map, growth, saw, &lock),
            Deed::Shrink(server) => self.shrink(&mut record, server, saw, &lock),
        }
    }

    /// What was seen, in words.
    pub(super) fn saw(&self, sample: &Sample) -> String {
        in_words(sample, self.memory.state.link(&self.settings.limits))
    }

    /// Why servers are added, in words.
    fn why(&self, cause: Cause, sample: &Sample) -> String {
        let limits = &self.settings.limits;
        match cause {
            Cause::Full(server) => {
                let full = sample.fullest().map_or(0, |(_, full)| full);
                format!(
                    "the storage of server {server} is {} full ({}% or more)",
                    percent(full),
                    limits.grow_above
                )
            }
            Cause::Busy(server) => format!(
                "server {server} has transferred {}% or more of what it can for {} s",
                limits.busy_above.unwrap_or(100),
                limits.busy_for
            ),
        }
    }

    fn blocked(&mut self, cause: Cause, obstacle: &Obstacle, sample: &Sample, saw: &str) {
        let obstacle = obstacle_in_words(obstacle);
        // Numbers change all the time.
        let kind = match cause {
            Cause::Full(_) => "a storage is too full",
            Cause::Busy(_) => "a server is too busy",
        };
        let text = format!("{kind}, but {obstacle}");
        if self.waits_for.as_deref() != Some(text.as_str()) {
            let why = self.why(cause, sample);
            self.journal("wait", &format!("{why}, but {obstacle}"), saw);
            self.waits_for = Some(text);
        }
    }
}

fn obstacle_in_words(obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::Most => "there are as many servers as there may be (--max)".into(),
        Obstacle::NoSpare => "no host is left to grow onto (--spares)".into(),
        Obstacle::Uneven(server) => format!(
            "more servers have not helped server {server}: files are spread unevenly (`bivouac layout` shows how; `bivouac rebuild` \
             spreads them anew)"
        ),
        Obstacle::UnderWay(other) => match other {
            UnderWay::Down(server) => format!("server {server} is down"),
            UnderWay::Silent(server) => format!("server {server} does not answer"),
            UnderWay::Arriving => "servers are arriving".into(),
            UnderWay::Departing => "servers are leaving".into(),
            UnderWay::Rebuild => "files are moving".into(),
            UnderWay::Shards => "metadata is moving".into(),
            UnderWay::Copies => "something has too few copies".into(),
            UnderWay::Command => "another command changes the deployment".into(),
        },
    }
}
