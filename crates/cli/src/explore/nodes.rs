//! The explorer's part on each node: started by the launcher that started the node's agent, and itself starting
//! processes as `bivouac exec` does; or, without a deployment, on this machine alone ([`local`]), where processes are
//! ordinary ones.

use crate::error::Error;
use crate::exec::Inside;
use crate::home::{DaemonRecord, Home, LauncherKind, Record};
use crate::workers;
use bivouac_explore::node;
use bivouac_explore::run::Link;
use std::io::BufReader;
use std::process::Command;
use std::time::Duration;

/// How long a node's part may take to end: its processes first.
const GRACE: Duration = Duration::from_secs(15);

/// The agents of the hosts that processes run on: of all, unless some are named.
pub fn chosen<'a>(record: &'a Record, hosts: &[String]) -> Result<Vec<&'a DaemonRecord>, Error> {
    let agents = || record.daemons.iter().filter(|daemon| daemon.agent);
    if hosts.is_empty() {
        return Ok(agents().collect());
    }
    let mut found: Vec<&DaemonRecord> = Vec::new();
    for host in hosts {
        let agent = agents().find(|agent| agent.host == *host).ok_or_else(|| {
            let known: Vec<&str> = agents().map(|agent| agent.host.as_str()).collect();
            Error::refused(
                format!("{host:?} is no host of {:?}", record.name),
                format!("its hosts are {}", known.join(", ")),
            )
        })?;
        if found.iter().any(|other| other.node == agent.node) {
            return Err(Error::refused(format!("{host:?} is named twice"), "name each host once"));
        }
        found.push(agent);
    }
    Ok(found)
}

/// Connects to all of them. The first that cannot be reached is the error.
pub fn connect(agents: &[&DaemonRecord]) -> Result<Vec<Link>, Error> {
    let started: Vec<Result<Link, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            agents.iter().map(|agent| scope.spawn(move || one(&agent.host, agent.launcher))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    started.into_iter().collect()
}

/// Starts one on this machine.
pub fn local() -> Result<Link, Error> {
    one("this machine", LauncherKind::Local)
}

fn one(host: &str, launcher: LauncherKind) -> Result<Link, Error> {
    let (input, output, end) = workers::connect(host, launcher, "--explore", GRACE)?;
    Ok(Link::new(host.to_owned(), Box::new(input), Box::new(output), Box::new(move || end(false))))
}

/// Is the part on a node: the hidden way into this program.
pub fn serve() {
    node::serve(BufReader::new(std::io::stdin()), std::io::stdout(), |name| {
        let find = || -> Result<node::Inside, Error> {
            let own = std::env::current_exe().map_err(|cause| Error::System {
                what: "cannot find this program's own file".into(),
                cause,
            })?;
            let Some(name) = name else {
                let command = move || {
                    let mut command = Command::new(&own);
                    command.args(["explore", "worker"]);
                    Ok(command)
                };
                return Ok(node::Inside { forwarded: None, command: Box::new(command) });
            };
            let inside = Inside::find(&Home::from_env()?, name)?;
            let words = [own.into_os_string(), "explore".into(), "worker".into()];
            Ok(node::Inside {
                forwarded: inside.environment.forwarded.clone(),
                command: Box::new(move || inside.command(&words).map_err(|error| error.to_string())),
            })
        };
        find().map_err(|error| error.to_string())
    });
}
