//! Placeholders and anchors, and asking the kernel about them.
//!
//! Anchors are named by their numbers in `<node directory>/anchors`; their inode numbers stand in the table's
//! header, so that a descriptor is recognised by its offset and its inode, without looking up a name.
//!
//! The magic offset stays below 2^32: directories of tmpfs refuse greater ones on some kernels (6.6 to 6.9).

use crate::error::{NodeError, doing};
use crate::fd::Fd;
use crate::raw;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{Mode, OFlags, SeekFrom};
use std::io::Write;

/// How many anchors there are.
pub const ANCHORS: usize = 256;

/// The file offset of the placeholder of slot 0.
pub const MAGIC_BASE: u64 = 0xB1B0_0000;

/// The anchor of a slot. This is not simply the low byte of its number: a program without the library may
/// move a placeholder's offset by a round number of bytes, and the placeholder must not become another
/// slot's.
pub(crate) fn of(index: u32) -> usize {
    ((index ^ (index >> 8)) & 0xff) as usize
}

/// An open description of an anchor that holds no lock, for asking the kernel about the locks of others.
pub(crate) struct Probe(Fd);

impl Probe {
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub fn into_fd(self) -> Fd {
        self.0
    }
}

/// Where the anchors are, and how their paths are built without allocating.
pub(crate) struct Anchors {
    /// `<node directory>/anchors/`, then room for a number and NUL.
    prefix: Vec<u8>,
}

impl Anchors {
    pub fn new(node_dir: &[u8]) -> Anchors {
        Anchors { prefix: [node_dir, b"/anchors/"].concat() }
    }

    /// Makes the directories and returns their inode numbers and their device.
    pub fn create(&self) -> Result<([u64; ANCHORS], u64), NodeError> {
        let make = |path: &[u8], mode| match rustix::fs::mkdir(path, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(errno) => Err(doing("making the directory of open files")(errno)),
        };
        make(&self.prefix, 0o700)?;
        for number in 0..ANCHORS {
            make(&[&self.prefix, number.to_string().as_bytes()].concat(), 0o500)?;
        }
        self.look()
    }

    /// The inode numbers of anchors that are there, and their device.
    pub fn look(&self) -> Result<([u64; ANCHORS], u64), NodeError> {
        let (mut inodes, mut device) = ([0; ANCHORS], 0);
        for (number, inode) in inodes.iter_mut().enumerate() {
            let path = [&self.prefix, number.to_string().as_bytes()].concat();
            let stat = rustix::fs::lstat(&path).map_err(doing("looking at an anchor"))?;
            (*inode, device) = (stat.st_ino, stat.st_dev);
        }
        Ok((inodes, device))
    }

    /// Opens a slot's anchor, for asking the kernel.
    pub fn probe(&self, index: u32) -> Result<Probe, rustix::io::Errno> {
        self.open(index, true).map(Probe)
    }

    /// Opens the anchor of a slot: another description of it each time.
    fn open(&self, index: u32, cloexec: bool) -> Result<Fd, rustix::io::Errno> {
        let mut path = [0u8; 512];
        let mut rest = &mut path[..];
        let fits = rest.write_all(&self.prefix).is_ok() && write!(rest, "{}\0", of(index)).is_ok();
        let unused = rest.len();
        let path = path.get(..512 - unused).filter(|_| fits).ok_or(rustix::io::Errno::NAMETOOLONG)?;
        let path = std::ffi::CStr::from_bytes_until_nul(path).map_err(|_| rustix::io::Errno::INVAL)?;
        let mut flags = OFlags::RDONLY | OFlags::DIRECTORY;
        flags.set(OFlags::CLOEXEC, cloexec);
        rustix::fs::open(path, flags, Mode::empty()).map(Fd::from).map_err(|errno| match errno {
            // The agent is gone, or is just starting again. That is no word about the file that the program
            // opens.
            rustix::io::Errno::NOENT => rustix::io::Errno::IO,
            errno => errno,
        })
    }

    /// A descriptor that is to become a slot's placeholder; before [`mark`] it has no meaning.
    pub fn blank(&self, index: u32, cloexec: bool) -> Result<Fd, NodeError> {
        self.open(index, cloexec).map_err(doing("opening an anchor"))
    }
}

/// Makes a placeholder of a description of the slot's anchor: see the crate's essay.
pub(crate) fn mark(blank: BorrowedFd<'_>, index: u32) -> Result<(), NodeError> {
    let offset = MAGIC_BASE + u64::from(index);
    rustix::fs::seek(blank, SeekFrom::Start(offset)).map_err(doing("marking a placeholder"))?;
    let mut lock = range(libc::F_RDLCK, index);
    lock_call(blank, libc::F_OFD_SETLK, &mut lock).map_err(doing("locking a placeholder"))
}

/// Whether anybody holds the lock of a slot; `probe` is of its anchor, and holds no lock itself.
pub(crate) fn is_locked(probe: BorrowedFd<'_>, index: u32) -> Result<bool, rustix::io::Errno> {
    let mut lock = range(libc::F_WRLCK, index);
    lock_call(probe, libc::F_OFD_GETLK, &mut lock)?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Whether a file offset could be a placeholder's: what there is to ask before there is a table.
pub fn is_marked(offset: u64) -> bool {
    (MAGIC_BASE..MAGIC_BASE + u64::from(crate::table::SLOTS)).contains(&offset)
}

/// The slot that a descriptor's offset names, if the descriptor could be a placeholder.
pub(crate) fn marked_index(fd: BorrowedFd<'_>, slots: u32) -> Option<u32> {
    let offset = rustix::fs::tell(fd).ok()?;
    let index = u32::try_from(offset.checked_sub(MAGIC_BASE)?).ok()?;
    (index < slots).then_some(index)
}

fn range(kind: i32, index: u32) -> libc::flock {
    // SAFETY: plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = i64::from(index);
    lock.l_len = 1;
    lock
}

fn lock_call(fd: BorrowedFd<'_>, command: i32, lock: &mut libc::flock) -> Result<(), rustix::io::Errno> {
    let pointer = std::ptr::from_mut(lock) as usize;
    let args = [fd.as_raw_fd() as usize, command as usize, pointer, 0, 0, 0];
    // SAFETY: the descriptor is open, and the kernel reads and writes one `struct flock` behind the pointer.
    raw::checked(unsafe { raw::syscall6(libc::SYS_fcntl as usize, args) }).map(|_| ())
}
