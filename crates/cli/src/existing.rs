//! Finding an existing mount of a deployment, made by `bivouac mount`.
//!
//! A command that is to see a mount at the deployment's mount path uses one that is there, instead of making
//! its own: everybody on the machine then works in the same one. The kernel's table of mounts tells whose it
//! is: it names the deployment, and the user who serves it. Likewise for the directory that is forwarded, which
//! only another command's own mount can show.

use crate::mounts;
use crate::view::View;
use std::path::{Path, PathBuf};

/// Where this process finds a deployment's mounts.
#[derive(Default)]
pub struct Existing {
    /// The device number, major and minor, of the one at the path where programs look.
    pub here: Option<(u32, u32)>,
    /// Others.
    pub elsewhere: Vec<PathBuf>,
}

impl Existing {
    /// What a command that is to see a mount at `mount` gets, for people.
    pub fn told(&self, mount: &Path) -> String {
        let mount = mount.display();
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

/// Finds the mounts of a deployment of user `uid` that show the same as a view.
pub fn find(name: &str, uid: u32, view: &View) -> Existing {
    // What lies at the path counts, not what the table calls it: there may be a link, or another mount on
    // top. Where nobody answers for a mount any more, nothing can be looked at, and it is none. (By a system
    // call: this process may have the library, which would show it its own.)
    let seen = rustix::fs::stat(&view.path).ok().filter(|seen| seen.st_ino == view.tree.root().0);
    let device = seen.map(|seen| (rustix::fs::major(seen.st_dev), rustix::fs::minor(seen.st_dev)));
    let mut existing = Existing::default();
    let source = view.source(name);
    for listed in mounts::all().into_iter().filter(|listed| listed.source == source && listed.owner == uid) {
        if device == Some(listed.number) {
            existing.here = device;
        } else if listed.path != view.path {
            // (At the path itself, one is dead or covered.)
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
        let existing = find("no-such-deployment", 0, &View::deployment("/"));
        assert!(existing.here.is_none() && existing.elsewhere.is_empty());
    }
}
