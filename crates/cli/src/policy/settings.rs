//! What the user wants of a policy: its limits, and the hosts to grow onto.
//!
//! `policy.json` in the deployment's directory has it. The commands write it, the policy's process only reads it. What the
//! process has to remember is in a file of its own ([`super::files`]).

use super::decide::Limits;
use crate::args::values::{LinkSpeed, Threshold};
use crate::args::{LauncherChoice, PolicyOnArgs};
use crate::error::Error;
use crate::home::Record;
use crate::hosts;
use bivouac_layout::Map;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU16;
use std::time::Duration;

/// So far at least the limit below which it shrinks has to be from those above which it grows, percent: otherwise small
/// changes would move all files again and again.
const APART: u8 = 10;

/// What the user wants.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct Settings {
    /// Version of this form.
    pub version: u32,
    /// Whether the policy is on.
    pub on: bool,
    /// Hosts to grow onto, in this order.
    pub spares: Vec<String>,
    /// How they are reached.
    pub launcher: LauncherChoice,
    /// What may be done, and when.
    #[serde(flatten)]
    pub limits: Limits,
    /// Seconds between two looks.
    pub every: u64,
    /// Bytes per second that each server takes in at most when files move; 0: as many as it can.
    pub max_rate: u64,
}

/// The version that this program writes.
pub const VERSION: u32 = 1;

impl Settings {
    /// What was given, then what was said earlier, then what is usual.
    pub fn new(
        earlier: Option<Settings>,
        args: &PolicyOnArgs,
        record: &Record,
        map: &Map,
    ) -> Result<Settings, Error> {
        let spares = match (&args.spares, &earlier) {
            (Some(given), _) => hosts::names(given)?,
            (None, Some(earlier)) => earlier.spares.clone(),
            (None, None) => {
                return Err(Error::refused(
                    format!("{:?} has no hosts to grow onto", record.name),
                    "name them: --spares FILE, or --spares h1,h2",
                ));
            }
        };
        let servers = taking_part(map);
        let is_free = |host: &&String| !has_server(map, host);
        let free = spares.iter().filter(is_free).count() as u16;
        let usual = earlier.unwrap_or_else(|| Settings::usual(servers, servers.saturating_add(free)));
        let seconds = |given: Option<Duration>, usual: u64| given.map_or(usual, |time| time.as_secs());
        let number = |given: Option<NonZeroU16>, usual: u16| given.map_or(usual, NonZeroU16::get);
        let limits = Limits {
            grow_above: args.grow_above.unwrap_or(usual.limits.grow_above),
            shrink_below: args.shrink_below.unwrap_or(Threshold(usual.limits.shrink_below)).0,
            busy_above: args.busy_above.unwrap_or(Threshold(usual.limits.busy_above)).0,
            link: args.link_speed.unwrap_or(LinkSpeed(usual.limits.link)).0,
            min: number(args.min, usual.limits.min),
            max: number(args.max, usual.limits.max),
            step: number(args.step, usual.limits.step),
            busy_for: seconds(args.busy_for, usual.limits.busy_for),
            idle_for: seconds(args.idle_for, usual.limits.idle_for),
            settle: seconds(args.settle, usual.limits.settle),
        };
        let settings = Settings {
            version: VERSION,
            on: true,
            spares,
            launcher: args.launcher.unwrap_or(usual.launcher),
            limits,
            every: seconds(args.every, usual.every),
            max_rate: args.max_rate.unwrap_or(usual.max_rate),
        };
        settings.check(record, map)?;
        Ok(settings)
    }

    /// What is usual.
    fn usual(min: u16, max: u16) -> Settings {
        Settings {
            version: VERSION,
            on: true,
            spares: Vec::new(),
            launcher: LauncherChoice::Auto,
            limits: Limits {
                grow_above: 85,
                shrink_below: Some(30),
                busy_above: Some(80),
                link: None,
                min,
                max,
                step: 1,
                busy_for: 60,
                idle_for: 600,
                settle: 120,
            },
            every: 10,
            max_rate: 0,
        }
    }

    /// Refuses what contradicts itself, or the deployment.
    fn check(&self, record: &Record, map: &Map) -> Result<(), Error> {
        let Limits { grow_above, shrink_below, busy_above, min, max, .. } = self.limits;
        let servers = taking_part(map);
        if let Some(below) = shrink_below {
            let named = [("--grow-above", Some(grow_above)), ("--busy-above", busy_above)];
            for (name, above) in named.into_iter().filter_map(|(name, above)| Some((name, above?))) {
                if below.saturating_add(APART) > above {
                    return Err(Error::refused(
                        format!("--shrink-below {below}% and {name} {above}% are too close to each other"),
                        format!(
                            "leave at least {APART}% between them, so that it does not grow and shrink in turns"
                        ),
                    ));
                }
            }
        }
        if min > max {
            return Err(Error::refused(
                format!("it cannot have {min} servers at least and {max} at most"),
                "give --min at most as much as --max",
            ));
        }
        if min < map.copies.into() {
            return Err(Error::refused(
                format!("--min {min} is too few: {:?} keeps {} copies", record.name, map.copies),
                "give --min at least as many servers as there are copies",
            ));
        }
        if servers < min || servers > max {
            return Err(Error::refused(
                format!("{:?} has {servers} servers, which is not between {min} and {max}", record.name),
                format!(
                    "give other limits (--min, --max), or change that first: `bivouac expand {0}`, `bivouac shrink {0}`",
                    record.name
                ),
            ));
        }
        let is_alone =
            |daemon: &crate::home::DaemonRecord| daemon.server.is_some() && daemon.listen.ip().is_loopback();
        if record.daemons.iter().any(is_alone) {
            return Err(Error::refused(
                format!("the servers of {:?} listen for their own machine only", record.name),
                "no other host can be added: a deployment that is to have several hosts is started with --hosts",
            ));
        }
        Ok(())
    }
}

/// How many servers there are without those that were given up.
fn taking_part(map: &Map) -> u16 {
    map.servers.iter().filter(|server| !map.is_given_up(server.id)).count() as u16
}

/// Whether a host has a server of the deployment.
pub fn has_server(map: &Map, host: &str) -> bool {
    let is_host = |id| map.node(id).is_some_and(|node| node.host.eq_ignore_ascii_case(host));
    map.servers.iter().any(|server| is_host(server.node))
}
