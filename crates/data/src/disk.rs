//! One storage directory: opening, identity, tree, removal.
//!
//! A new store is made in three steps, so that a crash in between leaves something that the next start
//! recognises: in every directory a draft of the identity file and the tree; then every draft is renamed to
//! its final name. A directory with a draft only has never held data. The identity file is locked (`flock`)
//! while the store is open.

use crate::error::{DataError, to_errno};
use crate::identity::{self, Identity};
use crate::inventory::{self, Inventory};
use crate::place::{self, SUBDIRECTORIES, SubPath};
use crate::probe;
use crate::relocate;
use crate::stripes;
use crate::sums;
use bivouac_layout::{Ino, ServerId};
use bivouac_node::Boot;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, Access, AtFlags, FileType, FlockOperation, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::path::{Path, PathBuf};

const IDENTITY: &str = "bivouac-data";
const DRAFT: &str = "bivouac-data.new";
const TREE: &str = "sub";

const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Storage directories may be named through symbolic links; nothing below them may be one.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);

/// An open storage directory.
pub(crate) struct Disk {
    path: PathBuf,
    pub(crate) root: OwnedFd,
    /// The tree of sub-files.
    pub(crate) sub: OwnedFd,
    identity: Identity,
    /// The identity file. It is locked as long as this is open.
    _lock: OwnedFd,
    /// Number of the file system that it is on.
    pub(crate) device: u64,
    /// Which sub-files there should be.
    pub(crate) inventory: Inventory,
}

/// Opens, or makes, the directories of one store; the result is in the order of their positions. A failure
/// leaves nothing that was not there before.
pub(crate) fn open_all(dirs: &[PathBuf], deployment: u64, server: ServerId) -> Result<Vec<Disk>, DataError> {
    let mut found = Vec::new();
    match open_found(dirs, deployment, server, &mut found) {
        Ok(()) => found.into_iter().map(Found::into_disk).collect(),
        Err(error) => {
            found.iter().for_each(Found::undo);
            Err(error)
        }
    }
}

/// What a directory contains before it is opened.
enum State {
    /// Nothing of ours.
    Fresh,
    /// A draft: the making of a store was interrupted.
    Draft(Identity),
    /// A part of a store.
    Ready(Identity),
}

/// A directory on the way to a [`Disk`].
struct Found {
    path: PathBuf,
    root: OwnedFd,
    device: u64,
    inode: u64,
    state: State,
    /// It was made just now.
    made: bool,
    /// Draft and tree were made just now.
    drafted: bool,
    lock: Option<OwnedFd>,
}

fn open_found(
    dirs: &[PathBuf],
    deployment: u64,
    server: ServerId,
    found: &mut Vec<Found>,
) -> Result<(), DataError> {
    if dirs.is_empty() {
        return Err(DataError::NoDirectory);
    }
    let count = u16::try_from(dirs.len()).map_err(|_| DataError::TooManyDirectories(dirs.len()))?;
    for path in dirs {
        let new = Found::look(path)?;
        let same = found.iter().find(|old| (old.device, old.inode) == (new.device, new.inode));
        if let Some(old) = same {
            return Err(DataError::Twice(old.path.clone(), new.path));
        }
        found.push(new);
    }
    for dir in found.iter() {
        if let State::Draft(id) | State::Ready(id) = &dir.state
            && (id.deployment, id.server) != (deployment, server)
        {
            let path = dir.path.clone();
            return Err(DataError::Foreign { path, deployment: id.deployment, server: id.server });
        }
    }
    let ready = found.iter().find(|dir| matches!(dir.state, State::Ready(_)));
    if let Some(other) = ready.map(|dir| dir.path.clone()) {
        check_positions(found, count, &other)?;
    } else {
        for (index, dir) in (0..).zip(found.iter_mut()) {
            // A directory that an interrupted attempt made is ours to remove, too.
            let made = dir.made || matches!(dir.state, State::Draft(Identity { made: true, .. }));
            dir.draft(Identity { deployment, server, index, count, made })?;
        }
    }
    found.iter_mut().try_for_each(Found::make_ready)?;
    found.sort_by_key(|dir| dir.identity().map(|id| id.index));
    Ok(())
}

/// Checks that all directories of an existing store were named, each once. `other` is one that has the
/// store's identity.
fn check_positions(found: &[Found], count: u16, other: &Path) -> Result<(), DataError> {
    let mut seen: Vec<(u16, &Path)> = Vec::new();
    for dir in found {
        let Some(id) = dir.identity() else {
            return Err(DataError::Lost { path: dir.path.clone(), other: other.to_owned() });
        };
        if id.count != count {
            return Err(DataError::WrongCount { path: dir.path.clone(), expected: id.count, given: count });
        }
        if let Some((_, twin)) = seen.iter().find(|(index, _)| *index == id.index) {
            return Err(DataError::Twice(twin.to_path_buf(), dir.path.clone()));
        }
        seen.push((id.index, &dir.path));
    }
    Ok(())
}

impl Found {
    /// Opens the directory, or makes it, and finds out what it contains.
    fn look(given: &Path) -> Result<Found, DataError> {
        let (opened, made) = match fs::open(given, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => match fs::mkdir(given, Mode::RWXU) {
                Err(Errno::NOENT) => return Err(DataError::NoParent(given.to_owned())),
                Err(errno) if errno != Errno::EXIST => return Err(setup("make", given, errno)),
                made => (fs::open(given, DIRECTORY, Mode::empty()), made.is_ok()),
            },
            opened => (opened, false),
        };
        let found = opened.map_err(|errno| match errno {
            Errno::NOTDIR => DataError::NotADirectory(given.to_owned()),
            _ => setup("open", given, errno),
        });
        let found = found.and_then(|root| Found::examine(given, root, made));
        if found.is_err() && made {
            let _ = fs::rmdir(given);
        }
        found
    }

    fn examine(given: &Path, root: OwnedFd, made: bool) -> Result<Found, DataError> {
        // The daemon may change its working directory before the store is removed.
        let path = std::path::absolute(given).unwrap_or_else(|_| given.to_owned());
        let failed = |errno| setup("examine", &path, errno);
        let stat = fs::fstat(&root).map_err(failed)?;
        let user = rustix::process::geteuid().as_raw();
        if stat.st_uid != user {
            return Err(DataError::NotOurs { path, owner: stat.st_uid, user });
        }
        if fs::fstatvfs(&root).map_err(failed)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(DataError::ReadOnly(path));
        }
        let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        fs::accessat(&root, ".", access, AtFlags::EACCESS).map_err(failed)?;
        let state = match read_identity(&root, &path, IDENTITY)? {
            Some(parsed) => {
                let damaged = |what| DataError::Damaged { path: path.join(IDENTITY), what };
                State::Ready(parsed.map_err(damaged)?)
            }
            None => match read_identity(&root, &path, DRAFT)? {
                Some(Ok(identity)) => State::Draft(identity),
                // A torn draft: the crash came before anything else was made.
                Some(Err(_)) | None => match fs::statat(&root, TREE, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => State::Fresh,
                    Err(errno) => return Err(failed(errno)),
                    Ok(_) => return Err(DataError::Occupied(path)),
                },
            },
        };
        let (device, inode) = (stat.st_dev, stat.st_ino);
        Ok(Found { path, root, device, inode, state, made, drafted: false, lock: None })
    }

    fn identity(&self) -> Option<&Identity> {
        match &self.state {
            State::Draft(identity) | State::Ready(identity) => Some(identity),
            State::Fresh => None,
        }
    }

    /// Makes draft and tree.
    fn draft(&mut self, identity: Identity) -> Result<(), DataError> {
        let failed = |errno| setup("write", &self.path.join(DRAFT), errno);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = fs::openat(&self.root, DRAFT, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        lock(&file, &self.path)?;
        // If another process has made a store here between our look and our lock, it has renamed the draft
        // that it locked.
        match fs::statat(&self.root, IDENTITY, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            _ => {
                let _ = fs::unlinkat(&self.root, DRAFT, AtFlags::empty());
                return Err(DataError::InUse(self.path.clone()));
            }
        }
        self.drafted = true;
        let text = identity.to_text();
        match rustix::io::pwrite(&file, text.as_bytes(), 0) {
            Ok(n) if n == text.len() => {}
            Ok(_) => return Err(DataError::NoSpace(self.path.clone())),
            Err(errno) => return Err(failed(errno)),
        }
        // Only after the draft was written: a tree beside an empty draft would not be recognised as ours.
        fs::ftruncate(&file, text.len() as u64).map_err(failed)?;
        fs::fsync(&file).map_err(failed)?;
        make_tree(&self.root, &self.path, TREE)?;
        self.lock = Some(file);
        self.state = State::Draft(identity);
        Ok(())
    }

    /// Locks what is not locked yet, and renames a draft to the identity file.
    fn make_ready(&mut self) -> Result<(), DataError> {
        let failed = |errno| setup("prepare", &self.path, errno);
        let identity = match self.state {
            State::Fresh => return Ok(()),
            State::Draft(identity) | State::Ready(identity) => identity,
        };
        let is_draft = matches!(self.state, State::Draft(_));
        if self.lock.is_none() {
            let name = if is_draft { DRAFT } else { IDENTITY };
            let file = fs::openat(&self.root, name, READ, Mode::empty()).map_err(failed)?;
            lock(&file, &self.path)?;
            self.lock = Some(file);
        }
        if is_draft {
            fs::renameat(&self.root, DRAFT, &self.root, IDENTITY).map_err(failed)?;
            fs::fsync(&self.root).map_err(failed)?;
            self.state = State::Ready(identity);
        }
        Ok(())
    }

    fn into_disk(self) -> Result<Disk, DataError> {
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        let sub = fs::openat(&self.root, TREE, flags, Mode::empty())
            .map_err(|errno| setup("open", &self.path.join(TREE), errno))?;
        match (self.state, self.lock) {
            (State::Ready(identity), Some(lock)) => {
                let mut found = Vec::new();
                for_each_name(&sub, |_, _, ino| {
                    found.push(ino);
                    Ok(())
                })?;
                // Left by a server that was killed.
                let _ = fs::unlinkat(&self.root, relocate::COPY, AtFlags::empty());
                let inventory = Inventory::open(&self.root, Boot::current(), &found)?;
                let (path, root, device) = (self.path, self.root, self.device);
                Ok(Disk { path, root, sub, identity, _lock: lock, device, inventory })
            }
            _ => Err(setup("prepare", &self.path, Errno::INVAL)),
        }
    }

    /// Removes what this attempt has made.
    fn undo(&self) {
        if self.drafted {
            // Nobody has written to the tree yet.
            let _ = remove_tree(&self.root, &self.path, TREE, |_, _| false);
            for name in [DRAFT, IDENTITY, inventory::NAME, inventory::DRAFT] {
                let _ = fs::unlinkat(&self.root, name, AtFlags::empty());
            }
        }
        if self.made {
            let _ = fs::rmdir(&self.path);
        }
    }
}

/// Whether a directory has the identity file of a store.
pub(crate) fn is_ready(directory: &Path) -> bool {
    fs::lstat(directory.join(IDENTITY)).is_ok()
}

impl Disk {
    /// Removes sub-files, tree and identity file, and the directory if it was made for the store and is empty
    /// then. Everything else stays. After an error it still tries the rest, but keeps the identity file, so
    /// that the removal can be repeated.
    pub(crate) fn destroy(&self) -> Result<(), DataError> {
        let (index, count) = (usize::from(self.identity.index), usize::from(self.identity.count));
        let ours = |subdirectory: u8, name: &[u8]| {
            place::parse_name(name).is_some_and(|ino| {
                let mixed = place::mix(ino);
                place::directory(mixed, count) == index && place::subdirectory(mixed) == subdirectory
            })
        };
        // Left by a server that was killed; the removal of the tree says what is in its way.
        let _ = probe::remove(self);
        for tree in [sums::TREE, TREE] {
            remove_tree(&self.root, &self.path, tree, ours)?;
        }
        let journals = [inventory::NAME, inventory::DRAFT, relocate::COPY, sums::changing::NAME];
        for journal in journals.into_iter().chain([stripes::NAME, stripes::DRAFT]) {
            gone(fs::unlinkat(&self.root, journal, AtFlags::empty()))
                .map_err(|errno| setup("remove", &self.path.join(journal), errno))?;
        }
        let removed = fs::unlinkat(&self.root, IDENTITY, AtFlags::empty());
        gone(removed).map_err(|errno| setup("remove", &self.path.join(IDENTITY), errno))?;
        if self.identity.made {
            let removed = fs::rmdir(&self.path);
            gone_or_in_use(removed).map_err(|errno| setup("remove", &self.path, errno))?;
        }
        Ok(())
    }

    /// Calls `each` with the allocated bytes of every sub-file.
    pub(crate) fn for_each_allocated(&self, mut each: impl FnMut(u64)) -> Result<(), DataError> {
        for_each_name(&self.sub, |dir, name, _| match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                each(u64::try_from(stat.st_blocks).unwrap_or(0) * 512);
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        })
    }

    /// The directory, as the user knows it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Calls `each` with every sub-file of a tree: its directory, name and inode.
fn for_each_name(
    sub: &OwnedFd,
    mut each: impl FnMut(&OwnedFd, &CStr, Ino) -> Result<(), Errno>,
) -> Result<(), DataError> {
    for subdirectory in 0..SUBDIRECTORIES {
        let name = subdirectory_name(subdirectory);
        let dir = match fs::openat(sub, name.as_str(), DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(dir) => dir,
            // Then its sub-files are missing, which the inventory knows.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        };
        for entry in fs::Dir::read_from(&dir)? {
            let entry = entry?;
            if let Some(ino) = place::parse_name(entry.file_name().to_bytes()) {
                each(&dir, entry.file_name(), ino)?;
            }
        }
    }
    Ok(())
}

/// The identity file or draft, if there is one; inside, what is wrong with it.
fn read_identity(
    root: &OwnedFd,
    path: &Path,
    name: &str,
) -> Result<Option<Result<Identity, &'static str>>, DataError> {
    let failed = |errno| setup("read", &path.join(name), errno);
    let file = match fs::openat(root, name, READ | OFlags::NONBLOCK, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    if FileType::from_raw_mode(fs::fstat(&file).map_err(failed)?.st_mode) != FileType::RegularFile {
        return Ok(Some(Err("it is not a file")));
    }
    let mut text = [0; identity::MAX_LEN + 1];
    let len = rustix::io::pread(&file, &mut text[..], 0).map_err(failed)?;
    Ok(Some(match text.get(..len) {
        Some(text) if len <= identity::MAX_LEN => Identity::parse(text),
        _ => Err("it is too long"),
    }))
}

/// Locks the identity file for as long as it is open.
fn lock(file: &OwnedFd, path: &Path) -> Result<(), DataError> {
    match fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::AGAIN) => Err(DataError::InUse(path.to_owned())),
        // Some network file systems have no locks. The lock guards against mistakes only.
        Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        Err(errno) => Err(setup("lock", path, errno)),
    }
}

fn subdirectory_name(subdirectory: u16) -> String {
    format!("{subdirectory:02x}")
}

/// Makes the tree, or those directories of it that are missing.
fn make_tree(root: &OwnedFd, path: &Path, tree: &str) -> Result<(), DataError> {
    let exists = |made: Result<(), Errno>| match made {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(setup("make directories in", path, errno)),
    };
    exists(fs::mkdirat(root, tree, Mode::RWXU))?;
    let sub = fs::openat(root, tree, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
        .map_err(|errno| setup("open", &path.join(tree), errno))?;
    (0..SUBDIRECTORIES).try_for_each(|n| exists(fs::mkdirat(&sub, subdirectory_name(n), Mode::RWXU)))?;
    fs::fsync(&sub).map_err(|errno| setup("sync", &path.join(tree), errno))
}

/// Opens a tree beside that of the sub-files, with the same directories; what is missing is made.
pub(crate) fn open_tree(root: &OwnedFd, path: &Path, tree: &str) -> Result<OwnedFd, DataError> {
    make_tree(root, path, tree)?;
    fs::openat(root, tree, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
        .map_err(|errno| setup("open", &path.join(tree), errno))
}

/// Removes those names of a tree whose inodes are chosen.
pub(crate) fn remove_names(tree: &OwnedFd, chosen: impl Fn(Ino) -> bool) -> Result<(), DataError> {
    let mut found = Vec::new();
    for_each_name(tree, |_, _, ino| {
        if chosen(ino) {
            found.push(ino);
        }
        Ok(())
    })?;
    for ino in found {
        gone(fs::unlinkat(tree, SubPath::new(ino, place::mix(ino)).as_c_str(), AtFlags::empty()))?;
    }
    Ok(())
}

/// Removes the tree with those of its files for which `ours` (subdirectory, name) is true. Directories that
/// contain anything else stay. After an error it tries the rest, and then returns the first error.
fn remove_tree(
    root: &OwnedFd,
    path: &Path,
    tree: &str,
    ours: impl Fn(u8, &[u8]) -> bool,
) -> Result<(), DataError> {
    let failed = |errno| setup("remove files in", &path.join(tree), errno);
    let sub = match fs::openat(root, tree, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(sub) => sub,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
    };
    let mut first = Ok(());
    for n in 0..=u8::MAX {
        let name = subdirectory_name(u16::from(n));
        let emptied = match fs::openat(&sub, name.as_str(), DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(dir) => empty(&dir, |name| ours(n, name)),
            // Something else has taken the name: not ours.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(errno) => Err(errno),
        };
        let removed = emptied.and_then(|()| gone_or_in_use(fs::unlinkat(&sub, name, AtFlags::REMOVEDIR)));
        first = first.and(removed.map_err(failed));
    }
    first.and(gone_or_in_use(fs::unlinkat(root, tree, AtFlags::REMOVEDIR)).map_err(failed))
}

/// Removes those files of a directory for which `ours` is true.
fn empty(dir: impl AsFd, ours: impl Fn(&[u8]) -> bool) -> Result<(), Errno> {
    loop {
        // Removing while listing may make a listing skip entries: list again until there is nothing to do.
        let mut removed = false;
        for entry in fs::Dir::read_from(&dir)? {
            let entry = entry?;
            if ours(entry.file_name().to_bytes()) {
                match fs::unlinkat(&dir, entry.file_name(), AtFlags::empty()) {
                    Ok(()) => removed = true,
                    // A directory with such a name is somebody else's.
                    Err(Errno::NOENT | Errno::ISDIR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        if !removed {
            return Ok(());
        }
    }
}

fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    if removed == Err(Errno::NOENT) { Ok(()) } else { removed }
}

fn gone_or_in_use(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        // Also a mount point, or the directory of a program that still runs there.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => Ok(()),
        removed => gone(removed),
    }
}

/// Turns a failure while opening or removing into an error that names the remedy in the usual cases.
fn setup(action: &'static str, path: &Path, errno: Errno) -> DataError {
    let path = path.to_owned();
    match errno {
        Errno::NOSPC | Errno::DQUOT => DataError::NoSpace(path),
        Errno::ROFS => DataError::ReadOnly(path),
        Errno::ACCESS | Errno::PERM => DataError::NoPermission(path),
        errno => DataError::Setup { action, path, errno: to_errno(errno) },
    }
}
