//! Checking what a deployment stores: `bivouac verify`.
//!
//! Every server that is up checks what it holds, in its background; this command begins that, asks how far they are, and
//! prints what they found, by path. If it ends, the servers stop.

pub mod lost;
pub mod paths;
mod report;

use crate::args::VerifyArgs;
use crate::error::Error;
use crate::home::{Home, Record};
use crate::{signals, status};
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_layout::{Epoch, Group, Map, SHARDS, ServerId, ServerState, ShardId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_proto::verify::{Finding, Progress, Stage, VerifyRequest, VerifyState};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use report::Report;
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Time between two questions.
const LOOK: Duration = Duration::from_millis(100);
/// How often copies are compared again when servers came or went meanwhile.
const TRIES: u32 = 3;

/// What the servers have found out.
#[derive(Default)]
struct Found {
    findings: Vec<Finding>,
    /// How many more there are that servers did not keep.
    more: u64,
    progress: Progress,
    /// Servers that did not answer to the end.
    silent: BTreeSet<ServerId>,
    /// The epochs in which they worked.
    epochs: BTreeSet<Epoch>,
}

/// A server at work.
struct Asked {
    id: ServerId,
    link: ControlLink,
    /// Findings that are known.
    known: u32,
    state: VerifyState,
}

/// Checks, repairs and reports. The exit status says whether damage is left.
pub fn verify(home: &Home, args: &VerifyArgs) -> Result<ExitCode, Error> {
    let directory = home.deployment(&args.name);
    let (record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    signals::take(|taken| {
        if taken.is_final() {
            signals::interrupt(taken.number);
        }
    })
    .map_err(|cause| Error::System { what: "cannot wait for signals".into(), cause })?;
    let rate = u64::from(args.rate) << 20;
    let start = |stage| VerifyRequest::Start { stage, dry_run: args.dry_run, rate };
    let look = || overview(&record, &key, &args.name);
    let mut all = run(&look()?, &record, &key, &start(Stage::Own))?;
    let mut is_steady = false;
    for _ in 0..TRIES {
        let together = run(&look()?, &record, &key, &start(Stage::Together))?;
        is_steady = together.epochs.len() <= 1;
        all.silent = together.silent;
        all.more += together.more;
        all.findings.extend(together.findings);
        let logs = all.progress.log_bytes;
        all.progress = Progress { log_bytes: logs, ..together.progress };
        if is_steady {
            break;
        }
    }
    let map = look()?;
    let paths = paths::find(&map, &record, &key, &all.findings);
    let report = Report::new(&args.name, args.dry_run, &map, &all, is_steady, &paths);
    if args.json {
        report.print_json()?
    } else {
        report.print()
    }
    Ok(report.exit_code())
}

fn overview(record: &Record, key: &Key, name: &str) -> Result<Map, Error> {
    status::overview(record, key).map(|overview| overview.map).map_err(|error| Error::Unanswered {
        cause: format!("the controller of {name:?} does not answer: {error}"),
        remedy: format!("see `bivouac status {name}`"),
    })
}

/// Servers that can be asked.
fn up(map: &Map) -> impl Iterator<Item = &bivouac_layout::Server> {
    map.servers.iter().filter(|server| server.state == ServerState::Up)
}

/// Pieces of the metadata that no server has that is up.
fn metadata_away(map: &Map) -> usize {
    let is_away = |shard: &u16| map.serving(Group::Shard(ShardId(*shard))).next().is_none();
    (0..SHARDS).filter(is_away).count()
}

fn connect(address: std::net::SocketAddr, record: &Record, key: &Key) -> Result<ControlLink, LinkError> {
    ControlLink::connect(&Endpoint::Tcp(address), key, record.deployment, control::INSTALL)
}

/// Has all servers do a part of the work, and waits until they have.
fn run(map: &Map, record: &Record, key: &Key, start: &VerifyRequest) -> Result<Found, Error> {
    let (mut found, mut asked) = (Found::default(), Vec::new());
    for server in up(map) {
        let begun = connect(server.address, record, key).and_then(|mut link| {
            link.tell(ControlRequest::Verify(start.clone()))?;
            Ok(link)
        });
        match begun {
            Ok(link) => asked.push(Asked { id: server.id, link, known: 0, state: VerifyState::default() }),
            Err(_) => drop(found.silent.insert(server.id)),
        }
    }
    let mut done: Vec<Asked> = Vec::new();
    let shows = std::io::stderr().is_terminal();
    while !asked.is_empty() {
        if let Some(signal) = signals::interrupted() {
            for server in &mut asked {
                let _ = server.link.tell(ControlRequest::Verify(VerifyRequest::Cancel));
            }
            return Err(Error::Interrupted(signal));
        }
        std::thread::sleep(LOOK);
        for mut server in std::mem::take(&mut asked) {
            match server.ask(&mut found.findings) {
                Ok(true) => asked.push(server),
                Ok(false) => done.push(server),
                Err(_) => drop(found.silent.insert(server.id)),
            }
        }
        if shows {
            let progress = sum(asked.iter().chain(&done));
            let now = Found { progress, ..Found::default() };
            eprint!("\r{} so far, {} found ", report::amount(&now.progress), found.findings.len());
        }
    }
    if shows {
        eprintln!();
    }
    found.progress = sum(&done);
    for Asked { state, known, .. } in &done {
        found.more += u64::from(state.found.saturating_sub(*known));
        found.epochs.extend([state.epochs.0, state.epochs.1]);
    }
    Ok(found)
}

fn sum<'a>(servers: impl IntoIterator<Item = &'a Asked>) -> Progress {
    let mut sum = Progress::default();
    for Asked { state: VerifyState { progress, .. }, .. } in servers {
        sum.files += progress.files;
        sum.bytes += progress.bytes;
        sum.log_bytes += progress.log_bytes;
        sum.shards += progress.shards;
        sum.skipped += progress.skipped;
    }
    sum
}

impl Asked {
    /// Asks how far the server is. Whether it goes on.
    fn ask(&mut self, findings: &mut Vec<Finding>) -> Result<bool, LinkError> {
        loop {
            let request = ControlRequest::Verify(VerifyRequest::State { from: self.known });
            let Some(ControlReply::Verify(state)) = self.link.request(request)? else {
                return Err(LinkError::Unexpected);
            };
            let new = state.findings.len();
            self.known += new as u32;
            findings.extend(&state.findings);
            self.state = VerifyState { findings: Vec::new(), ..*state };
            if new == 0 {
                return Ok(self.state.is_running);
            }
        }
    }
}
