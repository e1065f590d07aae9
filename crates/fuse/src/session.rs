//! The conversation with the kernel: how it begins, who serves it, how it ends.
//!
//! It begins with INIT, in which both sides say what they can. It ends when the mount is gone: every read of
//! the device then fails with ENODEV.

use crate::abi::{self, Asked, Fields, REPLY_HEADER, Reply, Short, init, op};
use crate::awake::{Post, Watcher};
use crate::device::Device;
use crate::error::FuseError;
use crate::face::Face;
use crate::tree::Tree;
use bivouac_client::Client;
use bivouac_proto::Errno;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io::IoSlice;
use std::sync::Arc;

/// Largest read or write in one request, bytes: the kernel's limit by default (256 pages).
pub(crate) const LARGEST: usize = 1 << 20;
const PAGE: usize = 4096;
/// How many requests the kernel may have under way that no call waits for (read-ahead, asynchronous I/O), and
/// from which number on it throttles them.
const BACKGROUND: u16 = 64;
const CONGESTED: u16 = 48;

/// How a mount is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// What it shows.
    pub tree: Tree,
    /// It lies in a user namespace that has one user and one group.
    pub alone: bool,
    /// The kernel reads and writes files itself where it can.
    pub passthrough: bool,
}

impl Terms {
    /// What the kernel is to do in this mount if it can, and need not in others.
    fn wanted(self) -> u64 {
        let passthrough = if self.passthrough && self.tree.is_local() { init::PASSTHROUGH } else { 0 };
        // Users whom a user namespace does not have could not be told of.
        let lists = if self.tree.has_access_lists() && !self.alone { init::POSIX_ACL } else { 0 };
        passthrough | lists
    }
}

/// Serves a mount until it is gone. Each descriptor of the device gets a thread.
pub fn serve(client: Arc<Client>, terms: Terms, device: Device) -> Result<(), FuseError> {
    let channels: Vec<Channel> = device.into_descriptors().into_iter().map(Channel::new).collect();
    let Some(first) = channels.first() else { return Ok(()) };
    let Some(capabilities) = greet(first, terms.wanted())? else { return Ok(()) };
    let face = Arc::new(Face::new(client, terms, capabilities, first.clone()));
    let post = Post::default();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for channel in &channels {
            let (face, post) = (&face, &post);
            let thread = std::thread::Builder::new().name("fuse".into());
            match thread.spawn_scoped(scope, move || run(face, channel, post)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    let cause = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
                    tracing::warn!(%cause, "fewer threads than wanted serve the mount");
                }
            }
        }
        if threads.is_empty() {
            return run(&face, first, &post);
        }
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        results.into_iter().find_map(|result| result.unwrap_or(Ok(())).err()).map_or(Ok(()), Err)
    })
}

/// One descriptor of the device. Replies go out where their requests came in.
#[derive(Clone)]
pub(crate) struct Channel(Arc<OwnedFd>);

impl Channel {
    fn new(fd: OwnedFd) -> Channel {
        Channel(Arc::new(fd))
    }

    /// The device.
    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Receives a request; `None` when the mount is gone.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, FuseError> {
        loop {
            match rustix::io::read(&*self.0, &mut *buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(rustix::io::Errno::NODEV) => return Ok(None),
                // Interrupted before it could be read, or a signal.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::INTR) => {}
                // Another thread busy-waits on the same description, because the device could not be cloned.
                Err(rustix::io::Errno::AGAIN) => {
                    let _ = rustix::event::poll(&mut [PollFd::new(&*self.0, PollFlags::IN)], None);
                }
                Err(cause) => return Err(FuseError::System { doing: "read from /dev/fuse", cause }),
            }
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&self, unique: u64, answer: Result<&[u8], Errno>) {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            // The kernel accepts only these numbers, and treats another one as a broken server.
            Err(errno) => (-i32::from(errno.0.clamp(1, 511)), &[][..]),
        };
        let mut header = [0u8; REPLY_HEADER];
        header[..4].copy_from_slice(&((REPLY_HEADER + body.len()) as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        match rustix::io::writev(&*self.0, &[IoSlice::new(&header), IoSlice::new(body)]) {
            // ENOENT: the request was interrupted, and its caller does not wait any more.
            Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => {}
            Err(error) => tracing::error!(%error, unique, "the kernel does not take an answer"),
        }
    }
}

fn run(face: &Arc<Face>, channel: &Channel, post: &Post) -> Result<(), FuseError> {
    let mut buffer = vec![0; LARGEST + PAGE];
    let mut scratch = vec![0; LARGEST];
    let mut watcher = Watcher::new(post);
    let mut next = channel.receive(&mut buffer)?;
    while let Some(length) = next {
        match Asked::parse(buffer.get(..length).unwrap_or_default()) {
            Ok((asked, fields)) if asked.operation == op::DESTROY => {
                let _ = fields;
                channel.answer(asked.unique, Ok(&[]));
            }
            Ok((asked, fields)) => face.serve(channel, asked, fields, &mut scratch),
            Err(Short) => tracing::error!(length, "the kernel sent a request that makes no sense"),
        }
        next = match watcher.receive(channel.device(), &mut buffer) {
            None => channel.receive(&mut buffer)?,
            soon => soon,
        };
    }
    Ok(())
}

/// The beginning: what both sides can do, or `None` if the mount is gone already.
fn greet(channel: &Channel, wanted: u64) -> Result<Option<u64>, FuseError> {
    let mut buffer = vec![0; LARGEST + PAGE];
    loop {
        let Some(length) = channel.receive(&mut buffer)? else { return Ok(None) };
        let Ok((asked, fields)) = Asked::parse(buffer.get(..length).unwrap_or_default()) else { continue };
        if asked.operation != op::INIT {
            channel.answer(asked.unique, Err(Errno::IO));
            continue;
        }
        match agree(fields, wanted) {
            Ok((reply, capabilities)) => {
                channel.answer(asked.unique, Ok(&reply.0));
                if let Some(capabilities) = capabilities {
                    return Ok(Some(capabilities));
                }
            }
            Err(error) => {
                channel.answer(asked.unique, Err(Errno::PROTO));
                return Err(error);
            }
        }
    }
}

/// The answer to INIT, where some capabilities are wanted besides those of every mount; none if the kernel is to ask again with an older major version.
fn agree(mut fields: Fields<'_>, besides: u64) -> Result<(Reply, Option<u64>), FuseError> {
    let strange = |Short| FuseError::Version { major: 0, minor: 0 };
    let (major, minor) = (fields.u32().map_err(strange)?, fields.u32().map_err(strange)?);
    let mut reply = Reply::new();
    reply.u32(abi::MAJOR).u32(abi::MINOR);
    if major > abi::MAJOR {
        return Ok((reply, None));
    }
    if (major, minor) < (abi::MAJOR, abi::OLDEST_MINOR) {
        return Err(FuseError::Version { major, minor });
    }
    let readahead = fields.u32().map_err(strange)?;
    let offered = u64::from(fields.u32().map_err(strange)?);
    let offered = match fields.u32() {
        Ok(upper) if offered & init::EXT != 0 => offered | u64::from(upper) << 32,
        _ => offered,
    };
    let wanted = init::ASYNC_READ
        | init::POSIX_LOCKS
        | init::FLOCK_LOCKS
        | init::ATOMIC_O_TRUNC
        | init::EXPORT_SUPPORT
        | init::BIG_WRITES
        | init::AUTO_INVAL_DATA
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::MAX_PAGES
        | init::HANDLE_KILLPRIV_V2
        | init::DIRECT_IO_ALLOW_MMAP
        | init::EXT
        | besides;
    let agreed = offered & wanted;
    reply
        .u32(readahead.min(LARGEST as u32))
        .u32(agreed as u32)
        .u16(BACKGROUND)
        .u16(CONGESTED)
        .u32(LARGEST as u32)
        // Times are exact to the nanosecond.
        .u32(1)
        .u16((LARGEST / PAGE) as u16)
        .u16(0)
        .u32((agreed >> 32) as u32)
        // Backing files lie on file systems that have none themselves.
        .u32(u32::from(agreed & init::PASSTHROUGH != 0))
        .zeros(24);
    Ok((reply, Some(agreed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(major: u32, minor: u32, flags: u64) -> Vec<u8> {
        let mut fields = Reply::new();
        fields.u32(major).u32(minor).u32(131_072).u32(flags as u32).u32((flags >> 32) as u32).zeros(44);
        fields.0
    }

    #[test]
    fn only_offered_capabilities_are_agreed_on() {
        let offered = init::EXT | init::MAX_PAGES | init::DIRECT_IO_ALLOW_MMAP | 1 << 16;
        let (reply, agreed) = agree(Fields(&asked(7, 45, offered)), init::POSIX_ACL).unwrap();
        assert_eq!(agreed, Some(init::EXT | init::MAX_PAGES | init::DIRECT_IO_ALLOW_MMAP));
        assert_eq!(reply.0.len(), 64);
    }

    #[test]
    fn upper_capabilities_count_only_where_the_kernel_says_that_it_has_them() {
        let (_, agreed) = agree(Fields(&asked(7, 31, init::DIRECT_IO_ALLOW_MMAP)), 0).unwrap();
        assert_eq!(agreed, Some(0));
    }

    #[test]
    fn passthrough_is_agreed_on_only_where_it_is_wanted_and_says_how_deep_files_lie() {
        let asked = asked(7, 45, init::EXT | init::PASSTHROUGH);
        for (wanted, depth) in [(init::PASSTHROUGH, 1), (0, 0)] {
            let (reply, agreed) = agree(Fields(&asked), wanted).unwrap();
            assert_eq!(agreed.map(|agreed| agreed & init::PASSTHROUGH), Some(wanted));
            let mut fields = Fields(&reply.0);
            fields.skip(36).unwrap();
            assert_eq!((fields.u32(), reply.0.len()), (Ok(depth), 64));
        }
    }

    #[test]
    fn another_major_version_is_asked_to_come_down_and_old_kernels_are_refused() {
        let (reply, agreed) = agree(Fields(&asked(8, 0, 0)), 0).unwrap();
        assert_eq!((reply.0.len(), agreed), (8, None));
        assert!(matches!(
            agree(Fields(&asked(7, 27, 0)), 0),
            Err(FuseError::Version { major: 7, minor: 27 })
        ));
    }
}
