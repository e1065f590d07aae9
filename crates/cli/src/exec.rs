//! Running a command inside a deployment: the environment that makes it so, and what must be there first.

use crate::access;
use crate::args::{Access, AccessArgs, ExecArgs};
use crate::daemon::traces;
use crate::error::Error;
use crate::existing;
use crate::home::{Home, State, read_own, uid};
use crate::launch::shell_quote;
use crate::mount_point;
use crate::mounts;
use crate::private;
use crate::view::View;
use bivouac_daemon::config::hex_key;
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_node::Environment;
use bivouac_node::names::FORWARDED_VARIABLE;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_transport::engine::budget::control;
use bivouac_transport::{Endpoint, TransportError};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// File name of the preload library.
const LIBRARY: &str = "libbivouac_preload.so";

/// What programs need in their environment to use a deployment from this machine.
pub struct Inside {
    /// The deployment, as the client core sees it.
    pub environment: Environment,
    library: PathBuf,
}

impl Inside {
    /// Finds the deployment on this machine and makes sure that its agent answers.
    pub fn find(home: &Home, name: &str) -> Result<Inside, Error> {
        let environment = attachable(home, name)?;
        Ok(Inside { environment, library: library()? })
    }

    /// The variables to set.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![("LD_PRELOAD", with_library(&self.library, std::env::var_os("LD_PRELOAD")))];
        variables.extend(self.environment.to_env().map(|(name, value)| (name, value.into())));
        variables
    }

    /// The command, ready to be started inside.
    pub fn command(&self, words: &[OsString]) -> Result<Command, Error> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(Error::refused("there is no command", "give one after --"));
        };
        // This program does not see the mount, so that it cannot execute what lies there; a shell inside can.
        let mut command = if is_below(program, &self.environment.mount) {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "exec \"$0\" \"$@\""]).arg(program);
            shell
        } else {
            Command::new(program)
        };
        // The command may be inside of a mount already, which it is not to use.
        command.args(arguments).env_remove("BIVOUAC_MOUNTED").envs(self.variables());
        Ok(command)
    }
}

/// The command, ready to be started with the library and no mount.
fn with_library_alone(inside: Inside, args: AccessArgs, words: &[OsString]) -> Result<Command, Error> {
    let mut command = inside.command(words)?;
    // If the variable is set already, it may ask for a report: leave it.
    let variable = bivouac_node::CATCH_VARIABLE.to_string_lossy().into_owned();
    if args.catch_syscalls && std::env::var_os(&variable).is_none() {
        command.env(variable, "1");
    }
    Ok(command)
}

/// `exec`: becomes the command.
pub fn exec(home: &Home, args: &ExecArgs) -> Result<(), Error> {
    let words = &args.command;
    // Only if it matters: looking at a mount that does not answer blocks until it answers.
    let is_mounted = || {
        let mount = trace_of(&args.name).map(|trace| trace.mount).unwrap_or_default();
        existing::find(&args.name, uid(), &View::deployment(&mount)).here.is_some()
    };
    let access = access::chosen(args.access, words, is_mounted)?;
    let mut command = match access {
        Access::Fuse | Access::Both => {
            let mut environment = attachable(home, &args.name)?;
            // Before the mount is made, so that an error comes first.
            let library = (access == Access::Both).then(library).transpose()?;
            // The directory that is forwarded is a mount for such a program, which the library has no part in.
            let forwarded = environment.forwarded.take();
            let views =
                [Some(View::deployment(&environment.mount)), forwarded.as_deref().map(View::forwarded)];
            show(&args.name, views.into_iter().flatten().collect(), args.access.verbose)?;
            let Some((program, arguments)) = words.split_first() else {
                return Err(Error::refused("there is no command", "give one after --"));
            };
            let mut command = Command::new(program);
            command.args(arguments).env_remove(OsStr::from_bytes(FORWARDED_VARIABLE.to_bytes()));
            match library {
                Some(library) => {
                    environment.mounted = Some(device(Path::new(&environment.mount))?);
                    command.envs(Inside { environment, library }.variables())
                }
                None => command.envs(environment.to_env()),
            };
            command
        }
        _ => {
            let inside = Inside::find(home, &args.name)?;
            access::warn(&inside.environment, words);
            if is_root() {
                mount_point::shut(Path::new(&inside.environment.mount));
            }
            with_library_alone(inside, args.access, words)?
        }
    };
    let cause = command.exec();
    Err(exec_error(words, cause))
}

/// Has this process see views of a deployment, each through a mount that is there already, or else one of its own.
fn show(name: &str, mut views: Vec<View>, verbose: bool) -> Result<(), Error> {
    views.retain(|view| {
        let existing = existing::find(name, uid(), view);
        if verbose {
            eprintln!("bivouac: mount: {}", existing.told(&view.path));
        }
        existing.here.is_none()
    });
    for view in &views {
        mounts::sweep_at(&view.path, uid());
    }
    if views.is_empty() { Ok(()) } else { private::enter(name, &views) }
}

/// The device number of what is mounted at a path, major and minor.
fn device(mount: &Path) -> Result<(u32, u32), Error> {
    // By a system call: this process may have the library, which would show it its own.
    let found = rustix::fs::stat(mount).map_err(|cause| Error::file("look at", mount, cause.into()))?;
    Ok((rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev)))
}

/// The command that `run` starts: the given one, or where that is to have a mount, this program, which makes
/// the mount and becomes the given one.
pub fn command(home: &Home, name: &str, given: AccessArgs, words: &[OsString]) -> Result<Command, Error> {
    let access = match access::chosen(given, words, || false)? {
        Access::Fuse => "fuse",
        Access::Both => "both",
        // Root's gets a namespace of its own, which nobody else is to be in.
        _ if is_root() => "preload",
        _ => {
            let inside = Inside::find(home, name)?;
            access::warn(&inside.environment, words);
            return with_library_alone(inside, given, words);
        }
    };
    let own = std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program's own file".into(), cause })?;
    let mut command = Command::new(own);
    command.args(["exec", name, "--access", access]);
    if given.catch_syscalls {
        command.arg("--catch-syscalls");
    }
    command.arg("--").args(words);
    Ok(command)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// `env`: prints what `exec` would set.
pub fn env(home: &Home, name: &str) -> Result<(), Error> {
    for (name, value) in Inside::find(home, name)?.variables() {
        println!("export {name}={}", shell_quote(&value.to_string_lossy()));
    }
    Ok(())
}

/// Why a command could not be started.
pub fn exec_error(words: &[OsString], cause: std::io::Error) -> Error {
    let command = words.first().map(|w| w.to_string_lossy().into_owned()).unwrap_or_default();
    Error::Exec { command, cause }
}

/// What this machine's agent of a deployment has left for others to find it.
fn trace_of(name: &str) -> Option<traces::Trace> {
    traces::agent(Path::new(&bivouac_node::place::find(uid(), name)?))
}

/// The deployment as this machine knows it, with an agent that answers.
pub fn attachable(home: &Home, name: &str) -> Result<Environment, Error> {
    let found = bivouac_node::place::find(uid(), name);
    let (Some(run_dir), Some(trace)) = (found, trace_of(name)) else {
        return Err(why_not_here(home, name));
    };
    let key_path = bivouac_node::key_path(&run_dir);
    let text = read_own(Path::new(&key_path)).map_err(|e| Error::file("read", Path::new(&key_path), e))?;
    let key = hex_key::from_hex(String::from_utf8_lossy(&text).trim()).ok_or_else(|| {
        Error::refused(
            format!("{key_path} holds no key"),
            format!("take the deployment down: `bivouac down {name}`"),
        )
    })?;
    let socket = Endpoint::Node(bivouac_node::agent_sockets(uid(), name, &key));
    let answered = ControlLink::connect(&socket, &key, trace.deployment, control::BEGIN)
        .and_then(|mut link| link.request(ControlRequest::Forwarding))
        .map_err(|e| Error::Unanswered {
            cause: format!("the agent of {name:?} on this machine does not answer: {}", why(&e, &key_path)),
            remedy: format!("`bivouac status {name}` shows the deployment; log: {}", trace.log.display()),
        })?;
    let forwarded = match answered {
        Some(ControlReply::Forwarding(Some(forwarding))) if !forwarding.io_nodes.is_empty() => {
            Some(forwarding.directory)
        }
        _ => None,
    };
    let job = std::env::var("BIVOUAC_JOB").ok().filter(|job| !job.is_empty());
    Ok(Environment { name: name.to_owned(), mount: trace.mount, key_path, mounted: None, forwarded, job })
}

/// Why an agent that is alive does not answer.
fn why(error: &LinkError, key_path: &str) -> String {
    match error {
        // The sockets' names follow from the key, and are those of one network namespace.
        LinkError::Transport(TransportError::Refused) => format!(
            "{key_path} holds the wrong key, or the agent is in another network namespace than this command"
        ),
        other => other.to_string(),
    }
}

/// Why there is no agent of the deployment on this machine.
fn why_not_here(home: &Home, name: &str) -> Error {
    let record = match home.deployment(name).load() {
        Ok(record) => record,
        Err(error) => return error,
    };
    let not_running = |state: &str| Error::NotRunning { name: name.to_owned(), state: state.to_owned() };
    match record.state {
        State::Stopped => not_running("it was taken down, and its storage kept"),
        State::Starting => not_running("it is being started, or that was interrupted"),
        State::Running => {
            let gone = |d: &crate::home::DaemonRecord| d.process.is_some_and(|p| !p.is_alive());
            if record.first().is_some_and(gone) {
                return not_running("its daemons on this machine have died");
            }
            let hosts: Vec<&str> =
                record.daemons.iter().filter(|d| d.agent).map(|d| d.host.as_str()).collect();
            Error::Unanswered {
                cause: format!("{name:?} has no daemon on this machine"),
                remedy: format!("run the command on one of its hosts: {}", hosts.join(", ")),
            }
        }
    }
}

/// The preload library: `BIVOUAC_PRELOAD`, or beside this program, or in `../lib`.
fn library() -> Result<PathBuf, Error> {
    let given = std::env::var_os("BIVOUAC_PRELOAD").filter(|v| !v.is_empty()).map(PathBuf::from);
    let candidates = match &given {
        Some(path) => vec![path.clone()],
        None => {
            let own = std::env::current_exe().map_err(|cause| Error::System {
                what: "cannot find this program's own file".into(),
                cause,
            })?;
            let directory = own.parent().unwrap_or(Path::new("/"));
            vec![directory.join(LIBRARY), directory.join("../lib").join(LIBRARY)]
        }
    };
    let found = candidates.iter().find_map(|path| path.canonicalize().ok().filter(|p| p.is_file()));
    let Some(found) = found else {
        let tried: Vec<String> = candidates.iter().map(|p| p.display().to_string()).collect();
        return Err(Error::refused(
            format!("the preload library is not there: {}", tried.join(", ")),
            format!("install {LIBRARY} beside the bivouac program, or set BIVOUAC_PRELOAD to its path"),
        ));
    };
    // The loader takes a list apart at these; there is no way to quote them.
    if found.as_os_str().as_bytes().iter().any(|b| b" :\t\n".contains(b)) {
        return Err(Error::refused(
            format!("the loader cannot take a path with a space or colon: {}", found.display()),
            "install Bivouac under another path, or set BIVOUAC_PRELOAD to a copy of the library",
        ));
    }
    Ok(found)
}

/// `LD_PRELOAD` with the library first, once.
fn with_library(library: &Path, before: Option<OsString>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    for word in before.unwrap_or_default().as_bytes().split(|b| b" :".contains(b)) {
        if !word.is_empty() && word != library.as_os_str().as_bytes() {
            list.push(":");
            list.push(OsStr::from_bytes(word));
        }
    }
    list
}

fn is_below(program: &OsStr, mount: &str) -> bool {
    program.as_bytes().strip_prefix(mount.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Whether an error of `spawn` or `exec` is about the program rather than about this process.
pub fn is_about_program(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::IsADirectory)
        || error.raw_os_error() == Some(libc::ENOEXEC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_preload_stays_behind_ours() {
        let library = Path::new("/opt/b/libbivouac_preload.so");
        let list = |before: &str| with_library(library, Some(before.into()));
        assert_eq!(with_library(library, None), "/opt/b/libbivouac_preload.so");
        assert_eq!(list("a.so b.so"), "/opt/b/libbivouac_preload.so:a.so:b.so");
        assert_eq!(list("a.so:/opt/b/libbivouac_preload.so"), "/opt/b/libbivouac_preload.so:a.so");
    }

    #[test]
    fn programs_in_the_mount_are_told_by_whole_components() {
        assert!(is_below(OsStr::new("/bivouac/bin/x"), "/bivouac"));
        assert!(!is_below(OsStr::new("/bivouac2/x"), "/bivouac"));
        assert!(!is_below(OsStr::new("ls"), "/bivouac"));
    }
}
