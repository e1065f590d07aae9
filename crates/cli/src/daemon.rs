//! `bivouac daemon`: this program as a daemon, and what happens on a host before and after its service.
//!
//! The program that a launcher starts reads its [`Order`], starts itself once more in a session of its own,
//! and passes on the one line that this second process writes when it is ready (or why it is not). The second
//! process has by then [found its storage](place), [left its traces](traces) for `down`, and started to
//! serve; from then on it has no ties to whoever launched it: no terminal, no descriptors, no working
//! directory, no environment of a surrounding deployment.
//!
//! An agent looks after the servers of its node ([`warden`]), and starts them again when they die.
//!
//! A daemon that is told to stop removes what it made. What a killed daemon has left is removed by
//! [`cleanup`], on the same host, according to the traces.

pub mod cleanup;
pub mod place;
mod throttle;
pub mod traces;
mod warden;

use crate::args::DaemonArgs;
use crate::down;
use crate::error::Error;
use crate::launch::{self, CleanupOrder, Order, Ready, Report, Talk};
use crate::process::ProcessId;
use bivouac_daemon::End;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use traces::Trace;
use tracing_subscriber::EnvFilter;
use warden::Warden;

/// How often it is looked whether another start of the same server is over.
const STARTING: Duration = Duration::from_millis(10);

/// Runs the hidden subcommand.
pub fn main(args: &DaemonArgs) -> ExitCode {
    if args.stage {
        return crate::workers::work();
    }
    if args.explore {
        crate::explore::serve();
        return ExitCode::SUCCESS;
    }
    if args.layouts {
        return match crate::backend::layouts::work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                error.show();
                ExitCode::from(error.exit_code())
            }
        };
    }
    if args.serve {
        return serve();
    }
    let report = if args.cleanup { clean_here() } else { detach() };
    let failed = matches!(report, Report::Error { .. });
    say(&report);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Writes a line for the launcher. If the launcher is gone, nobody needs it.
fn say(report: &Report) {
    if let Ok(mut line) = serde_json::to_vec(report) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

fn read_order<O: serde::de::DeserializeOwned>() -> Result<O, Report> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|e| e.to_string())
        .and_then(|_| serde_json::from_str(&line).map_err(|e| e.to_string()))
        .map_err(|why| Report::Error {
            cause: format!("the order on standard input is not understood: {why}"),
            remedy: "install the same Bivouac on all hosts".into(),
            refused: false,
        })
}

fn clean_here() -> Report {
    match read_order::<CleanupOrder>() {
        Ok(order) => cleanup::clean(&order).map_or_else(|e| report(&e), |()| Report::Cleaned),
        Err(report) => report,
    }
}

fn report(error: &Error) -> Report {
    let refused = matches!(error, Error::Refused { .. });
    Report::Error { cause: error.to_string(), remedy: error.remedy().unwrap_or_default(), refused }
}

/// The error for a daemon that ended without saying why.
fn dead(cause: String) -> Report {
    Report::Error { cause, remedy: String::new(), refused: false }
}

/// Starts the process that serves, and relays what it says.
fn detach() -> Report {
    let order = match read_order::<Order>() {
        Ok(order) => order,
        Err(report) => return report,
    };
    let mut command = launch::own_command();
    command.args(["daemon", "--serve"]).current_dir("/");
    // SAFETY: between fork and exec only `setsid` is called, a plain system call.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
    match launch::converse(command, &order, launch::START_LIMIT) {
        // It goes on without a parent.
        Ok((report, _)) => report,
        Err(Talk::Silent { status, stderr, .. }) => {
            dead(format!("the daemon ended at once ({status}) {stderr}").trim_end().to_owned())
        }
        Err(Talk::Spawn(e)) => dead(format!("cannot start a process: {e}")),
        Err(Talk::Nonsense(line)) => dead(format!("the daemon said {line:?}")),
        Err(Talk::Late) => dead("the daemon is not ready in time".into()),
        Err(Talk::Interrupted(n)) => dead(format!("interrupted by signal {n}")),
    }
}

/// The process that serves.
fn serve() -> ExitCode {
    close_inherited();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let order = match read_order::<Order>() {
        Ok(order) => order,
        Err(report) => {
            say(&report);
            return ExitCode::FAILURE;
        }
    };
    let config = order.config.clone();
    let label = match &order.config.server {
        Some(server) => traces::server_label(server.id, server.succession),
        None => format!("agent-{}", order.config.node),
    };
    let Begun { running, run_dir, trace } = match begin(order, &label) {
        Ok(Some(begun)) => begun,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            say(&report(&error));
            return ExitCode::FAILURE;
        }
    };
    leave_launcher();
    let looks_after = config.agent && config.restarts > 0;
    let warden = looks_after.then(|| Warden::start(config.clone(), running.view(), run_dir.clone()));
    let warden = warden.and_then(|started| {
        started
            .inspect_err(|error| tracing::error!(%error, "servers that die will not be started again"))
            .ok()
    });
    let end = running.told();
    // Before it stops to answer: whoever starts it again by hand looks at the note then.
    let _ = traces::leave(&run_dir, &label, &Trace { ending: true, ..trace });
    if let Some(warden) = warden {
        warden.stop(end == End::Told { keep: true });
    }
    let end = running.wait();
    traces::forget(&run_dir, &label);
    tracing::info!("stopped");
    if end == End::Left {
        down::after_leaving(&config);
    } else if config.agent || end == End::Deserted {
        let done = down::after_lifeline(&config);
        if !done && end == End::Deserted {
            down::after_desertion(&config);
        }
    }
    ExitCode::SUCCESS
}

/// A daemon that serves.
struct Begun {
    running: bivouac_daemon::Running,
    run_dir: PathBuf,
    trace: Trace,
}

/// Everything up to being ready, which is said. On an error nothing of it is left. `None`: this server runs already,
/// which is said, too.
fn begin(order: Order, label: &str) -> Result<Option<Begun>, Error> {
    let Order { mut config, storage } = order;
    log_to(&config.log_file, &config.log_level)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        host = config.host,
        "starting {label}"
    );
    place::check_mount(&config.mount)?;
    let run_dir = place::make_run_dir(config.uid, &config.name, config.deployment, &config.key)?;
    let mut made = place::Made::default();
    if let Some(server) = &mut config.server {
        let found =
            place::storage(&config.name, &run_dir, (server.id, server.succession), &storage, &mut made);
        server.storage = found.inspect_err(|_| traces::remove_if_empty(&run_dir))?;
        server.created_storage = true;
    }
    let storage = config.server.as_ref().map(|s| s.storage.clone()).unwrap_or_default();
    let _starts = storage.first().map(|directory| lock_start(directory)).transpose()?;
    let before = traces::of(&run_dir, label, config.deployment);
    if let Some(Trace { process, address: Some(address), storage, ending: false, .. }) = &before
        && process.is_alive()
        && !(process.is_dying() && process.wait_end(launch::START_LIMIT))
    {
        tracing::info!(pid = process.pid, "{label} is there already");
        let (address, storage) = (Some(*address), storage.clone());
        say(&Report::Ready(Ready { process: *process, address, reached: reached(), storage }));
        return Ok(None);
    }
    let home = config.deployment_dir.clone();
    let mut trace = Trace {
        deployment: config.deployment,
        name: config.name.clone(),
        mount: config.mount.clone(),
        agent: config.agent,
        home,
        process: ProcessId::own(),
        storage: storage.clone(),
        log: config.log_file.clone(),
        address: None,
        ending: false,
    };
    let again = || place::make_run_dir(config.uid, &config.name, config.deployment, &config.key).map(drop);
    traces::leave_first(&run_dir, label, &trace, again)?;
    let host = config.host.clone();
    let log = config.log_file.clone();
    let running = bivouac_daemon::start(config).map_err(|error| {
        // The note of a process that died on this storage is still true.
        match before {
            Some(before) => drop(traces::leave(&run_dir, label, &before)),
            None => traces::forget(&run_dir, label),
        }
        Error::Launch { host, cause: error.to_string(), remedy: start_remedy(&error, &log), refused: false }
    })?;
    made.keep();
    trace.address = running.address;
    if let Err(error) = traces::leave(&run_dir, label, &trace) {
        tracing::warn!(%error, "the note that this daemon has left does not say where it listens");
    }
    // An agent that has started this server may end from now on.
    let _ = rustix::process::set_parent_process_death_signal(None);
    say(&Report::Ready(Ready {
        process: ProcessId::own(),
        address: running.address,
        reached: reached(),
        storage,
    }));
    Ok(Some(Begun { running, run_dir, trace }))
}

/// Waits until nobody else is starting a server on this storage: an agent and `bivouac restart` may do that at the same
/// time.
fn lock_start(storage: &Path) -> Result<File, Error> {
    let failed = |cause| Error::file("lock", storage, cause);
    let file = File::open(storage).map_err(failed)?;
    let until = Instant::now() + launch::START_LIMIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(STARTING),
            Err(TryLockError::WouldBlock) => return Err(failed(std::io::ErrorKind::WouldBlock.into())),
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
    }
}

fn start_remedy(error: &bivouac_daemon::DaemonError, log: &Path) -> String {
    use bivouac_proto::Errno;
    use bivouac_transport::TransportError;
    let log = format!("log: {}", log.display());
    match error {
        bivouac_daemon::DaemonError::Transport(TransportError::Listen { errno, .. }) => match *errno {
            Errno::ADDRINUSE => format!(
                "something else uses it: give another --port, or none to take any that is free\n{log}"
            ),
            Errno::ADDRNOTAVAIL => format!("the host does not have this address\n{log}"),
            _ => log,
        },
        _ => log,
    }
}

/// The address of this host by which ssh came in.
fn reached() -> Option<IpAddr> {
    // "client port server port"
    let connection = std::env::var("SSH_CONNECTION").ok()?;
    connection.split(' ').nth(2)?.parse().ok()
}

/// Closes all other descriptors that it inherited from the launcher: a daemon must not hold locks or pipes of
/// others.
fn close_inherited() {
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // SAFETY: this is the first thing that the process does: nothing in it has opened a descriptor yet
        // but the listing above, which is closed again, so that every number is an inherited one, or closed
        // (an error that is ignored).
        unsafe { libc::close(fd) };
    }
}

/// Lets the launcher's pipes go.
fn leave_launcher() {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null");
    if let Ok(null) = null {
        let null = null.as_fd();
        let _ = rustix::stdio::dup2_stdin(null);
        let _ = rustix::stdio::dup2_stdout(null);
        let _ = rustix::stdio::dup2_stderr(null);
    }
}

/// Messages go to the log file from here on, panics too.
fn log_to(path: &Path, level: &str) -> Result<(), Error> {
    if let Some(directory) = path.parent() {
        place::make_private(directory)?;
    }
    let file: File = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| Error::file("write the log", path, e))?;
    let filter = EnvFilter::try_new(level).unwrap_or_else(|_| EnvFilter::new("info"));
    // openraft tells at `info` what only its authors need, and as errors what is usual while a node is away.
    let quiet = "openraft=off".parse().ok().filter(|_| !level.contains("openraft"));
    let filter = quiet.into_iter().fold(filter, EnvFilter::add_directive);
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .event_format(throttle::Throttle::new(
            tracing_subscriber::fmt::format().with_ansi(false),
            throttle::WINDOW,
        ))
        .with_writer(Mutex::new(file))
        .finish();
    // It can only fail when there is one already.
    let _ = tracing::subscriber::set_global_default(subscriber);
    std::panic::set_hook(Box::new(|info| tracing::error!("{info}")));
    Ok(())
}
