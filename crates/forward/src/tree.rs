//! The files and directories of the backend, by the numbers that clients know them by.
//!
//! A number follows from the inode number that the backend itself gives ([`bivouac_layout::Ino::forwarded`]), so all I/O nodes
//! have the same. A client names what it means by a number, or by a name in a directory that it names by a number. So the tree
//! keeps a descriptor of what it has shown (O_PATH: it can be reached by it, also after it was renamed, and cannot be read or
//! written). There is a limit to how many; of what was not used for long, it keeps where it was found, and looks there again.
//! What is no directory it keeps a descriptor of for some seconds only, and of what is open none: as long as there is one, the backend
//! keeps the bytes of a file, although somebody may have removed it there.
//!
//! Nothing outside the forwarded directory is reached: names are single names, looked up in a directory's descriptor, and no
//! symbolic link is followed here. Clients follow them, and leave the directory where a link leads out of it.

use crate::brief::Brief;
use crate::journal::Journal;
use crate::kernel;
use crate::recent::Recent;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{FileKind, NAME_MAX};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// For so many more numbers than there are descriptors, it is kept where they were found.
const REMEMBERED: usize = 32;
/// Directories on the way to something that has to be looked for again: no path has more.
const DEEP: usize = 2048;

/// A file or directory that can be reached.
#[derive(Debug)]
pub(crate) struct Place {
    /// Its number.
    pub(crate) ino: Ino,
    /// An O_PATH descriptor.
    pub(crate) fd: OwnedFd,
}

impl AsFd for Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where something was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) parent: Ino,
    pub(crate) name: Box<[u8]>,
}

/// What stays the same of a directory when its file system is mounted again: device numbers do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    kind: rustix::fs::FsWord,
    inode: u64,
}

struct Known {
    directories: Recent<Arc<Place>>,
    others: Brief<Arc<Place>>,
    found: Recent<Found>,
    journal: Option<Journal>,
}

impl Known {
    /// Keeps so many descriptors of directories at most, and as many of other files.
    fn new(most: usize) -> Known {
        let found = Recent::new(most.saturating_mul(REMEMBERED));
        Known { directories: Recent::new(most), others: Brief::new(most), found, journal: None }
    }

    /// Uses a descriptor.
    fn place(&mut self, ino: Ino) -> Option<&Arc<Place>> {
        self.directories.get(ino).or_else(|| self.others.get(ino))
    }

    /// Keeps a descriptor. The newest one counts: a backend elsewhere may have given the number to another file meanwhile.
    fn keep(&mut self, place: &Arc<Place>, kind: FileKind) -> Vec<Arc<Place>> {
        let (mut dropped, other) = match kind {
            FileKind::Directory => {
                (self.directories.insert(place.ino, place.clone()), self.others.remove(place.ino))
            }
            _ => (self.others.insert(place.ino, place.clone()), self.directories.remove(place.ino)),
        };
        dropped.extend(other);
        dropped
    }

    /// Notes where something was found.
    fn find(&mut self, ino: Ino, at: Found) {
        let Known { found, journal, .. } = self;
        if found.get(ino) == Some(&at) {
            return;
        }
        if let Some(journal) = journal {
            journal.note(ino, &at);
        }
        found.insert(ino, at);
        if let Some(journal) = journal
            && journal.is_long(found.len())
        {
            journal.rewrite(found.iter());
        }
    }
}

/// See the module.
pub(crate) struct Tree {
    root: Arc<Place>,
    path: PathBuf,
    device: (u32, u32),
    /// What tells the directory from another one at its path: the kind of its file system, and its inode number there.
    identity: Identity,
    known: Mutex<Known>,
}

impl Tree {
    /// The tree below a directory. Keeps at most so many descriptors of directories and as many of other files, besides those that
    /// are in use. `journal`: the file from which it learns what an I/O node before it has shown, and where it notes what it shows
    /// itself.
    pub(crate) fn open(directory: &Path, most: usize, journal: Option<&Path>) -> Result<Tree, Errno> {
        let (fd, stat, identity) = open_root(directory)?;
        // As the kernel will name what lies in it.
        let path = kernel::path_of(&fd)?;
        let mut known = Known::new(most);
        if let Some((journal, before)) = journal.map(Journal::open) {
            before.into_iter().for_each(|(ino, found)| known.find(ino, found));
            known.journal = Some(journal);
        }
        Ok(Tree {
            root: Arc::new(Place { ino: Ino::FORWARDED, fd }),
            path,
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            identity,
            known: Mutex::new(known),
        })
    }

    /// Whether the same directory is at its path, though its file system may have been mounted again.
    pub(crate) fn is_there_again(&self) -> bool {
        open_root(&self.path).is_ok_and(|(_, _, identity)| identity == self.identity)
    }

    /// The forwarded directory.
    pub(crate) fn root(&self) -> &Place {
        &self.root
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Ignores poisoning: each change of it is a single insertion or removal.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of what has these attributes.
    pub(crate) fn number(&self, stat: &Statx) -> Ino {
        self.number_of((stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino)
    }

    /// The number of an inode of the forwarded directory's own file system.
    pub(crate) fn number_here(&self, inode: u64) -> Ino {
        self.number_of(self.device, inode)
    }

    fn number_of(&self, device: (u32, u32), inode: u64) -> Ino {
        // Backends that use all 64 bits hash what they are given anyway; other file systems may be mounted below.
        let plain = device == self.device && inode != 0 && inode >> 63 == 0;
        let number =
            if plain { inode } else { mixed(inode ^ u64::from(device.0) << 48 ^ u64::from(device.1) << 32) };
        Ino::forwarded(number)
    }

    /// What a number names. ENOENT if that is not there any more, or was never shown.
    pub(crate) fn place(&self, ino: Ino) -> Result<Arc<Place>, Errno> {
        let mut missing = Vec::new();
        let mut at = ino;
        let mut place = loop {
            if at == Ino::FORWARDED {
                break self.root.clone();
            }
            let mut known = self.known();
            // Counts as a use of both: if its descriptor has to go later, it is still known where it was found.
            let found = known.found.get(at).cloned();
            if let Some(place) = known.place(at) {
                break place.clone();
            }
            let found = found.ok_or(Errno::NOENT)?;
            at = found.parent;
            missing.push(found);
            if missing.len() > DEEP {
                return Err(Errno::NOENT);
            }
        };
        for found in missing.into_iter().rev() {
            place = match self.child(&place, &found.name) {
                // What was a directory on the way is something else now.
                Err(Errno::NOTDIR) => return Err(Errno::NOENT),
                found => found?.0,
            };
        }
        if place.ino == ino { Ok(place) } else { Err(Errno::NOENT) }
    }

    /// The path of something from the forwarded directory, as it is now. ENOENT if it has no name there any more.
    pub(crate) fn path_to(&self, of: &impl AsFd) -> Result<PathBuf, Errno> {
        path_below(&self.path, of)
    }

    /// The forwarded directory's path, as the kernel names what lies in it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Learns of a number that another I/O node has shown. ENOENT if something else is at that path.
    pub(crate) fn learn(&self, ino: Ino, path: &Path) -> Result<(), Errno> {
        if self.walk(path).is_ok_and(|place| place.ino == ino) {
            return Ok(());
        }
        // The backend's client may remember what was there before.
        self.asked_anew(path)?;
        if self.walk(path)?.ino == ino { Ok(()) } else { Err(Errno::NOENT) }
    }

    fn walk(&self, path: &Path) -> Result<Arc<Place>, Errno> {
        let mut place = self.root.clone();
        for name in path.components().take(DEEP) {
            place = self.child(&place, name.as_os_str().as_bytes())?.0;
        }
        Ok(place)
    }

    /// Has the backend look again at what it remembers of an entry, and of the way there. Whether the directory is still where it was
    /// found. If it is not, its descriptor stays all the same: whoever asks for it again is told again that it is out of date.
    pub(crate) fn look_again_at(&self, dir: Ino, name: &[u8]) -> bool {
        if let Some(path) = self.known_path(dir) {
            // Whatever is there now.
            let _ = self.asked_anew(&path.join(OsStr::from_bytes(name)));
        }
        self.look_again(dir)
    }

    /// The same for something by its number.
    pub(crate) fn look_again(&self, ino: Ino) -> bool {
        if ino == Ino::FORWARDED {
            return true;
        }
        let path = self.known_path(ino);
        path.is_some_and(|path| self.asked_anew(&path).is_ok_and(|found| found == ino))
    }

    /// The number of what is at a path, as the storage has it. The kernel walks the whole path and asks for the attributes of what it
    /// arrives at; if the answer is ESTALE, it walks it once more, and takes nothing on the way from its memory. It follows links that
    /// lie on the way by now: the number of what is there is another one then.
    fn asked_anew(&self, path: &Path) -> Result<Ino, Errno> {
        kernel::stat_anew(&self.root.fd, path).map(|stat| self.number(&stat))
    }

    /// The path by which something was found.
    fn known_path(&self, ino: Ino) -> Option<PathBuf> {
        let known = self.known();
        let (mut at, mut names) = (ino, Vec::new());
        while at != Ino::FORWARDED {
            let found = known.found.peek(at).filter(|_| names.len() < DEEP)?;
            names.push(found.name.clone());
            at = found.parent;
        }
        drop(known);
        Some(names.iter().rev().map(|name| OsStr::from_bytes(name)).collect())
    }

    /// What a name in a directory names, and its attributes.
    pub(crate) fn child(&self, dir: &Place, name: &[u8]) -> Result<(Arc<Place>, Statx), Errno> {
        check_name(name)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&dir.fd, name, flags, Mode::empty()).map_err(kernel::errno)?;
        let stat = kernel::stat(&fd)?;
        Ok((self.keep(dir, name, &stat, fd), stat))
    }

    /// Keeps a descriptor of what was found under a name.
    fn keep(&self, dir: &Place, name: &[u8], stat: &Statx, fd: OwnedFd) -> Arc<Place> {
        let ino = self.number(stat);
        let place = Arc::new(Place { ino, fd });
        let mut known = self.known();
        known.find(ino, Found { parent: dir.ino, name: name.into() });
        let dropped = known.keep(&place, kernel::kind(stat));
        drop(known);
        // Closed without the lock.
        drop(dropped);
        place
    }

    /// The number of what a name in a directory names, and its attributes. Keeps nothing of it.
    pub(crate) fn peek(&self, dir: &Place, name: &[u8]) -> Result<(Ino, Statx), Errno> {
        check_name(name)?;
        let (flags, mask) = (AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
        let stat = rustix::fs::statx(&dir.fd, name, flags, mask).map_err(kernel::errno)?;
        Ok((self.number(&stat), stat))
    }

    /// Notes where a file was made, if it is there still.
    pub(crate) fn made(&self, ino: Ino, dir: &Place, name: &[u8]) {
        if self.peek(dir, name).is_ok_and(|(found, _)| found == ino) {
            self.note(ino, dir, name);
        }
    }

    /// Notes where something was found.
    pub(crate) fn note(&self, ino: Ino, dir: &Place, name: &[u8]) {
        self.known().find(ino, Found { parent: dir.ino, name: name.into() });
    }

    /// Keeps no descriptor of something: it is open otherwise, or is going to be removed. With one, the backend could not give its
    /// room back when it is removed (and a client of NFS would rename it instead). It is still known where it is.
    pub(crate) fn let_go(&self, ino: Ino) {
        let mut known = self.known();
        let dropped = (known.directories.remove(ino), known.others.remove(ino));
        drop(known);
        // Closed without the lock.
        drop(dropped);
    }

    /// Forgets what was removed from the backend, under the last name that it had. If its number is another file's by now, that one
    /// stays known.
    pub(crate) fn forget(&self, ino: Ino, dir: &Place, name: &[u8]) {
        let Known { directories, others, found, .. } = &mut *self.known();
        let is_another = directories.peek(ino).is_some() || others.peek(ino).is_some();
        let was_here = found.peek(ino).is_some_and(|found| found.parent == dir.ino && *found.name == *name);
        if was_here && !is_another {
            found.remove(ino);
        }
    }

    /// Drops descriptors of what is no directory and was used neither since the last time nor in the time before that.
    pub(crate) fn tidy(&self) {
        let dropped = self.known().others.turn();
        // Closed without the lock.
        drop(dropped);
    }

    /// The directory above a directory, and its name there, as they are now. ESTALE if it was removed, or does not lie in the
    /// forwarded directory any more. The forwarded directory is its own parent, with an empty name.
    pub(crate) fn parent(&self, dir: &Place) -> Result<(Ino, Vec<u8>), Errno> {
        if dir.ino == Ino::FORWARDED {
            return Ok((Ino::FORWARDED, Vec::new()));
        }
        let stat = kernel::stat_anew(&dir.fd, Path::new(""))?;
        let path = kernel::path_of(&dir.fd)?;
        let below = path.strip_prefix(&self.path).map_err(|_| Errno::STALE)?;
        let name = below.file_name().filter(|_| stat.stx_nlink > 0).ok_or(Errno::STALE)?;
        let name = name.as_bytes().to_vec();
        if below.parent().is_none_or(|above| above.as_os_str().is_empty()) {
            return Ok((Ino::FORWARDED, name));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::openat(&dir.fd, "..", flags, Mode::empty()).map_err(kernel::errno)?;
        Ok((self.number(&kernel::stat(&above)?), name))
    }
}

/// A directory that is to be forwarded.
fn open_root(directory: &Path) -> Result<(OwnedFd, Statx, Identity), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(CWD, directory, flags, Mode::empty()).map_err(kernel::errno)?;
    let stat = kernel::stat(&fd)?;
    if Ino(stat.stx_ino) == Ino::FORWARDED && kernel::is_fuse(&fd)? {
        // A process that sees such a mount was started inside of a command that has it. What it asked there would come back to it.
        return Err(Errno::LOOP);
    }
    let kind = rustix::fs::fstatfs(&fd).map_err(kernel::errno)?.f_type;
    Ok((fd, stat, Identity { kind, inode: stat.stx_ino }))
}

/// The path of something from a directory, as it is now. ENOENT if it has no name there any more.
pub(crate) fn path_below(directory: &Path, of: &impl AsFd) -> Result<PathBuf, Errno> {
    if kernel::stat(of)?.stx_nlink == 0 {
        return Err(Errno::NOENT);
    }
    let path = kernel::path_of(of)?;
    path.strip_prefix(directory).map(Path::to_path_buf).map_err(|_| Errno::NOENT)
}

/// Refuses what is no single name: such a request comes from no client.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"" | b"." | b".." => Err(Errno::INVAL),
        _ if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// 63 well-mixed bits, never 0 (splitmix64's finalizer).
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((number ^ number >> 31) >> 1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_does_not_grow_with_files_that_come_and_go() {
        let directory = tempfile::tempdir().expect("a directory");
        let journal = directory.path().join("journal");
        let below = directory.path().join("served");
        std::fs::create_dir(&below).expect("made");
        let tree = Tree::open(&below, 4, Some(&journal)).expect("served");
        for turn in 0..6000 {
            let name = format!("f{turn}");
            std::fs::write(below.join(&name), "").expect("written");
            let (place, _) = tree.child(tree.root(), name.as_bytes()).expect("there");
            tree.let_go(place.ino);
            std::fs::remove_file(below.join(&name)).expect("removed");
            tree.forget(place.ino, tree.root(), name.as_bytes());
        }
        let known = tree.known();
        assert_eq!((known.directories.len(), known.others.len(), known.found.len()), (0, 0, 0));
        assert!(std::fs::metadata(&journal).expect("there").len() < 5000 * 30);
    }
}
