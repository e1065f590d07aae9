//! The site's file system.

use crate::tree::{Kind, Meta, Open, Tree, join};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timestamps, UTIME_OMIT, Uid};
use rustix::time::Timespec;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// For the standard library, which takes numbers.
const O_NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

/// The file system that the kernel shows.
pub(crate) struct Local;

fn path_of(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

impl Tree for Local {
    fn stat(&self, path: &[u8], follow: bool) -> io::Result<Meta> {
        let path = path_of(path);
        let meta = if follow { fs::metadata(path)? } else { fs::symlink_metadata(path)? };
        let kind = match meta.file_type() {
            t if t.is_file() => Kind::File,
            t if t.is_dir() => Kind::Directory,
            t if t.is_symlink() => Kind::Symlink,
            _ => Kind::Other,
        };
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Ok(Meta {
            kind,
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            size: meta.size(),
            atime: nanoseconds(meta.atime(), meta.atime_nsec()),
            mtime: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            identity: (meta.dev(), meta.ino()),
            links: meta.nlink(),
        })
    }

    fn list(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        fs::read_dir(path_of(path))?.map(|entry| Ok(entry?.file_name().into_vec())).collect()
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        Ok(fs::read_link(path_of(path))?.into_os_string().into_vec())
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        // It was an ordinary file a moment ago; should it have become a FIFO since, opening does not wait.
        let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path_of(path))?;
        Ok(Box::new(LocalFile {
            file,
            path: path.to_vec(),
            temporary: None,
            finished: AtomicBool::new(true),
        }))
    }

    fn create(&self, path: &[u8]) -> io::Result<Box<dyn Open>> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        // A file that is there is replaced when its successor is complete, not before.
        let slash = path.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".bivouac-{}-{number}.part", std::process::id());
        let temporary = join(&path[..slash], name.as_bytes());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path_of(&temporary))?;
        Ok(Box::new(LocalFile {
            file,
            path: path.to_vec(),
            temporary: Some(temporary),
            finished: AtomicBool::new(false),
        }))
    }

    fn make_directory(&self, path: &[u8]) -> io::Result<()> {
        match fs::create_dir(path_of(path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path_of(path).is_dir() => Ok(()),
            other => other,
        }
    }

    fn make_symlink(&self, path: &[u8], target: &[u8], meta: &Meta) -> io::Result<()> {
        let to = path_of(path);
        if fs::symlink_metadata(to).is_ok_and(|there| !there.is_dir()) {
            fs::remove_file(to)?;
        }
        std::os::unix::fs::symlink(path_of(target), to)?;
        self.set_meta(path, meta)
    }

    fn make_link(&self, existing: &[u8], path: &[u8]) -> io::Result<()> {
        let to = path_of(path);
        if fs::symlink_metadata(to).is_ok_and(|there| !there.is_dir()) {
            fs::remove_file(to)?;
        }
        fs::hard_link(path_of(existing), to)
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

fn times(meta: &Meta) -> Timestamps {
    let spec = |time: i64| Timespec {
        tv_sec: time.div_euclid(1_000_000_000),
        tv_nsec: time.rem_euclid(1_000_000_000),
    };
    debug_assert!(spec(meta.mtime).tv_nsec != UTIME_OMIT);
    Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) }
}

struct LocalFile {
    file: File,
    path: Vec<u8>,
    /// Where a new file is until it is complete.
    temporary: Option<Vec<u8>>,
    finished: AtomicBool,
}

impl Open for LocalFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
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
        self.file.write_all_at(from, offset)
    }

    fn finish(&self, meta: &Meta) -> io::Result<()> {
        if let Some(temporary) = &self.temporary {
            if rustix::process::geteuid().is_root() {
                rustix::fs::fchown(&self.file, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)))?;
            }
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(meta.mode))?;
            rustix::fs::futimens(&self.file, &times(meta))?;
            fs::rename(path_of(temporary), path_of(&self.path))?;
            self.finished.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for LocalFile {
    fn drop(&mut self) {
        if let (Some(temporary), false) = (&self.temporary, self.finished.load(Ordering::Acquire)) {
            let _ = fs::remove_file(path_of(temporary));
        }
    }
}
