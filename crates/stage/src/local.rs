//! The site's file system.

use crate::parts;
use crate::tree::{Attribute, Kind, Listed, Meta, Open, Special, Tree, USER_ATTRIBUTES};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, SeekFrom, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::OnceLock;

// For the standard library, which takes numbers.
const O_NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;
const O_NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// The site's file system, as the kernel shows it.
pub(crate) struct Local;

fn path_of(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

impl Tree for Local {
    fn stat(&self, path: &[u8], follow: bool) -> io::Result<Meta> {
        let path = path_of(path);
        Ok(meta_of(&if follow { fs::metadata(path)? } else { fs::symlink_metadata(path)? }))
    }

    fn list(&self, path: &[u8]) -> io::Result<Vec<Listed>> {
        let directory = path_of(path);
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            Ok((entry.file_name().into_vec(), entry.metadata().map(|meta| meta_of(&meta))))
        };
        fs::read_dir(directory)?.map(entry).collect()
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        Ok(fs::read_link(path_of(path))?.into_os_string().into_vec())
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        // It was an ordinary file a moment ago. If it has become a FIFO since, opening must not wait.
        LocalFile::open(path, OpenOptions::new().read(true).custom_flags(O_NONBLOCK))
    }

    fn create(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600).custom_flags(O_NOFOLLOW);
        LocalFile::open(path, &options)
    }

    fn open_to_fill(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        LocalFile::open(path, OpenOptions::new().read(true).write(true).custom_flags(O_NOFOLLOW))
    }

    fn part_name(&self, path: &[u8], run: &str) -> Vec<u8> {
        parts::name(path, run)
    }

    fn place(&self, part: &[u8], path: &[u8]) -> io::Result<Meta> {
        fs::rename(path_of(part), path_of(path))?;
        self.stat(path, false)
    }

    fn make_directory(&self, path: &[u8]) -> io::Result<bool> {
        let at = path_of(path);
        match fs::create_dir(at) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && at.is_dir() => {
                let mode = fs::metadata(at)?.mode() & 0o7777;
                if mode & 0o700 != 0o700 {
                    // Whoever may not do this is told when an entry cannot be made.
                    let _ = fs::set_permissions(at, fs::Permissions::from_mode(mode | 0o700));
                }
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    fn make_symlink(&self, path: &[u8], target: &[u8], meta: &Meta) -> io::Result<()> {
        let to = path_of(path);
        make_room(to)?;
        std::os::unix::fs::symlink(path_of(target), to)?;
        self.set_meta(path, meta)
    }

    fn make_link(&self, existing: &[u8], path: &[u8]) -> io::Result<()> {
        let to = path_of(path);
        make_room(to)?;
        fs::hard_link(path_of(existing), to)
    }

    fn remove(&self, path: &[u8]) -> io::Result<()> {
        fs::remove_file(path_of(path))
    }

    fn remove_directory(&self, path: &[u8]) -> io::Result<()> {
        fs::remove_dir(path_of(path))
    }

    fn make_special(&self, path: &[u8], what: Special, meta: &Meta) -> io::Result<()> {
        let (kind, device) = match what {
            Special::NamedPipe => (FileType::Fifo, 0),
            Special::Socket => (FileType::Socket, 0),
            Special::CharDevice => (FileType::CharacterDevice, meta.device),
            Special::BlockDevice => (FileType::BlockDevice, meta.device),
        };
        let to = path_of(path);
        make_room(to)?;
        rustix::fs::mknodat(CWD, to, kind, Mode::RUSR | Mode::WUSR, device)?;
        self.set_meta(path, meta)
    }

    fn attributes(&self, path: &[u8]) -> io::Result<Vec<Attribute>> {
        let path = path_of(path);
        let names =
            match whole(|| rustix::fs::llistxattr_query(path), |room| rustix::fs::llistxattr(path, room)) {
                Ok(names) => names,
                Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
                Err(errno) => return Err(errno.into()),
            };
        let mut attributes = Vec::new();
        for name in names.split(|&byte| byte == 0).filter(|name| name.starts_with(USER_ATTRIBUTES)) {
            let named = OsStr::from_bytes(name);
            match whole(
                || rustix::fs::lgetxattr_query(path, named),
                |room| rustix::fs::lgetxattr(path, named, room),
            ) {
                Ok(value) => attributes.push((name.to_vec(), value)),
                // It was removed meanwhile.
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(attributes)
    }

    fn set_attribute(&self, path: &[u8], name: &[u8], value: &[u8]) -> io::Result<()> {
        let (path, name) = (path_of(path), OsStr::from_bytes(name));
        Ok(rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())?)
    }

    fn set_meta(&self, path: &[u8], meta: &Meta) -> io::Result<()> {
        let path = path_of(path);
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
            rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if meta.kind != Kind::Symlink {
            fs::set_permissions(path, fs::Permissions::from_mode(meta.mode))?;
        }
        rustix::fs::utimensat(CWD, path, &times(meta), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}

/// Removes what a new entry replaces. A directory stays, so that making the entry fails.
fn make_room(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_dir()) { fs::remove_file(path) } else { Ok(()) }
}

/// The whole result of a call that fills a buffer. Asks for the length first, and again if it has
/// grown meanwhile.
fn whole(
    length: impl Fn() -> Result<usize, Errno>,
    fill: impl Fn(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    loop {
        let mut value = vec![0; length()?];
        if value.is_empty() {
            return Ok(value);
        }
        match fill(&mut value) {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            Err(Errno::RANGE) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn times(meta: &Meta) -> Timestamps {
    let spec = |time: i64| Timespec {
        tv_sec: time.div_euclid(1_000_000_000),
        tv_nsec: time.rem_euclid(1_000_000_000),
    };
    debug_assert!(spec(meta.mtime).tv_nsec != UTIME_OMIT);
    Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) }
}

fn meta_of(meta: &fs::Metadata) -> Meta {
    let kind = match meta.file_type() {
        t if t.is_file() => Kind::File,
        t if t.is_dir() => Kind::Directory,
        t if t.is_symlink() => Kind::Symlink,
        t if t.is_fifo() => Kind::Special(Special::NamedPipe),
        t if t.is_socket() => Kind::Special(Special::Socket),
        t if t.is_block_device() => Kind::Special(Special::BlockDevice),
        _ => Kind::Special(Special::CharDevice),
    };
    let nanoseconds = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    Meta {
        kind,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        size: meta.size(),
        atime: nanoseconds(meta.atime(), meta.atime_nsec()),
        mtime: nanoseconds(meta.mtime(), meta.mtime_nsec()),
        ctime: nanoseconds(meta.ctime(), meta.ctime_nsec()),
        identity: (meta.dev(), meta.ino()),
        links: meta.nlink(),
        allocated: meta.blocks().saturating_mul(512),
        device: meta.rdev(),
        lazy: false,
        attributes: true,
    }
}

/// Transfers of at least so many bytes go past the page cache: the memory of a job's nodes is wanted for its
/// programs and for what servers keep in memory, and no byte is copied twice.
const DIRECT: usize = 256 << 10;
/// To what offsets, lengths and addresses of such transfers have to be aligned.
const ALIGNMENT: usize = 4096;

struct LocalFile {
    file: File,
    writable: bool,
    /// The same file, past the page cache; `None` where the file system cannot do that.
    direct: OnceLock<Option<File>>,
}

impl LocalFile {
    fn open(path: &[u8], options: &OpenOptions) -> io::Result<Box<dyn Open>> {
        let file = options.open(path_of(path))?;
        let flags = rustix::fs::fcntl_getfl(&file)?;
        let writable = flags.contains(rustix::fs::OFlags::RDWR);
        Ok(Box::new(LocalFile { file, writable, direct: OnceLock::new() }))
    }

    /// The file for a transfer that can go past the page cache.
    fn direct(&self, offset: u64, buffer: &[u8]) -> Option<&File> {
        let aligned = |value: usize| value.is_multiple_of(ALIGNMENT);
        let fits = buffer.len() >= DIRECT
            && aligned(buffer.len())
            && aligned(offset as usize)
            && aligned(buffer.as_ptr() as usize);
        if !fits {
            return None;
        }
        let open = || {
            // By way of the descriptor, because the name may mean another file by now.
            let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let mut options = OpenOptions::new();
            options.read(true).write(self.writable).custom_flags(O_NONBLOCK | O_DIRECT).open(own).ok()
        };
        self.direct.get_or_init(open).as_ref()
    }
}

impl Open for LocalFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        if let Some(direct) = self.direct(offset, into) {
            // What is missing after this is at the end of the file, or the file system cannot do it.
            filled = direct.read_at(into, offset).unwrap_or(0);
        }
        while filled < into.len() {
            match self.file.read_at(&mut into[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let written =
            self.direct(offset, from).map_or(0, |direct| direct.write_at(from, offset).unwrap_or(0));
        self.file.write_all_at(&from[written..], offset + written as u64)
    }

    fn next_data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let start = match rustix::fs::seek(&self.file, SeekFrom::Data(range.start)) {
            Ok(start) if start < range.end => start,
            Ok(_) | Err(Errno::NXIO) => return Ok(None),
            // The file system does not know holes.
            Err(Errno::INVAL) => return Ok(Some(range)),
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start))?;
        Ok(Some(start..end.min(range.end)))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn set_attribute(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(&self.file, OsStr::from_bytes(name), value, XattrFlags::empty())?)
    }

    fn meta(&self) -> io::Result<Meta> {
        self.file.metadata().map(|meta| meta_of(&meta))
    }

    fn set_meta(&self, meta: &Meta) -> io::Result<Meta> {
        if rustix::process::geteuid().is_root() {
            rustix::fs::fchown(&self.file, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)))?;
        }
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(meta.mode))?;
        rustix::fs::futimens(&self.file, &times(meta))?;
        self.meta()
    }
}
