//! Reading and writing data past a kernel mount (`--access both`).
//!
//! If a program has a file open through a kernel mount, the mount's server has an open file description for
//! it, in a slot of the node's table like every other. Another process of the node that holds a descriptor of
//! the file can learn which slot that is ([`DESCRIBE`], an `ioctl` that the mount answers),
//! [join](Client::join) it, and read and write the file's data without the mount. It records in the slot what
//! its writes change (how far, when, under which size version), and the mount reports that when it closes the
//! description.
//!
//! The kernel does not learn of such writes: neither its page cache (which only mappings use), nor the size
//! that it has for the file. So as soon as a file is mapped anywhere in the mount, the mount *detours* all
//! descriptions of it: data goes through the kernel again, which keeps its cache coherent. Each change is
//! [entered](Handle::enter) first, so that the mount can wait for changes that are under way before it gives
//! the kernel the first page.

use crate::client::Client;
use crate::handle::Handle;
use crate::locks::KeptBlocks;
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
    pub fn join(self: &Arc<Self>, shared: Shared) -> Result<Arc<Handle>, Errno> {
        let slot = self.session().table().slot(shared.slot).ok_or(Errno::STALE)?;
        let same = slot.ino.load(Ordering::Relaxed) == shared.ino.0
            && slot.kind.load(Ordering::Acquire) == KIND_FILE
            && shared.agent == self.session().agent_number();
        if same { self.adopt(shared.slot) } else { Err(Errno::STALE) }
    }
}

impl Handle {
    /// How other processes of the node refer to the description.
    pub fn shared(&self) -> Shared {
        Shared { agent: self.client().session().agent_number(), ino: self.ino(), slot: self.id() }
    }

    /// The sub-file that contains all of this file's data, if the file is in blocks and all of them are on
    /// one server of this node, for the kernel. `create`: makes the sub-file if there is none yet. The file
    /// keeps this sub-file as long as what comes with it lives; what is done to the sub-file is done to the file. (No fence
    /// holds up what the kernel does with it.)
    pub fn whole_file(&self, create: bool) -> Option<(BorrowedFd<'_>, KeptBlocks)> {
        let blocks = self.data().in_blocks()?;
        let [server] = blocks.servers()[..] else { return None };
        // With copies, servers have to write.
        if blocks.layout.replicas != 1 {
            return None;
        }
        if !self.client().session().local_access()
            || self.client().session().map().server(server)?.node != self.client().session().node()
        {
            return None;
        }
        let kept = self.keep_blocks().ok()?;
        let blocks = self.data().in_blocks().filter(|blocks| blocks.servers()[..] == [server])?;
        let file = blocks.local.get(
            (self.client().requests(), &self.client().session().map()),
            server,
            (self.ino(), blocks.known),
            create,
        )?;
        Some((file.descriptor(), kept))
    }

    /// Says whether the file may be written through this description without its noticing (by the kernel).
    /// Then its close reports that it does not know how far and when it wrote. At first, a description counts
    /// as noticing all of its writes.
    pub fn writes_unseen(&self, unseen: bool) {
        match self.data().slot() {
            Ok(slot) if unseen => drop(slot.writing.fetch_add(1, Ordering::AcqRel)),
            Ok(slot) => drop(slot.writing.fetch_sub(1, Ordering::AcqRel)),
            Err(_) => {}
        }
    }

    /// Begins a change of data past the mount. `None`: the change has to go through the mount.
    pub fn enter(&self) -> Option<Entered<'_>> {
        self.client().session().table().enter(self.data().slot().ok()?)
    }

    /// Whether data has to go through the mount. Once it has to, that never changes back for this
    /// description.
    pub fn is_detoured(&self) -> bool {
        self.data().slot().map_or(true, Slot::is_detoured)
    }

    /// From now on, all data has to go through the mount, which holds the description.
    pub fn detour(&self) {
        if let Ok(slot) = self.data().slot() {
            slot.detour();
        }
    }

    /// Whether no change is under way past the mount. Changes of processes that have died meanwhile do not
    /// count.
    pub fn has_left(&self) -> bool {
        self.data().slot().map_or(true, |slot| self.client().session().table().has_left(slot))
    }

    /// Appends; returns the file's end behind it and the count.
    pub fn append_for_end(&self, from: &[IoSlice<'_>]) -> Result<(u64, usize), Errno> {
        let slot = self.data().writable()?;
        if from.iter().all(|data| data.is_empty()) {
            return Ok((self.attr()?.size, 0));
        }
        self.data().append(slot, from)
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
