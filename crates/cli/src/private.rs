//! Mounts that only one command and its children see (`exec --fuse`).
//!
//! The process that is about to become the command enters a mount namespace of its own (without root,
//! together with a user namespace in which it is root for the time being), and mounts there what the command
//! is to see ([`View`]). The server is another process, outside: so the last process that leaves the namespace
//! takes the mounts along, the server sees that and ends, and nothing is left, whoever was killed. It gets the
//! descriptors of `/dev/fuse` through a socket, in one message for each mount, and says when it serves.
//!
//! Daemons are outside, too. An I/O node on the same node therefore never uses the mount of the directory that
//! it forwards.

use crate::copy::client;
use crate::error::Error;
use crate::exec::attachable;
use crate::home::Home;
use crate::mount::{cannot_mount, let_go, own_session, passthrough, threads, watch};
use crate::mount_point;
use crate::view::View;
use bivouac_fuse::{Device, Terms, Tree};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::mount::MountPropagationFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};
use rustix::thread::UnshareFlags;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::process::{Command, Stdio};

/// Most descriptors that are handed over for one mount (the kernel's limit is 253).
const MOST: usize = 64;

/// What a message with descriptors says first: which tree is mounted there.
const TREES: [(u8, Tree); 2] = [(b'd', Tree::Deployment), (b'f', Tree::Forwarded)];

/// A system call that failed.
pub fn system(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Error {
    let what = what.into();
    move |cause| Error::System { what, cause: cause.into() }
}

/// Puts this process, which must have no other threads, into a mount namespace where a deployment shows these
/// views.
pub fn enter(name: &str, views: &[View]) -> Result<(), Error> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(system("cannot make a pair of sockets"))?;
    // Before this process leaves the namespace that the server is to stay in.
    let own = std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program's own file".into(), cause })?;
    let mut server = Command::new(own);
    server.args(["serve", name]).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    own_session(&mut server);
    // It ends at once, and leaves a process that is no child of the command: a command that waits for all its
    // children does not wait for that one.
    server.status().map_err(|cause| Error::System { what: "cannot start the server".into(), cause })?;
    // Its command line, and with it our end of the socket, is all that it keeps of us.
    drop(server);

    separate()?;
    let alone = has_one_group();
    let here = std::env::current_dir();
    mount_point::make(views)?;
    for view in views {
        let (device, _) = Device::mount(&view.source(name), &view.path, threads().min(MOST), false)
            .map_err(|e| cannot_mount(name, e))?;
        send(ours.as_fd(), (view.tree, alone), &device.descriptors())
            .map_err(system("cannot reach the mount's server"))?;
    }
    rustix::net::shutdown(&ours, Shutdown::Write).map_err(system("cannot reach the mount's server"))?;
    let mut said = [0u8; 1];
    match rustix::io::read(&ours, &mut said) {
        Ok(1) => {}
        // It has said why it does not serve.
        _ => {
            return Err(Error::Unanswered {
                cause: "the mount's server did not start".into(),
                remedy: format!("`bivouac status {name}` shows the deployment"),
            });
        }
    }
    // The working directory may lie below what was covered, or in a mount itself.
    if let Ok(here) = here {
        let _ = std::env::set_current_dir(here);
    }
    Ok(())
}

/// `serve` (hidden): serves the mounts whose descriptors come through standard input.
pub fn serve(home: &Home, name: &str) -> Result<(), Error> {
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {}
        -1 => return Err(system("cannot start a process")(rustix::io::Errno::AGAIN)),
        _ => return Ok(()),
    }
    let environment = attachable(home, name)?;
    let client = client(name, &environment)?;
    let socket = rustix::stdio::stdin();
    let Some(mounts) = receive_all(socket) else {
        // The process that wanted the mounts could not make them, and has reported that.
        return Ok(());
    };
    watch(&client, || std::process::exit(0))?;
    let _ = rustix::net::send(socket, b"s", SendFlags::NOSIGNAL);
    let_go();
    std::thread::scope(|scope| {
        let serve = |(terms, device)| {
            let client = client.clone();
            scope.spawn(move || bivouac_fuse::serve(client, terms, device))
        };
        let served: Vec<_> = mounts.into_iter().map(serve).collect();
        served.into_iter().try_for_each(|one| one.join().unwrap_or(Ok(())).map_err(|e| cannot_mount(name, e)))
    })
}

/// Leaves the mount namespace, and without root the user namespace too, in which every number stays what it
/// is.
fn separate() -> Result<(), Error> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let refused = |errno: rustix::io::Errno| match errno {
        rustix::io::Errno::PERM | rustix::io::Errno::NOSPC | rustix::io::Errno::USERS => Error::refused(
            format!("this machine does not let users make namespaces: {errno}"),
            "ask for user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone), use `bivouac \
             mount` with fusermount3, or --access preload",
        ),
        other => system("cannot make a namespace")(other),
    };
    // SAFETY: no descriptors are unshared, and nothing of this process relies on being in the old namespaces.
    let unshare = |flags| unsafe { rustix::thread::unshare_unsafe(flags) };
    if unshare(UnshareFlags::NEWNS).is_err() {
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(refused)?;
        let write = |file: &str, text: String| {
            std::fs::write(file, text)
                .map_err(|cause| Error::System { what: format!("cannot write {file}"), cause })
        };
        write("/proc/self/setgroups", "deny".into())?;
        write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    hide()
}

/// What is mounted from here on in a namespace that was left is not seen outside.
pub fn hide() -> Result<(), Error> {
    let hidden = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", hidden).map_err(system("cannot make mounts private"))
}

/// Whether the user namespace of this process has one group, as the one that [`separate`] makes.
fn has_one_group() -> bool {
    let map = std::fs::read_to_string("/proc/self/gid_map").unwrap_or_default();
    let lengths = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    lengths.sum::<u64>() == 1
}

/// Sends what is mounted: which tree, and whether where there is one group.
fn send(
    socket: BorrowedFd<'_>,
    (tree, alone): (Tree, bool),
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let word = TREES.iter().find_map(|(word, other)| (*other == tree).then_some(*word)).unwrap_or_default();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[word, alone.into()])], &mut control, SendFlags::NOSIGNAL)
        .map(drop)
}

/// What is mounted, to the end; `None` if something is missing.
fn receive_all(socket: BorrowedFd<'_>) -> Option<Vec<(Terms, Device)>> {
    let mut mounts = Vec::new();
    loop {
        match receive(socket)? {
            Message::Mount(terms, device) => mounts.push((terms, device)),
            Message::End => return (!mounts.is_empty()).then_some(mounts),
        }
    }
}

/// What comes through the socket.
enum Message {
    Mount(Terms, Device),
    End,
}

/// The next message, if it is whole.
fn receive(socket: BorrowedFd<'_>) -> Option<Message> {
    let mut said = [0u8; 2];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut said)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    );
    if received.ok()?.bytes == 0 {
        return Some(Message::End);
    }
    let tree = TREES.iter().find_map(|(word, tree)| (*word == said[0]).then_some(*tree))?;
    let terms = Terms { tree, alone: said[1] != 0, passthrough: passthrough() };
    let messages = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = messages.flatten().collect();
    (!descriptors.is_empty()).then(|| Message::Mount(terms, Device::handed_over(descriptors)))
}
