//! The operations on sub-files.

use crate::cache::{Cache, Lookup};
use crate::disk::{self, Disk};
use crate::error::DataError;
use crate::file::SubFile;
use crate::place::{self, SubPath};
use crate::relocate::Relocations;
use crate::stripes::{StripeNote, Stripes};
use crate::sums::Sums;
use crate::suspects::Suspects;
use crate::undo::Wrote;
use bivouac_layout::{Ino, ServerId};
use bivouac_node::Fences;
use bivouac_node::fences::Against;
use bivouac_proto::Time;
use bivouac_proto::attr::FILE_MAX;
use bivouac_proto::data::{Access, Fallocate, LastWrite};
use rustix::fd::OwnedFd;
use rustix::fs::{self, AtFlags, FallocateFlags, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Locks for truncations; files that share one by chance only wait a little.
const TRUNCATION_LOCKS: usize = 64;
/// How long undoing a write waits for direct writes that are under way: long for a write, short for a program
/// that waits for the error that it is to get.
const UNDO_PATIENCE: Duration = Duration::from_secs(1);

/// What a server knows of a file's length and age.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length of the sub-file, bytes; 0 if there is none.
    pub length: u64,
    /// Allocated, bytes. Blocks that were allocated beyond the length count.
    pub allocated: u64,
    /// When the sub-file was last written or truncated; `None` if there is none.
    pub written: Option<LastWrite>,
}

/// How full the storage is. Directories on one file system count once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that can still be stored.
    pub available: u64,
    /// Which file systems these are: the same for stores on the same ones.
    pub device: u64,
}

/// The sub-files of one server. All methods may be called from any number of threads at once.
pub struct DataStore {
    disks: Vec<Disk>,
    cache: Cache,
    /// Taken before, and never while, anything in the cache is locked.
    truncations: [Mutex<()>; TRUNCATION_LOCKS],
    stored: Mutex<Option<Stored>>,
    suspects: Suspects,
    relocations: Relocations,
    fences: Option<Arc<Fences>>,
    stripes: Stripes,
    /// Where files may have copies.
    sums: OnceLock<Sums>,
    /// Descriptors that may be kept open.
    descriptors: usize,
}

/// A remembered sum of allocated bytes.
struct Stored {
    bytes: u64,
    until: Instant,
}

impl DataStore {
    /// Opens or makes a store over one or several directories, in any order. A directory that does not exist
    /// is made (its parent must be there), and removed by [`DataStore::destroy`]. Refused, with an error that
    /// says what to do, are: what is not a directory, is not ours, cannot be written, is full, belongs to
    /// another deployment or server, or is in use by another process; and an incomplete list of an existing
    /// store's directories.
    ///
    /// A quarter of the process's descriptor limit at this moment (at most 65,536) may be kept open: raise
    /// the limit before.
    pub fn open(dirs: &[PathBuf], deployment: u64, server: ServerId) -> Result<DataStore, DataError> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let descriptors = (limit.unwrap_or(u64::MAX) / 4).min(65_536) as usize;
        DataStore::open_with(dirs, deployment, server, descriptors)
    }

    /// [`DataStore::open`] with the number of descriptors that may be kept open (at least 64 are).
    pub fn open_with(
        dirs: &[PathBuf],
        deployment: u64,
        server: ServerId,
        descriptors: usize,
    ) -> Result<DataStore, DataError> {
        let disks = disk::open_all(dirs, deployment, server)?;
        for disk in &disks {
            tracing::debug!(path = %disk.path().display(), "storage directory opened");
        }
        let first = disks.first().ok_or(DataError::NoDirectory)?;
        let stripes = Stripes::open(&first.root, first.path())?;
        Ok(DataStore {
            stripes,
            disks,
            cache: Cache::new(descriptors),
            truncations: [const { Mutex::new(()) }; TRUNCATION_LOCKS],
            stored: Mutex::new(None),
            suspects: Suspects::default(),
            relocations: Relocations::default(),
            fences: None,
            sums: OnceLock::new(),
            descriptors,
        })
    }

    /// Sub-files may be passed to processes of the node, which look at these fences.
    pub fn with_fences(self, fences: Fences) -> DataStore {
        DataStore { fences: Some(Arc::new(fences)), ..self }
    }

    /// The fences that hold up direct accesses.
    pub fn fences(&self) -> Option<&Arc<Fences>> {
        self.fences.as_ref()
    }

    /// Which files have given blocks to other servers.
    pub fn stripes(&self) -> &Stripes {
        &self.stripes
    }

    /// The storage directories, in the order of their positions.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.disks.iter().map(Disk::path)
    }

    /// The open sub-file, for reading or for `sendfile`; `None` if there is none: all is a hole.
    pub fn read_file(&self, ino: Ino) -> Result<Option<Arc<SubFile>>, DataError> {
        self.existing(ino)
    }

    /// The storage has failed to read a sub-file whose answer was begun already.
    pub fn suspect(&self, ino: Ino) {
        self.suspects.add(ino);
    }

    /// Whether that was so a moment ago: read before you answer.
    pub fn is_suspect(&self, ino: Ino) -> bool {
        self.suspects.contains(ino)
    }

    /// Reads into the whole of `into`, as far as the sub-file goes; returns how many bytes. Holes are zeros.
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Result<usize, DataError> {
        match self.existing(ino)? {
            Some(file) => file.read_at(offset, into),
            None => Ok(0),
        }
    }

    /// Writes `from`, with `sync` to stable storage; returns how many bytes. Fewer than given, but not none,
    /// are written when the storage fills up on the way; see [`SubFile::write_at`]. An empty write does
    /// nothing.
    pub fn write(&self, ino: Ino, offset: u64, from: &[u8], sync: bool) -> Result<Wrote, DataError> {
        if from.is_empty() {
            return Ok(Wrote { count: 0, before: self.extent(ino)?.length, undo: 0 });
        }
        if offset >= FILE_MAX {
            return Err(DataError::TooFar);
        }
        self.change(|| {
            let file = self.made(ino)?;
            let wrote = file.write_noted(offset, from)?;
            if sync {
                self.sync_file(ino, &file)?;
            }
            Ok(wrote)
        })
    }

    /// Undoes a write: see [`SubFile::take_back`]. Direct writes are held up meanwhile, so that none is lost
    /// that ends between the look at the length and the truncation. If one does not end, nothing is undone.
    pub fn take_back(&self, ino: Ino, undo: u64, end: u64, size: u64) -> Result<(), DataError> {
        let fence = self.fences.as_ref().map(|fences| fences.raise(ino, Against::Writers));
        if fence.as_ref().is_some_and(|fence| fence.wait(UNDO_PATIENCE).is_err()) {
            return Ok(());
        }
        let _alone = self.lock_truncations(ino);
        if let Some(file) = self.existing(ino)? {
            self.cutting(ino, &file, size, || file.take_back(undo, end, size))?;
        }
        Ok(())
    }

    /// Length, allocation and age.
    pub fn extent(&self, ino: Ino) -> Result<Extent, DataError> {
        match self.stat(ino)? {
            Some(stat) => Ok(Extent {
                length: u64::try_from(stat.st_size).unwrap_or(0),
                allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
                written: Some(last_write(&stat)),
            }),
            None => Ok(Extent { length: 0, allocated: 0, written: None }),
        }
    }

    /// Truncates the sub-file to `size` bytes if it is longer; with `extend` also lengthens it, by a hole. A
    /// sub-file that is gone stays so, unless it is truncated to 0: then it does not count as missing any more.
    /// Says whether there is, or should be, a sub-file.
    pub fn truncate(&self, ino: Ino, size: u64, extend: bool) -> Result<bool, DataError> {
        if size > FILE_MAX {
            return Err(DataError::TooFar);
        }
        // Two truncations at once could each see the length before the other one, and so lengthen a sub-file
        // that is to become shorter.
        let _alone = self.lock_truncations(ino);
        let file = match if extend && size > 0 { self.made(ino).map(Some) } else { self.existing(ino) } {
            Err(DataError::Missing(_)) if size == 0 => return self.remove(ino).map(|()| false),
            Err(DataError::Missing(_)) => return Ok(true),
            file => file?,
        };
        let Some(file) = file else { return Ok(false) };
        let length = file.length()?;
        if length > size || (extend && length < size) {
            self.cutting(ino, &file, size, || {
                fs::ftruncate(&file, size)?;
                Ok(true)
            })?;
        }
        Ok(true)
    }

    /// Makes a sub-file shorter, and with it its checksums, if there are any.
    fn cutting(
        &self,
        ino: Ino,
        file: &SubFile,
        size: u64,
        cut: impl FnOnce() -> Result<bool, DataError>,
    ) -> Result<bool, DataError> {
        match self.sums.get() {
            Some(sums) => sums.cutting(ino, file, size, cut),
            None => cut(),
        }
    }

    /// Sets when the sub-file was last written, if there is one: after changes that bring back what was there.
    pub fn set_written(&self, ino: Ino, at: Time) -> Result<(), DataError> {
        let Some(file) = self.existing(ino)? else { return Ok(()) };
        let last_modification =
            Timespec { tv_sec: at.div_euclid(1_000_000_000), tv_nsec: at.rem_euclid(1_000_000_000) as _ };
        let last_access = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
        Ok(fs::futimens(&file, &Timestamps { last_access, last_modification })?)
    }

    /// Allocates or frees a range. Making a hole where there is no sub-file does nothing. EOPNOTSUPP where
    /// the storage's file system cannot allocate or make holes.
    pub fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: Fallocate) -> Result<(), DataError> {
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_MAX) {
            return Err(DataError::TooFar);
        }
        self.change(|| self.allocate(ino, offset, len, mode))
    }

    fn allocate(&self, ino: Ino, offset: u64, len: u64, mode: Fallocate) -> Result<(), DataError> {
        let keep = FallocateFlags::KEEP_SIZE;
        let punch = FallocateFlags::PUNCH_HOLE | keep;
        let flags = match mode {
            Fallocate::PunchHole => {
                let Some(file) = self.existing(ino)? else {
                    return Ok(());
                };
                return Ok(retry(|| fs::fallocate(&file, punch, offset, len))?);
            }
            Fallocate::Extend => FallocateFlags::empty(),
            Fallocate::KeepSize => keep,
            Fallocate::Zero => FallocateFlags::ZERO_RANGE,
        };
        let file = self.made(ino)?;
        match retry(|| fs::fallocate(&file, flags, offset, len)) {
            // Memory file systems have no ZERO_RANGE: a hole that is allocated again is the same.
            Err(Errno::OPNOTSUPP) if mode == Fallocate::Zero => {
                retry(|| fs::fallocate(&file, punch, offset, len))?;
                Ok(retry(|| fs::fallocate(&file, FallocateFlags::empty(), offset, len))?)
            }
            done => Ok(done?),
        }
    }

    /// The next hole, or else data, at or after `offset`. ENXIO at or past the end, and for data also where
    /// only a hole follows. The end counts as a hole.
    pub fn seek(&self, ino: Ino, offset: u64, hole: bool) -> Result<u64, DataError> {
        let file = self.existing(ino)?.filter(|_| offset <= FILE_MAX).ok_or(Errno::NXIO)?;
        // This moves the offset of a descriptor that others use at the same time; nobody uses its offset.
        let to = if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
        Ok(fs::seek(&file, to)?)
    }

    /// Puts the sub-file, and the entry that leads to it, on stable storage. Missing is fine.
    pub fn sync(&self, ino: Ino) -> Result<(), DataError> {
        // Also when no descriptor is cached: the data of an earlier one, or of one that was passed, may not
        // be there yet.
        match self.existing(ino)? {
            Some(file) => self.sync_file(ino, &file),
            None => Ok(()),
        }
    }

    /// Removes the sub-file of a file that is gone. Missing is fine. Its bytes go when the last descriptor is closed.
    pub fn remove(&self, ino: Ino) -> Result<(), DataError> {
        self.drop_sub_file(ino)?;
        if let Err(error) = self.stripes.note(ino, &StripeNote::Forgotten) {
            // Its number is never used again: it only takes room.
            tracing::debug!(%ino, %error, "a removed file is still noted as restriped");
        }
        Ok(())
    }

    /// Removes the sub-file of a file that has no blocks here any more.
    pub fn drop_sub_file(&self, ino: Ino) -> Result<(), DataError> {
        let mixed = place::mix(ino);
        let path = SubPath::new(ino, mixed);
        let disk = self.disk(mixed)?;
        disk.inventory.remove(ino, || {
            let removed = fs::unlinkat(&disk.sub, path.as_c_str(), AtFlags::empty());
            // In this order: see the cache.
            self.cache.removed(mixed);
            removed
        })?;
        if let Some(sums) = self.sums.get() {
            sums.remove(ino);
        }
        Ok(())
    }

    /// A descriptor of the sub-file to hand to another process, close-on-exec, and sharing nothing (offset, flags) with
    /// the store's own.
    pub fn pass(&self, ino: Ino, access: Access) -> Result<OwnedFd, DataError> {
        let mixed = place::mix(ino);
        let path = SubPath::new(ino, mixed);
        // While the sub-file becomes another local file, nobody gets the old one.
        let _there = self.lock_truncations(ino);
        let there = || DataError::Io(bivouac_proto::Errno::NOENT);
        self.open_descriptor(ino, mixed, &path, access)?.ok_or_else(there)
    }

    /// A sub-file that is gone is about to be made anew: what was passed of it is not it any more.
    pub fn renounce(&self, ino: Ino) {
        if let Some(fences) = &self.fences {
            fences.renounce(ino);
        }
    }

    /// How full the storage is.
    pub fn space(&self) -> Result<Space, DataError> {
        let mut space = Space::default();
        for (i, disk) in self.disks.iter().enumerate() {
            if self.disks.iter().take(i).any(|earlier| earlier.device == disk.device) {
                continue;
            }
            let stat = fs::fstatvfs(&disk.sub)?;
            let (mut total, mut available) = (stat.f_blocks, stat.f_bavail);
            let mut unit = stat.f_frsize;
            if total == 0 {
                // A memory file system without a limit: the machine's memory is the limit.
                let memory = rustix::system::sysinfo();
                unit = u64::from(memory.mem_unit);
                (total, available) = (memory.totalram, memory.freeram);
            }
            space.device = space.device.wrapping_mul(31).wrapping_add(disk.device);
            space.total = space.total.saturating_add(total.saturating_mul(unit));
            space.available = space.available.saturating_add(available.saturating_mul(unit));
        }
        Ok(space)
    }

    /// How many sub-files are known to be gone although Bivouac has not removed them.
    pub fn missing(&self) -> u64 {
        self.disks.iter().map(|disk| disk.inventory.missing()).sum()
    }

    /// Whether a store was made in this directory.
    pub fn is_in(directory: &Path) -> bool {
        disk::is_ready(directory)
    }

    /// Bytes allocated to all sub-files. This looks at every one (about a second for a million), and
    /// remembers the result for ten times as long as that took, so that frequent calls take a tenth of a
    /// processor at most. If the storage fails, the result is that of an earlier look, or 0.
    pub fn stored(&self) -> u64 {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = Instant::now();
        if let Some(known) = stored.as_ref().filter(|known| begin < known.until) {
            return known.bytes;
        }
        let mut bytes = 0u64;
        for disk in &self.disks {
            let counted = disk.for_each_allocated(|allocated| bytes = bytes.saturating_add(allocated));
            if let Err(error) = counted {
                tracing::warn!(path = %disk.path().display(), %error, "cannot sum up what is stored");
                return stored.as_ref().map_or(0, |known| known.bytes);
            }
        }
        let end = Instant::now();
        let remember = end.saturating_duration_since(begin).saturating_mul(10).min(Duration::from_secs(60));
        *stored = Some(Stored { bytes, until: end + remember });
        bytes
    }

    /// Removes everything that the store made: sub-files, trees, identity files, and the directories that it
    /// made if they are empty then; never anything else. To be called when nothing else uses the store: later
    /// operations fail. It tries all directories, and returns the first error.
    pub fn destroy(&self) -> Result<(), DataError> {
        self.cache.clear();
        let mut first = Ok(());
        for disk in &self.disks {
            let removed = disk.destroy();
            if let Err(error) = &removed {
                tracing::warn!(path = %disk.path().display(), %error, "storage directory not removed");
            }
            first = first.and(removed);
        }
        first
    }

    /// Looks for every sub-file that should be there; those that are gone. One whose descriptor is still open, so that
    /// it can be read, is gone, too.
    pub fn find_missing(&self) -> Result<Vec<Ino>, DataError> {
        let mut missing = Vec::new();
        for disk in &self.disks {
            for ino in disk.inventory.all() {
                let path = SubPath::new(ino, place::mix(ino));
                let look = || fs::statat(&disk.sub, path.as_c_str(), AtFlags::SYMLINK_NOFOLLOW);
                match look() {
                    Ok(_) => {}
                    Err(Errno::NOENT) => {
                        if let Err(DataError::Missing(_)) = disk.inventory.look_again(ino, look) {
                            missing.push(ino);
                        }
                    }
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(missing)
    }

    /// Closes the descriptor of a sub-file that is gone: it cannot be read any more.
    pub fn let_go(&self, ino: Ino) {
        self.cache.removed(place::mix(ino));
    }

    pub(crate) fn disks(&self) -> &[Disk] {
        &self.disks
    }

    pub(crate) fn descriptors(&self) -> usize {
        self.descriptors
    }

    pub(crate) fn sums(&self) -> Option<&Sums> {
        self.sums.get()
    }

    pub(crate) fn set_sums(&self, sums: Sums) -> &Sums {
        self.sums.get_or_init(|| sums)
    }

    pub(crate) fn disk(&self, mixed: u64) -> Result<&Disk, DataError> {
        // `directory` is below the number of disks, of which there is at least one.
        self.disks.get(place::directory(mixed, self.disks.len())).ok_or(DataError::NoDirectory)
    }

    /// The open sub-file, if there is one.
    pub(crate) fn existing(&self, ino: Ino) -> Result<Option<Arc<SubFile>>, DataError> {
        self.acquire(ino, false)
    }

    /// The open sub-file, made if need be.
    fn made(&self, ino: Ino) -> Result<Arc<SubFile>, DataError> {
        self.acquire(ino, true)?.ok_or(DataError::Io(bivouac_proto::Errno::NOENT))
    }

    fn acquire(&self, ino: Ino, create: bool) -> Result<Option<Arc<SubFile>>, DataError> {
        let mixed = place::mix(ino);
        let mut seen = match self.cache.get(mixed) {
            Lookup::Hit(file) => return Ok(Some(file)),
            Lookup::Miss(seen) => seen,
        };
        let path = SubPath::new(ino, mixed);
        let access = if create { Access::Make } else { Access::Write };
        loop {
            let Some(descriptor) = self.open_descriptor(ino, mixed, &path, access)? else {
                return Ok(None);
            };
            let file = Arc::new(SubFile::new(descriptor));
            loop {
                match self.cache.insert(mixed, &file, seen) {
                    Ok(kept) => return Ok(Some(kept)),
                    Err(now) => seen = now,
                }
                if file.is_removed()? {
                    break;
                }
            }
        }
    }

    /// Opens a sub-file without the cache. `None`: there is none, and none is to be made. One that is gone is
    /// an error.
    fn open_descriptor(
        &self,
        ino: Ino,
        mixed: u64,
        path: &SubPath,
        access: Access,
    ) -> Result<Option<OwnedFd>, DataError> {
        let disk = self.disk(mixed)?;
        let open = |make: bool| {
            let mut flags = if access == Access::Read { OFlags::RDONLY } else { OFlags::RDWR };
            flags |= OFlags::CLOEXEC | OFlags::NOFOLLOW;
            flags.set(OFlags::CREATE, make);
            let open = || fs::openat(&disk.sub, path.as_c_str(), flags, Mode::RUSR | Mode::WUSR);
            match open() {
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Connections need descriptors, too: give back all that are not in use at the moment.
                    self.cache.clear();
                    open()
                }
                // A subdirectory is missing: the store is damaged, and the program must not take it for a
                // missing file.
                Err(Errno::NOENT) if make => Err(Errno::IO),
                opened => opened,
            }
        };
        if access == Access::Make {
            return disk.inventory.open_or_make(ino, open).map(Some);
        }
        match open(false) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(Errno::NOENT) => disk.inventory.look_again(ino, || open(false)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Status of a sub-file; without opening one that is not in the cache.
    fn stat(&self, ino: Ino) -> Result<Option<Stat>, DataError> {
        let mixed = place::mix(ino);
        if let Lookup::Hit(file) = self.cache.get(mixed) {
            return Ok(Some(fs::fstat(&file)?));
        }
        let path = SubPath::new(ino, mixed);
        let disk = self.disk(mixed)?;
        let look = || fs::statat(&disk.sub, path.as_c_str(), AtFlags::SYMLINK_NOFOLLOW);
        match look() {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => disk.inventory.look_again(ino, look),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(crate) fn sync_file(&self, ino: Ino, file: &SubFile) -> Result<(), DataError> {
        file.sync(|| {
            let mixed = place::mix(ino);
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let path = SubPath::new(ino, mixed);
            let disk = self.disk(mixed)?;
            let parent = fs::openat(&disk.sub, path.parent(), flags, Mode::empty())?;
            fs::fsync(&parent)?;
            disk.inventory.synced(ino);
            Ok(())
        })
    }

    pub(crate) fn relocations(&self) -> &Relocations {
        &self.relocations
    }

    /// The sub-file has become another local file.
    pub(crate) fn forget(&self, mixed: u64) {
        self.cache.removed(mixed);
    }

    pub(crate) fn lock_truncations(&self, ino: Ino) -> std::sync::MutexGuard<'_, ()> {
        let lock = &self.truncations[place::mix(ino) as usize % TRUNCATION_LOCKS];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// A file's last change of content.
fn last_write(stat: &Stat) -> LastWrite {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let ns = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
    let at = ns(stat.st_mtime, stat.st_mtime_nsec.cast_signed());
    // A clock that was set back makes the future: that is now.
    let age = ns(now.tv_sec, now.tv_nsec).saturating_sub(at).max(0).unsigned_abs();
    LastWrite { age, at }
}
