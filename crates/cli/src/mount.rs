//! `mount`: the deployment as a file system of this machine.
//!
//! The process is the FUSE server. It ends, and the mount with it, when it is told to, when somebody
//! unmounts, or when the node's agent is gone.

use crate::args::MountArgs;
use crate::copy::client;
use crate::error::Error;
use crate::exec::attachable;
use crate::home::{Home, uid};
use crate::mounts;
use crate::signals;
use bivouac_client::Client;
use bivouac_fuse::{Device, FuseError, Mounted, Terms, Tree};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// How often the mount checks whether the node's agent is still running.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// How many threads serve a mount: enough for as many requests under way to servers.
pub fn threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    (2 * processors).clamp(8, 32)
}

/// Whether the kernel may read and write files itself, where it can: unless `BIVOUAC_PASSTHROUGH=off`.
pub fn passthrough() -> bool {
    std::env::var_os("BIVOUAC_PASSTHROUGH").is_none_or(|value| value != "off")
}

/// `mount`: returns when the mount is gone; with `--daemon` when it is there.
pub fn mount(home: &Home, args: &MountArgs) -> Result<(), Error> {
    let environment = attachable(home, &args.name)?;
    // One that lies at the path would be in the way.
    mounts::sweep(uid());
    let path = args.path.canonicalize().map_err(|cause| no_mount_point(&args.path, &cause))?;
    if args.daemon {
        return in_background(args, &path);
    }
    // Before any thread is started.
    let at = std::sync::Arc::new(std::sync::Mutex::new(None));
    let for_signals = at.clone();
    signals::take(move |taken| {
        if taken.is_final() {
            end(&for_signals);
        }
    })
    .map_err(|cause| Error::System { what: "cannot wait for signals".into(), cause })?;
    let client = client(&args.name, &environment)?;
    let (device, mounted) = mount_alone(args, &path)?;
    *at.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some((path.clone(), mounted));
    println!("{} is mounted at {}", args.name, path.display());
    if args.background {
        let_go();
    }
    let for_watch = at.clone();
    watch(&client, move || end(&for_watch))?;
    let terms = Terms { tree: Tree::Deployment, alone: false, passthrough: passthrough() };
    bivouac_fuse::serve(client, terms, device).map_err(|e| cannot_mount(&args.name, e))
}

/// Mounts where no deployment is mounted: a second mount would hide the first one, and who ends one of them
/// would not know which.
fn mount_alone(args: &MountArgs, path: &Path) -> Result<(Device, Mounted), Error> {
    // The directory below the mount stands for the place: of two who mount at once, the second one finds the
    // first one's mount.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|cause| no_mount_point(path, &cause.into()))?;
    rustix::fs::flock(&place, FlockOperation::LockExclusive)
        .map_err(|cause| Error::System { what: "cannot lock the mount point".into(), cause: cause.into() })?;
    if let Some(there) = mounts::at(path) {
        let path = path.display();
        let deployment = there.source;
        return Err(Error::refused(
            format!("the deployment {deployment:?} is mounted at {path} already"),
            format!("use that mount, or end it first: umount {path} (not as root: fusermount3 -u {path})"),
        ));
    }
    Device::mount(&args.name, path, threads(), args.read_only()).map_err(|e| cannot_mount(&args.name, e))
}

/// Why a path is no place to mount at.
fn no_mount_point(path: &Path, cause: &std::io::Error) -> Error {
    let remedy = match cause.raw_os_error() {
        Some(libc::ENOTCONN) => {
            format!("somebody's mount there is dead; end it: umount -l {}", path.display())
        }
        Some(libc::ENOENT) => format!("make the directory first: mkdir {}", path.display()),
        _ => "choose a directory that you may read".into(),
    };
    Error::refused(format!("cannot mount at {}: {cause}", path.display()), remedy)
}

/// Unmounts, and ends the process: what is still open there is of no use without it.
fn end(at: &std::sync::Mutex<Option<(PathBuf, Mounted)>>) {
    let mut at = at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let code = match at.take() {
        None => 0,
        Some((path, mounted)) => match bivouac_fuse::unmount(&path, mounted) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("bivouac: {error}");
                1
            }
        },
    };
    std::process::exit(code);
}

/// Calls `gone` when the deployment is taken down: the node's directory goes with its agent. An agent that
/// was killed leaves it, and the mount waits, as programs with the library do, for the deployment to be
/// started again or taken down.
pub fn watch(client: &Client, gone: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let node_dir = PathBuf::from(OsStr::from_bytes(client.node_dir()));
    let inode = move || std::fs::metadata(&node_dir).map(|meta| meta.ino()).ok();
    let ours = inode();
    let wait = move || {
        while ours.is_some() && inode() == ours {
            std::thread::sleep(WATCH_EVERY);
        }
        gone();
    };
    let thread = std::thread::Builder::new().name("watch".into()).spawn(wait);
    thread.map(drop).map_err(|cause| Error::System { what: "cannot start a thread".into(), cause })
}

/// What to do when there is no mount.
pub fn cannot_mount(name: &str, error: FuseError) -> Error {
    let remedy = match &error {
        FuseError::Device(_) => {
            "is the fuse module loaded (`modprobe fuse`), and may you open /dev/fuse? The preload library needs neither: \
             --access preload"
                .into()
        }
        FuseError::Helper { .. } => {
            format!("install fuse3, or let a command see the mount alone: `bivouac exec {name} --fuse -- CMD`")
        }
        _ => "the preload library works without a mount: --access preload".into(),
    };
    Error::refused(error.to_string(), remedy)
}

/// Starts this program again in a session of its own, and waits until it has mounted.
fn in_background(args: &MountArgs, path: &Path) -> Result<(), Error> {
    let own = std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program's own file".into(), cause })?;
    let mut command = Command::new(own);
    command.args(["mount", &args.name]).arg(path).arg("--background");
    if args.read_only() {
        command.args(["-o", "ro"]);
    }
    match detached(command)? {
        Detached::Ready(line) => print!("{line}"),
        // It has said why.
        Detached::Ended(status) => std::process::exit(status.code().unwrap_or(1)),
    }
    Ok(())
}

/// What has come of a process that was to go on by itself.
pub enum Detached {
    /// It is ready, and has said this.
    Ready(String),
    /// It has ended.
    Ended(ExitStatus),
}

/// Starts a process in a session of its own, and waits until it says a line, or ends.
pub fn detached(mut command: Command) -> Result<Detached, Error> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |cause| Error::System { what, cause }
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    own_session(&mut command);
    let mut child = command.spawn().map_err(system("cannot start a process"))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if line.is_empty() {
        return child.wait().map(Detached::Ended).map_err(system("cannot wait for a process"));
    }
    Ok(Detached::Ready(line))
}

/// The child gets a session of its own, which no terminal's signals reach.
pub fn own_session(command: &mut Command) {
    // SAFETY: between fork and exec there is one system call.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
}

/// Lets go of the terminal, the starter's pipes and its directory.
pub fn let_go() {
    let _ = std::env::set_current_dir("/");
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    if let Ok(null) = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
