//! What the backend's file system says, in the words of the protocol.

use bivouac_layout::{FileLayout, GenerationId, Ino, LayoutRange};
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FileKind, Store, Time};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, StatxTimestamp};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The kernel's error in the protocol's words.
pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    u16::try_from(error.raw_os_error()).map_or(Errno::IO, Errno)
}

/// The attributes of what a descriptor names.
pub(crate) fn stat(fd: impl AsFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::statx(fd, c"", flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME).map_err(errno)
}

/// The attributes of what is at a path from a directory, or of what a descriptor names, as the storage has them: nothing that a client of
/// a network file system remembers.
pub(crate) fn stat_anew(fd: impl AsFd, path: &Path) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    rustix::fs::statx(fd, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME).map_err(errno)
}

/// Whether it lies in a file system that a process serves.
pub(crate) fn is_fuse(fd: impl AsFd) -> Result<bool, Errno> {
    const FUSE: u64 = 0x6573_5546;
    rustix::fs::fstatfs(fd).map(|found| found.f_type as u64 == FUSE).map_err(errno)
}

/// A path by which the kernel finds what a descriptor names, whatever has become of its name.
pub(crate) fn through(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The path of what a descriptor names, as it is now.
pub(crate) fn path_of(fd: impl AsFd) -> Result<PathBuf, Errno> {
    let path = rustix::fs::readlinkat(CWD, through(fd), Vec::new()).map_err(errno)?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}

/// Opens anew what an O_PATH descriptor names.
pub(crate) fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, through(fd), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
        .map_err(errno)
}

/// What something is.
pub(crate) fn kind(stat: &Statx) -> FileKind {
    kind_of(FileType::from_raw_mode(stat.stx_mode.into()))
}

/// The same, of an entry of a listing. `None`: the file system does not say.
pub(crate) fn kind_of_entry(kind: FileType) -> Option<FileKind> {
    (kind != FileType::Unknown).then(|| kind_of(kind))
}

fn kind_of(kind: FileType) -> FileKind {
    match kind {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::RegularFile | FileType::Unknown => FileKind::File,
    }
}

fn time(stamp: StatxTimestamp) -> Time {
    stamp.tv_sec.saturating_mul(1_000_000_000).saturating_add(stamp.tv_nsec.into())
}

/// The attributes of a file or directory that has this number.
pub(crate) fn attr(ino: Ino, stat: &Statx) -> Attr {
    let kind = kind(stat);
    let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
    let size = match kind {
        FileKind::CharDevice | FileKind::BlockDevice => device,
        _ => stat.stx_size,
    };
    let is_file = kind == FileKind::File;
    Attr {
        ino,
        kind,
        mode: stat.stx_mode & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: time(stat.stx_btime),
        // The backend knows how long a file is at any time.
        store: if is_file { Store::Blocks { settled: true } } else { Store::Inline },
        size_version: 0,
        split: false,
        // Whether it has any is known only by asking.
        xattrs: true,
        layout: is_file.then(|| Box::new(forwarded_layout())),
        mtime_set: None,
        allocated: Some(stat.stx_blocks.saturating_mul(512)),
    }
}

/// The layout by which clients ask an I/O node for all bytes of a file.
pub(crate) fn forwarded_layout() -> FileLayout {
    let range = LayoutRange { start: 0, generation: GenerationId::FORWARDED, first: 0 };
    FileLayout {
        ranges: vec![range],
        ..FileLayout::spread(Ino::FORWARDED, bivouac_layout::placement::MAX_BLOCK, GenerationId::FORWARDED)
    }
}
