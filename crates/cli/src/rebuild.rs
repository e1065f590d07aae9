//! Restriping all files of a deployment, in the background: `bivouac rebuild`, and what `expand` and `shrink` do after they
//! have changed the servers.
//!
//! The servers do it by themselves, as long as the map says so. This command has the map say so, and then watches; if it is
//! interrupted, they go on.

use crate::args::{RebuildArgs, Restripe};
use crate::backend;
use crate::error::Error;
use crate::holding::{self, Holding};
use crate::home::{Home, Record};
use crate::text::{plural, size};
use crate::{leader, status};
use bivouac_daemon::controller::LinkError;
use bivouac_layout::{Map, Rule, ServerId, ServerState};
use bivouac_proto::auth::Key;
use bivouac_proto::control::ControlRequest;
use bivouac_proto::restripe::Progress;
use bivouac_transport::engine::budget::control;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two looks at how far the servers are.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two lines about it, on a terminal.
const SAY: Duration = Duration::from_millis(500);
/// Time between two questions for whom files wait.
const ASK: Duration = Duration::from_secs(1);
/// A server that is down is not waited for longer than this, if nothing moves meanwhile.
const STUCK: Duration = Duration::from_secs(10);

/// What the servers have done of a rebuild.
#[derive(Clone, Copy, Default)]
pub struct Done {
    /// By all servers that answer.
    pub sum: Progress,
    /// How long it took so far.
    pub took: Duration,
}

/// Begins, changes or cancels the restriping of all files.
pub fn rebuild(home: &Home, args: &RebuildArgs) -> Result<(), Error> {
    let Some(rule) = args.restripe.rule() else { return backend::go_on(home, &args.name) };
    if args.cancel && backend::cancel(home, &args.name)? {
        return Ok(());
    }
    backend::journal::check_none(home, &args.name)?;
    let directory = home.deployment(&args.name);
    let (record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    let map = look(&record, &key)?;
    if args.cancel {
        return match map.rebuild {
            Some(rebuild) => {
                end(&record, &key, rebuild.number)?;
                println!("files of {} stay where they are now", args.name);
                Ok(())
            }
            None => Err(Error::refused("no rebuild is under way", "there is nothing to cancel")),
        };
    }
    begin(&record, &key, rule, args.restripe.max_rate)?;
    follow(&record, &key, &args.restripe, None).map(drop)
}

/// The map, as the controller has it.
pub fn look(record: &Record, key: &Key) -> Result<Map, Error> {
    status::overview(record, key).map(|overview| overview.map).map_err(|error| unanswered(record, &error))
}

pub fn unanswered(record: &Record, error: &LinkError) -> Error {
    Error::Unanswered {
        cause: format!("the controller of {:?} does not answer: {error}", record.name),
        remedy: format!("see `bivouac status {}`; repeat the command then", record.name),
    }
}

/// Has the servers restripe all files by a rule.
pub fn begin(record: &Record, key: &Key, rule: Rule, rate: u64) -> Result<(), Error> {
    let request = ControlRequest::Rebuild { rule, rate };
    leader::ask(record, key, &request, control::INSTALL, control::ELECTION)
        .map(drop)
        .map_err(|error| unanswered(record, &error))
}

/// Has the servers leave files where they are.
pub fn end(record: &Record, key: &Key, number: u32) -> Result<(), Error> {
    match leader::ask(
        record,
        key,
        &ControlRequest::EndRebuild { number },
        control::INSTALL,
        control::ELECTION,
    ) {
        Ok(_) => Ok(()),
        // It has just ended by itself.
        Err(_) if look(record, key)?.rebuild.is_none() => Ok(()),
        Err(error) => Err(unanswered(record, &error)),
    }
}

/// How a rebuild was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// It has ended, or goes on without being waited for.
    Enough,
    /// The time is up, and it has not ended.
    TimeIsUp,
}

/// Waits until a rebuild is complete, or until this moment, and says how far it is meanwhile.
pub fn follow(
    record: &Record,
    key: &Key,
    restripe: &Restripe,
    until: Option<Instant>,
) -> Result<Waited, Error> {
    if restripe.background {
        println!(
            "the servers restripe files in the background: `bivouac status {0}` shows how far they are, `bivouac rebuild {0} \
             --cancel` stops it",
            record.name
        );
        return Ok(Waited::Enough);
    }
    let (done, waited) = wait(record, key, until, |done| {
        if std::io::stderr().is_terminal() {
            eprint!("\r{}\x1b[K", line(done));
        }
    })?;
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    println!(
        "{} of {} moved in {:.1} s",
        size(done.sum.bytes_done),
        plural(done.sum.files_done as usize, "file"),
        done.took.as_secs_f64()
    );
    Ok(waited)
}

/// Waits until the rebuild that is under way has ended, or until this moment: then also while files cannot move.
pub fn wait(
    record: &Record,
    key: &Key,
    until: Option<Instant>,
    mut say: impl FnMut(&Done),
) -> Result<(Done, Waited), Error> {
    let begun = Instant::now();
    let mut said = begun;
    let mut last = ((0, 0), begun);
    let mut map = look(record, key)?;
    // What servers that leave, or are started again, have done still counts.
    let mut told: BTreeMap<ServerId, Progress> = BTreeMap::new();
    let number = map.rebuilds;
    let (mut holders, mut asked) = (Vec::new(), begun);
    loop {
        for (server, progress) in progress(record, key, &map) {
            let earlier = told.insert(server, progress).filter(|_| progress.number == number);
            if let Some(earlier) = earlier.filter(|earlier| earlier.files_done > progress.files_done) {
                told.insert(
                    server,
                    Progress { files_left: progress.files_left, bytes_left: progress.bytes_left, ..earlier },
                );
            }
        }
        let done = Done { sum: sum(number, told.values()), took: begun.elapsed() };
        if map.rebuild.is_none() {
            return Ok((done, Waited::Enough));
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok((done, Waited::TimeIsUp));
        }
        if done.sum.no_room && until.is_none() {
            return Err(Error::refused(
                "a server has no room for what it is to hold: the files that are left stay where they are meanwhile",
                format!(
                    "remove files that are not needed, or add servers (`bivouac expand {0}`): the rebuild goes on by itself; \
                     `bivouac rebuild {0} --cancel` ends it",
                    record.name
                ),
            ));
        }
        let moved = (done.sum.files_done, done.sum.bytes_done);
        if moved != last.0 {
            last = (moved, Instant::now());
        }
        if last.1.elapsed() >= STUCK
            && until.is_none()
            && let Some(server) = map.servers.iter().find(|server| server.state == ServerState::Down)
        {
            return Err(Error::Unanswered {
                cause: format!(
                    "server {} is down: the files that it has a part of stay where they are meanwhile",
                    server.id
                ),
                remedy: format!(
                    "`bivouac restart {0} {1}` starts it again, and the rebuild goes on by itself; `bivouac rebuild {0} --cancel` \
                     ends it",
                    record.name, server.id
                ),
            });
        }
        if said.elapsed() >= SAY {
            (said, _) = (Instant::now(), say(&done));
        }
        if done.sum.held > 0 && asked.elapsed() >= ASK {
            asked = Instant::now();
            let now = holding::find(record, key, &map);
            if now != holders {
                say_holders(&now);
                holders = now;
            }
        }
        std::thread::sleep(LOOK);
        map = look(record, key)?;
    }
}

/// Names the programs for which files wait, on standard error: whoever waits for the command is to know for whom it waits.
fn say_holders(holders: &[Holding]) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    holding::lines(holders)
        .iter()
        .for_each(|line| eprintln!("bivouac: {line}: it moves when that program closes it"));
}

/// What all servers say of the latest rebuild.
pub fn progress(record: &Record, key: &Key, map: &Map) -> Vec<(ServerId, Progress)> {
    std::thread::scope(|scope| {
        let ask = |server: &'_ bivouac_layout::Server| {
            let server = server.clone();
            scope.spawn(move || Some((server.id, status::counted(&server, record.deployment, key)?.rebuild)))
        };
        let asked: Vec<_> = map.servers.iter().map(ask).collect();
        asked.into_iter().filter_map(|one| one.join().ok().flatten()).collect()
    })
}

/// What all have done of a rebuild together.
pub fn sum<'p>(number: u32, all: impl Iterator<Item = &'p Progress>) -> Progress {
    all.filter(|one| one.number == number).fold(Progress { number, ..Progress::default() }, |sum, one| {
        Progress {
            number,
            files_done: sum.files_done + one.files_done,
            files_left: sum.files_left + one.files_left,
            bytes_done: sum.bytes_done + one.bytes_done,
            bytes_left: sum.bytes_left + one.bytes_left,
            held: sum.held + one.held,
            failed: sum.failed + one.failed,
            no_room: sum.no_room || one.no_room,
        }
    })
}

/// How far it is, for a person.
fn line(done: &Done) -> String {
    let Done { sum, took } = done;
    let rate = sum.bytes_done as f64 / took.as_secs_f64().max(0.001);
    let mut text = format!(
        "{} moved, {}/s; {} left ({})",
        size(sum.bytes_done),
        size(rate as u64),
        plural(sum.files_left as usize, "file"),
        size(sum.bytes_left)
    );
    let (begun, left) = (sum.files_done as f64, sum.files_left as f64);
    if begun > 0.0 {
        let seconds = took.as_secs_f64() * left / begun;
        text.push_str(&format!(", some {seconds:.0} s"));
    }
    if sum.held > 0 {
        text.push_str(&format!("; {} wait until programs close them", plural(sum.held as usize, "file")));
    }
    text
}
