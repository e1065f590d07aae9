//! Where a daemon stores, and what it refuses to touch.
//!
//! A storage directory is always made by Bivouac: inside a directory that the user named, or in the default
//! place. What exists already is never used and never removed. Everything is checked on the daemon's own
//! host.

use crate::error::Error;
use crate::home;
use crate::launch::StorageOrder;
use bivouac_layout::ServerId;
use bivouac_proto::auth::Key;
use rustix::fs::{Access, AtFlags, CWD};
use std::fs::{DirBuilder, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Memory as storage is the default if it has at least this much free, bytes.
const ENOUGH_MEMORY: u64 = 1 << 30;
/// A storage with less free space than this is called full, bytes.
const LEAST: u64 = 8 << 20;
/// Where memory is.
const SHM: &str = "/dev/shm";

/// Refuses a mount path under which real files exist: programs would see them or not, depending on how they
/// look.
pub fn check_mount(mount: &str) -> Result<(), Error> {
    let path = Path::new(mount);
    let occupied = |what: &str| {
        Error::refused(
            format!("the mount path {mount} {what}"),
            "give a path that does not exist, with --mount",
        )
    };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotADirectory => Err(occupied("leads through a file")),
        Err(e) => Err(Error::file("examine the mount path", path, e)),
        Ok(meta) if !meta.is_dir() => Err(occupied("is an existing file or link")),
        Ok(_) => match std::fs::read_dir(path) {
            Ok(mut entries) => match entries.next() {
                Some(_) => Err(occupied("is a directory with files in it")),
                None => Ok(()),
            },
            Err(e) => Err(Error::file("examine the mount path", path, e)),
        },
    }
}

/// The deployment's run directory on this machine.
pub fn make_run_dir(uid: u32, name: &str, deployment: u64, key: &Key) -> Result<PathBuf, Error> {
    let made = bivouac_node::place::make(uid, name, key).map_err(|error| {
        Error::refused(
            format!("no directory for the deployment can be made on this machine: {error}"),
            format!("look what is under {SHM}/bivouac-{uid}, and have it removed"),
        )
    })?;
    let run_dir = PathBuf::from(made);
    super::traces::check_stranger(&run_dir, deployment)?;
    Ok(run_dir)
}

/// Makes a directory that only the user may enter, with what is above it; one that is there must be the
/// user's own.
pub fn make_private(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| Error::file("make the directory", path, e))?;
    let meta = std::fs::symlink_metadata(path).map_err(|e| Error::file("examine", path, e))?;
    if meta.is_dir() && home::is_own(&meta) {
        Ok(())
    } else {
        Err(Error::refused(
            format!("{} belongs to user {}", path.display(), meta.uid()),
            "somebody else has prepared it: have it removed, or use another name",
        ))
    }
}

/// Storage directories that were made. They are removed again when this is dropped, unless the daemon has
/// started.
#[derive(Default)]
pub struct Made(Vec<PathBuf>);

impl Made {
    /// The daemon has started: they are its own now.
    pub fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// The storage directories of a server.
pub fn storage(
    name: &str,
    run_dir: &Path,
    (server, succession): (ServerId, u32),
    order: &StorageOrder,
    made: &mut Made,
) -> Result<Vec<PathBuf>, Error> {
    // What a server had that was replaced may be there still.
    let number = super::traces::numbered(server, succession);
    match order {
        StorageOrder::Existing(paths) => {
            for path in paths {
                check_existing(path)?;
            }
            Ok(paths.clone())
        }
        StorageOrder::Fresh(parents) if parents.is_empty() => {
            let path = default_storage(name, run_dir, &number)?;
            make_storage(&path, made)?;
            Ok(vec![path])
        }
        StorageOrder::Fresh(parents) => parents
            .iter()
            .enumerate()
            .map(|(disk, parent)| {
                check_parent(parent)?;
                // The same directory may be named twice: its storage directories differ.
                let twice = parents.iter().take(disk).filter(|p| *p == parent).count();
                let suffix = if twice > 0 { format!("-{}", twice + 1) } else { String::new() };
                let path = parent.join(format!("bivouac-{name}-{number}{suffix}"));
                make_storage(&path, made)?;
                Ok(path)
            })
            .collect(),
    }
}

/// In memory, or in `$TMPDIR` where memory is short.
fn default_storage(name: &str, run_dir: &Path, number: &str) -> Result<PathBuf, Error> {
    if free_space(Path::new(SHM)).is_ok_and(|free| free >= ENOUGH_MEMORY) {
        return Ok(run_dir.join(format!("storage-{number}")));
    }
    let parent =
        std::env::var_os("TMPDIR").filter(|t| !t.is_empty()).map_or_else(|| "/tmp".into(), PathBuf::from);
    let parent = std::path::absolute(&parent).map_err(|e| Error::file("find", &parent, e))?;
    check_parent(&parent)?;
    Ok(parent.join(format!("bivouac-{name}-{number}")))
}

/// Bytes that the user can still store below `path`.
fn free_space(path: &Path) -> Result<u64, Error> {
    let space = rustix::fs::statvfs(path).map_err(|e| Error::file("examine", path, e.into()))?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Refuses a directory in which no storage can or may be made.
fn check_parent(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let refuse = |what: String, remedy: &str| {
        Err(Error::refused(format!("the storage directory {shown} {what}"), remedy))
    };
    if !path.is_absolute() {
        return refuse("is not an absolute path".into(), "give a path that means the same on every host");
    }
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return refuse("does not exist".into(), "make it on every host, or give another");
        }
        Err(e) => return refuse(format!("cannot be examined: {e}"), "give another"),
    };
    if !meta.is_dir() {
        return refuse("is not a directory".into(), "give a directory");
    }
    if !may_use(path, &meta) {
        return refuse(
            format!("belongs to user {}", meta.uid()),
            "give one that is yours, or open to everybody as /tmp is",
        );
    }
    match rustix::fs::accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => {}
        Err(rustix::io::Errno::ROFS) => return refuse("is read-only".into(), "give one that can be written"),
        Err(e) => {
            let why = std::io::Error::from(e);
            return refuse(format!("cannot be written: {why}"), "give one that you may write to");
        }
    }
    let free = free_space(path)?;
    if free < LEAST {
        return refuse(
            format!("is full: {} free", crate::text::size(free)),
            "free some space, or give another",
        );
    }
    Ok(())
}

/// Whether a directory is the user's own, or its owner has made it writable for everybody (as /tmp) or for
/// the user's group. The superuser could write anywhere, but should not do so by mistake.
fn may_use(path: &Path, meta: &Metadata) -> bool {
    let sticky = meta.permissions().mode() & 0o1000 != 0;
    let opened =
        home::uid() != 0 && rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    home::is_own(meta) || sticky || opened || is_read_only(path)
}

/// Whether nobody can write there, which makes a better error message.
fn is_read_only(path: &Path) -> bool {
    rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) == Err(rustix::io::Errno::ROFS)
}

fn make_storage(path: &Path, made: &mut Made) -> Result<(), Error> {
    let shown = path.display();
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            made.0.push(path.to_owned());
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(Error::refused(
            format!("the storage {shown} exists already: an earlier deployment of this name has left it"),
            "use another name; or, if nobody needs its data, remove it",
        )),
        Err(e) if e.kind() == ErrorKind::StorageFull => Err(Error::refused(
            format!("there is no space to make the storage {shown}"),
            "free some space, or give another directory with --storage",
        )),
        Err(e) => Err(Error::refused(
            format!("cannot make the storage {shown}: {e}"),
            "give another directory with --storage",
        )),
    }
}

fn check_existing(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() && home::is_own(&meta) => Ok(()),
        Ok(_) => Err(Error::refused(
            format!("{shown} is not the storage that was left"),
            "put the storage back there; what has copies elsewhere comes back with `bivouac replace` in the running deployment, and `bivouac down` removes it all",
        )),
        Err(e) => Err(Error::refused(
            format!("the storage {shown} that was left cannot be found: {e}"),
            "memory does not outlive a reboot: what had its only copy there is lost. In a running deployment, `bivouac replace` has a new server take its \
             place. `bivouac down` would remove what others still have",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("bivouac-place-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        DirBuilder::new().mode(0o700).create(&path).expect("makes it");
        path
    }

    #[test]
    fn a_mount_path_with_real_files_is_refused() {
        let dir = scratch("mount");
        let shown = dir.to_str().expect("plain").to_owned();
        check_mount(&shown).expect("an empty directory hides nothing");
        check_mount(&format!("{shown}/not/there")).expect("need not exist");
        std::fs::write(dir.join("file"), "x").expect("writes");
        std::os::unix::fs::symlink("/no/where", dir.join("link")).expect("links");
        for bad in
            [shown.clone(), format!("{shown}/file"), format!("{shown}/file/below"), format!("{shown}/link")]
        {
            assert!(matches!(check_mount(&bad), Err(Error::Refused { .. })), "{bad}");
        }
        std::fs::remove_dir_all(dir).expect("cleans up");
    }

    #[test]
    fn storage_is_made_inside_and_never_taken_over() {
        let dir = scratch("inside");
        let order = StorageOrder::Fresh(vec![dir.clone(), dir.clone()]);
        let mut made = Made::default();
        let paths =
            storage("job", Path::new("/none"), (ServerId(3), 0), &order, &mut made).expect("makes them");
        assert_eq!(paths, [dir.join("bivouac-job-3"), dir.join("bivouac-job-3-2")]);
        let next = storage("job", Path::new("/none"), (ServerId(3), 1), &order, &mut Made::default());
        assert_eq!(next.expect("another process's")[0], dir.join("bivouac-job-3.1"), "beside the old one's");
        assert_eq!(std::fs::metadata(&paths[0]).expect("is there").permissions().mode() & 0o777, 0o700);
        let again = storage("job", Path::new("/none"), (ServerId(3), 0), &order, &mut Made::default());
        assert!(matches!(again, Err(Error::Refused { .. })), "what exists is refused");
        assert!(paths[0].exists(), "and stays");
        storage(
            "job",
            Path::new("/none"),
            (ServerId(3), 0),
            &StorageOrder::Existing(paths.clone()),
            &mut Made::default(),
        )
        .expect("its own storage is found again");
        drop(made);
        assert!(!paths[0].exists() && dir.exists(), "a daemon that does not start leaves nothing");
        std::fs::remove_dir_all(dir).expect("cleans up");
    }

    #[test]
    fn unusable_storage_parents_are_refused() {
        let dir = scratch("parents");
        std::fs::write(dir.join("file"), "x").expect("writes");
        for bad in [dir.join("missing"), dir.join("file"), "relative".into(), "/proc".into()] {
            let order = StorageOrder::Fresh(vec![bad.clone()]);
            let refused = storage("job", Path::new("/none"), (ServerId(0), 0), &order, &mut Made::default());
            assert!(matches!(refused, Err(Error::Refused { .. })), "{}", bad.display());
        }
        std::fs::remove_dir_all(dir).expect("cleans up");
    }

    #[test]
    fn storage_that_was_left_must_still_be_there() {
        let dir = scratch("left");
        let order = StorageOrder::Existing(vec![dir.join("gone")]);
        assert!(matches!(
            storage("job", Path::new("/none"), (ServerId(0), 0), &order, &mut Made::default()),
            Err(Error::Refused { .. })
        ));
        std::fs::remove_dir_all(dir).expect("cleans up");
    }
}
