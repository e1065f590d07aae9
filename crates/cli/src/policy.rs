//! A policy: a deployment grows onto spare hosts when servers are full or busy, and gives them up again when they are not.
//!
//! Off unless a user switches it on. It is carried out by one small process on the machine that the deployment was started
//! from, because only there is what starting a server on a host takes (the key, the launchers, the record). That process does
//! what a user would do with `bivouac expand` and `bivouac shrink`; the deployment does not depend on it, and misses nothing
//! but new servers if it dies.
//!
//! - [`settings`]: what the user wants. [`decide`]: what to do, a pure function. [`sample`]: what there is to see.
//! - [`runner`]: the process, with [`act`] and [`spares`]. [`files`]: what it leaves in the deployment's directory.
//!   [`journal`]: its log.
//! - Here: the command, and what others do with the process (`up` starts it, `down` ends it, `status` shows it).

mod act;
pub mod decide;
pub mod files;
mod journal;
mod runner;
mod sample;
mod settings;
mod show;
mod spares;

use crate::args::{PolicyArgs, PolicyCommand, PolicyOnArgs};
use crate::error::Error;
use crate::home::{Directory, Home};
use crate::launch::own_command;
use crate::mount::{Detached, detached};
use crate::{rebuild, signals};
pub use runner::run;
use serde::Serialize;
use settings::Settings;

/// Shows a deployment's policy, or switches it on or off.
pub fn policy(home: &Home, args: &PolicyArgs) -> Result<(), Error> {
    let directory = home.deployment(&args.name);
    match &args.what {
        Some(PolicyCommand::On(on)) => switch_on(&directory, on),
        Some(PolicyCommand::Off) => switch_off(&directory),
        None => {
            directory.load()?;
            if args.json { show::json(&directory) } else { show::text(&directory) }
        }
    }
}

fn switch_on(directory: &Directory, args: &PolicyOnArgs) -> Result<(), Error> {
    let (record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    let map = rebuild::look(&record, &key)?;
    let settings = Settings::new(directory.policy()?, args, &record, &map)?;
    let _lock = directory.lock()?;
    // The next one goes by the new settings.
    directory.end_policy_process();
    directory.save_policy(&settings)?;
    journal::write(directory, "on", &show::settings(&settings), "");
    start(directory)?;
    println!("{} grows and shrinks by itself: {}", directory.name, show::settings(&settings));
    Ok(())
}

fn switch_off(directory: &Directory) -> Result<(), Error> {
    directory.load()?;
    let Some(settings) = directory.policy()?.filter(|settings| settings.on) else {
        return Err(Error::refused(
            format!("the policy of {:?} is off already", directory.name),
            "there is nothing to do",
        ));
    };
    directory.end_policy_process();
    directory.save_policy(&Settings { on: false, ..settings })?;
    journal::write(directory, "off", "the servers stay as they are", "");
    println!("the policy of {} is off: its servers stay as they are", directory.name);
    Ok(())
}

/// Starts the process that carries a policy out.
fn start(directory: &Directory) -> Result<(), Error> {
    let mut command = own_command();
    command.args(["policy-watch", &directory.name]);
    if let Some(home) = directory.path.parent() {
        command.env("BIVOUAC_HOME", home);
    }
    signals::unblock_in_child(&mut command);
    match detached(command)? {
        Detached::Ready(_) => Ok(()),
        Detached::Ended(status) => Err(Error::Unanswered {
            cause: format!("the policy's process has ended at once ({status}); it has said why"),
            remedy: format!("repeat `bivouac policy {} on` when that is mended", directory.name),
        }),
    }
}

/// Starts it for a deployment that is back, if its policy is on.
pub fn go_on(directory: &Directory) -> Result<(), Error> {
    let is_on = directory.policy()?.is_some_and(|settings| settings.on);
    match directory.policy_process() {
        None if is_on => start(directory),
        _ => Ok(()),
    }
}

/// What `status` says of a policy that is on.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The process that carries it out; `null`: none does, although one should.
    pub pid: Option<u32>,
    /// Fewest servers.
    pub min: u16,
    /// Most servers.
    pub max: u16,
}

impl Shown {
    /// For people.
    pub fn line(&self, name: &str) -> String {
        match self.pid {
            Some(pid) => format!(
                "the policy keeps {} to {} servers (process {pid}); `bivouac policy {name}` shows what it did",
                self.min, self.max
            ),
            None => show::dead(name),
        }
    }
}

/// What `status` says of a deployment's policy; `None`: it is off, or cannot be read.
pub fn shown(directory: &Directory) -> Option<Shown> {
    let settings = directory.policy().ok().flatten().filter(|settings| settings.on)?;
    let pid = directory.policy_process().map(|process| process.pid);
    Some(Shown { pid, min: settings.limits.min, max: settings.limits.max })
}
