//! Where a user's deployments have their run directories on a machine, even if another user has taken the
//! usual name.
//!
//! A deployment's *run directory* is `/dev/shm/bivouac-UID/NAME`. Anybody may make files in `/dev/shm`, and
//! so anybody can make `/dev/shm/bivouac-UID` beforehand: as a directory, a file, or a link. Bivouac never
//! uses such a thing. The deployment's directory is then made in `/dev/shm/bivouac-UID.SECRET`, whose name
//! follows from the deployment's key: all daemons of the machine compute the same name, and nobody else knows
//! it in time to take it. Commands that have no key yet ([`find`]: `exec` on any node of the job, and
//! clean-up) look through all directories with such names that belong to the user.
//!
//! It runs inside other people's programs, too: system calls only.

use crate::error::{NodeError, doing};
use crate::fd::Fd;
use bivouac_proto::auth::{Key, derive};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// Memory that all processes of a machine can share.
const SHARED: &str = "/dev/shm";
/// How many names are tried besides the usual one.
const NAMES: u32 = 8;

/// The deployment's run directory on this machine, if it has one.
pub fn find(uid: u32, name: &str) -> Option<String> {
    find_in(SHARED, uid, name)
}

/// The deployment's run directory on this machine, which is made (with mode 0700) if it has none.
pub fn make(uid: u32, name: &str, key: &Key) -> Result<String, NodeError> {
    make_in(SHARED, uid, name, key)
}

fn find_in(shared: &str, uid: u32, name: &str) -> Option<String> {
    let plain = format!("bivouac-{uid}");
    let within = |base: &str| Some(format!("{shared}/{base}/{name}")).filter(|path| is_private(path, uid));
    let usable = |base: &str| is_private(&format!("{shared}/{base}"), uid).then(|| within(base)).flatten();
    usable(&plain).or_else(|| {
        let prefix = format!("{plain}.");
        list(shared, |entry| entry.starts_with(&prefix).then(|| usable(entry)).flatten())
    })
}

fn make_in(shared: &str, uid: u32, name: &str, key: &Key) -> Result<String, NodeError> {
    if let Some(found) = find_in(shared, uid, name) {
        return Ok(found);
    }
    let plain = format!("{shared}/bivouac-{uid}");
    let others = (0..NAMES).map(|i| {
        let secret = derive(key, format!("directory {i} {name}").as_bytes());
        format!("{plain}.{secret:016x}")
    });
    for base in std::iter::once(plain.clone()).chain(others) {
        // The last daemon that ends on this machine removes the directory, perhaps between these two calls.
        for _ in 0..100 {
            match make_private(&base, uid)? {
                Made::Taken => break,
                Made::Own => {}
            }
            let run_dir = format!("{base}/{name}");
            match make_private(&run_dir, uid) {
                Ok(Made::Own) => return Ok(run_dir),
                Ok(Made::Taken) => return Err(NodeError::NoPlace),
                Err(NodeError::System { errno: Errno::NOENT, .. }) => {}
                Err(other) => return Err(other),
            }
        }
    }
    Err(NodeError::NoPlace)
}

enum Made {
    /// It exists, and belongs to the user alone.
    Own,
    /// It belongs to another user, or is open to others.
    Taken,
}

fn make_private(path: &str, uid: u32) -> Result<Made, NodeError> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) => Ok(Made::Own),
        Err(Errno::EXIST) if is_private(path, uid) => Ok(Made::Own),
        Err(Errno::EXIST) => Ok(Made::Taken),
        Err(errno) => Err(doing("making a directory in /dev/shm")(errno)),
    }
}

/// Whether it is a directory that only the user may enter, and no link to one.
fn is_private(path: &str, uid: u32) -> bool {
    rustix::fs::lstat(path).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode).is_dir() && stat.st_uid == uid && stat.st_mode & 0o077 == 0
    })
}

/// The first answer that `look` has about the names in a directory.
fn list<T>(directory: &str, mut look: impl FnMut(&str) -> Option<T>) -> Option<T> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = Fd::from(rustix::fs::openat(CWD, directory, flags, Mode::empty()).ok()?);
    let mut buffer = [const { MaybeUninit::uninit() }; 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(entry) = entries.next() {
        if let Ok(name) = entry.ok()?.file_name().to_str()
            && let Some(found) = look(name)
        {
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> (tempfile::TempDir, String, u32) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().to_str().expect("plain").to_owned();
        (dir, path, rustix::process::geteuid().as_raw())
    }

    const KEY: Key = Key([3; 32]);

    #[test]
    fn the_obvious_place_is_taken_where_it_is_free() {
        let (_dir, shared, uid) = shared();
        assert_eq!(find_in(&shared, uid, "job"), None);
        let made = make_in(&shared, uid, "job", &KEY).expect("made");
        assert_eq!(made, format!("{shared}/bivouac-{uid}/job"));
        assert_eq!(make_in(&shared, uid, "job", &KEY).expect("found"), made);
        assert_eq!(find_in(&shared, uid, "job"), Some(made));
        assert_eq!(find_in(&shared, uid, "other"), None);
    }

    #[test]
    fn what_a_stranger_has_put_there_is_passed_over_and_the_deployment_is_found() {
        type Squat = fn(&str);
        let squats: [(&str, Squat); 4] = [
            ("a directory that is open", |path| {
                std::fs::create_dir(path).expect("made");
                let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
                std::fs::set_permissions(path, open).expect("set");
            }),
            ("a file", |path| std::fs::write(path, "x").expect("written")),
            ("a link to a good place", |path| {
                let target = format!("{path}-elsewhere");
                make_private(&target, rustix::process::geteuid().as_raw()).expect("made");
                std::os::unix::fs::symlink(target, path).expect("linked");
            }),
            ("a link to nowhere", |path| std::os::unix::fs::symlink("/no/where", path).expect("linked")),
        ];
        for (what, squat) in squats {
            let (_dir, shared, uid) = shared();
            squat(&format!("{shared}/bivouac-{uid}"));
            let made = make_in(&shared, uid, "job", &KEY).expect(what);
            assert!(made.starts_with(&format!("{shared}/bivouac-{uid}.")), "{what}: {made}");
            assert_eq!(make_in(&shared, uid, "job", &KEY).expect(what), made, "{what}: all daemons agree");
            assert_eq!(find_in(&shared, uid, "job").as_deref(), Some(&made[..]), "{what}");
            // The next one, too, when that name is known and taken.
            std::fs::remove_dir_all(made.trim_end_matches("/job")).expect("removed");
            squat(made.trim_end_matches("/job"));
            let next = make_in(&shared, uid, "job", &KEY).expect(what);
            assert!(next != made && find_in(&shared, uid, "job") == Some(next), "{what}");
        }
    }

    #[test]
    fn a_deployment_is_found_where_it_is_also_when_the_obvious_place_is_free_again() {
        let (_dir, shared, uid) = shared();
        let plain = format!("{shared}/bivouac-{uid}");
        std::fs::write(&plain, "x").expect("written");
        let made = make_in(&shared, uid, "job", &KEY).expect("made");
        std::fs::remove_file(&plain).expect("removed");
        make_in(&shared, uid, "another", &KEY).expect("made");
        assert_eq!(make_in(&shared, uid, "job", &KEY).expect("found"), made);
    }
}
