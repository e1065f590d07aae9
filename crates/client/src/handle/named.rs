//! The path of an open file, as far as it can be known.
//!
//! An inode does not say where it is named (it may have many names, on other servers), so the description
//! keeps the directory and the name that it was opened by. The directory's path is exact, wherever that was
//! moved since. Whether the file still has the name is asked.

use super::Handle;
use crate::error::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;

/// What the kernel puts behind the path of what has no name any more.
const DELETED: &[u8] = b" (deleted)";

impl Handle {
    /// What a link in `/proc` shows of it: its path, or the one that it was opened by with " (deleted)" when
    /// that is gone together with all others. `None`: it has another name since, which is not known here, or
    /// its name is too long to be kept.
    pub fn path(&self) -> Result<Option<Vec<u8>>, Errno> {
        Ok(self.path_now_or_then()?.map(|(mut path, there)| {
            if !there {
                path.extend_from_slice(DELETED);
            }
            path
        }))
    }

    /// Its path. ENOENT if it is not known here: because it has none, or has another name since.
    pub fn real_path(&self) -> Result<Vec<u8>, Errno> {
        self.path_now_or_then()?.filter(|(_, there)| *there).map(|(path, _)| path).ok_or(Errno::NOENT)
    }

    /// The path, and whether it still leads there.
    fn path_now_or_then(&self) -> Result<Option<(Vec<u8>, bool)>, Errno> {
        let client = self.client();
        if self.is_directory() {
            match client.namespace().path_of(self.ino()) {
                Err(Errno::NOENT) => {}
                found => return found.map(|path| Some((path, true))),
            }
        }
        let Some((dir, name)) = self.data().slot()?.name() else { return Ok(None) };
        let mut path = match client.namespace().path_of(Ino(dir)) {
            Ok(path) => path,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        path.push(b'/');
        path.extend_from_slice(&name);
        match client.stat((Ino(dir), &name, false)) {
            Ok(attr) if attr.ino == self.ino() => return Ok(Some((path, true))),
            Ok(_) | Err(Fail::Errno(Errno::NOENT)) => {}
            Err(fail) => return Err(fail.errno()),
        }
        match self.data().attr() {
            // A description opened with O_PATH does not keep its inode.
            Ok(attr) if attr.nlink > 0 => Ok(None),
            Ok(_) | Err(Errno::NOENT) => Ok(Some((path, false))),
            Err(errno) => Err(errno),
        }
    }
}
