//! `/dev/fuse`, mounting and unmounting.
//!
//! A mount is made with `mount(2)` by root, or by whoever is root in its own user namespace; anybody else
//! asks fusermount3, which is set-user-ID root, if the machine has it. The descriptors of a mount may be
//! served by another process than the one that mounted: clones have to be opened where the mount was made
//! (the kernel compares user namespaces), so they are made here.

use crate::error::FuseError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const DEVICE: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`: _IOR(229, 0, u32).
const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
/// The kind of file system that mount tables show.
const KIND: &str = "fuse.bivouac";
/// The program that mounts for those who may not.
const HELPER: &str = "fusermount3";

/// The descriptors of one mount, one for each thread that will serve it.
#[derive(Debug)]
pub struct Device(Vec<OwnedFd>);

/// How a mount was made, and so how it has to be unmounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mounted {
    /// By this process.
    Directly,
    /// By fusermount3.
    ByHelper,
}

impl Device {
    /// Mounts at `path` (a directory) for `threads` threads what mount tables show as `source`. In a mount of root's, or in a user
    /// namespace of the process's own, other users have access, subject to permissions. `read_only`: nothing
    /// can be changed through it.
    pub fn mount(
        source: &str,
        path: &Path,
        threads: usize,
        read_only: bool,
    ) -> Result<(Device, Mounted), FuseError> {
        let device = open()?;
        let data = format!(
            "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
            device.as_raw_fd(),
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw()
        );
        let data = std::ffi::CString::new(data).unwrap_or_default();
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
        flags.set(MountFlags::RDONLY, read_only);
        let (device, mounted) = match rustix::mount::mount(source, path, KIND, flags, &*data) {
            Ok(()) => (device, Mounted::Directly),
            Err(Errno::PERM) => (ask_helper(source, path, read_only)?, Mounted::ByHelper),
            Err(cause) => return Err(FuseError::Mount { path: path.to_owned(), cause }),
        };
        let mut all = Vec::with_capacity(threads.max(1));
        all.push(device);
        while all.len() < threads {
            let Some(first) = all.first() else { break };
            match clone_of(first.as_fd()) {
                Ok(clone) => all.push(clone),
                Err(error) => {
                    // Several threads can share one, if less well.
                    tracing::debug!(%error, "no clones of /dev/fuse");
                    let shared = rustix::io::fcntl_dupfd_cloexec(first, 0);
                    all.push(shared.map_err(FuseError::system("duplicate /dev/fuse"))?);
                }
            }
        }
        Ok((Device(all), mounted))
    }

    /// The descriptors, to hand them to the process that will serve.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|fd| fd.as_fd()).collect()
    }

    /// Descriptors that another process has mounted and handed over.
    pub fn handed_over(descriptors: Vec<OwnedFd>) -> Device {
        Device(descriptors)
    }

    pub(crate) fn into_descriptors(self) -> Vec<OwnedFd> {
        self.0
    }
}

fn open() -> Result<OwnedFd, FuseError> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(FuseError::Device)
}

fn clone_of(first: BorrowedFd<'_>) -> Result<OwnedFd, FuseError> {
    let fresh = open()?;
    let source = first.as_raw_fd() as u32;
    // SAFETY: the opcode is that of FUSE_DEV_IOC_CLONE, which reads one u32 through the pointer that it is
    // given.
    unsafe {
        let clone = rustix::ioctl::Setter::<CLONE, u32>::new(source);
        rustix::ioctl::ioctl(&fresh, clone).map_err(FuseError::system("clone /dev/fuse"))?;
    }
    Ok(fresh)
}

/// Unmounts: the path is free at once, and the mount itself ends when the last file in use is closed.
pub fn unmount(path: &Path, mounted: Mounted) -> Result<(), FuseError> {
    match mounted {
        Mounted::Directly => rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            .map_err(FuseError::system("unmount")),
        Mounted::ByHelper => {
            let output = Command::new(HELPER).args(["-u", "-q", "-z", "--"]).arg(path).output();
            match output {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => Err(helper_said(path, &output.stderr)),
                Err(error) => Err(helper_said(path, error.to_string().as_bytes())),
            }
        }
    }
}

/// Unmounts a mount of this user, whichever process made it: see [`unmount`].
pub fn take_away(path: &Path) -> Result<(), FuseError> {
    match unmount(path, Mounted::Directly) {
        Err(FuseError::System { cause: Errno::PERM, .. }) => unmount(path, Mounted::ByHelper),
        done => done,
    }
}

/// Takes away the mount at a path if its server is gone. What another process has mounted there since this one
/// looked stays. Waits while the server is there and does not answer.
pub fn take_away_dead(path: &Path) -> Result<(), FuseError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A path that this user cannot look at, or that is gone, is no dead mount of this user.
    let Ok(mount) = rustix::fs::open(path, flags, Mode::empty()) else { return Ok(()) };
    if !matches!(rustix::fs::fstatfs(&mount), Err(Errno::NOTCONN)) {
        return Ok(());
    }
    // The descriptor stands for this mount, and not for the next one at the same path.
    match rustix::mount::unmount(format!("/proc/self/fd/{}", mount.as_raw_fd()), UnmountFlags::DETACH) {
        // EINVAL: it is unmounted already.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        // The helper knows paths only.
        Err(Errno::PERM) => unmount(path, Mounted::ByHelper),
        Err(error) => Err(FuseError::system("unmount")(error)),
    }
}

fn helper_said(path: &Path, text: &[u8]) -> FuseError {
    let said = String::from_utf8_lossy(text).trim().to_owned();
    FuseError::Helper { path: path.to_owned(), said: if said.is_empty() { "nothing".into() } else { said } }
}

/// Has fusermount3 mount, and gets the descriptor from it through a socket whose number stands in its
/// environment.
fn ask_helper(source: &str, path: &Path, read_only: bool) -> Result<OwnedFd, FuseError> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(FuseError::system("make a pair of sockets"))?;
    let number = theirs.as_raw_fd();
    let mut command = Command::new(HELPER);
    let access = if read_only { "ro" } else { "rw" };
    command
        .arg("-o")
        .arg(format!("{access},default_permissions,nosuid,nodev,fsname={source},subtype=bivouac"))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", number.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let keep = move || {
        // SAFETY: the number is open in the child until it executes the helper, which is to inherit it.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?)
    };
    // SAFETY: between fork and exec there is one system call.
    unsafe { command.pre_exec(keep) };
    let mut child = command.spawn().map_err(|error| helper_said(path, error.to_string().as_bytes()))?;
    drop(theirs);
    let received = receive(ours.as_fd());
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.as_mut() {
        let _ = stderr.read_to_end(&mut said);
    }
    let _ = child.wait();
    received.ok_or_else(|| helper_said(path, &said))
}

/// The descriptor that comes with a message.
fn receive(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}
