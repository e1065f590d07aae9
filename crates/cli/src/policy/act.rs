//! Adding servers and having servers leave, as a policy does, and completing what an earlier process has begun.

use super::decide::Sample;
use super::files::Begun;
use super::runner::Runner;
use crate::args::{BackendArgs, ExpandArgs, LeavingFiles, RebuildRule, Restripe, ShrinkArgs};
use crate::error::Error;
use crate::expand::{self, ARRIVAL};
use crate::home::{Lock, Record};
use crate::text::plural;
use crate::{rebuild, shrink};
use bivouac_layout::{Map, Rule, ServerId};
use std::time::{Duration, Instant};

/// Servers that are to be added.
pub(super) struct Growth {
    /// How many.
    pub count: usize,
    /// The hosts that could get one, in their order.
    pub hosts: Vec<String>,
    /// Why.
    pub why: String,
}

/// What was decided.
pub(super) enum Deed {
    /// Servers are added.
    Grow(Growth),
    /// This server leaves.
    Shrink(ServerId),
}

impl Runner {
    /// Adds servers, on the first hosts where that is possible, and has files spread over them.
    pub(super) fn grow(
        &mut self,
        record: &mut Record,
        map: &Map,
        Growth { count, hosts, why }: Growth,
        saw: &str,
        lock: &Lock,
    ) -> Result<(), Error> {
        self.journal("grow", &format!("{why}: adds {}", plural(count, "server")), saw);
        self.remember(Some(Begun::Growing(map.numbers)))?;
        let mut came: Vec<String> = Vec::new();
        for host in hosts {
            if came.len() == count {
                break;
            }
            // Only the last one has files moved, and then for all of them.
            let args = ExpandArgs {
                name: record.name.clone(),
                hosts: Some(host.clone()),
                servers: None,
                storage: Vec::new(),
                launcher: self.settings.launcher,
                restripe: Restripe { rebuild: RebuildRule::Metadata, max_rate: 0, background: true },
                through: BackendArgs::default(),
            };
            let added = match is_away(map, &host) {
                true => Err(Error::refused(
                    "its agent does not answer",
                    format!("see `bivouac status {}`", record.name),
                )),
                false => expand::add_servers(&self.directory, record, &self.key, &args, lock),
            };
            match added {
                Ok(added) => {
                    self.failed.forget(&host);
                    came.extend(added.iter().map(|server| format!("server {server} on {host}")));
                }
                Err(Error::Interrupted(_)) => break,
                Err(error) => {
                    let (now, settle) = (self.now(), Duration::from_secs(self.settings.limits.settle));
                    let pause = self.failed.note(&host, now, settle);
                    self.journal(
                        "skip",
                        &format!(
                            "{host} cannot get a server: {error}; it is tried again after {} s",
                            pause.as_secs()
                        ),
                        "",
                    );
                }
            }
        }
        if came.is_empty() {
            self.journal("failed", "no server was added", "");
            self.memory.state.failed(self.now());
            return self.remember(None);
        }
        let took = self.acted.elapsed().as_secs_f64();
        self.journal(
            "done",
            &format!("added {} in {took:.1} s; now files are spread over all servers", came.join(", ")),
            "",
        );
        self.spread(record)
    }

    /// Has files spread over servers that were added.
    fn spread(&mut self, record: &Record) -> Result<(), Error> {
        rebuild::begin(record, &self.key, Rule::Direct, self.settings.max_rate)?;
        self.remember(Some(Begun::Spreading))
    }

    /// Has a server leave.
    pub(super) fn shrink(
        &mut self,
        record: &mut Record,
        server: ServerId,
        saw: &str,
        lock: &Lock,
    ) -> Result<(), Error> {
        let (limits, host) = (&self.settings.limits, host_of(record, server));
        let why = format!(
            "less than {}% is used for {} s: server {server} on {host} leaves",
            limits.shrink_below.unwrap_or(0),
            limits.idle_for
        );
        self.journal("shrink", &why, saw);
        self.remember(Some(Begun::Leaving(server)))?;
        match self.depart(record, server, lock) {
            Err(error @ Error::Refused { .. }) => {
                self.journal("failed", &format!("server {server} stays: {error}"), "");
                self.memory.state.failed(self.now());
                self.remember(None)
            }
            other => other,
        }
    }

    fn depart(&self, record: &mut Record, server: ServerId, lock: &Lock) -> Result<(), Error> {
        let args = ShrinkArgs {
            name: record.name.clone(),
            hosts: None,
            servers: None,
            server: vec![server.0],
            cancel: false,
            deadline: None,
            force: false,
            dry_run: false,
            json: false,
            through: BackendArgs::default(),
            leaving: LeavingFiles {
                rebuild: RebuildRule::Metadata,
                max_rate: self.settings.max_rate,
                background: true,
            },
        };
        shrink::begin(&self.directory, record, &self.key, &args, lock).map(drop)
    }

    /// Goes on with what was begun, also by a process that was killed. Whether it has done something.
    pub(super) fn finish(&mut self, mut record: Record, map: &Map, sample: &Sample) -> Result<bool, Error> {
        let took = self.acted.elapsed().as_secs_f64();
        match self.memory.begun {
            None => return Ok(false),
            // A process was killed while it added servers.
            Some(Begun::Growing(_)) if !map.arriving.is_empty() => {
                let since = *self.arriving_since.get_or_insert_with(Instant::now);
                if since.elapsed() < ARRIVAL {
                    return Ok(false);
                }
                let lock = self.directory.lock()?;
                expand::take_back_unarrived(&self.directory, &mut record, &self.key, map, &lock)?;
            }
            Some(Begun::Growing(first)) if map.servers.iter().all(|server| server.id.0 < first) => {
                self.journal("failed", "no server was added", "");
                self.memory.state.failed(self.now());
                self.remember(None)?;
            }
            Some(Begun::Growing(_)) => self.spread(&record)?,
            Some(Begun::Spreading) if map.rebuild.is_some() => return Ok(false),
            Some(Begun::Spreading) => {
                let text = format!(
                    "after {took:.1} s, files are spread over {}",
                    plural(map.servers.len(), "server")
                );
                self.journal("done", &text, &self.saw(sample));
                self.remember(None)?;
            }
            Some(Begun::Leaving(server)) if map.server(server).is_none() => {
                let lock = self.directory.lock()?;
                record = self.directory.load()?;
                shrink::forget(&self.directory, &mut record, map, &lock)?;
                self.journal("done", &format!("server {server} has left in {took:.1} s"), &self.saw(sample));
                self.remember(None)?;
            }
            Some(Begun::Leaving(server)) if !map.is_departing(server) => {
                self.journal("failed", &format!("server {server} stays: that it leaves was cancelled"), "");
                self.memory.state.failed(self.now());
                self.remember(None)?;
            }
            // A process was killed before files were told to move.
            Some(Begun::Leaving(server)) if map.rebuild.is_none() && !map.emptied.contains(&server) => {
                let lock = self.directory.lock()?;
                record = self.directory.load()?;
                self.depart(&mut record, server, &lock)?;
            }
            Some(Begun::Leaving(_)) => return Ok(false),
        }
        Ok(true)
    }
}

/// Whether a host is one of the deployment, and nobody reaches it.
fn is_away(map: &Map, host: &str) -> bool {
    let node = map.nodes.iter().find(|node| node.host.eq_ignore_ascii_case(host));
    node.is_some_and(|node| map.is_away(node.id))
}

fn host_of(record: &Record, server: ServerId) -> String {
    let daemon = record.daemons.iter().find(|daemon| daemon.server == Some(server));
    daemon.map_or_else(|| "?".into(), |daemon| daemon.host.clone())
}
