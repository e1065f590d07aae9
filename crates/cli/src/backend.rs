//! Rebuilding a deployment through the site's file system: everything is copied out, the deployment is taken
//! down and comes up on its new servers with the same options, and everything is copied in. `expand` and
//! `shrink` do so with `--rebuild backend`.
//!
//! Programs are absent meanwhile: the agents refuse those that would begin to use the deployment, and the
//! command is refused, or waits, while any does. Each step is written down before it begins ([`journal`]),
//! outside the deployment's directory; whenever the command is killed, the same command, or `bivouac rebuild
//! NAME --rebuild backend`, goes on. Nothing is lost: the deployment is taken down only when the copy was
//! found complete and nobody can use the deployment any more, from which moment on there is no way back; and the copy is
//! removed only when the new deployment was.

pub mod journal;
pub mod layouts;
mod plan;

pub use plan::planned;

use crate::args::{BackendArgs, Copy};
use crate::copy::{self, How};
use crate::error::Error;
use crate::home::{Directory, Home, Record, State, random};
use crate::text::{count, plural, size};
use crate::{down, leader, status, up};
use bivouac_daemon::controller::ControlLink;
use bivouac_layout::ServerState;
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_stage::Direction;
use bivouac_transport::engine::budget::control;
use journal::{Journal, Phase};
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two looks whether programs have ended.
const LOOK: Duration = Duration::from_millis(200);
/// The copy of the files, in the directory that is made for it; and the layouts of files.
const TREE: &str = "tree";
const LAYOUTS: &str = "layouts";

/// Begins, or goes on where a command that was killed has ended. `plan`: the deployment's daemons are to be
/// these.
pub fn rebuild(
    home: &Home,
    name: &str,
    (args, rate): (&BackendArgs, u64),
    plan: impl FnOnce(&Record, &Directory) -> Result<Vec<crate::home::DaemonRecord>, Error>,
) -> Result<(), Error> {
    let _lock = journal::lock(home, name)?;
    let journal = match Journal::load(home, name)? {
        Some(journal) => {
            let servers = journal.record.daemons.iter().filter(|daemon| daemon.server.is_some()).count();
            eprintln!(
                "bivouac: the rebuild of {name} to {} goes on, with {}",
                plural(servers, "server"),
                journal.copy.display()
            );
            journal
        }
        None => begin(home, name, (args, rate), plan)?,
    };
    Run { home, directory: home.deployment(name), journal, waits: args.wait }.all()
}

/// Goes on with what was begun.
pub fn go_on(home: &Home, name: &str) -> Result<(), Error> {
    let args = BackendArgs { backend: None, wait: false };
    rebuild(home, name, (&args, 0), |_, _| {
        Err(Error::refused(
            "no rebuild through the backend was begun",
            format!(
                "`bivouac expand {name}` and `bivouac shrink {name}` begin one, with --rebuild backend --backend DIR"
            ),
        ))
    })
}

/// Gives up what was begun, if the deployment is still as it was. `false`: there is nothing.
pub fn cancel(home: &Home, name: &str) -> Result<bool, Error> {
    if Journal::load(home, name)?.is_none() {
        return Ok(false);
    }
    let _lock = journal::lock(home, name)?;
    let Some(journal) = Journal::load(home, name)? else { return Ok(false) };
    let directory = home.deployment(name);
    let record = directory.load();
    match record {
        Ok(record) if journal.phase == Phase::Flush && record.deployment == journal.old => {
            close(&directory, false)?;
            admit(&record, &directory.key()?, true)?;
            remove_copy(&journal.copy)?;
            journal.remove(home)?;
            println!("{name} stays as it is");
            Ok(true)
        }
        _ => Err(Error::refused(
            format!("{name:?} is not as it was any more: its files are in {}", journal.copy.display()),
            format!("`bivouac rebuild {name} --rebuild backend` completes it"),
        )),
    }
}

fn begin(
    home: &Home,
    name: &str,
    (args, rate): (&BackendArgs, u64),
    plan: impl FnOnce(&Record, &Directory) -> Result<Vec<crate::home::DaemonRecord>, Error>,
) -> Result<Journal, Error> {
    let directory = home.deployment(name);
    let record = directory.load()?;
    record.check_runs()?;
    if record.ephemeral {
        return Err(Error::refused(
            format!("{name:?} ends with the `bivouac run` that made it, and cannot be taken down in between"),
            "use --rebuild metadata or direct",
        ));
    }
    let daemons = plan(&record, &directory)?;
    let backend = args.backend.as_ref().ok_or_else(|| {
        Error::refused(
            "nobody has said where the files are to be copied to",
            "give --backend DIR, on the site's file system",
        )
    })?;
    let backend = std::path::absolute(backend).map_err(|error| Error::file("find", backend, error))?;
    let mut number = [0; 8];
    random(&mut number)?;
    let copy = backend.join(format!("bivouac-{name}-{:016x}", record.deployment));
    let new = Record {
        deployment: u64::from_le_bytes(number),
        state: State::Starting,
        closed: true,
        daemons,
        former: Vec::new(),
        ..record.clone()
    };
    up::check_copies(&new)?;
    let journal = Journal::new(record.deployment, copy, new, rate);
    if journal.copy.exists() {
        return Err(Error::refused(
            format!("{} is there already", journal.copy.display()),
            "remove or rename it, if nobody needs it; or give another --backend",
        ));
    }
    make_directory(&journal.copy)?;
    journal.save(home)?;
    Ok(journal)
}

fn make_directory(path: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(Error::file("make the directory", path, error))
        }
        _ => Ok(()),
    }
}

fn remove_copy(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file("remove", path, error)),
        _ => Ok(()),
    }
}

/// Whether agents that are started from now on let programs use the deployment, or not.
fn close(directory: &Directory, closed: bool) -> Result<(), Error> {
    let _lock = directory.lock()?;
    directory.save(&Record { closed, ..directory.load()? })
}

/// Has the agents of all nodes let programs use the deployment, or not. Those that use it at this moment, in
/// words.
fn admit(record: &Record, key: &Key, programs: bool) -> Result<Vec<String>, Error> {
    let mut users = Vec::new();
    for agent in record.daemons.iter().filter(|daemon| daemon.agent) {
        let asked =
            ControlLink::connect(&agent.endpoint(&record.name, key), key, record.deployment, control::AGENT)
                .and_then(|mut link| link.request(ControlRequest::Admit { programs }));
        let there = match asked {
            Ok(Some(ControlReply::Users(there))) => there,
            other => {
                let why =
                    other.err().map_or_else(|| "its answer makes no sense".into(), |error| error.to_string());
                return Err(Error::Unanswered {
                    cause: format!(
                        "the agent on {} does not say which programs use {:?}: {why}",
                        agent.host, record.name
                    ),
                    remedy: format!(
                        "see `bivouac status {0}`; `bivouac restart {0}` starts a missing agent again",
                        record.name
                    ),
                });
            }
        };
        users.extend(
            there.into_iter().map(|(pid, command)| format!("process {pid} ({command}) on {}", agent.host)),
        );
    }
    Ok(users)
}

struct Run<'h> {
    home: &'h Home,
    directory: Directory,
    journal: Journal,
    waits: bool,
}

impl Run<'_> {
    fn all(&mut self) -> Result<(), Error> {
        loop {
            let begun = Instant::now();
            let (step, next) = match self.journal.phase {
                Phase::Flush => {
                    let flushed = self.flush();
                    if flushed.is_err() {
                        self.open_again();
                    }
                    flushed?;
                    (0, Phase::Restart)
                }
                Phase::Restart => {
                    self.restart()?;
                    (1, Phase::Preload)
                }
                Phase::Preload | Phase::Remove if !self.is_new()? => {
                    self.check_nobody_has_used_it()?;
                    self.journal.goes_to(Phase::Restart, self.home)?;
                    continue;
                }
                Phase::Preload => {
                    self.preload()?;
                    (2, Phase::Remove)
                }
                Phase::Remove => return self.remove(),
            };
            let seconds = begun.elapsed().as_secs_f64();
            if let Some(took) = self.journal.seconds.get_mut(step) {
                *took += seconds;
            }
            println!("{}: {seconds:.3} s", ["flush", "restart", "preload"][step]);
            self.journal.goes_to(next, self.home)?;
            if next == Phase::Restart {
                self.take_down()?;
            }
        }
    }

    fn name(&self) -> &str {
        &self.directory.name
    }

    fn running(&self) -> Result<(Record, Key), Error> {
        let record = self.directory.load().map_err(|error| match error {
            Error::Unknown(_) => Error::refused(
                format!(
                    "{:?} is gone; what was copied of it is in {}",
                    self.name(),
                    self.journal.copy.display()
                ),
                format!(
                    "it may be incomplete. To forget the rebuild, remove {}",
                    self.home.rebuilding(self.name()).display()
                ),
            ),
            other => other,
        })?;
        record.check_runs()?;
        Ok((record, self.directory.key()?))
    }

    /// After a failure before the deployment is touched: programs may use it.
    fn open_again(&self) {
        if let Ok((record, key)) = self.running() {
            let _ = close(&self.directory, false).and_then(|()| admit(&record, &key, true));
        }
    }

    /// Copies everything out, while no program uses the deployment, and makes sure that it is all there.
    fn flush(&mut self) -> Result<(), Error> {
        let (record, key) = self.running()?;
        self.keep_programs_out(&record, &key)?;
        make_directory(&self.journal.copy)?;
        let layouts = self.journal.copy.join(LAYOUTS);
        layouts::save(self.name(), &layouts)?;
        let tree = self.journal.copy.join(TREE);
        let (inside, outside) = (PathBuf::from("/"), tree);
        let report = self.copy(Direction::Out, &inside, &outside, false)?;
        let checked = self.copy(Direction::Out, &inside, &outside, true)?;
        if let Some((path, what)) = report.left_out.first().or(checked.left_out.first()) {
            return Err(Error::refused(
                format!("the backend cannot hold all of {}: {what}", path.display()),
                "give a --backend that can, after `bivouac rebuild --cancel`; or use --rebuild direct",
            ));
        }
        is_complete(&checked, &outside)?;
        self.journal.counts = [checked.unchanged + checked.files, checked.directories];
        // Nobody is to use it any more, also if an agent is started again: a command that is killed while it takes the
        // deployment down cannot tell whether it has begun to, and the next one goes on with that.
        close(&self.directory, true)?;
        let users = admit(&record, &key, false)?;
        if users.is_empty() { Ok(()) } else { Err(in_use(self.name(), &users)) }
    }

    fn keep_programs_out(&self, record: &Record, key: &Key) -> Result<(), Error> {
        let mut told = Vec::new();
        loop {
            // Children of programs that run could not begin if they were kept out.
            let mut users = admit(record, key, true)?;
            if users.is_empty() {
                users = admit(record, key, false)?;
                if users.is_empty() {
                    return Ok(());
                }
                admit(record, key, true)?;
            }
            if !self.waits {
                return Err(in_use(self.name(), &users));
            }
            if users != told {
                users.iter().for_each(|user| eprintln!("bivouac: waits until {user} ends"));
                told = users;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Copies everything, or only says what would be copied.
    fn copy(
        &self,
        direction: Direction,
        src: &Path,
        dst: &Path,
        dry_run: bool,
    ) -> Result<bivouac_stage::Report, Error> {
        let tree = Copy { src: src.to_owned(), dst: Some(dst.to_owned()) };
        let servers =
            self.running()?.0.daemons.iter().filter(|daemon| daemon.server.is_some()).count() as u64;
        let rate = Some(self.journal.rate.saturating_mul(servers)).filter(|rate| *rate > 0);
        copy::copy_tree(self.home, self.name(), &tree, direction, &How::mirror(dry_run, rate))
    }

    /// Whether the deployment is the new one, and runs.
    fn is_new(&self) -> Result<bool, Error> {
        match self.directory.load() {
            Ok(record) if record.deployment == self.journal.record.deployment => {
                let runs = record.state == State::Running;
                Ok(runs && self.directory.key().is_ok_and(|key| all_are_up(&record, &key)))
            }
            Ok(_) | Err(Error::Unknown(_)) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Takes down what there is of the deployment: everything is in the copy.
    fn take_down(&self) -> Result<(), Error> {
        match self.directory.load() {
            Ok(record) => {
                let lock = self.directory.lock()?;
                down::take_down(&self.directory, &record, false, &lock)
            }
            Err(Error::Unknown(_)) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Brings the deployment up on the new servers, empty and closed to programs.
    fn restart(&self) -> Result<(), Error> {
        if self.is_new()? {
            return Ok(());
        }
        self.take_down()?;
        self.directory.create()?;
        let lock = self.directory.lock()?;
        let key = self.directory.make_key()?;
        up::begin_new(self.home, &self.directory, self.journal.record.clone(), key, &lock).map(drop)
    }

    /// Copies everything in, and makes sure that it is all there.
    fn preload(&self) -> Result<(), Error> {
        let layouts = self.journal.copy.join(LAYOUTS);
        layouts::restore(self.name(), &layouts)?;
        let (outside, inside) = (self.journal.copy.join(TREE), PathBuf::from("/"));
        self.copy(Direction::In, &outside, &inside, false)?;
        let checked = self.copy(Direction::In, &outside, &inside, true)?;
        is_complete(&checked, &outside)?;
        let counts = [checked.unchanged + checked.files, checked.directories];
        if counts != self.journal.counts {
            return Err(Error::refused(
                format!(
                    "{} files and {} directories were copied out, and {} and {} are there",
                    self.journal.counts[0], self.journal.counts[1], counts[0], counts[1]
                ),
                format!(
                    "the copy in {} is kept: look what is missing, and repeat the command",
                    outside.display()
                ),
            ));
        }
        Ok(())
    }

    /// The new deployment's servers are not all up. If programs may have used it, the copy is not what they would miss.
    fn check_nobody_has_used_it(&self) -> Result<(), Error> {
        match self.directory.load() {
            Ok(record) if record.deployment == self.journal.record.deployment && !record.closed => {
                Err(Error::refused(
                    format!(
                        "not all servers of {:?} are up, and programs may have used it since it was complete; the copy from before is kept in {}",
                        self.name(),
                        self.journal.copy.display()
                    ),
                    format!(
                        "bring them back (`bivouac status {0}`), and repeat the command; or, to forget the rebuild, remove {1}",
                        self.name(),
                        self.home.rebuilding(self.name()).display()
                    ),
                ))
            }
            Err(other) if !matches!(other, Error::Unknown(_)) => Err(other),
            _ => Ok(()),
        }
    }

    /// Lets programs use the deployment, which has everything, and removes the copy. This is a step of its own: copying in once
    /// more would undo what they have done.
    fn remove(&self) -> Result<(), Error> {
        let Journal { copy, record, seconds, counts, .. } = &self.journal;
        let (new, key) = self.running()?;
        close(&self.directory, false)?;
        admit(&new, &key, true)?;
        remove_copy(copy)?;
        self.journal.remove(self.home)?;
        let servers = record.daemons.iter().filter(|daemon| daemon.server.is_some()).count();
        let stored = self.running().ok().map(|(record, key)| stored(&record, &key));
        println!(
            "{} has {} now: {} files and {} directories, {} stored; flush {:.3} s, restart {:.3} s, preload {:.3} s",
            self.name(),
            plural(servers, "server"),
            count(counts[0]),
            count(counts[1]),
            size(stored.unwrap_or_default()),
            seconds[0],
            seconds[1],
            seconds[2]
        );
        Ok(())
    }
}

/// Whether all servers of a deployment serve.
fn all_are_up(record: &Record, key: &Key) -> bool {
    let is_up = |overview: status::Overview| overview.map.servers.iter().all(|s| s.state == ServerState::Up);
    leader::anybody(record, key) && status::overview(record, key).is_ok_and(is_up)
}

/// Bytes that all servers store.
fn stored(record: &Record, key: &Key) -> u64 {
    let servers = status::overview(record, key).map(|overview| overview.map.servers).unwrap_or_default();
    let stats = servers.iter().filter_map(|server| status::counted(server, record.deployment, key));
    stats.map(|stats| stats.stored).sum()
}

fn in_use(name: &str, users: &[String]) -> Error {
    let named: Vec<&str> = users.iter().take(5).map(String::as_str).collect();
    let more = users.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Error::refused(
        format!(
            "programs use {name:?}, which --rebuild backend takes down in between: {}{more}",
            named.join(", ")
        ),
        "wait until they have ended, or have the command wait (--wait-for-programs); --rebuild direct works beside them",
    )
}

/// Refuses a copy of which something would still have to be done.
fn is_complete(checked: &bivouac_stage::Report, tree: &Path) -> Result<(), Error> {
    match checked.planned.first() {
        None => Ok(()),
        Some((path, what)) => Err(Error::refused(
            format!(
                "{} and the deployment differ in {}: {} ({what})",
                tree.display(),
                plural(checked.planned.len(), "name"),
                path.display()
            ),
            "repeat the command: it copies what is missing",
        )),
    }
}
