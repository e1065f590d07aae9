//! Workers of `preload` and `flush`: this program on each node of a deployment, started by the launchers that
//! start daemons. Explorations start their part on nodes in the same way ([`connect`]).
//!
//! A worker has no other tie to the command than its standard input and output. It attaches to the deployment
//! as any client of its node does, so that no key travels. When the command ends, whatever the reason, its
//! standard input ends, and it ends.

use crate::copy::client;
use crate::error::Error;
use crate::exec::attachable;
use crate::home::{DaemonRecord, Home, LauncherKind, Record};
use crate::launch;
use crate::signals;
use bivouac_stage::Link;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most of a worker's error output that is shown, bytes.
const STDERR_LIMIT: u64 = 4 << 10;
/// How long a worker may take to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// Starts a worker on each node. Those that cannot be started are left out: the second part says why.
pub fn start(record: Option<&Record>) -> (Vec<Link>, Vec<(String, String)>) {
    let Some(record) = record else {
        // This machine has a node of the deployment, and knows nothing of the others.
        return sorted(vec![one("this machine", LauncherKind::Local, true)]);
    };
    let serves = |agent: &DaemonRecord| {
        record.daemons.iter().any(|other| other.node == agent.node && other.server.is_some())
    };
    let agents: Vec<&DaemonRecord> = record.daemons.iter().filter(|daemon| daemon.agent).collect();
    std::thread::scope(|scope| {
        let start = |agent: &DaemonRecord| one(&agent.host, agent.launcher, serves(agent));
        let threads: Vec<_> = agents.into_iter().map(|agent| scope.spawn(move || start(agent))).collect();
        sorted(threads.into_iter().filter_map(|thread| thread.join().ok()).collect())
    })
}

type Started = Result<Link, (String, String)>;

fn sorted(started: Vec<Started>) -> (Vec<Link>, Vec<(String, String)>) {
    let mut links = Vec::new();
    let mut failed = Vec::new();
    for one in started {
        match one {
            Ok(link) => links.push(link),
            Err(why) => failed.push(why),
        }
    }
    (links, failed)
}

fn one(host: &str, kind: LauncherKind, serves: bool) -> Started {
    let connected = connect(host, kind, "--stage", GRACE);
    let (input, output, end) = connected.map_err(|error| (host.to_owned(), error.to_string()))?;
    Ok(Link {
        name: host.to_owned(),
        serves,
        input: Box::new(input),
        output: Box::new(output),
        end: Box::new(end),
    })
}

/// Runs this program's part on a host, which `option` of the hidden subcommand names. Its standard input and output, and
/// what waits for its end (`true`: it is ended at once) and says what it has said.
pub fn connect(
    host: &str,
    kind: LauncherKind,
    option: &str,
    grace: Duration,
) -> Result<(ChildStdin, ChildStdout, impl FnOnce(bool) -> String + Send + 'static), Error> {
    let mut child = launch::launcher(kind).command(host, &[option]).and_then(|mut command| {
        // In a process group of its own: what the terminal sends is for the command.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        signals::unblock_in_child(&mut command);
        spawn(command)
    })?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        let cause = std::io::ErrorKind::BrokenPipe.into();
        return Err(Error::System { what: format!("cannot talk to {host}"), cause });
    };
    let said = child.stderr.take().map(|stderr| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.take(STDERR_LIMIT).read_to_end(&mut text);
            String::from_utf8_lossy(&text).trim().to_owned()
        })
    });
    Ok((input, output, move |at_once: bool| end(child, said, if at_once { Duration::ZERO } else { grace })))
}

fn spawn(mut command: Command) -> Result<Child, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|cause| Error::System { what: format!("cannot run {program}"), cause })
}

/// Waits for a worker's end, and ends it if it takes long; what it has said.
fn end(mut child: Child, said: Option<JoinHandle<String>>, grace: Duration) -> String {
    let deadline = Instant::now() + grace;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // What it has started may hold its error output open.
    let deadline = Instant::now() + Duration::from_millis(200);
    let Some(said) = said else { return String::new() };
    while !said.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    if said.is_finished() { said.join().unwrap_or_default() } else { String::new() }
}

/// Is a worker: the hidden way into this program.
pub fn work() -> ExitCode {
    let output = rustix::io::dup(rustix::stdio::stdout()).map(File::from);
    let Ok(output) = output else { return ExitCode::FAILURE };
    let worked = bivouac_stage::work(std::io::stdin().lock(), output, |setup| {
        let home = Home::from_env().map_err(|error| error.to_string())?;
        let environment = attachable(&home, &setup.name).map_err(|error| error.to_string())?;
        client(&setup.name, &environment).map_err(|error| error.to_string())
    });
    // Threads may be in the middle of a copy that nobody wants any more: this ends them.
    std::process::exit(match worked {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    })
}
