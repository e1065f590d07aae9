//! Requests about names, attributes and opens, as the backend carries them out.
//!
//! They are those that clients send to the servers of shards ([`bivouac_proto::meta`]), and mean the same. What a server of a
//! shard would say of an unknown directory is said of one that is not there any more, so that clients look for it again.

use crate::files::{Open, Rights};
use crate::io_node::{self, IoNode, Whereabouts};
use crate::kernel;
use crate::tree::{Place, check_name};
use bivouac_layout::Ino;
use bivouac_proto::attr::{Attr, DirEntry, FileKind};
use bivouac_proto::meta::{
    AS_IT_IS, At, MetaReply, MetaRequest, OpenHow, RenameMode, SetAttr, SetTime, XattrMode,
};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, OpenId, Refusal, Reply};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Statx, Timespec, Timestamps,
    Uid, XattrFlags,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// How often a name is tried again that somebody makes and removes meanwhile.
const TRIES: u32 = 100;
/// Cookies of entries are the backend's positions plus this: clients keep smaller ones for `.` and `..`.
const COOKIES: u64 = 3;
/// The last position that a directory can have.
const LAST: u64 = i64::MAX as u64;
/// Longest value of an extended attribute, and longest list of their names, that the kernel has, bytes.
const XATTR_MAX: usize = 64 << 10;
/// Most entries in an answer: it has to be a message.
const LIST_MAX: u32 = 2048;
/// Room for entries that one system call lists, bytes.
const LISTED: usize = 32 << 10;

pub(crate) fn carry_out(
    node: &IoNode,
    request: &MetaRequest<'_>,
    payload: &[u8],
    buffer: &mut Vec<u8>,
) -> Result<Reply, Failure> {
    use MetaRequest as R;
    let reply = match *request {
        R::Lookup { at } => entry(node, at)?,
        R::GetAttr { ino } => attributes(node, ino)?,
        R::SetAttr { ino, set } => {
            set_attributes(&of(node, ino)?, set)?;
            attributes(node, ino)?
        }
        R::Open { at, how, open } => open_entry(node, at, how, open)?,
        R::OpenInode { ino, how, open } => open_file(node, (ino, &of(node, ino)?), how, open)?,
        R::MakeTemporary { dir, how, open } => make_temporary(node, dir, how, open)?,
        R::Release { open, .. } | R::Abandon { open, .. } => release(node, open)?,
        R::Truncate { ino, size } => {
            let file = node.files.once(&node.tree, ino)?;
            rustix::fs::ftruncate(file.writer()?, size).map_err(kernel::errno)?;
            attributes(node, ino)?
        }
        R::Append { ino } => append(node, ino, payload)?,
        R::Mkdir { at, mode } => {
            let dir = directory(node, at)?;
            rustix::fs::mkdirat(&dir.fd, at.name, Mode::from_raw_mode(mode.into())).map_err(kernel::errno)?;
            made(node, &dir, at.name, mode)?
        }
        R::MakeNode { at, kind, mode, target } => make_node(node, at, kind, mode, target)?,
        R::Link { ino, at } => {
            let (dir, place) = (directory(node, at)?, of(node, ino)?);
            let from = kernel::through(&place);
            rustix::fs::linkat(CWD, from, &dir.fd, at.name, AtFlags::SYMLINK_FOLLOW)
                .map_err(kernel::errno)?;
            entry(node, at).map_err(since)?
        }
        R::Unlink { at } => remove(node, at, AtFlags::empty())?,
        R::Rmdir { at } => remove(node, at, AtFlags::REMOVEDIR)?,
        R::Rename { from, to, mode } => rename(node, from, to, mode)?,
        R::ReadDir { dir, after, limit, .. } => list(node, dir, after, limit)?,
        R::Parent { ino } => {
            let (parent, name) = node.tree.parent(&*node.tree.place(ino).map_err(|_| Errno::STALE)?)?;
            MetaReply::Parent { parent, name }
        }
        R::ReadLink { ino } => {
            *buffer = target(&of(node, ino)?)?;
            MetaReply::Done
        }
        R::GetXattr { ino, name } => {
            buffer.resize(XATTR_MAX, 0);
            let path = kernel::through(of(node, ino)?);
            let length = rustix::fs::getxattr(path, name, &mut buffer[..]).map_err(kernel::errno);
            buffer.truncate(*length.as_ref().unwrap_or(&0));
            length.map(|_| MetaReply::Done)?
        }
        R::ListXattr { ino } => {
            buffer.resize(XATTR_MAX, 0);
            let path = kernel::through(of(node, ino)?);
            let length = rustix::fs::listxattr(path, &mut buffer[..]).map_err(kernel::errno);
            buffer.truncate(*length.as_ref().unwrap_or(&0));
            length.map(|_| MetaReply::Done)?
        }
        R::SetXattr { ino, name, mode } => {
            let flags = match mode {
                XattrMode::Set => XattrFlags::empty(),
                XattrMode::Create => XattrFlags::CREATE,
                XattrMode::Replace => XattrFlags::REPLACE,
            };
            let path = kernel::through(of(node, ino)?);
            rustix::fs::setxattr(path, name, payload, flags).map_err(kernel::errno)?;
            MetaReply::Done
        }
        R::RemoveXattr { ino, name } => {
            let path = kernel::through(of(node, ino)?);
            rustix::fs::removexattr(path, name).map_err(kernel::errno)?;
            MetaReply::Done
        }
        R::Lock { ino, owner, range, wait_ms } => {
            node.locks.lock((ino, &of(node, ino)?), owner, range, wait_ms)?;
            MetaReply::Done
        }
        R::Unlock { ino, owner, start, end } => {
            node.locks.unlock(ino, owner, start..end)?;
            MetaReply::Done
        }
        R::TestLock { ino, owner, range } => {
            MetaReply::Conflict(node.locks.test((ino, &of(node, ino)?), owner, range)?)
        }
        R::CancelLock { ino, owner, range } => {
            node.locks.cancel(ino, owner, range);
            MetaReply::Done
        }
        R::EndSession { session } => {
            node.locks.end_session(session);
            MetaReply::Done
        }
        R::Sync { ino } => {
            match node.files.get(ino) {
                Some(file) => io_node::sync(&file)?,
                None => sync_place(&of(node, ino)?)?,
            }
            MetaReply::Done
        }
        R::GiveLocks { ino, owner } => MetaReply::Locks(node.locks.give(ino, owner)),
        R::Locate { ino } => match node.locate(ino)? {
            Whereabouts::Kept => MetaReply::Kept,
            Whereabouts::At(path) => {
                buffer.extend_from_slice(path.as_os_str().as_bytes());
                MetaReply::Done
            }
        },
        // What the backend has is never inline or lazy.
        R::ReadInline { .. } | R::WriteInline { .. } | R::Spill { .. } | R::Fetch { .. } => {
            attributes_of(request, node)?
        }
        // Nothing is registered again: what was open is opened when it is used.
        R::Reopen { .. } | R::Report { .. } | R::Relock { .. } => MetaReply::Done,
        R::Look { .. } | R::Find { .. } | R::MakeLazy { .. } | R::Entrust { .. } => {
            return Err(Errno::OPNOTSUPP.into());
        }
    };
    Ok(match reply {
        MetaReply::Done => Reply::Done,
        reply => Reply::Meta(reply),
    })
}

/// What a number names.
enum Named {
    /// Somebody has it open.
    Open(Arc<Open>),
    Place(Arc<Place>),
}

impl AsFd for Named {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Named::Open(file) => file.as_fd(),
            Named::Place(place) => place.fd.as_fd(),
        }
    }
}

fn of(node: &IoNode, ino: Ino) -> Result<Named, Errno> {
    match node.files.get(ino) {
        Some(file) => Ok(Named::Open(file)),
        None => node.tree.place(ino).map(Named::Place),
    }
}

/// A description is gone. ENOENT if it is not known here: another I/O node may have it.
fn release(node: &IoNode, open: OpenId) -> Result<MetaReply, Errno> {
    node.locks.release(open);
    if node.files.release(open) { Ok(MetaReply::Done) } else { Err(Errno::NOENT) }
}

/// The directory of an entry.
fn directory(node: &IoNode, at: At<'_>) -> Result<Arc<Place>, Failure> {
    check_name(at.name)?;
    node.tree.place(at.dir).map_err(|errno| match errno {
        Errno::NOENT => Refusal::UnknownDirectory.into(),
        errno => errno.into(),
    })
}

fn attributes(node: &IoNode, ino: Ino) -> Result<MetaReply, Errno> {
    let place = of(node, ino)?;
    Ok(MetaReply::Attr(Box::new(kernel::attr(ino, &kernel::stat(&place)?))))
}

fn attributes_of(request: &MetaRequest<'_>, node: &IoNode) -> Result<MetaReply, Failure> {
    match *request {
        MetaRequest::Spill { ino } => Ok(attributes(node, ino)?),
        MetaRequest::Fetch { .. } => Ok(MetaReply::Done),
        _ => Err(Refusal::NotInline.into()),
    }
}

/// What a name in a directory names, and its attributes.
fn found(node: &IoNode, dir: &Place, name: &[u8]) -> Result<(Arc<Place>, Statx), Errno> {
    let (place, stat) = node.tree.child(dir, name)?;
    if node.files.get(place.ino).is_none() {
        return Ok((place, stat));
    }
    // What is open is not opened anew, so this is what notices that others have put another one into its place.
    let stat = kernel::stat_anew(&place.fd, Path::new(""))?;
    Ok((place, stat))
}

fn entry(node: &IoNode, at: At<'_>) -> Result<MetaReply, Failure> {
    let dir = directory(node, at)?;
    let (place, stat) = found(node, &dir, at.name)?;
    let (attr, target) = shown((place.ino, &*place), &stat)?;
    Ok(MetaReply::Entry { attr, target })
}

/// The attributes of something, and the target of a symbolic link.
fn shown((ino, of): (Ino, &impl AsFd), stat: &Statx) -> Result<(Box<Attr>, Vec<u8>), Errno> {
    let attr = kernel::attr(ino, stat);
    let target = if attr.kind == FileKind::Symlink { target(of)? } else { Vec::new() };
    Ok((Box::new(attr), target))
}

fn target(link: &impl AsFd) -> Result<Vec<u8>, Errno> {
    let target = rustix::fs::readlinkat(link, c"", Vec::new()).map_err(|error| match error {
        // It is no symbolic link.
        rustix::io::Errno::NOENT => Errno::INVAL,
        error => kernel::errno(error),
    })?;
    Ok(target.into_bytes())
}

/// A new entry as it is shown, with its whole mode.
fn made(node: &IoNode, dir: &Place, name: &[u8], mode: u16) -> Result<MetaReply, Failure> {
    let look = || {
        let (place, stat) = node.tree.child(dir, name)?;
        let stat = with_mode(&*place, stat, mode)?;
        Ok(shown((place.ino, &*place), &stat)?)
    };
    let (attr, target) = look().map_err(since)?;
    Ok(MetaReply::Entry { attr, target })
}

/// The error when somebody has removed since what this request has made: nobody is to make it once more ([`crate::stale`]).
fn since(failure: Failure) -> Failure {
    match failure {
        Failure::Errno(Errno::STALE) => Errno::NOENT.into(),
        other => other,
    }
}

/// Gives a new entry its whole mode: this process has a mask of its own. What the backend adds stays.
fn with_mode(of: &impl AsFd, stat: Statx, mode: u16) -> Result<Statx, Errno> {
    let mode = mode | stat.stx_mode & 0o2000;
    if kernel::kind(&stat) == FileKind::Symlink || stat.stx_mode & 0o7777 == mode {
        return Ok(stat);
    }
    set_mode(of, mode)?;
    kernel::stat(of)
}

fn set_mode(of: &impl AsFd, mode: u16) -> Result<(), Errno> {
    rustix::fs::chmod(kernel::through(of), Mode::from_raw_mode(mode.into())).map_err(kernel::errno)
}

fn set_attributes(of: &impl AsFd, set: SetAttr) -> Result<(), Errno> {
    let owner = set.uid.filter(|uid| *uid != AS_IT_IS).map(Uid::from_raw);
    if set.uid.is_some() || set.gid.is_some() {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(of, c"", owner, set.gid.map(Gid::from_raw), flags).map_err(kernel::errno)?;
    }
    if let Some(mode) = set.mode {
        set_mode(of, mode)?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let time = |time: Option<SetTime>| match time {
            None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
            Some(SetTime::To(time)) => {
                Timespec { tv_sec: time.div_euclid(1_000_000_000), tv_nsec: time.rem_euclid(1_000_000_000) }
            }
        };
        let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
        rustix::fs::utimensat(of, c"", &times, AtFlags::EMPTY_PATH).map_err(kernel::errno)?;
    }
    Ok(())
}

fn open_entry(node: &IoNode, at: At<'_>, how: OpenHow, open: OpenId) -> Result<MetaReply, Failure> {
    let dir = directory(node, at)?;
    for _ in 0..TRIES {
        if let Some(create) = how.create {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(&dir.fd, at.name, flags, Mode::from_raw_mode(create.mode.into())) {
                Ok(fd) => {
                    // Through its descriptor: somebody may have removed or replaced its name already, and the caller has made it
                    // nevertheless.
                    let look = || Ok(with_mode(&fd, kernel::stat(&fd)?, create.mode)?);
                    let stat = look().map_err(since)?;
                    let ino = node.tree.number(&stat);
                    node.tree.made(ino, &dir, at.name);
                    node.files.register_made(ino, open, fd);
                    let attr = Box::new(kernel::attr(ino, &stat));
                    return Ok(MetaReply::Opened { attr, created: true, target: Vec::new() });
                }
                Err(rustix::io::Errno::EXIST) if !create.exclusive => {}
                Err(error) => return Err(kernel::errno(error).into()),
            }
        }
        let (place, stat) = match found(node, &dir, at.name) {
            Err(Errno::NOENT) if how.create.is_some() => continue,
            found => found?,
        };
        return Ok(match kernel::kind(&stat) {
            FileKind::File => open_file(node, (place.ino, &*place), how, open)?,
            FileKind::Directory => {
                // The caller will list it: so it has to be the one that has this name now.
                if let Err(Errno::STALE) = kernel::reopen(&place.fd, OFlags::RDONLY | OFlags::DIRECTORY) {
                    return Err(Errno::STALE.into());
                }
                MetaReply::Elsewhere { ino: place.ino, kind: FileKind::Directory }
            }
            _ => {
                let (attr, target) = shown((place.ino, &*place), &stat)?;
                MetaReply::Opened { attr, created: false, target }
            }
        });
    }
    Err(Errno::NOENT.into())
}

fn open_file(
    node: &IoNode,
    (ino, file): (Ino, &impl AsFd),
    how: OpenHow,
    open: OpenId,
) -> Result<MetaReply, Errno> {
    let stat = kernel::stat(file)?;
    let kind = kernel::kind(&stat);
    if how.directory && kind != FileKind::Directory && kind != FileKind::Symlink {
        return Err(Errno::NOTDIR);
    }
    if kind != FileKind::File {
        let (attr, target) = shown((ino, file), &stat)?;
        return Ok(MetaReply::Opened { attr, created: false, target });
    }
    let file = node.files.register((ino, file), open, rights(how))?;
    node.tree.let_go(ino);
    let begin = || {
        if how.truncate && how.write {
            rustix::fs::ftruncate(file.writer()?, 0).map_err(kernel::errno)?;
        }
        Ok(kernel::attr(ino, &kernel::stat(&*file)?))
    };
    match begin() {
        Ok(attr) => Ok(MetaReply::Opened { attr: Box::new(attr), created: false, target: Vec::new() }),
        Err(errno) => {
            node.files.release(open);
            Err(errno)
        }
    }
}

fn make_temporary(node: &IoNode, dir: Ino, how: OpenHow, open: OpenId) -> Result<MetaReply, Failure> {
    let place = node.tree.place(dir).map_err(|_| Errno::STALE)?;
    let create = how.create.ok_or(Errno::INVAL)?;
    let mut flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    if create.exclusive {
        flags |= OFlags::EXCL;
    }
    let mode = Mode::from_raw_mode(create.mode.into());
    let fd = rustix::fs::openat(&place.fd, c".", flags, mode).map_err(kernel::errno)?;
    rustix::fs::fchmod(&fd, mode).map_err(kernel::errno)?;
    let stat = kernel::stat(&fd)?;
    let ino = node.tree.number(&stat);
    node.files.register_made(ino, open, fd);
    Ok(MetaReply::Opened { attr: Box::new(kernel::attr(ino, &stat)), created: true, target: Vec::new() })
}

fn rights(how: OpenHow) -> Rights {
    Rights { read: how.read, write: how.write }
}

fn append(node: &IoNode, ino: Ino, payload: &[u8]) -> Result<MetaReply, Errno> {
    let (offset, written) = node.files.find(&node.tree, ino)?.append(payload)?;
    Ok(MetaReply::Appended { offset, written: written as u32, size_version: 0 })
}

fn make_node(
    node: &IoNode,
    at: At<'_>,
    kind: FileKind,
    mode: u16,
    target: &[u8],
) -> Result<MetaReply, Failure> {
    let dir = directory(node, at)?;
    let permissions = Mode::from_raw_mode(mode.into());
    let device = |kind| {
        let number = target.try_into().map(u32::from_le_bytes).map_err(|_| Errno::INVAL)?;
        rustix::fs::mknodat(&dir.fd, at.name, kind, permissions, number.into()).map_err(kernel::errno)
    };
    let node_of = |kind| rustix::fs::mknodat(&dir.fd, at.name, kind, permissions, 0).map_err(kernel::errno);
    match kind {
        FileKind::Symlink => rustix::fs::symlinkat(target, &dir.fd, at.name).map_err(kernel::errno)?,
        FileKind::File => node_of(FileType::RegularFile)?,
        FileKind::Fifo => node_of(FileType::Fifo)?,
        FileKind::Socket => node_of(FileType::Socket)?,
        FileKind::CharDevice => device(FileType::CharacterDevice)?,
        FileKind::BlockDevice => device(FileType::BlockDevice)?,
        FileKind::Directory => return Err(Errno::INVAL.into()),
    }
    made(node, &dir, at.name, mode)
}

fn remove(node: &IoNode, at: At<'_>, flags: AtFlags) -> Result<MetaReply, Failure> {
    let dir = directory(node, at)?;
    let last = last_name(node, &dir, at.name)?;
    rustix::fs::unlinkat(&dir.fd, at.name, flags).map_err(kernel::errno)?;
    if let Some(ino) = last {
        node.tree.forget(ino, &dir, at.name);
    }
    Ok(MetaReply::Done)
}

/// The number of what has this name and no other one, if there is something. It is going to be removed, so no descriptor of it is
/// kept that nobody needs.
fn last_name(node: &IoNode, dir: &Place, name: &[u8]) -> Result<Option<Ino>, Errno> {
    let (ino, stat) = node.tree.peek(dir, name)?;
    if stat.stx_nlink > 1 && kernel::kind(&stat) != FileKind::Directory {
        return Ok(None);
    }
    // If it stays after all, it is known where it is.
    node.tree.note(ino, dir, name);
    node.tree.let_go(ino);
    Ok(Some(ino))
}

/// Renames, and forgets what was at the new name before.
fn rename(node: &IoNode, from: At<'_>, to: At<'_>, mode: RenameMode) -> Result<MetaReply, Failure> {
    let (from_dir, to_dir) = (directory(node, from)?, directory(node, to)?);
    let flags = match mode {
        RenameMode::Replace => RenameFlags::empty(),
        RenameMode::NoReplace => RenameFlags::NOREPLACE,
        RenameMode::Exchange => RenameFlags::EXCHANGE,
    };
    let replaced = match mode {
        RenameMode::Replace => last_name(node, &to_dir, to.name).unwrap_or(None),
        RenameMode::NoReplace | RenameMode::Exchange => None,
    };
    rustix::fs::renameat_with(&from_dir.fd, from.name, &to_dir.fd, to.name, flags).map_err(kernel::errno)?;
    let moved = node.tree.child(&to_dir, to.name);
    if let Some(ino) = replaced {
        node.tree.forget(ino, &to_dir, to.name);
    }
    // So that they are found under their new names.
    let exchanged = (mode == RenameMode::Exchange).then(|| node.tree.child(&from_dir, from.name));
    for (place, stat) in [Some(moved), exchanged].into_iter().flatten().flatten() {
        node.files.was_renamed(place.ino, kernel::kind(&stat) == FileKind::Directory);
    }
    Ok(MetaReply::Done)
}

fn list(node: &IoNode, dir: Ino, after: u64, limit: u32) -> Result<MetaReply, Failure> {
    let place = node.tree.place(dir).map_err(|_| Failure::from(Refusal::UnknownDirectory))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = kernel::reopen(&place.fd, flags)?;
    if let Some(position) = position(after) {
        rustix::fs::seek(&fd, SeekFrom::Start(position)).map_err(kernel::errno)?;
    }
    let mut room = vec![MaybeUninit::uninit(); LISTED];
    let mut listing = RawDir::new(&fd, &mut room);
    let mut entries = Vec::new();
    while entries.len() < limit.clamp(1, LIST_MAX) as usize {
        let Some(found) = listing.next() else { return Ok(MetaReply::Listing { entries, end: true }) };
        let found = found.map_err(kernel::errno)?;
        let name = found.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let kind = match kernel::kind_of_entry(found.file_type()) {
            Some(kind) => kind,
            None => match node.tree.child(&place, name) {
                Ok((_, stat)) => kernel::kind(&stat),
                // It has just been removed.
                Err(_) => continue,
            },
        };
        entries.push(DirEntry {
            name: name.to_vec(),
            ino: node.tree.number_here(found.ino()),
            kind,
            cookie: cookie(found.next_entry_cookie()),
            attr: None,
        });
    }
    Ok(MetaReply::Listing { entries, end: false })
}

/// The cookie for a position of the backend's. It is no negative number for programs: what some backends have for the end of a
/// directory is the largest position that there is, and stays what it is.
fn cookie(position: u64) -> u64 {
    position.saturating_add(COOKIES).min(LAST)
}

/// The position for a cookie; `None` at the beginning.
fn position(cookie: u64) -> Option<u64> {
    if cookie >= LAST { Some(LAST) } else { cookie.checked_sub(COOKIES) }
}

fn sync_place(place: &impl AsFd) -> Result<(), Errno> {
    let fd = kernel::reopen(place, OFlags::RDONLY)?;
    rustix::fs::fsync(fd).map_err(kernel::errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_no_negative_numbers_and_lead_back_to_their_positions() {
        for at in [0, 1, 12, LAST / 2, LAST - COOKIES - 1, LAST] {
            assert!(cookie(at) >= COOKIES && i64::try_from(cookie(at)).is_ok());
            assert_eq!(position(cookie(at)), Some(at));
        }
        assert_eq!((position(0), position(COOKIES - 1)), (None, None));
    }
}
