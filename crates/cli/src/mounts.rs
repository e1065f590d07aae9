//! The kernel mounts of deployments that this process sees, from the kernel's table of mounts, and unmounting
//! them.
//!
//! A mount whose server was killed stays in the table: looking at it is ENOTCONN, and so is mounting there
//! again. It only ends when somebody unmounts it, so the next command of the same user that finds it does
//! that ([`sweep`]).

use bivouac_fuse::FuseError;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The kernel's kind of a mount of ours, as mount tables show it.
const KIND: &str = "fuse.bivouac";
/// How long a mount may take to answer. One that takes longer is busy, or its server is stopped; it is not
/// dead.
const PATIENCE: Duration = Duration::from_secs(1);

/// A mount of a deployment.
#[derive(PartialEq, Eq, Clone, Debug)]
pub struct Listed {
    /// What it shows: the name of a deployment, or as [`crate::view::View::source`] says.
    pub source: String,
    /// The user who serves it.
    pub owner: u32,
    /// Its device number, major and minor.
    pub number: (u32, u32),
    /// Where it is.
    pub path: PathBuf,
}

/// All of them, in the order in which they were made.
pub fn all() -> Vec<Listed> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    String::from_utf8_lossy(&table).lines().filter_map(Listed::of).collect()
}

/// The one that was mounted last at a path, which is canonical.
pub fn at(path: &Path) -> Option<Listed> {
    all().into_iter().rev().find(|listed| listed.path == path)
}

/// Takes away the dead mounts of a user.
pub fn sweep(owner: u32) {
    for listed in all().into_iter().rev().filter(|listed| listed.owner == owner) {
        let (tell, told) = mpsc::channel();
        // Where the server does not answer, this thread waits for it until the process ends.
        let look = move || {
            take_away_dead(&listed);
            let _ = tell.send(());
        };
        if std::thread::Builder::new().name("look".into()).spawn(look).is_ok() {
            let _ = told.recv_timeout(PATIENCE);
        }
    }
}

/// Takes away a dead mount at a path, without a thread.
pub fn sweep_at(path: &Path, owner: u32) {
    if let Some(listed) = at(path).filter(|listed| listed.owner == owner) {
        take_away_dead(&listed);
    }
}

fn take_away_dead(listed: &Listed) {
    tell_if_it_stays(listed, bivouac_fuse::take_away_dead(&listed.path));
}

/// Takes away all mounts of a deployment that is no more.
pub fn take_away_of(deployment: &str, owner: u32) {
    for listed in all().iter().rev().filter(|l| l.owner == owner && l.is_of(deployment)) {
        tell_if_it_stays(listed, bivouac_fuse::take_away(&listed.path));
    }
}

/// If a dead mount cannot be unmounted, this is only printed: it does no harm elsewhere.
fn tell_if_it_stays(listed: &Listed, outcome: Result<(), FuseError>) {
    if let Err(error) = outcome
        && all().contains(listed)
    {
        eprintln!("bivouac: a mount of {:?} stays at {}: {error}", listed.source, listed.path.display());
    }
}

impl Listed {
    /// Whether a deployment serves it. (Names of deployments have no colon.)
    fn is_of(&self, deployment: &str) -> bool {
        self.source.split(':').next() == Some(deployment)
    }

    /// What a line of `mountinfo` says, if it speaks of a mount of ours.
    fn of(line: &str) -> Option<Listed> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, source, options) = (system.next()?, system.next()?, system.next()?);
        if kind != KIND {
            return None;
        }
        let owner = options.split(',').find_map(|option| option.strip_prefix("user_id="))?;
        let mut mount = mount.split(' ').skip(2);
        let (number, path) = (mount.next()?, mount.nth(1)?);
        let (major, minor) = number.split_once(':')?;
        Some(Listed {
            source: unescaped(source).to_string_lossy().into_owned(),
            owner: owner.parse().ok()?,
            number: (major.parse().ok()?, minor.parse().ok()?),
            path: unescaped(path),
        })
    }
}

/// A path or source as the table has it, where some bytes are written as a backslash and three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let number = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, number) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "36 25 0:47 / /mnt/my\\040b rw,nosuid,nodev shared:7 - fuse.bivouac job1 rw,user_id=1000,group_id=100,allow_other";

    #[test]
    fn a_line_of_the_table_tells_whose_mount_is_where() {
        let expected =
            Listed { source: "job1".into(), owner: 1000, number: (0, 47), path: "/mnt/my b".into() };
        assert_eq!(Listed::of(LINE), Some(expected));
        assert_eq!(Listed::of(&LINE.replace("fuse.bivouac", "fuse.other")), None);
        for end in 0..LINE.len() - "000,group_id=100,allow_other".len() {
            assert_eq!(Listed::of(&LINE[..end]), None, "{end}");
        }
    }

    #[test]
    fn odd_bytes_of_paths_are_read_back() {
        for (text, path) in
            [("/a\\134040", "/a\\040"), ("/a\\", "/a\\"), ("/a\\0", "/a\\0"), ("/\\011\\012", "/\t\n")]
        {
            assert_eq!(unescaped(text), Path::new(path));
        }
    }
}
