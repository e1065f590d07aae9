//! Starting daemons on hosts.
//!
//! A [`Launcher`] knows one thing: the command that runs this very program on a host. What the program is to
//! do travels over its standard input as one line of JSON, with the key in it, so that no secret stands on a
//! command line; one line of JSON comes back. The same way leads to a host for cleaning up.

pub mod netns;
mod ssh;

use crate::error::Error;
use crate::home::LauncherKind;
use crate::process::ProcessId;
use crate::signals;
use bivouac_daemon::DaemonConfig;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longest time for a daemon to be ready; recovering a large storage takes a while.
pub const START_LIMIT: Duration = Duration::from_secs(120);
/// Longest time for a host to be cleaned.
pub const CLEANUP_LIMIT: Duration = Duration::from_secs(60);
/// Most of a launcher's error output that is shown, bytes.
const STDERR_LIMIT: u64 = 8 << 10;

/// How a daemon is started.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// All that the daemon needs but its storage directories, which are found on its host.
    pub config: DaemonConfig,
    /// Which storage.
    pub storage: StorageOrder,
}

/// Which storage a daemon takes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageOrder {
    /// Makes a new one inside each of these directories; inside the default place if there is none.
    Fresh(Vec<PathBuf>),
    /// The one that it had.
    Existing(Vec<PathBuf>),
}

/// Why a host is cleaned, and so what stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leave {
    /// Nothing: the deployment is over.
    Nothing,
    /// The storage, and what programs that live on have open on it. Mounts go.
    Storage,
    /// The same and the mounts: the deployment starts again.
    Mounts,
}

/// What to clean on a host.
#[derive(Debug, Serialize, Deserialize)]
pub struct CleanupOrder {
    /// The deployment's name.
    pub name: String,
    /// Its random number: what another deployment of that name left stays.
    pub deployment: u64,
    /// The user.
    pub uid: u32,
    /// What stays.
    pub leave: Leave,
    /// How long daemons may take to end by themselves, milliseconds.
    pub grace_ms: u64,
    /// Processes that were started there.
    pub processes: Vec<ProcessId>,
    /// Storage directories that were made there.
    pub storage: Vec<PathBuf>,
    /// Logs there, which go with the rest if the deployment's directory is not shared.
    pub logs: Vec<PathBuf>,
    /// Where agents there have kept the map.
    #[serde(default)]
    pub voters: Vec<PathBuf>,
    /// Only the daemon of this label, and what the order names; the deployment goes on.
    #[serde(default)]
    pub only: Option<String>,
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The daemon is ready for its first map.
    Ready(Ready),
    /// The host is clean.
    Cleaned,
    /// It failed, and left nothing.
    Error {
        /// Why.
        cause: String,
        /// What the user can do.
        remedy: String,
        /// It refuses what the user gave.
        refused: bool,
    },
}

/// A daemon that was started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessId,
    /// Where it listens.
    pub address: Option<SocketAddr>,
    /// The host's address by which the launcher came in, if it knows.
    pub reached: Option<IpAddr>,
    /// The storage directories that were made for it.
    pub storage: Vec<PathBuf>,
}

/// A way to run this program on a host.
pub trait Launcher: Sync {
    /// The command that runs `bivouac daemon` with `arguments` on `host`.
    fn command(&self, host: &str, arguments: &[&str]) -> Result<Command, Error>;

    /// What to look at when the command fails without an answer of the program.
    fn hint(&self, host: &str) -> String;

    /// Whether a command that ended without an answer of the program, with this exit code and these words,
    /// never got to the host.
    fn never_arrived(&self, _code: Option<i32>, _said: &str) -> bool {
        false
    }
}

/// The launcher of a kind.
pub fn launcher(kind: LauncherKind) -> &'static dyn Launcher {
    match kind {
        LauncherKind::Local => &Local,
        LauncherKind::Ssh => &ssh::Ssh,
        LauncherKind::Netns => &netns::Netns,
    }
}

/// By fork and exec on this machine.
struct Local;

impl Launcher for Local {
    fn command(&self, _: &str, arguments: &[&str]) -> Result<Command, Error> {
        let mut command = own_command();
        command.arg("daemon").args(arguments);
        Ok(command)
    }

    fn hint(&self, _: &str) -> String {
        "see the daemon's own words above".into()
    }
}

/// This program, also if its file was replaced meanwhile, without what a surrounding deployment put into the
/// environment.
pub fn own_command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bivouac");
    for variable in ["LD_PRELOAD", "BIVOUAC_DEPLOYMENT", "BIVOUAC_MOUNT", "BIVOUAC_KEY"] {
        command.env_remove(variable);
    }
    command
}

/// This program's file, for hosts that find it under the same path.
fn own_path() -> Result<PathBuf, Error> {
    std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program's own file".into(), cause })
}

/// Starts a daemon and waits until it is ready.
pub fn start(kind: LauncherKind, order: &Order) -> Result<Ready, Error> {
    let host = order.config.host.as_str();
    let label = format!("log: {}", order.config.log_file.display());
    match run(kind, host, &[], order, START_LIMIT)? {
        Report::Ready(ready) => Ok(ready),
        Report::Error { cause, remedy, refused } => {
            let remedy = if remedy.is_empty() { label } else { remedy };
            Err(Error::Launch { host: host.to_owned(), cause, remedy, refused })
        }
        Report::Cleaned => Err(nonsense(host)),
    }
}

/// Cleans a host.
pub fn clean(kind: LauncherKind, host: &str, order: &CleanupOrder) -> Result<(), Error> {
    match run(kind, host, &["--cleanup"], order, CLEANUP_LIMIT)? {
        Report::Cleaned => Ok(()),
        Report::Error { cause, remedy, .. } => {
            Err(Error::Unanswered { cause: format!("{host}: {cause}"), remedy })
        }
        Report::Ready(_) => Err(nonsense(host)),
    }
}

fn nonsense(host: &str) -> Error {
    Error::Launch {
        host: host.to_owned(),
        cause: "bivouac answered something that was not asked".into(),
        remedy: "install the same Bivouac on all hosts".into(),
        refused: false,
    }
}

fn run<O: Serialize>(
    kind: LauncherKind,
    host: &str,
    arguments: &[&str],
    order: &O,
    limit: Duration,
) -> Result<Report, Error> {
    let launcher = launcher(kind);
    let failed = |cause: String| Error::Launch {
        host: host.to_owned(),
        cause,
        remedy: launcher.hint(host),
        refused: false,
    };
    let mut command = launcher.command(host, arguments)?;
    // In a process group of its own: an interruption at the terminal goes to this process only, which decides
    // what to do.
    command.process_group(0);
    let program = command.get_program().to_string_lossy().into_owned();
    match converse(command, order, limit) {
        Ok((report, mut child)) => {
            // The answer has come. Do not wait for a launcher that does not end.
            if !ended_within(&mut child, Duration::from_secs(2)) {
                kill(&mut child);
            }
            Ok(report)
        }
        Err(Talk::Spawn(e)) => Err(failed(format!("cannot run {program}: {e}"))),
        Err(Talk::Silent { code, stderr, .. }) if launcher.never_arrived(code, &stderr) => {
            Err(Error::Unreached { host: host.to_owned(), cause: stderr, remedy: launcher.hint(host) })
        }
        Err(Talk::Silent { status, stderr, .. }) => {
            let said = if stderr.is_empty() { String::new() } else { format!(": {stderr}") };
            Err(failed(format!("{program} ended without an answer ({status}){said}")))
        }
        Err(Talk::Nonsense(line)) => Err(failed(format!("an answer that is none: {line:?}"))),
        Err(Talk::Late) => Err(failed(format!("no answer within {} s", limit.as_secs()))),
        Err(Talk::Interrupted(signal)) => Err(Error::Interrupted(signal)),
    }
}

/// Why a conversation failed.
pub enum Talk {
    /// The program did not start.
    Spawn(std::io::Error),
    /// It ended without a line.
    Silent {
        /// How.
        status: String,
        /// Its exit code, if it was not killed.
        code: Option<i32>,
        /// Its error output.
        stderr: String,
    },
    /// Its line was not understood.
    Nonsense(String),
    /// It took too long, and was killed.
    Late,
    /// A signal came, and it was killed.
    Interrupted(i32),
}

/// Runs a command, gives it one line and takes one; the command may go on. A signal to this process ends it.
pub fn converse<O: Serialize, R: DeserializeOwned>(
    command: Command,
    order: &O,
    limit: Duration,
) -> Result<(R, Child), Talk> {
    converse_until(command, order, limit, &|| signals::interrupted().map(Talk::Interrupted))
}

/// The same, and `interrupted`, which is asked again and again, ends it.
pub fn converse_until<O: Serialize, R: DeserializeOwned>(
    mut command: Command,
    order: &O,
    limit: Duration,
    interrupted: &dyn Fn() -> Option<Talk>,
) -> Result<(R, Child), Talk> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    signals::unblock_in_child(&mut command);
    let mut child = command.spawn().map_err(Talk::Spawn)?;
    let mut line = serde_json::to_vec(order).map_err(|e| Talk::Spawn(e.into()))?;
    line.push(b'\n');
    if let Some(mut stdin) = child.stdin.take() {
        // It may have ended already; its own output says more than this error.
        let _ = stdin.write_all(&line);
    }
    let (send, answers) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = send.send(line);
        });
    }
    let stderr = child.stderr.take().map(|stderr| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.take(STDERR_LIMIT).read_to_end(&mut text);
            String::from_utf8_lossy(&text).trim().to_owned()
        })
    });
    let line = loop {
        match answers.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => break line,
            Err(RecvTimeoutError::Disconnected) => break String::new(),
            Err(RecvTimeoutError::Timeout) => {
                let late = || (Instant::now() >= deadline).then_some(Talk::Late);
                if let Some(end) = interrupted().or_else(late) {
                    kill(&mut child);
                    return Err(end);
                }
            }
        }
    };
    if line.trim().is_empty() {
        let ended = child.wait();
        let code = ended.as_ref().ok().and_then(|status| status.code());
        let status = ended.map_or_else(|e| e.to_string(), |s| s.to_string());
        let stderr = stderr.and_then(|t| t.join().ok()).unwrap_or_default();
        return Err(Talk::Silent { status, code, stderr });
    }
    match serde_json::from_str(&line) {
        Ok(answer) => Ok((answer, child)),
        Err(_) => {
            kill(&mut child);
            Err(Talk::Nonsense(line.trim().chars().take(300).collect()))
        }
    }
}

fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn ended_within(child: &mut Child, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => return false,
            _ => return true,
        }
    }
}

/// A word that any POSIX shell takes as it is.
pub fn shell_quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The same for a path; paths of programs are UTF-8 or the user has other worries.
pub fn shell_quote_path(path: &Path) -> String {
    shell_quote(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_come_out_of_a_shell_as_they_went_in() {
        for word in ["", "plain", "two words", "it's", "$HOME `x` \"y\" \\", "a\nb", "*"] {
            let script = format!("printf %s {}", shell_quote(word));
            let output = Command::new("sh").args(["-c", &script]).output().expect("runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    /// Tells a hang from a busy machine.
    const HANG: Duration = Duration::from_secs(60);

    fn talk(script: &str, limit: Duration) -> Result<Report, Talk> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        converse(command, &"order", limit).map(|(report, mut child)| {
            kill(&mut child);
            report
        })
    }

    #[test]
    fn a_launcher_that_fails_is_quoted() {
        let limit = HANG;
        match talk("echo no such host >&2; exit 255", limit) {
            Err(Talk::Silent { status, code, stderr }) => {
                assert!(status.contains("255") && code == Some(255));
                assert_eq!(stderr, "no such host");
            }
            _ => panic!("silent"),
        }
        assert!(matches!(talk("echo hello", limit), Err(Talk::Nonsense(line)) if line == "hello"));
        assert!(matches!(talk(r#"read x; echo '"cleaned"'"#, limit), Ok(Report::Cleaned)));
    }

    #[test]
    fn a_launcher_that_hangs_is_given_up() {
        let start = Instant::now();
        assert!(matches!(talk("exec sleep 600", Duration::from_millis(200)), Err(Talk::Late)));
        assert!(start.elapsed() < HANG);
    }

    #[test]
    fn a_daemon_that_holds_its_output_open_does_not_hold_up_the_launcher() {
        let start = Instant::now();
        let script = r#"sleep 100 & echo '"cleaned"'"#;
        assert!(matches!(talk(script, HANG), Ok(Report::Cleaned)));
        assert!(start.elapsed() < HANG);
    }
}
