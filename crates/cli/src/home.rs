//! A deployment's directory: what is known of it across commands.
//!
//! `$BIVOUAC_HOME/NAME` (default `~/.bivouac/NAME`, mode 0700) holds
//! - `daemons.json`: the [`Record`], which says what was started where, so that all of it can be found again;
//! - `key`: the deployment's key (0600);
//! - `controller-N/`: what the agent of node N needs to keep the map, if it does ([`DaemonConfig::voter_dir`]);
//! - `logs/`: one file for each daemon;
//! - `staged`: what was preloaded and flushed ([`bivouac_stage::Record`]); `flushing`: held by the command that flushes;
//! - `exploring`: held by the command that explores;
//! - `policy.json`, `policy.log` and others: the [policy](crate::policy::files), if there ever was one;
//! - `lock`: held by the command that changes the deployment.
//!
//! The record is written before the first daemon starts: whatever happens after, `down` knows where to look.

use crate::daemon::traces;
use crate::error::Error;
use crate::policy::files;
use crate::process::ProcessId;
use bivouac_daemon::DaemonConfig;
use bivouac_daemon::config::hex_key;
use bivouac_layout::{First, NodeId, ServerId};
use bivouac_proto::auth::{KEY_LEN, Key};
use bivouac_proto::control::Member;
use bivouac_transport::Endpoint;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the record's file.
pub const RECORD: &str = "daemons.json";
const KEY: &str = "key";
const LOCK: &str = "lock";
const LOGS: &str = "logs";
const STAGED: &str = "staged";
const FLUSHING: &str = "flushing";
const EXPLORING: &str = "exploring";

/// Longest file that Bivouac reads of those that it wrote, bytes: the record of thousands of servers has some
/// megabytes.
const LONGEST: usize = 64 << 20;

/// Version of the record's form.
const VERSION: u32 = 3;

/// Where all deployments of the user have their directories.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// `$BIVOUAC_HOME`, or `~/.bivouac`.
    pub fn from_env() -> Result<Home, Error> {
        let path = match (std::env::var_os("BIVOUAC_HOME"), std::env::var_os("HOME")) {
            (Some(home), _) if !home.is_empty() => PathBuf::from(home),
            (_, Some(home)) if !home.is_empty() => PathBuf::from(home).join(".bivouac"),
            _ => {
                return Err(Error::refused("neither BIVOUAC_HOME nor HOME is set", "set one of them"));
            }
        };
        std::path::absolute(&path).map(Home).map_err(|e| Error::file("find", &path, e))
    }

    /// The directory that holds the given deployment's directory.
    pub fn above(directory: &Path) -> Option<Home> {
        directory.parent().map(|p| Home(p.to_owned()))
    }

    /// The directory of one deployment, whether or not it is there.
    pub fn deployment(&self, name: &str) -> Directory {
        Directory { name: name.to_owned(), path: self.0.join(name) }
    }

    /// Where logs of deployments go that did not start.
    pub fn failed(&self, name: &str) -> PathBuf {
        // No deployment's name starts with a dot.
        self.0.join(".failed").join(name)
    }

    /// Where it is kept how far the rebuild of a deployment through the backend is: the deployment's directory goes in between.
    pub fn rebuilding(&self, name: &str) -> PathBuf {
        self.0.join(".rebuilding").join(name)
    }

    /// All deployments, sorted by name.
    pub fn list(&self) -> Result<Vec<Directory>, Error> {
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::file("read", &self.0, e)),
        };
        let mut found: Vec<Directory> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| bivouac_node::names::is_valid_name(name))
            .map(|name| self.deployment(&name))
            .filter(|d| d.path.join(RECORD).exists())
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Makes it, closed to others.
    fn create(&self) -> Result<(), Error> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
            .map_err(|e| Error::file("make the directory", &self.0, e))
    }
}

/// One deployment's directory.
#[derive(Clone, Debug)]
pub struct Directory {
    /// The deployment's name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// The lock that a command holds while it changes a deployment; it ends with the process at the latest.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

/// A locked file with a few bytes, which outlive the command.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// What it has; nothing if it cannot be read.
    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let len = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        bytes.truncate(len);
        bytes
    }

    /// Replaces it.
    pub fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.set_len(0)?;
        self.0.write_all_at(bytes, 0)
    }
}

impl Directory {
    /// Makes it. `false`: it was there.
    pub fn create(&self) -> Result<bool, Error> {
        if let Some(home) = Home::above(&self.path) {
            home.create()?;
        }
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(Error::file("make the directory", &self.path, e)),
        }
    }

    /// Takes the lock. It belongs to one command at a time; others are told so rather than made to wait.
    pub fn lock(&self) -> Result<Lock, Error> {
        let path = self.path.join(LOCK);
        let mut options = OpenOptions::new();
        // Whatever may be there: opening does not wait.
        options.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
        let file = match options.open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(Error::Unknown(self.name.clone())),
            Err(e) => return Err(Error::file("open", &path, e)),
        };
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(TryLockError::WouldBlock) => Err(Error::refused(
                format!("another bivouac command, or its policy, is changing {:?}", self.name),
                "wait until it is done",
            )),
            Err(TryLockError::Error(e)) => Err(Error::file("lock", &path, e)),
        }
    }

    /// The record.
    pub fn load(&self) -> Result<Record, Error> {
        let path = self.path.join(RECORD);
        let text = match read_own(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(Error::Unknown(self.name.clone())),
            Err(e) => return Err(Error::file("read", &path, e)),
        };
        let remedy = || format!("end its daemons by hand, then remove {}", self.path.display());
        let record: Record = serde_json::from_slice(&text)
            .map_err(|e| Error::refused(format!("{} is damaged: {e}", path.display()), remedy()))?;
        if record.version != VERSION {
            let cause =
                format!("{} has version {}, this program reads {VERSION}", path.display(), record.version);
            return Err(Error::refused(cause, "use the Bivouac that started the deployment"));
        }
        Ok(record)
    }

    /// Replaces the record: after a crash there is the old one or the new one.
    pub fn save(&self, record: &Record) -> Result<(), Error> {
        let path = self.path.join(RECORD);
        let json = serde_json::to_vec_pretty(record).map_err(|e| Error::file("write", &path, e.into()))?;
        write_private(&path, &json)
    }

    /// The deployment's key.
    pub fn key(&self) -> Result<Key, Error> {
        let path = self.path.join(KEY);
        let text = match read_own(&path) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(e) if e.kind() == ErrorKind::NotFound && self.path.join(RECORD).exists() => {
                return Err(Error::refused(
                    format!("the key {} is missing", path.display()),
                    format!(
                        "restore it from a copy; without it, the deployment can only be taken down: `bivouac down {}`",
                        self.name
                    ),
                ));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(Error::Unknown(self.name.clone())),
            Err(e) => return Err(Error::file("read", &path, e)),
        };
        hex_key::from_hex(text.trim()).ok_or_else(|| {
            Error::refused(
                format!("{} holds no key", path.display()),
                "the deployment can only be taken down",
            )
        })
    }

    /// Makes a new key.
    pub fn make_key(&self) -> Result<Key, Error> {
        let mut key = Key([0; KEY_LEN]);
        random(&mut key.0)?;
        write_private(&self.path.join(KEY), hex_key::to_hex(&key).as_bytes())?;
        Ok(key)
    }

    /// Where the agent of a node keeps what it needs to keep the map.
    pub fn voter(&self, node: NodeId) -> PathBuf {
        DaemonConfig::voter_dir(&self.path, node)
    }

    /// The record of what was staged.
    pub fn staged(&self) -> PathBuf {
        self.path.join(STAGED)
    }

    /// Takes the lock of flushes: a deployment has one at a time. Calls `waiting` once if another one has it, and waits.
    pub fn lock_flush(&self, waiting: impl FnOnce()) -> Result<Lock, Error> {
        let path = self.path.join(FLUSHING);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(|e| Error::file("open", &path, e))?;
        let taken = match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
            Ok(()) => Ok(()),
        };
        taken.map(|()| Lock(file)).map_err(|e| Error::file("lock", &path, e))
    }

    /// Takes the lock of explorations, which change the I/O nodes: a deployment has one at a time.
    pub fn lock_explore(&self) -> Result<Memory, Error> {
        let path = self.path.join(EXPLORING);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(|e| Error::file("open", &path, e))?;
        match file.try_lock() {
            Ok(()) => Ok(Memory(file)),
            Err(TryLockError::WouldBlock) => Err(Error::refused(
                format!("{:?} is being explored already", self.name),
                "wait until that is over, or interrupt it",
            )),
            Err(TryLockError::Error(e)) => Err(Error::file("lock", &path, e)),
        }
    }

    /// Where daemons log.
    pub fn logs(&self) -> PathBuf {
        self.path.join(LOGS)
    }

    /// Removes what Bivouac put there, and the directory if nothing else is in it.
    pub fn remove(&self) -> Result<(), Error> {
        let logs = self.logs();
        for entry in std::fs::read_dir(&logs).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "log") {
                remove_file(&entry.path())?;
            }
        }
        let _ = std::fs::remove_dir(&logs);
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let agents = entries.filter_map(|entry| {
            let node = entry.file_name().to_str()?.strip_prefix("controller-")?.parse().ok()?;
            Some(self.voter(NodeId(node)))
        });
        agents.for_each(|directory| remove_voter(&directory));
        // The record is removed last, except for the lock: until then `down` can be repeated.
        for name in [KEY, "key.new", "daemons.json.new", STAGED, "staged.new", FLUSHING, EXPLORING]
            .into_iter()
            .chain(files::ALL)
            .chain([RECORD, LOCK])
        {
            remove_file(&self.path.join(name))?;
        }
        match std::fs::remove_dir(&self.path) {
            Err(e) if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
                Err(Error::file("remove", &self.path, e))
            }
            _ => Ok(()),
        }
    }
}

/// Removes what an agent has kept of the map. Files that Bivouac did not make stay.
pub fn remove_voter(directory: &Path) {
    for name in bivouac_daemon::VOTER_FILES {
        let _ = std::fs::remove_file(directory.join(name));
    }
    let _ = std::fs::remove_dir(directory);
}

fn remove_file(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::file("remove", path, e)),
        _ => Ok(()),
    }
}

/// Reads a file that Bivouac wrote: an ordinary one, of this user, and of a bounded length.
pub fn read_own(path: &Path) -> std::io::Result<Vec<u8>> {
    Ok(bivouac_node::file::read(path, LONGEST)?)
}

/// Replaces a file that only the user may read.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), Error> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let write = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true).mode(0o600);
        // Overwrites what a killed command has left. If it is not an ordinary file, does not wait for it, nor
        // follow a link.
        let mut file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(&fresh)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)
    };
    write().map_err(|e| Error::file("write", path, e))
}

/// Fills `bytes` from the kernel's random numbers.
pub fn random(bytes: &mut [u8]) -> Result<(), Error> {
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                return Err(Error::System { what: "no random numbers".into(), cause: e.into() });
            }
        }
    }
    Ok(())
}

/// What a deployment is doing, as far as commands have written it down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// `up` is at work, or was when it was killed.
    Starting,
    /// `up` has returned.
    Running,
    /// `down --keep` has left the storage.
    Stopped,
}

/// How a daemon was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LauncherKind {
    /// By fork, on this machine.
    Local,
    /// By ssh.
    Ssh,
    /// In a network namespace of this machine.
    Netns,
}

/// What is known of a deployment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Version of this form.
    pub version: u32,
    /// The deployment's name.
    pub name: String,
    /// Its random number.
    pub deployment: u64,
    /// What it is doing.
    pub state: State,
    /// Seconds since 1970 when it was made.
    pub created: u64,
    /// Where programs see the file system.
    pub mount: String,
    /// Block size of new files, bytes.
    pub block_size: u32,
    /// Over how many servers new files are striped; 0 means all.
    #[serde(default)]
    pub width: u16,
    /// Where new files begin.
    #[serde(default)]
    pub first: First,
    /// How many servers hold each block of new files.
    pub replicas: u8,
    /// How many servers hold each shard of the metadata.
    pub metadata_replicas: u8,
    /// Changes that fewer copies would have are refused.
    pub min_copies: u8,
    /// After so many seconds a server that is down is given up; 0: never.
    pub heal_after: u32,
    /// So many bytes per second each server gets at most of what it lacks of blocks; 0: no limit.
    #[serde(default)]
    pub heal_rate: u64,
    /// How long a server may answer for what has copies after it has answered the controller, milliseconds.
    pub lease: u32,
    /// How often agents start a server again that died, within ten minutes.
    #[serde(default)]
    pub restarts: u32,
    /// What daemons log.
    pub log_level: String,
    /// It ends with the `run` that made it, however that ends.
    pub ephemeral: bool,
    /// No program may use it before a rebuild through the backend is complete.
    #[serde(default)]
    pub closed: bool,
    /// Its daemons; nodes in their order, each node's agent first. Nodes that were added come last.
    pub daemons: Vec<DaemonRecord>,
    /// Servers that others have replaced, and daemons that were started to replace some and do not count yet: what they
    /// have left is removed with the deployment.
    #[serde(default)]
    pub former: Vec<DaemonRecord>,
    /// Numbers of nodes below this one were given, perhaps to nodes that have left, and are not given again.
    #[serde(default)]
    pub nodes: u16,
}

impl Record {
    /// Refuses what can be done with a running deployment only.
    pub fn check_runs(&self) -> Result<(), Error> {
        if self.state == State::Running {
            return Ok(());
        }
        Err(Error::refused(
            format!("the deployment {:?} does not run", self.name),
            format!("`bivouac up {}` brings all of it back", self.name),
        ))
    }

    /// An empty one.
    pub fn new(name: &str, deployment: u64, mount: &str, block_size: u32, log_level: &str) -> Record {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Record {
            version: VERSION,
            name: name.to_owned(),
            deployment,
            state: State::Starting,
            created: now.as_secs(),
            mount: mount.to_owned(),
            block_size,
            width: 0,
            first: First::Hashed,
            replicas: 1,
            metadata_replicas: 1,
            min_copies: 1,
            heal_after: 0,
            heal_rate: 0,
            lease: bivouac_layout::LEASE,
            restarts: 0,
            log_level: log_level.to_owned(),
            ephemeral: false,
            closed: false,
            daemons: Vec::new(),
            former: Vec::new(),
            nodes: 0,
        }
    }

    /// All daemons of which something may be left on a host.
    pub fn all(&self) -> impl Iterator<Item = &DaemonRecord> {
        self.daemons.iter().chain(&self.former)
    }

    /// The agent that founds the deployment: the one on the machine that it is started from, if others can reach it.
    pub fn first(&self) -> Option<&DaemonRecord> {
        self.daemons.iter().find(|d| d.first)
    }
}

/// One daemon of a deployment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonRecord {
    /// The machine's name, as the user gave it.
    pub host: String,
    /// The machine's number.
    pub node: NodeId,
    /// What fails together with the machine has the same number.
    pub domain: u16,
    /// How it was started.
    pub launcher: LauncherKind,
    /// Its number as a server, if it is one.
    pub server: Option<ServerId>,
    /// How often that number was given to another process with new storage.
    #[serde(default)]
    pub succession: u32,
    /// Whether it is its node's agent.
    pub agent: bool,
    /// Whether it is the agent that founds the deployment.
    pub first: bool,
    /// Where it was told to listen.
    pub listen: SocketAddr,
    /// The host's address for others; `None`: it was not known before the daemon told.
    pub reach: Option<IpAddr>,
    /// The process, once it was ready.
    pub process: Option<ProcessId>,
    /// Where others reach it, once it was ready.
    pub address: Option<SocketAddr>,
    /// Its log, on its machine.
    pub log: PathBuf,
    /// In which directories the user wants its storage; none: the default place.
    pub storage_in: Vec<PathBuf>,
    /// The storage directories that were made for it, on its machine.
    pub storage: Vec<PathBuf>,
}

impl DaemonRecord {
    /// What it is called in messages and file names.
    pub fn label(&self) -> String {
        match self.server {
            Some(server) => traces::server_label(server, self.succession),
            None => format!("agent-{}", self.node),
        }
    }

    /// Which daemon it is.
    pub fn member(&self) -> Member {
        self.server.map_or(Member::Agent(self.node), Member::Server)
    }

    /// Where it can be asked. One that does not listen on the network is an agent on this machine.
    pub fn endpoint(&self, name: &str, key: &Key) -> Endpoint {
        match self.address {
            Some(address) => Endpoint::Tcp(address),
            None => Endpoint::Node(bivouac_node::agent_sockets(uid(), name, key)),
        }
    }
}

/// The user who runs this command.
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a file or directory belongs to the user who runs this command.
pub fn is_own(metadata: &std::fs::Metadata) -> bool {
    metadata.uid() == uid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> (Home, PathBuf) {
        let path = std::env::temp_dir().join(format!("bivouac-home-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        (Home(path.clone()), path)
    }

    #[test]
    fn a_record_survives_and_the_key_is_private() {
        let (home, path) = scratch("record");
        let directory = home.deployment("job");
        assert!(matches!(directory.load(), Err(Error::Unknown(_))));
        assert!(directory.create().expect("makes it"));
        assert!(!directory.create().expect("is there"));
        let key = directory.make_key().expect("makes a key");
        assert_eq!(directory.key().expect("reads it").0, key.0);
        let mode = |p: &Path| std::fs::metadata(p).expect("is there").permissions().mode() & 0o777;
        assert_eq!((mode(&directory.path), mode(&directory.path.join("key"))), (0o700, 0o600));
        let record = Record::new("job", 7, "/m", 4096, "info");
        directory.save(&record).expect("saves");
        assert_eq!(directory.load().expect("loads").deployment, 7);
        assert_eq!(home.list().expect("lists").len(), 1);
        std::fs::remove_file(directory.path.join("key")).expect("removes it");
        let said = directory.key().err().map(|error| error.to_string());
        assert!(said.is_some_and(|said| said.contains("is missing")), "the deployment is there");
        std::fs::remove_dir_all(path).expect("cleans up");
    }

    #[test]
    fn removal_leaves_files_that_bivouac_did_not_make() {
        let (home, path) = scratch("remove");
        let directory = home.deployment("job");
        directory.create().expect("makes it");
        directory.save(&Record::new("job", 7, "/m", 4096, "info")).expect("saves");
        std::fs::create_dir(directory.logs()).expect("logs");
        std::fs::write(directory.logs().join("server-0.log"), "x").expect("a log");
        let voter = directory.voter(NodeId(3));
        std::fs::create_dir(&voter).expect("a voter's directory");
        std::fs::write(voter.join("journal"), "x").expect("a voter's file");
        std::fs::write(directory.path.join("notes.txt"), "mine").expect("a user's file");
        directory.remove().expect("removes");
        let left: Vec<_> = std::fs::read_dir(&directory.path).expect("is there").flatten().collect();
        assert_eq!(left.len(), 1);
        assert!(home.list().expect("lists").is_empty());
        std::fs::remove_file(directory.path.join("notes.txt")).expect("removes");
        directory.remove().expect("may be repeated");
        assert!(!directory.path.exists());
        std::fs::remove_dir_all(path).expect("cleans up");
    }

    #[test]
    fn two_commands_cannot_change_a_deployment_at_once() {
        let (home, path) = scratch("lock");
        let directory = home.deployment("job");
        assert!(matches!(directory.lock(), Err(Error::Unknown(_))));
        directory.create().expect("makes it");
        let held = directory.lock().expect("locks");
        assert!(matches!(directory.lock(), Err(Error::Refused { .. })));
        drop(held);
        directory.lock().expect("locks again");
        std::fs::remove_dir_all(path).expect("cleans up");
    }

    #[test]
    fn damaged_records_are_errors_with_a_remedy() {
        let (home, path) = scratch("damaged");
        let directory = home.deployment("job");
        directory.create().expect("makes it");
        for text in ["", "{}", "{\"version\":99}", "\u{0}"] {
            std::fs::write(directory.path.join(RECORD), text).expect("writes");
            assert!(directory.load().expect_err("no record").remedy().is_some());
        }
        std::fs::remove_dir_all(path).expect("cleans up");
    }
}
