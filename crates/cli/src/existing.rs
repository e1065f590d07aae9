//! A mount of a deployment that is there already, made by `bivouac mount`.
//!
//! A command that is to see a mount at the deployment's mount path uses one that is there, instead of making its own: everybody on the
//! machine then works in the same one. The kernel's table of mounts tells whose it is: it names the deployment, and the
//! user who serves it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The kernel's kind of a mount of ours, as mount tables show it.
const KIND: &str = "fuse.bivouac";
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
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return Existing::default() };
    // What lies at the path counts, not what the table calls it: there may be a link, or another mount on top. Where nobody answers
    // for a mount any more, nothing can be looked at, and it is none.
    let seen = std::fs::metadata(mount).ok().filter(|seen| seen.ino() == ROOT);
    let device = seen.map(|seen| (rustix::fs::major(seen.dev()), rustix::fs::minor(seen.dev())));
    let mut existing = Existing::default();
    for (number, path) in table.lines().filter_map(|line| of_deployment(line, name, uid)) {
        if device == Some(number) {
            existing.here = device;
        } else {
            existing.elsewhere.push(path);
        }
    }
    existing
}

/// Device number and place of a mount, if a line of `mountinfo` tells of one of this deployment.
fn of_deployment(line: &str, name: &str, uid: u32) -> Option<((u32, u32), PathBuf)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let (kind, source, options) = (system.next()?, system.next()?, system.next()?);
    let owner = format!("user_id={uid}");
    if kind != KIND || source != name || !options.split(',').any(|option| option == owner) {
        return None;
    }
    let mut mount = mount.split(' ').skip(2);
    let (number, path) = (mount.next()?, mount.nth(1)?);
    let (major, minor) = number.split_once(':')?;
    Some(((major.parse().ok()?, minor.parse().ok()?), Path::new(path).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "36 25 0:47 / /mnt/b rw,nosuid,nodev shared:7 - fuse.bivouac job1 rw,user_id=1000,group_id=100,allow_other";

    #[test]
    fn a_mount_is_told_by_its_deployment_and_its_user() {
        let found = Some(((0, 47), PathBuf::from("/mnt/b")));
        assert_eq!(of_deployment(LINE, "job1", 1000), found);
        assert_eq!(of_deployment(LINE, "job", 1000), None);
        assert_eq!(of_deployment(LINE, "job1", 100), None);
        assert_eq!(of_deployment(&LINE.replace("fuse.bivouac", "fuse.other"), "job1", 1000), None);
        for end in 0..LINE.len() - "allow_other".len() - 30 {
            assert_eq!(of_deployment(&LINE[..end], "job1", 1000), None, "{end}");
        }
    }

    #[test]
    fn where_nothing_is_mounted_nothing_is_found() {
        let existing = find("no-such-deployment", 0, "/");
        assert!(existing.here.is_none() && existing.elsewhere.is_empty());
    }
}
