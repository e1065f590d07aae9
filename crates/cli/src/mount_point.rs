//! The mount path in a mount namespace, where only some processes see the deployment.
//!
//! Mount points that do not exist are made in a tmpfs that covers the nearest directory that does, with
//! everything that is in that directory bound into it ([`make`]): nothing is made on any real file system. If
//! there is no mount, because the library serves the path, the same method prevents programs without the
//! library from making files there ([`shut`]).
//!
//! All of this is done by a process that is in a mount namespace of its own. That process may be started
//! inside of a deployment, with the library: then the standard library's functions show it the deployment at
//! the path. So what the kernel has there is asked by system calls (`rustix`).

use crate::error::Error;
use crate::mounts;
use crate::private::{self, system};
use crate::view::View;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A directory with more entries than this is not covered.
const COVERED: usize = 4096;

/// Makes sure that there are directories at the paths of all these views.
pub fn make(views: &[View]) -> Result<(), Error> {
    let mut missing = Vec::new();
    for view in views.iter().filter(|view| !is_directory(&view.path)) {
        if rustix::fs::lstat(&view.path).is_ok() {
            return Err(Error::refused(
                format!("cannot mount at {}: it is not a directory", view.path.display()),
                format!("choose another path with {}", view.option()),
            ));
        }
        missing.push((existing_above(&view.path), view));
    }
    // The upper one first: a tmpfs that covers another place cannot be bound into it afterwards.
    missing.sort_by_key(|(place, _)| place.components().count());
    let mut covered: Vec<&Path> = Vec::new();
    for (place, view) in &missing {
        if !covered.contains(place) {
            cover(place)?;
            covered.push(place);
        }
        let ancestors: Vec<&Path> = view.path.ancestors().take_while(|above| above != place).collect();
        for directory in ancestors.into_iter().rev() {
            match rustix::fs::mkdir(directory, Mode::from_raw_mode(0o755)) {
                // On the way to another one, too.
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(cause) => return Err(Error::file("make", directory, cause.into())),
            }
        }
    }
    covered.into_iter().try_for_each(protect)
}

/// Enters a mount namespace in which programs without the library cannot make anything at `path`: they cannot
/// make the path itself if it does not exist, nor anything in it if it does. To be called by root. Changes
/// nothing if this is so already, or is not possible (because no namespace may be made, as in most
/// containers, or because the directory is too large to be covered).
///
/// Does not make the path if it does not exist: the library, and links that lead there, rely on that.
pub fn shut(path: &Path) {
    let here = std::env::current_dir();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(before) = rustix::fs::open("/proc/self/ns/mnt", flags, Mode::empty()) else { return };
    let place = if is_directory(path) { path } else { existing_above(path) };
    let is_shut = || {
        let read_only = |system: rustix::fs::StatVfs| system.f_flag.contains(StatVfsMountFlags::RDONLY);
        rustix::fs::statvfs(place).is_ok_and(read_only)
    };
    // A mount of the deployment is there for those who do not have the library. Real files are not hidden
    // from anybody.
    let is_used = || place == path && !is_empty(path);
    if mounts::at(path).is_some() || is_shut() || is_used() {
        return;
    }
    // SAFETY: no descriptors are unshared, and nothing of this process relies on being in the old namespace.
    if unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.is_err() {
        return;
    }
    let covered = private::hide().and_then(|()| if place == path { empty(path) } else { cover(place) });
    if covered.and_then(|()| protect(place)).is_err() {
        // Half of it would be worse than nothing.
        let kind = Some(LinkNameSpaceType::Mount);
        let _ = rustix::thread::move_into_link_name_space(before.as_fd(), kind);
    }
    // The working directory may lie below what was covered.
    if let Ok(here) = here {
        let _ = std::env::set_current_dir(here);
    }
}

fn is_directory(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir())
}

fn is_empty(directory: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = rustix::fs::open(directory, flags, Mode::empty()).and_then(rustix::fs::Dir::new);
    entries.is_ok_and(|entries| {
        let mut names = entries.filter_map(|entry| entry.ok().map(|entry| entry.file_name().to_owned()));
        names.all(|name| matches!(name.to_bytes(), b"." | b".."))
    })
}

/// The nearest directory above a path that exists.
fn existing_above(path: &Path) -> &Path {
    path.ancestors().skip(1).find(|above| is_directory(above)).unwrap_or(Path::new("/"))
}

/// Makes a tmpfs read-only: what programs wrote into it would be lost.
fn protect(place: &Path) -> Result<(), Error> {
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount_remount(place, flags, c"").map_err(system("cannot protect the mount point"))
}

/// Covers a directory with an empty one.
fn empty(directory: &Path) -> Result<(), Error> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("bivouac", directory, "tmpfs", flags, c"mode=0755,size=1m")
        .map_err(system("cannot cover the mount point"))
}

/// What lies in a directory that is about to be covered.
struct Entry {
    name: PathBuf,
    kind: std::fs::FileType,
    /// The entry itself, not followed.
    pinned: OwnedFd,
}

/// Covers a directory with a tmpfs that shows the same.
fn cover(directory: &Path) -> Result<(), Error> {
    let cannot = |cause: std::io::Error| Error::file("read", directory, cause);
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pinned = rustix::fs::open(entry.path(), flags, Mode::empty());
        let (Ok(pinned), Ok(kind)) = (pinned, entry.file_type()) else { continue };
        entries.push(Entry { name: entry.file_name().into(), kind, pinned });
        if entries.len() > COVERED {
            return Err(Error::refused(
                format!(
                    "a mount point below {0} does not exist, and {0} is too large to be covered",
                    directory.display()
                ),
                "make the mount point, choose another with --mount or --forward, or use --access preload",
            ));
        }
    }
    let root = directory == Path::new("/");
    // A tmpfs cannot be put over the root: it is built elsewhere and becomes the root then. The place is
    // covered only meanwhile.
    let place = if root { Path::new("/tmp") } else { directory };
    let doing = |what: &str| system(format!("cannot {what} for the mount point in {}", directory.display()));
    let options = c"mode=0755,size=1m";
    rustix::mount::mount("bivouac", place, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options)
        .map_err(doing("make a tmpfs"))?;
    // What is bound below must not take the tmpfs along, where it covers the place.
    let alone = MountPropagationFlags::UNBINDABLE;
    rustix::mount::mount_change(place, alone).map_err(doing("make a tmpfs"))?;
    for entry in &entries {
        let target = place.join(&entry.name);
        let made = if entry.kind.is_symlink() {
            let link = rustix::fs::readlinkat(&entry.pinned, "", Vec::new()).map_err(doing("read a link"))?;
            std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(link.as_bytes()), &target)
        } else if entry.kind.is_dir() {
            std::fs::create_dir(&target)
        } else {
            std::fs::write(&target, "")
        };
        made.map_err(|cause| Error::file("make", &target, cause))?;
        if !entry.kind.is_symlink() {
            use std::os::fd::AsRawFd;
            let source = format!("/proc/self/fd/{}", entry.pinned.as_raw_fd());
            rustix::mount::mount_bind_recursive(source, &target).map_err(doing("bind what is there"))?;
        }
    }
    if root {
        rustix::process::chdir(place).map_err(doing("change directory"))?;
        rustix::process::pivot_root(".", ".").map_err(doing("change the root"))?;
        // The old root lies on top of the new one now.
        rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(doing("leave the old root"))?;
        rustix::process::chdir("/").map_err(doing("change directory"))?;
    }
    Ok(())
}
