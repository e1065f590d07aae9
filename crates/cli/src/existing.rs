//! Finding an existing mount of a deployment, made by `bivouac mount`.
//!
//! A command that is to see a mount at the deployment's mount path uses one that is there, instead of making
//! its own: everybody on the machine then works in the same one. The kernel's table of mounts tells whose it
//! is: it names the deployment, and the user who serves it.

use crate::mounts;
use std::path::PathBuf;

/// The number of the root directory's inode.
const ROOT: u64 = 1;

/// Where this process finds a deployment's mounts.
#[derive(Default)]
pub struct Existing {
    /// The device number, major and minor, of the one at the deployment's mount path.
    pub here: Option<(u32, u32)>,
    /// Others.
    pub elsewhere: Vec<PathBuf>,
}

impl Existing {
    /// What a command that is to see a mount at `mount` gets, for people.
    pub fn told(&self, mount: &str) -> String {
        match (self.here, &self.elsewhere[..]) {
            (Some(_), _) => format!("the one that is at {mount} already"),
            (None, []) => format!("the command's own, at {mount}"),
            (None, [other, ..]) => {
                format!(
                    "the command's own, at {mount}; the one at {} is not where its programs look for it",
                    other.display()
                )
            }
        }
    }
}

/// Finds the mounts of a deployment of user `uid`, whose programs look for it at `mount`.
pub fn find(name: &str, uid: u32, mount: &str) -> Existing {
    // What lies at the path counts, not what the table calls it: there may be a link, or another mount on
    // top. Where nobody answers for a mount any more, nothing can be looked at, and it is none. (By a system
    // call: this process may have the library, which would show it its own.)
    let seen = rustix::fs::stat(mount).ok().filter(|seen| seen.st_ino == ROOT);
    let device = seen.map(|seen| (rustix::fs::major(seen.st_dev), rustix::fs::minor(seen.st_dev)));
    let mut existing = Existing::default();
    for listed in mounts::all().into_iter().filter(|listed| listed.deployment == name && listed.owner == uid)
    {
        if device == Some(listed.number) {
            existing.here = device;
        } else {
            existing.elsewhere.push(listed.path);
        }
    }
    existing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_is_mounted_nothing_is_found() {
        let existing = find("no-such-deployment", 0, "/");
        assert!(existing.here.is_none() && existing.elsewhere.is_empty());
    }
}
