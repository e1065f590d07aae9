//! Taking servers away from a deployment that runs.
//!
//! The controller lists them as departing; from then on they get no new files. Their shards move to others, and so do the
//! blocks that they have ([`crate::rebuild`]); when nothing is left on them, the controller takes them off the map and has them
//! stop, which removes their storage. All of that goes on without this command, which watches, and in the end forgets them in
//! the deployment's record. A host whose last server has left leaves, too ([`crate::vacating`]). Servers whose nodes will be taken away do not wait for that ([`crate::leaving`]).

use crate::args::{Restripe, ShrinkArgs};
use crate::backend;
use crate::error::Error;
use crate::home::{DaemonRecord, Directory, Home, Lock, Record};
use crate::joining::clean;
use crate::launch::Leave;
use crate::leaving::{self, Losses};
use crate::rebuild::Waited;
use crate::text::{plural, size};
use crate::{holding, hosts, leader, rebuild, replace, restart, status, vacating};
use bivouac_daemon::controller::LinkError;
use bivouac_layout::{Map, Rule, ServerId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlRequest, Stats};
use bivouac_transport::engine::budget::control;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// How long servers that have nothing any more may take to stop.
const STOPPING: Duration = Duration::from_secs(30);
/// The exit status when something was lost, as `verify`'s when damage is left.
const LOST: u8 = 1;

/// Has servers leave, or stay after all. The exit status says whether anything was lost.
pub fn shrink(home: &Home, args: &ShrinkArgs) -> Result<ExitCode, Error> {
    let restripe = Restripe::from(&args.leaving);
    let Some(rule) = restripe.rule() else {
        if args.force || args.deadline.is_some() || args.dry_run || args.json || args.cancel {
            return Err(Error::refused(
                "--rebuild backend copies everything before any server leaves",
                "leave out --force, --deadline, --dry-run, --json and --cancel (`bivouac rebuild NAME --cancel` gives it up)",
            ));
        }
        let through =
            backend::rebuild(home, &args.name, (&args.through, restripe.max_rate), |record, directory| {
                let map = look(record, &directory.key()?)?;
                let leaving = chosen(record, &map, args)?;
                check(record, &directory.key()?, &map, &leaving, args)?;
                Ok(backend::planned(record, &leaving, &[], &[], directory))
            });
        return through.map(|()| ExitCode::SUCCESS);
    };
    backend::journal::check_none(home, &args.name)?;
    let directory = home.deployment(&args.name);
    let lock = directory.lock()?;
    let (mut record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    if args.cancel {
        return cancel(&record, &key, &look(&record, &key)?).map(|()| ExitCode::SUCCESS);
    }
    let (map, leaving) = checked(&directory, &mut record, &key, args, &lock)?;
    if args.dry_run {
        return leaving::dry_run(&record, &key, &leaving, args).map(exit_code);
    }
    let begun = Instant::now();
    let nodes = vacating::nodes_of(&map, &leaving);
    depart(&record, &key, &map, &leaving)?;
    let has_time = match args.force {
        true => false,
        false => leave_in_time(&record, &key, &leaving, (args, rule), begun)?,
    };
    if args.leaving.background {
        return Ok(ExitCode::SUCCESS);
    }
    let losses = match has_time {
        true => Losses::default(),
        false => leaving::leave_now(&record, &key, &leaving)?,
    };
    vacating::wait(&record, &key, &nodes)?;
    let map = look(&record, &key)?;
    forget(&directory, &mut record, &map, &lock)?;
    if !args.json {
        println!(
            "{} left: {} has {} now",
            plural(leaving.len(), "server"),
            args.name,
            plural(map.servers.len(), "server")
        );
    }
    if args.json || args.force || args.deadline.is_some() {
        losses.tell(&args.name, &leaving, args)?;
    }
    Ok(exit_code(losses.is_loss()))
}

fn exit_code(is_loss: bool) -> ExitCode {
    if is_loss { ExitCode::from(LOST) } else { ExitCode::SUCCESS }
}

/// Has everything leave servers. `false`: the deadline has passed before that.
fn leave_in_time(
    record: &Record,
    key: &Key,
    leaving: &[ServerId],
    (args, rule): (&ShrinkArgs, Rule),
    begun: Instant,
) -> Result<bool, Error> {
    let restripe = Restripe::from(&args.leaving);
    let until = args.deadline.map(|deadline| begun + deadline);
    rebuild::begin(record, key, rule, restripe.max_rate)?;
    let waited = match args.json {
        true => rebuild::wait(record, key, until, |_| ())?.1,
        false => rebuild::follow(record, key, &restripe, until)?,
    };
    if waited == Waited::TimeIsUp {
        eprintln!("bivouac: the time is up, and not everything has moved");
        let holders = holding::find(record, key, &look(record, key)?);
        holding::lines(&holders).iter().for_each(|line| eprintln!("bivouac: {line}"));
        return Ok(false);
    }
    if restripe.background {
        return Ok(true);
    }
    wait_until_gone(record, key, leaving, until)
}

/// Has servers leave; they go on with that by themselves. Which they are.
pub fn begin(
    directory: &Directory,
    record: &mut Record,
    key: &Key,
    args: &ShrinkArgs,
    lock: &Lock,
) -> Result<Vec<ServerId>, Error> {
    let (map, leaving) = checked(directory, record, key, args, lock)?;
    depart(record, key, &map, &leaving)?;
    let restripe = Restripe::from(&args.leaving);
    rebuild::begin(record, key, restripe.rule().unwrap_or(Rule::Metadata), restripe.max_rate)?;
    Ok(leaving)
}

/// The servers that are to leave, if they may, and the map by which they may.
fn checked(
    directory: &Directory,
    record: &mut Record,
    key: &Key,
    args: &ShrinkArgs,
    lock: &Lock,
) -> Result<(Map, Vec<ServerId>), Error> {
    let map = look(record, key)?;
    if replace::reconcile(record, &map) {
        directory.save(record)?;
    }
    // Those that have left while a command was killed.
    forget(directory, record, &map, lock)?;
    let leaving = chosen(record, &map, args)?;
    check(record, key, &map, &leaving, args)?;
    Ok((map, leaving))
}

/// Lists servers as leaving.
fn depart(record: &Record, key: &Key, map: &Map, leaving: &[ServerId]) -> Result<(), Error> {
    let new: Vec<ServerId> = leaving.iter().copied().filter(|server| !map.is_departing(*server)).collect();
    if new.is_empty() { Ok(()) } else { ask(record, key, &ControlRequest::Depart { servers: new }) }
}

/// The map, from the controller.
pub fn look(record: &Record, key: &Key) -> Result<Map, Error> {
    status::overview(record, key).map(|overview| overview.map).map_err(|error| unanswered(record, &error))
}

fn unanswered(record: &Record, error: &LinkError) -> Error {
    Error::Unanswered {
        cause: format!("the controller of {:?} does not answer: {error}", record.name),
        remedy: format!(
            "see `bivouac status {}`; repeat the command then: it goes on where it was",
            record.name
        ),
    }
}

fn ask(record: &Record, key: &Key, request: &ControlRequest) -> Result<(), Error> {
    leader::ask(record, key, request, control::INSTALL, control::ELECTION)
        .map(drop)
        .map_err(|error| unanswered(record, &error))
}

/// Servers that were to leave stay.
fn cancel(record: &Record, key: &Key, map: &Map) -> Result<(), Error> {
    if map.departing.is_empty() {
        return Err(Error::refused("no server is to leave", "there is nothing to cancel"));
    }
    if let Some(rebuild) = map.rebuild {
        rebuild::end(record, key, rebuild.number)?;
    }
    ask(record, key, &ControlRequest::Stay { servers: map.departing.clone() })?;
    println!("{} of {} stay", plural(map.departing.len(), "server"), record.name);
    Ok(())
}

/// The servers that the user means: by number, all of some hosts, or so many of the newest.
fn chosen(record: &Record, map: &Map, args: &ShrinkArgs) -> Result<Vec<ServerId>, Error> {
    let all = || map.servers.iter().map(|server| server.id);
    let mut chosen: BTreeSet<ServerId> = BTreeSet::new();
    for number in &args.server {
        let id = ServerId(*number);
        restart::position(record, id)?;
        chosen.insert(id);
    }
    if let Some(given) = &args.hosts {
        for host in hosts::names(given)? {
            let nodes: Vec<_> =
                map.nodes.iter().filter(|node| node.host.eq_ignore_ascii_case(&host)).collect();
            let Some(node) = nodes.first() else {
                return Err(Error::refused(
                    format!("{host} is no host of {:?}", record.name),
                    format!("`bivouac status {}` lists its servers with their hosts", record.name),
                ));
            };
            chosen.extend(map.servers.iter().filter(|server| server.node == node.id).map(|server| server.id));
        }
    }
    if let Some(count) = args.servers {
        let mut staying: Vec<ServerId> = all().filter(|server| !map.is_departing(*server)).collect();
        let departing = map.departing.len();
        // A command that was interrupted is repeated: those that leave already count.
        let more = usize::from(count.get()).saturating_sub(departing);
        chosen.extend(map.departing.iter().copied());
        for _ in 0..more {
            chosen.extend(staying.pop());
        }
    }
    Ok(chosen.into_iter().collect())
}

/// Refuses what would leave too few servers, or too little room. (Servers that leave in any case need none.)
fn check(
    record: &Record,
    key: &Key,
    map: &Map,
    leaving: &[ServerId],
    args: &ShrinkArgs,
) -> Result<(), Error> {
    if let Err(why) = map.may_depart(leaving) {
        let remedy = match map.copies {
            1 => "one server at least has to stay".to_owned(),
            copies => {
                format!("{copies} servers at least have to stay: so many copies does the deployment keep")
            }
        };
        return Err(Error::refused(format!("these servers cannot leave: {why}"), remedy));
    }
    if args.force || args.dry_run || args.deadline.is_some() {
        return Ok(());
    }
    let counted = |leaves: bool| -> Vec<Stats> {
        let servers = map.servers.iter().filter(|server| leaving.contains(&server.id) == leaves);
        servers.filter_map(|server| status::counted(server, record.deployment, key)).collect()
    };
    let (going, staying) = (counted(true), counted(false));
    let stored: u64 = going.iter().map(|stats| stats.stored).sum();
    let mut devices = BTreeSet::new();
    let free: u64 = staying.iter().filter(|s| devices.insert(s.device)).map(|s| s.available).sum();
    // Where they have the same storage, what leaves makes room.
    let shares = going.iter().any(|stats| devices.contains(&stats.device));
    if stored > free && !shares {
        return Err(Error::refused(
            format!(
                "the servers that would stay have room for {}, and those that leave store {}",
                size(free),
                size(stored)
            ),
            "remove files that are not needed, or add servers first (`bivouac expand`)",
        ));
    }
    Ok(())
}

/// Waits until servers are off the map. `false`: the time is up before that.
fn wait_until_gone(
    record: &Record,
    key: &Key,
    leaving: &[ServerId],
    until: Option<Instant>,
) -> Result<bool, Error> {
    let mut since = Instant::now();
    let mut left = usize::MAX;
    loop {
        let map = look(record, key)?;
        let still: Vec<ServerId> =
            leaving.iter().copied().filter(|server| map.server(*server).is_some()).collect();
        if still.is_empty() {
            return Ok(true);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(false);
        }
        let shards = still.iter().map(|server| map.held_by(*server)).sum::<usize>() + map.moving.len();
        if shards != left {
            (left, since) = (shards, Instant::now());
        }
        if since.elapsed() >= STOPPING && until.is_none() {
            return Err(Error::Unanswered {
                cause: format!("server {} does not get rid of what it has", still[0]),
                remedy: format!(
                    "see `bivouac status {0}`: a server that is down has to be started again (`bivouac restart {0}`); it goes on by \
                     itself then",
                    record.name
                ),
            });
        }
        std::thread::sleep(LOOK);
    }
}

/// Forgets servers that have left, and agents of hosts that have: they have been told to stop, and what is left of them is removed.
pub fn forget(directory: &Directory, record: &mut Record, map: &Map, _lock: &Lock) -> Result<(), Error> {
    let has_left = |daemon: &DaemonRecord| {
        daemon.server.is_some_and(|id| map.server(id).is_none() && !map.arriving.contains(&id))
    };
    let gone: Vec<DaemonRecord> = record.daemons.iter().filter(|daemon| has_left(daemon)).cloned().collect();
    let mut any = !gone.is_empty();
    for daemon in gone {
        record.daemons.retain(|other| other.label() != daemon.label());
        if let Err(error) = clean(record, &daemon, Leave::Nothing) {
            error.show();
            // What it has left is removed with the deployment.
            record.former.push(daemon);
        }
    }
    any |= vacating::forget(record, map);
    if any { directory.save(record) } else { Ok(()) }
}
