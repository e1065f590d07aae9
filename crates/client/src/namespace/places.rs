//! The paths of directories, and of what paths name.

use super::Namespace;
use super::walk::Last;
use crate::error::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::PATH_MAX;

impl Namespace {
    /// The canonical path of what a path names: absolute, without links, `.` and `..`; begins with the mount.
    pub(crate) fn real_path(&self, start: Ino, path: &[u8]) -> Result<Vec<u8>, Fail> {
        self.at_last(start, path, |walk, last| match last {
            Last::Directory(ino) => Ok(self.path_of(ino)?),
            Last::Name(place) => {
                self.find_last(walk, Last::Name(place.clone()), true)?;
                let mut path = self.path_of(place.dir)?;
                path.push(b'/');
                path.extend_from_slice(&place.name);
                Ok(path)
            }
        })
    }

    /// The path of a directory, from its number: absolute, beginning with the mount point or the forwarded directory. ENOENT if it was
    /// removed.
    pub(crate) fn path_of(&self, dir: Ino) -> Result<Vec<u8>, Errno> {
        let mut names = Vec::new();
        let mut at = dir;
        while !matches!(at, Ino::ROOT | Ino::FORWARDED) {
            let (parent, name) =
                self.parent(at).map_err(|e| if e == Errno::STALE { Errno::NOENT } else { e })?;
            names.push(name);
            at = parent;
            // Deeper than any path that could have been given; moves under way could lead in a circle.
            if names.len() > PATH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
        }
        let mut path = self.session().path_to(dir).to_vec();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }
}
