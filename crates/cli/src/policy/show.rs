//! What is said of a policy, to people and to programs.

use super::journal::{self, Entry};
use super::settings::Settings;
use crate::error::Error;
use crate::home::{Directory, State};
use crate::text::{plural, size};
use serde::Serialize;

/// How many lines of the log are shown.
const LINES: usize = 10;
/// How many programs get.
const ENTRIES: usize = 1000;
/// Version of the JSON; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// All of the JSON.
#[derive(Serialize, Debug)]
struct Policy {
    version: u32,
    name: String,
    /// Whether it is on.
    on: bool,
    /// The process that carries it out.
    pid: Option<u32>,
    /// What the user wants; `null`: nothing was ever said.
    settings: Option<Shown>,
    log: Vec<Entry>,
}

/// What the user wants, for programs.
#[derive(Serialize, Debug)]
struct Shown {
    spares: Vec<String>,
    grow_above: u8,
    shrink_below: Option<u8>,
    busy_above: Option<u8>,
    link: Option<u64>,
    min: u16,
    max: u16,
    step: u16,
    every: u64,
    busy_for: u64,
    idle_for: u64,
    settle: u64,
    max_rate: u64,
}

impl From<Settings> for Shown {
    fn from(settings: Settings) -> Shown {
        let limits = settings.limits;
        Shown {
            spares: settings.spares,
            grow_above: limits.grow_above,
            shrink_below: limits.shrink_below,
            busy_above: limits.busy_above,
            link: limits.link,
            min: limits.min,
            max: limits.max,
            step: limits.step,
            every: settings.every,
            busy_for: limits.busy_for,
            idle_for: limits.idle_for,
            settle: limits.settle,
            max_rate: settings.max_rate,
        }
    }
}

/// Prints it for programs.
pub(super) fn json(directory: &Directory) -> Result<(), Error> {
    let settings = directory.policy()?;
    let policy = Policy {
        version: VERSION,
        name: directory.name.clone(),
        on: settings.as_ref().is_some_and(|settings| settings.on),
        pid: directory.policy_process().map(|process| process.pid),
        settings: settings.map(Shown::from),
        log: journal::last(directory, ENTRIES),
    };
    let text = serde_json::to_string_pretty(&policy)
        .map_err(|cause| Error::System { what: "cannot write JSON".into(), cause: cause.into() })?;
    println!("{text}");
    Ok(())
}

/// Prints it for people.
pub(super) fn text(directory: &Directory) -> Result<(), Error> {
    let name = &directory.name;
    let is_stopped = directory.load()?.state == State::Stopped;
    let current = directory.policy()?.filter(|settings| settings.on);
    let process = directory.policy_process();
    match (&current, process) {
        (None, _) => println!("{name}: the policy is off"),
        (Some(_), Some(process)) => println!("{name}: the policy is on (process {})", process.pid),
        (Some(_), None) if is_stopped => {
            println!("{name}: the policy is on, and begins again with the deployment: `bivouac up {name}`");
        }
        (Some(_), None) => println!("{name}: {}", dead(name)),
    }
    if let Some(current) = &current {
        println!("{}", settings(current));
    }
    for entry in journal::last(directory, LINES) {
        println!("{}", entry.line());
    }
    Ok(())
}

/// What is said where the process is missing.
pub(super) fn dead(name: &str) -> String {
    format!("the policy is on, but its process does not run: `bivouac policy {name} on` starts it again")
}

/// The limits, in a line.
pub(super) fn settings(settings: &Settings) -> String {
    let limits = &settings.limits;
    let mut text = format!(
        "{} to {}; grows onto {} when a storage is {}% full",
        limits.min,
        plural(limits.max.into(), "server"),
        settings.spares.join(", "),
        limits.grow_above
    );
    if let Some(above) = limits.busy_above {
        let link = limits.link.map_or("the most that was seen".into(), |link| format!("{}/s", size(link)));
        text.push_str(&format!(", or a server transfers {above}% of {link} for {} s", limits.busy_for));
    }
    match limits.shrink_below {
        Some(below) => {
            text.push_str(&format!("; shrinks when less than {below}% is used for {} s", limits.idle_for))
        }
        None => text.push_str("; never shrinks"),
    }
    text
}
