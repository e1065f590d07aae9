//! A directory that fails on demand, as the storage of servers.
//!
//! It is a FUSE mount that passes everything on to an ordinary directory in memory. While a [`Fault`] is set, operations
//! of its kind on the paths that it names get its error instead; all others, and everything when no fault is set, work as
//! on a local file system. The test's own process answers the kernel, so a fault is set by a call.
//!
//! The mount is in a mount namespace of the thread that makes it. Programs that this thread starts see it, and nothing
//! is left of it when the test and its programs have ended, however they did.

mod passthrough;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use passthrough::Passthrough;
use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Threads that answer the kernel: servers have many requests under way.
const THREADS: usize = 8;

/// Kinds of operations, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct On(u8);

impl On {
    /// Reading a file's content.
    pub const READ: On = On(1);
    /// Whatever changes a file or a directory: writing, truncating, allocating, making, removing, renaming.
    pub const WRITE: On = On(2);
    /// Opening a file for writing. (It is not a part of `WRITE`, because a broken disk lets files be opened.)
    pub const OPEN_TO_WRITE: On = On(4);
    /// fsync and fdatasync.
    pub const SYNC: On = On(8);
    /// The part of `WRITE` that may take room: writing, allocating and making. A full disk still removes and truncates.
    pub const FILL: On = On(16);
    /// The part of `WRITE` that sets a file's length.
    pub const TRUNCATE: On = On(32);
    /// The part of `WRITE` that gives up what was there: punching holes, and removing files.
    pub const FREE: On = On(64);

    /// Both.
    pub const fn and(self, other: On) -> On {
        On(self.0 | other.0)
    }

    /// Whether one is a part of the other.
    pub const fn meets(self, other: On) -> bool {
        self.0 & other.0 != 0
    }
}

/// What fails.
#[derive(Clone, Debug)]
pub struct Fault {
    /// A file fails if its path from the mount point on contains one of these.
    pub paths: Vec<String>,
    /// Which operations fail.
    pub on: On,
    /// With what.
    pub error: rustix::io::Errno,
}

/// What takes its time.
#[derive(Clone, Debug)]
pub struct Slow {
    /// As a fault's.
    pub paths: Vec<String>,
    /// Which operations.
    pub on: On,
    /// So long each of them waits before it begins, or until [`FailingDir::hurry`].
    pub wait: Duration,
}

/// Whether a path contains one of these.
fn is_named(paths: &[String], path: &Path) -> bool {
    let path = path.to_string_lossy();
    paths.iter().any(|part| path.contains(part))
}

/// The fault that is set, and what it has met.
#[derive(Default)]
struct Faults {
    set: Mutex<Option<Fault>>,
    /// Reading and writing fail in this range of a file only.
    range: Mutex<Option<Range<u64>>>,
    slow: Mutex<Option<Slow>>,
    hurried: Condvar,
    waiting: AtomicU64,
    hits: AtomicU64,
    seen: Mutex<Option<Vec<(On, PathBuf)>>>,
}

impl Faults {
    /// The error of an operation on a path. Waits first, if it is slow.
    fn check(&self, on: On, path: &Path) -> Result<(), rustix::io::Errno> {
        self.check_at(on, path, &(0..u64::MAX))
    }

    /// The same of an operation on a range of a file.
    fn check_at(&self, on: On, path: &Path, bytes: &Range<u64>) -> Result<(), rustix::io::Errno> {
        let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wait) = slow
            .as_ref()
            .filter(|slow| slow.on.meets(on) && is_named(&slow.paths, path))
            .map(|slow| slow.wait)
        {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            drop(self.hurried.wait_timeout_while(slow, wait, |slow| slow.is_some()));
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        } else {
            drop(slow);
        }
        let range = self.range.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let meets = range.is_none_or(|range| range.start < bytes.end && bytes.start < range.end);
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        match set.as_ref().filter(|fault| meets && fault.on.meets(on) && is_named(&fault.paths, path)) {
            Some(fault) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                Err(fault.error)
            }
            None => {
                // What is put on stable storage is there when it has been done.
                if !on.meets(On::SYNC) {
                    self.note(on, path);
                }
                Ok(())
            }
        }
    }

    /// Notes an operation, if somebody watches.
    fn note(&self, on: On, path: &Path) {
        if let Some(seen) = self.seen.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            seen.push((on, path.to_owned()));
        }
    }
}

/// The directory; it goes when this is dropped. No program may use it any more by then.
pub struct FailingDir {
    base: PathBuf,
    faults: Arc<Faults>,
    believed: Duration,
    files: passthrough::Files,
    session: Option<BackgroundSession>,
}

impl FailingDir {
    /// Makes one. The calling thread gets a mount namespace of its own, and has to start the programs that are to see the
    /// directory.
    pub fn new(name: &str) -> FailingDir {
        FailingDir::remembering(name, Duration::ZERO)
    }

    /// The same, where the kernel believes for so long what names lead to, as with the client of a network file system: what others
    /// have done meanwhile, who change what is behind it, it does not see.
    pub fn remembering(name: &str, believed: Duration) -> FailingDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        own_mounts();
        let id = format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let base = Path::new("/dev/shm").join(format!("bivouac-failing-{id}"));
        for part in ["behind", "mount"] {
            std::fs::create_dir_all(base.join(part)).expect("a directory");
        }
        let faults = Arc::<Faults>::default();
        let (files, session) = mount(&base, believed, &faults);
        FailingDir { base, faults, believed, files, session: Some(session) }
    }

    /// Whoever serves the directory dies: all uses of it fail with ENOTCONN.
    pub fn die(&mut self) {
        let device =
            std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(self.path()).expect("it is mounted"));
        let control = self.base.join("control");
        std::fs::create_dir_all(&control).expect("a directory");
        rustix::mount::mount("fusectl", &control, "fusectl", rustix::mount::MountFlags::empty(), None)
            .expect("control of FUSE mounts");
        let abort = control.join(rustix::fs::minor(device).to_string()).join("abort");
        std::fs::write(abort, "1").expect("aborted");
        rustix::mount::unmount(&control, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
        let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
        drop(self.session.take());
    }

    /// It is mounted again after it has died. The calling thread is the one that has made it.
    pub fn revive(&mut self) {
        let (files, session) = mount(&self.base, self.believed, &self.faults);
        (self.files, self.session) = (files, Some(session));
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.base.join("mount")
    }

    /// The ordinary directory behind it, which never fails.
    pub fn behind(&self) -> PathBuf {
        self.base.join("behind")
    }

    /// From now on this fails. What the kernel remembers of the files' content is forgotten, so that reads are asked for.
    pub fn fail(&self, fault: Fault) {
        *self.faults.set.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
        self.faults.hits.store(0, Ordering::Relaxed);
        let Some(session) = &self.session else { return };
        let notifier = session.notifier();
        for ino in self.files.numbers() {
            let _ = notifier.inval_inode(ino, 0, 0);
        }
    }

    /// The same for reading and writing in a range of each file.
    pub fn fail_in(&self, range: Range<u64>, fault: Fault) {
        *self.faults.range.lock().unwrap_or_else(PoisonError::into_inner) = Some(range);
        self.fail(fault);
    }

    /// From now on this is slow.
    pub fn slow_down(&self, slow: Slow) {
        *self.faults.slow.lock().unwrap_or_else(PoisonError::into_inner) = Some(slow);
    }

    /// Nothing is slow any more, and what waits goes on.
    pub fn hurry(&self) {
        *self.faults.slow.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.faults.hurried.notify_all();
    }

    /// How many operations wait, because they are slow.
    pub fn waiting(&self) -> u64 {
        self.faults.waiting.load(Ordering::Relaxed)
    }

    /// From now on it is noted what is done.
    pub fn watch(&self) {
        *self.faults.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    /// What was done since [`FailingDir::watch`], and to which files (paths from the mount point on), in this order: a sync
    /// when it had ended, everything else when it began.
    pub fn seen(&self) -> Vec<(On, PathBuf)> {
        self.faults.seen.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// How many operations have failed since the latest fault was set.
    pub fn hits(&self) -> u64 {
        self.faults.hits.load(Ordering::Relaxed)
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        *self.faults.range.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.faults.set.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for FailingDir {
    fn drop(&mut self) {
        self.heal();
        self.hurry();
        drop(self.session.take());
        let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// Mounts what is behind one.
fn mount(base: &Path, believed: Duration, faults: &Arc<Faults>) -> (passthrough::Files, BackgroundSession) {
    let (passthrough, files) = Passthrough::new(&base.join("behind"), believed, faults.clone());
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("bivouac-failing".into())];
    (config.acl, config.n_threads) = (SessionACL::All, Some(THREADS));
    let session = fuser::spawn_mount(passthrough, base.join("mount"), &config).expect("it is mounted");
    (files, session)
}

/// Gives the calling thread, and the programs that it starts from now on, a mount namespace of its own: what is mounted
/// there goes with them.
pub fn own_mounts() {
    // SAFETY: the namespace concerns paths only; the descriptors of this process stay what they are.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.expect("a mount namespace");
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .expect("mounts of its own");
}

#[cfg(test)]
mod tests;
