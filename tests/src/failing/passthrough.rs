//! The FUSE file system: each operation is looked up among the faults, and else done to the file behind.
//!
//! A file is known by the number that it has behind the mount, and held by a descriptor that only names it (`O_PATH`), so
//! that one that was removed and is open still works. The kernel caches content, writing through, and names and attributes for as long
//! as it is told to. If it caches those, it is told of what others have removed that it is stale, as clients of network file systems are.

use super::{Faults, On};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{self, AtFlags, FallocateFlags, Mode, OFlags, SeekFrom, Timespec, Timestamps};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

type Outcome<T> = Result<T, rustix::io::Errno>;

/// A file that the kernel knows.
struct Node {
    file: Arc<OwnedFd>,
    /// From the mount point on, as it was looked up last.
    path: PathBuf,
    lookups: u64,
}

/// The files that the kernel knows, by their numbers.
#[derive(Clone)]
pub(super) struct Files(Arc<Mutex<HashMap<u64, Node>>>);

impl Files {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Node>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of all.
    pub(super) fn numbers(&self) -> Vec<INodeNo> {
        self.lock().keys().copied().map(INodeNo).collect()
    }
}

pub(super) struct Passthrough {
    files: Files,
    open: Mutex<HashMap<u64, Arc<std::fs::File>>>,
    next: AtomicU64,
    faults: Arc<Faults>,
    /// How long the kernel may believe names and attributes.
    believed: Duration,
}

fn error(errno: rustix::io::Errno) -> Errno {
    Errno::from_i32(errno.raw_os_error())
}

/// How this process opens a file anew that it holds by a descriptor.
fn again(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl Passthrough {
    pub(super) fn new(behind: &Path, believed: Duration, faults: Arc<Faults>) -> (Passthrough, Files) {
        let root = fs::open(behind, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("it is there");
        let root = Node { file: Arc::new(root), path: PathBuf::from("/"), lookups: 1 };
        let files = Files(Arc::new(Mutex::new(HashMap::from([(INodeNo::ROOT.0, root)]))));
        let next = AtomicU64::new(1);
        (Passthrough { files: files.clone(), open: Mutex::default(), next, faults, believed }, files)
    }

    /// A file that is open: it may have been removed.
    fn used(&self, ino: INodeNo) -> Outcome<(Arc<OwnedFd>, PathBuf)> {
        let files = self.files.lock();
        let node = files.get(&ino.0).ok_or(rustix::io::Errno::STALE)?;
        Ok((node.file.clone(), node.path.clone()))
    }

    fn node(&self, ino: INodeNo) -> Outcome<(Arc<OwnedFd>, PathBuf)> {
        let (file, path) = self.used(ino)?;
        if !self.believed.is_zero() && fs::fstat(&file)?.st_nlink == 0 {
            return Err(rustix::io::Errno::STALE);
        }
        Ok((file, path))
    }

    fn handle(&self, fh: FileHandle) -> Outcome<Arc<std::fs::File>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(&fh.0).cloned().ok_or(rustix::io::Errno::BADF)
    }

    fn keep(&self, file: OwnedFd) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(number, Arc::new(file.into()));
        FileHandle(number)
    }

    /// Fails if a fault is set for this operation on a file.
    fn check(&self, on: On, ino: INodeNo) -> Outcome<(Arc<OwnedFd>, PathBuf)> {
        let (file, path) = self.node(ino)?;
        self.faults.check(on, &path)?;
        Ok((file, path))
    }

    /// The same for an operation on a range of it.
    fn check_at(&self, on: On, ino: INodeNo, offset: u64, len: usize) -> Outcome<()> {
        let (_, path) = self.used(ino)?;
        self.faults.check_at(on, &path, &(offset..offset.saturating_add(len as u64)))
    }

    /// The same for a name in a directory.
    fn check_name(&self, on: On, parent: INodeNo, name: &OsStr) -> Outcome<(Arc<OwnedFd>, PathBuf)> {
        let (directory, path) = self.node(parent)?;
        let path = path.join(name);
        self.faults.check(on, &path)?;
        Ok((directory, path))
    }

    fn attributes(&self, ino: INodeNo) -> Outcome<FileAttr> {
        let (file, _) = self.node(ino)?;
        Ok(FileAttr { ino, ..attributes_of(&fs::fstat(&file)?) })
    }

    /// Finds a name, and has the kernel know the file.
    fn find(&self, parent: INodeNo, name: &OsStr) -> Outcome<FileAttr> {
        let (directory, path) = self.node(parent)?;
        let path = path.join(name);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(&*directory, name, flags, Mode::empty())?;
        let attributes = attributes_of(&fs::fstat(&file)?);
        let mut files = self.files.lock();
        let new = || Node { file: Arc::new(file), path: path.clone(), lookups: 0 };
        let node = files.entry(attributes.ino.0).or_insert_with(new);
        node.lookups += 1;
        node.path = path;
        Ok(attributes)
    }
}

fn attributes_of(stat: &fs::Stat) -> FileAttr {
    let time = |seconds: i64, nanoseconds: u64| {
        UNIX_EPOCH + Duration::new(seconds.try_into().unwrap_or(0), nanoseconds.try_into().unwrap_or(0))
    };
    let kind = match fs::FileType::from_raw_mode(stat.st_mode) {
        fs::FileType::Directory => FileType::Directory,
        fs::FileType::Symlink => FileType::Symlink,
        _ => FileType::RegularFile,
    };
    FileAttr {
        ino: INodeNo(stat.st_ino),
        size: stat.st_size.try_into().unwrap_or(0),
        blocks: stat.st_blocks.try_into().unwrap_or(0),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind,
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: 0,
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() }
        }
    }
}

/// What an `io::Error` of the file behind is.
fn behind(error: std::io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
}

/// Answers with what a closure returns, or its error.
macro_rules! answer {
    ($reply:ident, $done:pat => $send:expr, $work:block) => {
        let work = || -> Outcome<_> { $work };
        match work() {
            Ok($done) => $send,
            Err(errno) => $reply.error(error(errno)),
        }
    };
}

impl Filesystem for Passthrough {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer!(reply, found => reply.entry(&self.believed, &found, Generation(0)), { self.find(parent, name) });
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        let mut files = self.files.lock();
        if let Some(node) = files.get_mut(&ino.0).filter(|_| ino != INodeNo::ROOT) {
            node.lookups = node.lookups.saturating_sub(count);
            if node.lookups == 0 {
                files.remove(&ino.0);
            }
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, found => reply.attr(&self.believed, &found), { self.attributes(ino) });
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        fh: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        answer!(reply, found => reply.attr(&self.believed, &found), {
            let on = if size.is_some() { On::WRITE.and(On::TRUNCATE) } else { On::WRITE };
            let (file, _) = self.check(on, ino)?;
            if let Some(mode) = mode {
                fs::chmod(again(&file), Mode::from_raw_mode(mode))?;
            }
            match (size, fh) {
                (Some(size), Some(fh)) => fs::ftruncate(&*self.handle(fh)?, size)?,
                (Some(size), None) => {
                    let open = fs::open(again(&file), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                    fs::ftruncate(open, size)?;
                }
                (None, _) => {}
            }
            if atime.is_some() || mtime.is_some() {
                let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
                fs::utimensat(fs::CWD, again(&file), &times, AtFlags::empty())?;
            }
            self.attributes(ino)
        });
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        answer!(reply, made => reply.entry(&self.believed, &made, Generation(0)), {
            let (directory, _) = self.check_name(On::WRITE.and(On::FILL), parent, name)?;
            fs::mkdirat(&*directory, name, Mode::from_raw_mode(mode & !umask))?;
            self.find(parent, name)
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, () => reply.ok(), {
            let (directory, _) = self.check_name(On::WRITE.and(On::FREE), parent, name)?;
            fs::unlinkat(&*directory, name, AtFlags::empty())
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, () => reply.ok(), {
            let (directory, _) = self.check_name(On::WRITE, parent, name)?;
            fs::unlinkat(&*directory, name, AtFlags::REMOVEDIR)
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer!(reply, () => reply.ok(), {
            let (from, _) = self.check_name(On::WRITE, parent, name)?;
            let (to, path) = self.check_name(On::WRITE, newparent, newname)?;
            let flags = fs::RenameFlags::from_bits_retain(flags.bits());
            fs::renameat_with(&*from, name, &*to, newname, flags)?;
            let moved = fs::statat(&*to, newname, AtFlags::SYMLINK_NOFOLLOW)?.st_ino;
            if let Some(node) = self.files.lock().get_mut(&moved) {
                node.path = path;
            }
            Ok(())
        });
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        answer!(reply, fh => reply.opened(fh, FopenFlags::FOPEN_KEEP_CACHE), {
            let (file, path) = self.node(ino)?;
            if flags.0 & libc::O_ACCMODE != libc::O_RDONLY {
                self.faults.check(On::OPEN_TO_WRITE, &path)?;
            }
            let flags = OFlags::from_bits_retain(flags.0 as u32) - OFlags::NOFOLLOW - OFlags::CREATE - OFlags::EXCL;
            Ok(self.keep(fs::open(again(&file), flags | OFlags::CLOEXEC, Mode::empty())?))
        });
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        answer!(reply, _ => reply.opened(FileHandle(0), FopenFlags::empty()), { self.node(ino) });
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let send = |(made, fh): (FileAttr, FileHandle), reply: ReplyCreate| {
            reply.created(&self.believed, &made, Generation(0), fh, FopenFlags::FOPEN_KEEP_CACHE);
        };
        answer!(reply, made => send(made, reply), {
            let (directory, _) = self.check_name(On::WRITE.and(On::FILL).and(On::OPEN_TO_WRITE), parent, name)?;
            let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CREATE | OFlags::CLOEXEC;
            let file = fs::openat(&*directory, name, flags, Mode::from_raw_mode(mode & !umask))?;
            Ok((self.find(parent, name)?, self.keep(file)))
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        answer!(reply, bytes => reply.data(&bytes), {
            self.check_at(On::READ, ino, offset, size as usize)?;
            let (file, mut bytes, mut done) = (self.handle(fh)?, vec![0; size as usize], 0);
            while done < bytes.len() {
                match file.read_at(&mut bytes[done..], offset + done as u64).map_err(behind)? {
                    0 => break,
                    count => done += count,
                }
            }
            bytes.truncate(done);
            Ok::<Vec<u8>, _>(bytes)
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        answer!(reply, count => reply.written(count), {
            self.check_at(On::WRITE.and(On::FILL), ino, offset, data.len())?;
            Ok(self.handle(fh)?.write_at(data, offset).map_err(behind)? as u32)
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&fh.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        answer!(reply, () => reply.ok(), {
            let (_, path) = self.check(On::SYNC, ino)?;
            let file = self.handle(fh)?;
            if datasync { fs::fdatasync(&*file)? } else { fs::fsync(&*file)? }
            self.faults.note(On::SYNC, &path);
            Ok(())
        });
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer!(reply, () => reply.ok(), {
            let (directory, _) = self.check(On::SYNC, ino)?;
            fs::fsync(fs::open(again(&directory), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
        });
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = || -> Outcome<Vec<_>> {
            let (directory, _) = self.node(ino)?;
            let open = fs::open(again(&directory), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            fs::Dir::read_from(open.as_fd())?.collect()
        };
        match list() {
            Ok(entries) => {
                for (place, entry) in entries.iter().enumerate().skip(offset as usize) {
                    let kind = match entry.file_type() {
                        fs::FileType::Directory => FileType::Directory,
                        _ => FileType::RegularFile,
                    };
                    let name = std::os::unix::ffi::OsStrExt::from_bytes(entry.file_name().to_bytes());
                    let name: &OsStr = name;
                    if reply.add(INodeNo(entry.ino()), place as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let found = self.node(ino).and_then(|(file, _)| fs::fstatfs(file));
        match found {
            Ok(found) => reply.statfs(
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                found.f_bsize as u32,
                255,
                found.f_bsize as u32,
            ),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer!(reply, () => reply.ok(), {
            let punches = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
            self.check(if punches { On::WRITE.and(On::FREE) } else { On::WRITE.and(On::FILL) }, ino)?;
            let mode = FallocateFlags::from_bits_retain(mode as u32);
            fs::fallocate(&*self.handle(fh)?, mode, offset, length)
        });
    }

    fn lseek(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        answer!(reply, offset => reply.offset(offset), {
            let to = match whence {
                libc::SEEK_HOLE => SeekFrom::Hole(offset as u64),
                libc::SEEK_DATA => SeekFrom::Data(offset as u64),
                _ => return Err(rustix::io::Errno::INVAL),
            };
            Ok(fs::seek(&*self.handle(fh)?, to)? as i64)
        });
    }
}
