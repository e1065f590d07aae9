//! Sending from several slices and receiving into several, from any offset in them.
//!
//! A transfer may stop anywhere; the caller counts bytes and comes again. The caller's slices are never
//! changed, so that a request that failed can be repeated with them. No allocation: the kernel's vector is
//! built on the stack, a few slices at a time.

use bivouac_node::Fd;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// How many slices go to the kernel in one call.
const SLOTS: usize = 16;

/// Sum of the lengths.
pub(crate) fn total(slices: &[IoSlice<'_>]) -> usize {
    slices.iter().map(|s| s.len()).sum()
}

/// Sum of the lengths.
pub(crate) fn total_mut(slices: &[IoSliceMut<'_>]) -> usize {
    slices.iter().map(|s| s.len()).sum()
}

/// Sends what follows the first `skip` bytes of `front` and `payload` in this order, as much as one call
/// takes. Returns the bytes sent. The descriptor `pass`, if any, goes with the first of them (Unix sockets
/// only).
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    front: [&[u8]; 3],
    payload: &[IoSlice<'_>],
    skip: usize,
    pass: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut slots: [IoSlice<'_>; SLOTS] = std::array::from_fn(|_| IoSlice::new(&[]));
    let mut used = 0;
    let mut skip = skip;
    for part in front.into_iter().chain(payload.iter().map(|s| &**s)) {
        let rest = part.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(part.len());
        if rest.is_empty() {
            continue;
        }
        let Some(slot) = slots.get_mut(used) else { break };
        *slot = IoSlice::new(rest);
        used += 1;
    }
    // NOSIGNAL always: a vanished peer is an error here, not the end of the process.
    let flags = flags | SendFlags::NOSIGNAL;
    let passed = pass.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    match &slots[..used] {
        [one] if passed.is_empty() => rustix::net::send(fd, one, flags),
        several => {
            if !passed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(passed)) {
                return Err(Errno::NOBUFS);
            }
            rustix::net::sendmsg(fd, several, &mut control, flags)
        }
    }
}

/// Receives into `front`, and then into `into` after its first `skip` bytes, as much as one call gives.
/// Returns the bytes received in both; 0 is the end of the stream. Must not be called when there is no room.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    front: &mut [u8],
    into: &mut [IoSliceMut<'_>],
    skip: usize,
    flags: RecvFlags,
) -> Result<usize, Errno> {
    let mut slots = Slots::new();
    slots.fill(front, into, skip);
    match slots.used() {
        [one] => rustix::net::recv(fd, &mut **one, flags).map(|(n, _)| n),
        several => {
            // No room for descriptors: a peer that sends some here has them closed by the kernel.
            let mut none = RecvAncillaryBuffer::default();
            rustix::net::recvmsg(fd, several, &mut none, flags).map(|m| m.bytes)
        }
    }
}

/// The same from the start on a Unix socket, with the descriptor that came along, if one did. Descriptors
/// come with the first bytes of a message.
pub(crate) fn receive_with_descriptor(
    fd: BorrowedFd<'_>,
    front: &mut [u8],
    into: &mut [IoSliceMut<'_>],
    flags: RecvFlags,
) -> Result<(usize, Option<Fd>), Errno> {
    let mut slots = Slots::new();
    slots.fill(front, into, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(fd, slots.used(), &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut passed = None;
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = item {
            // One at most is asked for; the others are closed.
            passed = fds.map(Fd::from).last().or(passed);
        }
    }
    Ok((message.bytes, passed))
}

/// The kernel's vector of where to receive.
struct Slots<'a> {
    slots: [IoSliceMut<'a>; SLOTS],
    used: usize,
}

impl<'a> Slots<'a> {
    fn new() -> Slots<'a> {
        Slots { slots: std::array::from_fn(|_| IoSliceMut::new(&mut [])), used: 0 }
    }

    /// `front`, and `into` after its first `skip` bytes; as much as there are slots for.
    fn fill(&mut self, front: &'a mut [u8], into: &'a mut [IoSliceMut<'_>], skip: usize) {
        self.add(front);
        let mut skip = skip;
        for part in into.iter_mut() {
            let len = part.len();
            self.add(part.get_mut(skip..).unwrap_or_default());
            skip = skip.saturating_sub(len);
        }
    }

    fn add(&mut self, part: &'a mut [u8]) {
        if !part.is_empty()
            && let Some(slot) = self.slots.get_mut(self.used)
        {
            *slot = IoSliceMut::new(part);
            self.used += 1;
        }
    }

    fn used(&mut self) -> &mut [IoSliceMut<'a>] {
        self.slots.get_mut(..self.used).unwrap_or_default()
    }
}

/// The first `len` bytes of `from`, in one piece.
pub(crate) fn gathered(from: &[IoSliceMut<'_>], len: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(len);
    for part in from {
        let missing = len - all.len();
        all.extend_from_slice(part.get(..missing.min(part.len())).unwrap_or_default());
    }
    all
}

/// Copies `bytes` into `into` at its start. Returns how many bytes there was room for.
pub(crate) fn copy(into: &mut [IoSliceMut<'_>], mut bytes: &[u8]) -> usize {
    let all = bytes.len();
    for part in into.iter_mut() {
        let n = part.len().min(bytes.len());
        let (now, later) = bytes.split_at(n);
        part[..n].copy_from_slice(now);
        bytes = later;
    }
    all - bytes.len()
}
