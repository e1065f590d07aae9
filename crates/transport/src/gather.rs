//! Sending from several slices and receiving into several, from any offset in them.
//!
//! A transfer may stop anywhere; the caller counts bytes and comes again. The caller's slices are never changed, so that a
//! request that failed can be repeated with them. No allocation: the kernel's vector is built on the stack, a few slices at a
//! time.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
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

/// Sends what follows the first `skip` bytes of `front` and `payload` in this order, as much as one call takes.
/// Returns the bytes sent. The descriptor `pass`, if any,
/// goes with the first of them (Unix sockets only).
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

/// Receives into `into` after its first `skip` bytes, as much as one call gives. Returns the bytes received; 0 is the end of the
/// stream. Must not be called when there is no room.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    skip: usize,
    flags: RecvFlags,
) -> Result<usize, Errno> {
    let mut slots: [IoSliceMut<'_>; SLOTS] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let mut used = 0;
    let mut skip = skip;
    for part in into.iter_mut() {
        let len = part.len();
        let rest = part.get_mut(skip..).unwrap_or_default();
        skip = skip.saturating_sub(len);
        if rest.is_empty() {
            continue;
        }
        let Some(slot) = slots.get_mut(used) else { break };
        *slot = IoSliceMut::new(rest);
        used += 1;
    }
    match &mut slots[..used] {
        [one] => rustix::net::recv(fd, &mut **one, flags).map(|(n, _)| n),
        several => {
            // No room for descriptors: a peer that sends some here has them closed by the kernel.
            let mut none = RecvAncillaryBuffer::default();
            rustix::net::recvmsg(fd, several, &mut none, flags).map(|m| m.bytes)
        }
    }
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
