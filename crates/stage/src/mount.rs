//! A deployment's file system, through the client core.

use crate::tree::{Kind, Meta, Open, Tree};
use bivouac_client::{Client, Fail, Handle};
use bivouac_layout::Ino;
use bivouac_proto::attr::{Attr, FileKind};
use bivouac_proto::meta::{SetAttr, SetTime};
use bivouac_proto::{Errno, Time};
use rustix::fs::OFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Paths are relative to the mount; the empty one is the mount itself.
pub(crate) struct Mount {
    client: &'static Client,
}

impl Mount {
    pub(crate) fn new(client: &'static Client) -> Mount {
        Mount { client }
    }

    fn open_with(&self, path: &[u8], flags: OFlags, new: bool) -> io::Result<MountFile> {
        let handle = self.client.open(Ino::ROOT, named(path), flags.bits() as i32, 0o600).map_err(failed)?;
        Ok(MountFile { client: self.client, handle, path: path.to_vec(), finished: AtomicBool::new(!new) })
    }
}

/// The mount itself has a name, too.
fn named(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(i32::from(errno.0))
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
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => Kind::Other,
    };
    Meta {
        kind,
        mode: u32::from(attr.mode),
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        atime: attr.atime,
        mtime: attr.mtime,
        identity: (0, attr.ino.0),
        links: u64::from(attr.nlink),
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
        self.client.stat(Ino::ROOT, named(path), follow).map(|attr| meta_of(&attr)).map_err(failed)
    }

    fn list(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let directory = self.open_with(path, OFlags::RDONLY | OFlags::DIRECTORY, false)?;
        let mut names = Vec::new();
        loop {
            let entries = directory.handle.list(4096).map_err(error)?.entries;
            if entries.is_empty() {
                return Ok(names);
            }
            names.extend(entries.into_iter().map(|e| e.name).filter(|n| n != b"." && n != b".."));
        }
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.client.readlink(Ino::ROOT, path).map_err(failed)
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        Ok(Box::new(self.open_with(path, OFlags::RDONLY, false)?))
    }

    fn create(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
        Ok(Box::new(self.open_with(path, flags, true)?))
    }

    fn make_directory(&self, path: &[u8]) -> io::Result<()> {
        match self.client.mkdir(Ino::ROOT, named(path), 0o700) {
            Err(Fail::Errno(Errno::EXIST)) if self.stat(path, true)?.kind == Kind::Directory => Ok(()),
            other => other.map_err(failed),
        }
    }

    fn make_symlink(&self, path: &[u8], target: &[u8], meta: &Meta) -> io::Result<()> {
        match self.client.symlink(target, Ino::ROOT, path) {
            Err(Fail::Errno(Errno::EXIST)) => {
                self.client.unlink(Ino::ROOT, path).map_err(failed)?;
                self.client.symlink(target, Ino::ROOT, path).map_err(failed)?;
            }
            other => other.map_err(failed)?,
        }
        self.set_meta(path, meta)
    }

    fn make_link(&self, existing: &[u8], path: &[u8]) -> io::Result<()> {
        match self.client.link(Ino::ROOT, existing, Ino::ROOT, path, false) {
            Err(Fail::Errno(Errno::EXIST)) => {
                self.client.unlink(Ino::ROOT, path).map_err(failed)?;
                self.client.link(Ino::ROOT, existing, Ino::ROOT, path, false).map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    fn set_meta(&self, path: &[u8], meta: &Meta) -> io::Result<()> {
        self.client.set_attr(Ino::ROOT, named(path), false, set_of(meta)).map_err(failed)
    }
}

struct MountFile {
    client: &'static Client,
    handle: Arc<Handle>,
    path: Vec<u8>,
    finished: AtomicBool,
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

    fn finish(&self, meta: &Meta) -> io::Result<()> {
        self.handle.set_attr(set_of(meta)).map_err(error)?;
        self.finished.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for MountFile {
    fn drop(&mut self) {
        if !self.finished.load(Ordering::Acquire) {
            let _ = self.client.unlink(Ino::ROOT, &self.path);
        }
        self.client.closed(self.handle.id());
    }
}
