//! Files that the kernel reads and writes itself (`FUSE_PASSTHROUGH`, Linux 6.9).
//!
//! A file in blocks whose blocks all lie on one server of this node is one sparse local file, its sub-file.
//! Where the kernel allows it (the mount's process has CAP_SYS_ADMIN, and is not in a user namespace of its
//! own), the mount hands it that sub-file when the file is opened, and the kernel reads, writes and maps it
//! without asking anybody. What others do to the file (writes of other nodes, truncation, removal) happens to
//! the same sub-file, whose page cache is the only one: there is nothing that could be stale.
//!
//! **One file, one way.** As long as a file is open in this way, the kernel wants all its opens to name the
//! same backing file, and it does not map a file that was opened otherwise before. So the first open decides:
//! a file that is open without a backing file stays so until all have closed it (this applies to a new file,
//! whose data is inline at first). Opens whose data the servers have to see (O_APPEND, whose end the inode's
//! server orders; O_SYNC; O_DIRECT, which would be bound to the local file system's alignment; files with
//! set-user-ID or set-group-ID bits, which go at a write) name the backing file too, but ask for each read
//! and write; only their mappings are the sub-file's.
//!
//! **Size and time.** Nobody notes what the kernel writes. So such a description counts as one that does not
//! know what it wrote ([`bivouac_client::Handle::writes_unseen`]): while it is open the sub-file is asked,
//! and at its close, unless the sub-file is what it was, the inode's server asks once more.
//!
//! **No revocation.** The mount cannot make the kernel give up a backing file before the description is
//! closed. A sub-file therefore has to stay what it is for as long: truncation, removal and restarts of its
//! server leave it the same local file.

use crate::face::lock;
use crate::session::Channel;
use bivouac_client::{Handle, KeptBlocks};
use bivouac_layout::Ino;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the kernel calls a backing file.
pub(crate) type BackingId = u32;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `FUSE_DEV_IOC_BACKING_OPEN`: _IOW(229, 1, struct fuse_backing_map).
const BACKING_OPEN: u32 = 1 << 30 | (size_of::<BackingMap>() as u32) << 16 | 229 << 8 | 1;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: _IOW(229, 2, u32).
const BACKING_CLOSE: u32 = 1 << 30 | (size_of::<u32>() as u32) << 16 | 229 << 8 | 2;

/// Flags of an open whose reads and writes the servers have to see.
const SEEN: i32 = libc::O_APPEND | libc::O_DSYNC | libc::O_DIRECT;

/// All files that are open, as far as it matters here.
pub(crate) struct Passthrough<K> {
    kernel: K,
    /// The kernel does not accept backing files, or none on this storage: the mount does not try again.
    refused: AtomicBool,
    files: Mutex<HashMap<Ino, File>>,
}

/// A sub-file that contains all of a file, and what has its blocks stay there.
type Whole<'f> = (BorrowedFd<'f>, Option<KeptBlocks>);

/// How a file is open.
enum File {
    /// Without a backing file, so many times.
    Plain(usize),
    /// With this backing file, so many times.
    Backed(BackingId, (OwnedFd, Option<KeptBlocks>), usize),
}

/// When a backing file was changed, as far as the kernel's clock tells, and how long it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    modified: (i64, u64),
    changed: (i64, u64),
    size: i64,
}

impl Mark {
    fn of(file: BorrowedFd<'_>) -> Option<Mark> {
        let stat = rustix::fs::fstat(file).ok()?;
        Some(Mark {
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            size: stat.st_size,
        })
    }
}

/// How a description was opened; to be passed in again at its close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opened {
    /// Without a backing file; there are no more.
    Uncounted,
    /// Without a backing file.
    Plain,
    /// With this backing file. `seen`: the kernel still asks the mount for reads and writes. `before`: the
    /// sub-file's state at the open, if it may be written.
    Backed { id: BackingId, seen: bool, before: Option<Mark> },
}

/// The kernel's side: registers and unregisters backing files.
pub(crate) trait Kernel {
    fn open(&self, file: BorrowedFd<'_>) -> rustix::io::Result<BackingId>;
    fn close(&self, id: BackingId);
}

impl Kernel for Channel {
    fn open(&self, file: BorrowedFd<'_>) -> rustix::io::Result<BackingId> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the request reads a `BackingMap`, which lives until the call returns.
        let id = unsafe { libc::ioctl(self.device().as_raw_fd(), BACKING_OPEN.into(), &raw const map) };
        u32::try_from(id).map_err(|_| {
            let error = std::io::Error::last_os_error();
            rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::INVAL)
        })
    }

    fn close(&self, id: BackingId) {
        // SAFETY: the request reads a u32, which lives until the call returns.
        unsafe { libc::ioctl(self.device().as_raw_fd(), BACKING_CLOSE.into(), &raw const id) };
    }
}

impl<K: Kernel> Passthrough<K> {
    /// Nothing is open yet. Not `possible`: no backing file is ever offered.
    pub(crate) fn new(kernel: K, possible: bool) -> Passthrough<K> {
        Passthrough { kernel, refused: AtomicBool::new(!possible), files: Mutex::default() }
    }

    /// A description is opened; `privileged`: a write takes bits off the file's mode.
    pub(crate) fn opened(&self, handle: &Handle, privileged: bool) -> Opened {
        let flags = handle.flags();
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        // Asked for before the lock is taken, and only if it can be of use.
        let wanted = !self.refused.load(Ordering::Relaxed) && !lock(&self.files).contains_key(&handle.ino());
        let whole = if wanted { handle.whole_file(writes) } else { None };
        let whole = whole.map(|(file, kept)| (file, Some(kept)));
        match self.enter(handle.ino(), whole, writes) {
            Opened::Backed { id, before, .. } => {
                if writes {
                    handle.writes_unseen(true);
                }
                Opened::Backed { id, seen: flags & SEEN != 0 || privileged, before }
            }
            other => other,
        }
    }

    /// Counts an open, and decides.
    fn enter(&self, ino: Ino, whole: Option<Whole<'_>>, writes: bool) -> Opened {
        let mut files = lock(&self.files);
        let file = match files.entry(ino) {
            Entry::Occupied(known) => known.into_mut(),
            // Whatever is opened from now on has no backing file, and need not be counted.
            Entry::Vacant(_) if self.refused.load(Ordering::Relaxed) => return Opened::Uncounted,
            Entry::Vacant(fresh) => fresh.insert(match whole.map(|(file, kept)| (self.offer(file), kept)) {
                Some((Some((id, file)), kept)) => File::Backed(id, (file, kept), 0),
                _ => File::Plain(0),
            }),
        };
        match file {
            File::Plain(opens) => {
                *opens += 1;
                Opened::Plain
            }
            File::Backed(id, (file, _), opens) => {
                *opens += 1;
                let before = if writes { Mark::of(file.as_fd()) } else { None };
                Opened::Backed { id: *id, seen: false, before }
            }
        }
    }

    /// Hands the kernel a file, if it takes it.
    fn offer(&self, file: BorrowedFd<'_>) -> Option<(BackingId, OwnedFd)> {
        use rustix::io::Errno;
        let own = rustix::io::fcntl_dupfd_cloexec(file, 0);
        match own.and_then(|own| Ok((self.kernel.open(file)?, own))) {
            Ok(offered) => Some(offered),
            Err(error) => {
                let passing = matches!(error, Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::BADF);
                if !passing && !self.refused.swap(true, Ordering::Relaxed) {
                    tracing::info!(%error, "the kernel takes no backing files: all data goes through this process");
                }
                None
            }
        }
    }

    /// A description is closed. Returns whether its backing file, if it may have been written, is unchanged.
    pub(crate) fn closed(&self, ino: Ino, how: Opened) -> bool {
        if how == Opened::Uncounted {
            return false;
        }
        let mut files = lock(&self.files);
        let (opens, unchanged) = match (files.get_mut(&ino), how) {
            (Some(File::Plain(opens)), _) => (opens, false),
            (Some(File::Backed(_, (file, _), opens)), Opened::Backed { before: Some(before), .. }) => {
                (opens, Mark::of(file.as_fd()) == Some(before))
            }
            (Some(File::Backed(_, _, opens)), _) => (opens, false),
            (None, _) => return false,
        };
        *opens -= 1;
        let last = if *opens == 0 { files.remove(&ino) } else { None };
        if let Some(File::Backed(id, ..)) = &last {
            self.kernel.close(*id);
        }
        // This asks a server: from here on the blocks may go to other servers.
        drop(files);
        drop(last);
        unchanged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Remembers what is open; refuses when told to.
    #[derive(Default)]
    struct Fake {
        open: RefCell<Vec<BackingId>>,
        next: Cell<BackingId>,
        refuses: Cell<Option<rustix::io::Errno>>,
    }

    impl Kernel for Fake {
        fn open(&self, _: BorrowedFd<'_>) -> rustix::io::Result<BackingId> {
            if let Some(errno) = self.refuses.get() {
                return Err(errno);
            }
            self.next.set(self.next.get() + 1);
            self.open.borrow_mut().push(self.next.get());
            Ok(self.next.get())
        }

        fn close(&self, id: BackingId) {
            self.open.borrow_mut().retain(|open| *open != id);
        }
    }

    const FILE: Ino = Ino(7);
    const OTHER: Ino = Ino(8);

    fn backed(id: BackingId) -> Opened {
        Opened::Backed { id, seen: false, before: None }
    }

    #[test]
    fn the_first_open_decides_for_all_until_the_last_close() {
        let files = Passthrough::new(Fake::default(), true);
        let null = std::fs::File::open("/dev/null").unwrap();
        let whole = || Some((null.as_fd(), None));
        assert_eq!(files.enter(FILE, None, false), Opened::Plain);
        assert_eq!(files.enter(FILE, whole(), false), Opened::Plain);
        files.closed(FILE, Opened::Plain);
        assert_eq!(files.enter(FILE, whole(), false), Opened::Plain);
        files.closed(FILE, Opened::Plain);
        files.closed(FILE, Opened::Plain);
        assert_eq!(files.enter(FILE, whole(), false), backed(1));
        assert_eq!(files.enter(FILE, None, false), backed(1));
        files.closed(FILE, backed(1));
        assert_eq!(*files.kernel.open.borrow(), [1]);
        files.closed(FILE, backed(1));
        assert!(files.kernel.open.borrow().is_empty());
        assert_eq!(files.enter(FILE, whole(), false), backed(2));
    }

    #[test]
    fn what_is_backed_stays_so_when_the_kernel_takes_no_more() {
        let files = Passthrough::new(Fake::default(), true);
        let null = std::fs::File::open("/dev/null").unwrap();
        let whole = || Some((null.as_fd(), None));
        assert_eq!(files.enter(FILE, whole(), false), backed(1));
        files.kernel.refuses.set(Some(rustix::io::Errno::LOOP));
        assert_eq!(files.enter(OTHER, whole(), false), Opened::Plain);
        assert_eq!(files.enter(Ino(9), whole(), false), Opened::Uncounted);
        assert_eq!(files.enter(FILE, None, false), backed(1));
        files.closed(Ino(9), Opened::Uncounted);
        files.closed(OTHER, Opened::Plain);
        files.closed(FILE, backed(1));
        files.closed(FILE, backed(1));
        assert!(lock(&files.files).is_empty() && files.kernel.open.borrow().is_empty());
    }

    #[test]
    fn a_lack_of_descriptors_passes() {
        let files = Passthrough::new(Fake::default(), true);
        let null = std::fs::File::open("/dev/null").unwrap();
        files.kernel.refuses.set(Some(rustix::io::Errno::MFILE));
        assert_eq!(files.enter(FILE, Some((null.as_fd(), None)), false), Opened::Plain);
        files.kernel.refuses.set(None);
        assert_eq!(files.enter(OTHER, Some((null.as_fd(), None)), false), backed(1));
    }

    #[test]
    fn a_writer_that_wrote_nothing_is_told_from_one_that_did() {
        let files = Passthrough::new(Fake::default(), true);
        let memory = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let (idle, busy) =
            (files.enter(FILE, Some((memory.as_fd(), None)), true), files.enter(FILE, None, true));
        assert!(files.closed(FILE, idle));
        rustix::io::write(&memory, b"more").unwrap();
        assert!(!files.closed(FILE, busy));
    }

    #[test]
    fn numbers_of_the_kernel_s_requests() {
        assert_eq!((BACKING_OPEN, BACKING_CLOSE), (0x4010_e501, 0x4004_e502));
    }
}
