//! Data past a kernel mount.
//!
//! A file that a program has open through a kernel mount is a description of the mount's server, in a slot of
//! the node's table as everybody's. Another process of the node that holds a descriptor of it can learn which
//! one ([`DESCRIBE`], an `ioctl` that the mount answers), [join](Client::join) it, and read and write the
//! file's data without the mount. All that writes leave behind (how far, when, under which size) is in the
//! slot, and is told when the mount closes the description.
//!
//! What the kernel knows by itself is not told: its page cache (which only mappings use) and its idea of the
//! file's size. So as soon as a file is mapped anywhere in the mount, the mount *detours* all descriptions of
//! it: data goes through the kernel again, which keeps its cache right. Each change is
//! [entered](Handle::enter), so that the mount can wait for those under way before it gives the kernel the
//! first page.

use crate::handle::Handle;
use crate::session::Client;
use bivouac_layout::Ino;
use bivouac_node::release::KIND_FILE;
use bivouac_node::{Entered, Slot, SlotId};
use bivouac_proto::Errno;
use rustix::fd::BorrowedFd;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The group of our `ioctl` numbers.
const GROUP: u32 = 0xB1;
/// `ioctl`: which description a descriptor stands for, as [`Shared`] bytes. ENOTTY if it has to be used
/// through the mount.
pub const DESCRIBE: u32 = 2 << 30 | (Shared::LEN as u32) << 16 | GROUP << 8 | 1;
/// `ioctl`: the file is about to be mapped, so that its data has to go through the mount from here on.
pub const MAPS: u32 = GROUP << 8 | 2;

/// Names a mount's description to other processes of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shared {
    agent: u64,
    ino: Ino,
    slot: SlotId,
}

impl Shared {
    /// Bytes of its encoding.
    pub const LEN: usize = 24;

    /// As [`DESCRIBE`] hands it over.
    pub fn to_bytes(self) -> [u8; Shared::LEN] {
        let mut bytes = [0; Shared::LEN];
        bytes[..8].copy_from_slice(&self.agent.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.ino.0.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.slot.index.to_ne_bytes());
        bytes[20..].copy_from_slice(&self.slot.incarnation.to_ne_bytes());
        bytes
    }

    /// What such bytes say.
    pub fn from_bytes(bytes: &[u8; Shared::LEN]) -> Shared {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| words.get(index).map_or(0, |word| u64::from_ne_bytes(*word));
        let (halves, _) = bytes.as_chunks::<4>();
        let half = |index: usize| halves.get(index).map_or(0, |half| u32::from_ne_bytes(*half));
        let slot = SlotId { index: half(4), incarnation: half(5) };
        Shared { agent: word(0), ino: Ino(word(1)), slot }
    }
}

impl Client {
    /// A process's view of a mount's description, of which it holds a descriptor. ESTALE if it is not one of
    /// this node's.
    pub fn join(&'static self, shared: Shared) -> Result<Arc<Handle>, Errno> {
        let slot = self.table().slot(shared.slot).ok_or(Errno::STALE)?;
        let same = slot.ino.load(Ordering::Relaxed) == shared.ino.0
            && slot.kind.load(Ordering::Acquire) == KIND_FILE
            && shared.agent == self.agent_number();
        if same { self.adopt(shared.slot) } else { Err(Errno::STALE) }
    }
}

impl Handle {
    /// How others of the node name the description.
    pub fn shared(&self) -> Shared {
        Shared { agent: self.client().agent_number(), ino: self.ino(), slot: self.id() }
    }

    /// The local file that is all of this one, if it is in blocks, and they all lie on one server of this
    /// node. `create`: it is made when there is none yet. It stays the same file until this one is gone; what
    /// happens to either happens to both.
    pub fn whole_file(&self, create: bool) -> Option<BorrowedFd<'_>> {
        let blocks = self.in_blocks()?;
        let [server] = blocks.servers()[..] else { return None };
        // Copies are written by servers.
        if blocks.layout.replicas != 1 {
            return None;
        }
        blocks.local.get(self.client(), server, self.ino(), create)
    }

    /// Whether the file may have been written through this description in ways that it does not see: then its
    /// close says that it does not know how far and when. Not so until it is said.
    pub fn writes_unseen(&self, unseen: bool) {
        match self.slot() {
            Ok(slot) if unseen => drop(slot.writing.fetch_add(1, Ordering::AcqRel)),
            Ok(slot) => drop(slot.writing.fetch_sub(1, Ordering::AcqRel)),
            Err(_) => {}
        }
    }

    /// Begins a change of data past the mount. `None`: it has to go through the mount.
    pub fn enter(&self) -> Option<Entered<'_>> {
        self.client().table().enter(self.slot().ok()?)
    }

    /// Whether data has to go through the mount, which is so for good once it is.
    pub fn is_detoured(&self) -> bool {
        self.slot().map_or(true, Slot::is_detoured)
    }

    /// Sends all data through the mount, which holds the description, from here on.
    pub fn detour(&self) {
        if let Ok(slot) = self.slot() {
            slot.detour();
        }
    }

    /// Whether no change is under way past the mount, less those of processes that have died in them.
    pub fn has_left(&self) -> bool {
        self.slot().map_or(true, |slot| self.client().table().has_left(slot))
    }

    /// Appends; returns the file's end behind it and the count.
    pub fn append_for_end(&self, from: &[IoSlice<'_>]) -> Result<(u64, usize), Errno> {
        let slot = self.writable()?;
        self.append(slot, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_named_in_so_many_bytes_and_read_back() {
        let slot = SlotId { index: 7, incarnation: u32::MAX };
        let shared = Shared { agent: 1 << 63 | 5, ino: Ino(0xABC_0000_0000_0001), slot };
        assert_eq!(Shared::from_bytes(&shared.to_bytes()), shared);
        assert_eq!((DESCRIBE >> 16 & 0x3fff, DESCRIBE >> 30, MAPS >> 30), (24, 2, 0));
    }
}
