//! A deployment's file system, through the client core.

use crate::tree::{Attribute, Kind, Listed, Meta, Open, Special, Tree, Turns, USER_ATTRIBUTES, join};
use bivouac_client::{Client, Fail, Handle};
use bivouac_layout::Ino;
use bivouac_proto::attr::{Attr, FileKind, Store};
use bivouac_proto::lazy::{LazyFile, Source};
use bivouac_proto::meta::{SetAttr, SetTime};
use bivouac_proto::{Errno, Time};
use rustix::fs::OFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// Entries of a directory that are asked for at once.
const LISTED_AT_ONCE: u32 = 4096;

/// Paths are relative to the mount; the empty one is the mount itself.
pub(crate) struct Mount {
    client: Arc<Client>,
}

impl Mount {
    pub(crate) fn new(client: Arc<Client>) -> Mount {
        Mount { client }
    }

    fn open_with(&self, path: &[u8], flags: OFlags) -> io::Result<MountFile> {
        let handle = self.client.open(Ino::ROOT, named(path), flags.bits() as i32, 0o600).map_err(failed)?;
        Ok(MountFile { client: self.client.clone(), handle })
    }

    /// Makes an entry, replacing an existing one.
    fn replacing(&self, path: &[u8], make: impl Fn() -> Result<(), Fail>) -> io::Result<()> {
        match make() {
            Err(Fail::Errno(Errno::EXIST)) => {
                self.client.unlink(Ino::ROOT, path).map_err(failed)?;
                make().map_err(failed)
            }
            other => other.map_err(failed),
        }
    }
}

/// The mount itself has a name, too.
fn named(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(i32::from(errno.0))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(i32::from(errno.0))
}

fn failed(fail: Fail) -> io::Error {
    match fail {
        Fail::Errno(errno) => error(errno),
        Fail::Outside(path) => io::Error::other(format!(
            "a symbolic link leads out of the mount, to {}",
            String::from_utf8_lossy(&path)
        )),
    }
}

fn meta_of(attr: &Attr) -> Meta {
    let kind = match attr.kind {
        FileKind::File => Kind::File,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::Fifo => Kind::Special(Special::NamedPipe),
        FileKind::Socket => Kind::Special(Special::Socket),
        FileKind::CharDevice => Kind::Special(Special::CharDevice),
        FileKind::BlockDevice => Kind::Special(Special::BlockDevice),
    };
    Meta {
        kind,
        mode: u32::from(attr.mode),
        uid: attr.uid,
        gid: attr.gid,
        size: attr.st_size(),
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        identity: (0, attr.ino.0),
        links: u64::from(attr.nlink),
        allocated: attr.st_blocks().saturating_mul(512),
        device: u64::from(attr.device()),
        attributes: attr.xattrs,
        lazy: attr.store == Store::Lazy,
    }
}

fn set_of(meta: &Meta) -> SetAttr {
    let to = |time: Time| Some(SetTime::To(time));
    let root = rustix::process::geteuid().is_root();
    SetAttr {
        mode: (meta.kind != Kind::Symlink).then_some((meta.mode & 0o7777) as u16),
        uid: root.then_some(meta.uid),
        gid: root.then_some(meta.gid),
        atime: to(meta.atime),
        mtime: to(meta.mtime),
    }
}

impl Tree for Mount {
    fn stat(&self, path: &[u8], follow: bool) -> io::Result<Meta> {
        self.client.stat((Ino::ROOT, named(path), follow)).map(|attr| meta_of(&attr)).map_err(failed)
    }

    fn list(&self, path: &[u8]) -> io::Result<Vec<Listed>> {
        let directory = self.open_with(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let dir = directory.handle.ino();
        let mut found = Vec::new();
        // Positions up to 2 are those of `.` and `..`.
        let mut after = 2;
        loop {
            let entries = self.client.list_after(dir, after, LISTED_AT_ONCE, true).map_err(error)?;
            if let Some(last) = entries.entries.last() {
                after = last.cookie;
            }
            let none = entries.entries.is_empty();
            for entry in entries.entries {
                let meta = match entry.attr {
                    // Of a file that is open for writing the servers of its blocks know more.
                    Some(attr) if attr.store != (Store::Blocks { settled: false }) => Ok(meta_of(&attr)),
                    _ => self.stat(&join(path, &entry.name), false),
                };
                found.push((entry.name, meta));
            }
            if entries.end || none {
                return Ok(found);
            }
        }
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.client.readlink((Ino::ROOT, path, false)).map_err(failed)
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        Ok(Box::new(self.open_with(path, OFlags::RDONLY)?))
    }

    fn create(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
        match self.open_with(path, flags) {
            // A symbolic link or a special file has its name, or a file that its owner may not write.
            Err(error) if [Errno::LOOP, Errno::NXIO, Errno::ACCESS].iter().any(|e| is(&error, *e)) => {
                self.client.unlink(Ino::ROOT, path).map_err(failed)?;
                Ok(Box::new(self.open_with(path, flags)?))
            }
            opened => Ok(Box::new(opened?)),
        }
    }

    fn open_to_fill(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        Ok(Box::new(self.open_with(path, OFlags::RDWR | OFlags::NOFOLLOW)?))
    }

    /// The final name: an inode stays where its first name was, so that a file that was renamed would not be
    /// on the server of its directory. What is incomplete does not have the source's time, so that the next
    /// preload copies it again.
    fn part_name(&self, path: &[u8], _: &str) -> Vec<u8> {
        path.to_vec()
    }

    fn place(&self, _: &[u8], path: &[u8]) -> io::Result<Meta> {
        self.stat(path, false)
    }

    fn make_directory(&self, path: &[u8]) -> io::Result<bool> {
        match self.client.mkdir(Ino::ROOT, named(path), 0o700) {
            Err(Fail::Errno(Errno::EXIST)) => {
                let there = self.stat(path, true)?;
                if there.kind != Kind::Directory {
                    return Err(error(Errno::EXIST));
                }
                if there.mode & 0o700 != 0o700 {
                    let mode = Some((there.mode | 0o700) as u16);
                    let set = SetAttr { mode, uid: None, gid: None, atime: None, mtime: None };
                    // Whoever may not do this is told when an entry cannot be made.
                    let _ = self.client.set_attr((Ino::ROOT, named(path), true), set);
                }
                Ok(false)
            }
            other => other.map(|_| true).map_err(failed),
        }
    }

    fn make_symlink(&self, path: &[u8], target: &[u8], meta: &Meta) -> io::Result<()> {
        self.replacing(path, || self.client.symlink(target, Ino::ROOT, path).map(drop))?;
        self.set_meta(path, meta)
    }

    fn make_link(&self, existing: &[u8], path: &[u8]) -> io::Result<()> {
        self.replacing(path, || self.client.link((Ino::ROOT, existing, false), Ino::ROOT, path).map(drop))
    }

    fn remove(&self, path: &[u8]) -> io::Result<()> {
        self.client.unlink(Ino::ROOT, path).map_err(failed)
    }

    fn remove_directory(&self, path: &[u8]) -> io::Result<()> {
        self.client.rmdir(Ino::ROOT, path).map_err(failed)
    }

    fn make_special(&self, path: &[u8], what: Special, meta: &Meta) -> io::Result<()> {
        let kind = match what {
            Special::NamedPipe => FileKind::Fifo,
            Special::Socket => FileKind::Socket,
            // Programs could not use a device: deployments are mounted with `nodev`.
            Special::CharDevice | Special::BlockDevice => return Err(error(Errno::PERM)),
        };
        self.replacing(path, || self.client.mknod(Ino::ROOT, path, kind.mode_bits() | 0o600).map(drop))?;
        self.set_meta(path, meta)
    }

    fn attributes(&self, path: &[u8]) -> io::Result<Vec<Attribute>> {
        let path = named(path);
        let names = self.client.list_xattr((Ino::ROOT, path, false)).map_err(failed)?;
        let mut attributes = Vec::new();
        for name in names.split(|&byte| byte == 0).filter(|name| name.starts_with(USER_ATTRIBUTES)) {
            match self.client.get_xattr((Ino::ROOT, path, false), name) {
                Ok(value) => attributes.push((name.to_vec(), value)),
                // It was removed meanwhile.
                Err(Fail::Errno(Errno::NODATA)) => {}
                Err(fail) => return Err(failed(fail)),
            }
        }
        Ok(attributes)
    }

    fn set_attribute(&self, path: &[u8], name: &[u8], value: &[u8]) -> io::Result<()> {
        self.client.set_xattr((Ino::ROOT, named(path), false), name, value, 0).map_err(failed)
    }

    fn set_meta(&self, path: &[u8], meta: &Meta) -> io::Result<()> {
        self.client.set_attr((Ino::ROOT, named(path), false), set_of(meta)).map(drop).map_err(failed)
    }

    fn make_lazy(&self, path: &[u8], source: &[u8], meta: &Meta) -> io::Result<Meta> {
        let root = rustix::process::geteuid().is_root();
        let source =
            Source { path: source.to_vec(), ino: meta.identity.1, size: meta.size, mtime: meta.mtime };
        let owner = root.then_some((meta.uid, meta.gid));
        let file = LazyFile { source, mode: (meta.mode & 0o7777) as u16, owner, atime: meta.atime };
        let made = std::cell::Cell::new(None);
        self.replacing(path, || {
            made.set(Some(self.client.make_lazy(Ino::ROOT, path, &file)?));
            Ok(())
        })?;
        made.take().map(|attr| meta_of(&attr)).ok_or_else(|| error(Errno::PROTO))
    }

    fn fetch(&self, path: &[u8]) -> Result<bool, String> {
        self.client.fetch((Ino::ROOT, path, false)).map_err(|failed| failed.why)
    }

    fn node_of(&self, directory: &Meta) -> Option<u16> {
        let map = self.client.deployment_map();
        Some(map.server(map.primary(Ino(directory.identity.1).shard()))?.node.0)
    }
}

struct MountFile {
    client: Arc<Client>,
    handle: Arc<Handle>,
}

impl Open for MountFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.handle.pread(offset, &mut [IoSliceMut::new(into)]).map_err(error)
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        match self.handle.pwrite(offset, &[IoSlice::new(from)]).map_err(error)? {
            count if count == from.len() => Ok(()),
            // The storage filled up in the middle.
            _ => Err(error(Errno::NOSPC)),
        }
    }

    fn next_data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        let start = i64::try_from(range.start).map_err(|_| error(Errno::FBIG))?;
        let start = match self.handle.seek_data(start, false) {
            Ok(start) if start < range.end => start,
            Ok(_) | Err(Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(error(errno)),
        };
        let end = self.handle.seek_data(start as i64, true).map_err(error)?;
        Ok(Some(start..end.min(range.end)))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.handle.truncate(len).map_err(error)
    }

    fn set_attribute(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        self.handle.set_xattr(name, value, 0).map_err(error)
    }

    fn meta(&self) -> io::Result<Meta> {
        self.handle.attr().map(|attr| meta_of(&attr)).map_err(error)
    }

    fn set_meta(&self, meta: &Meta) -> io::Result<Meta> {
        // What was written until now must not count for the time that is set.
        self.handle.forget_write_time();
        let changed = self.client.set_attr(self.handle.ino(), set_of(meta)).map_err(failed)?;
        let attr = self.client.attr_after(changed).map_err(error)?;
        Ok(meta_of(&attr))
    }

    fn turns(&self) -> Option<Turns> {
        let layout = self.handle.attr().ok()?.layout?;
        let map = self.client.deployment_map();
        let (servers, _) = layout.turns_at(&map, 0)?;
        let nodes = servers.iter().map(|server| map.server(*server).map(|s| s.node.0));
        Some(Turns { block: layout.block_size.into(), nodes: nodes.collect::<Option<_>>()? })
    }
}

impl Drop for MountFile {
    fn drop(&mut self) {
        self.client.closed(self.handle.id());
    }
}
