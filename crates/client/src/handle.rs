//! A process's view of an open file description: reading, writing, seeking, and what else works on
//! descriptors.
//!
//! Here is what a descriptor can do: its access mode and flags, its shared offset, and its checks. The data, and what this
//! process knows of where that is, are those of its [`crate::data::File`].

mod attributes;
mod listing;
mod named;
mod reading;
mod writing;

use crate::client::Client;
use crate::data::{Data, File};
use crate::locks::KeptBlocks;
use bivouac_layout::Ino;
use bivouac_node::{Fd, OffsetGuard, Slot, SlotId};
use bivouac_proto::Errno;
use bivouac_proto::data::{Access, DataReply, DataRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Flags that `F_SETFL` may change.
const SETTABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;

/// A process's view of an open file description.
pub struct Handle {
    client: Arc<Client>,
    file: File,
}

impl Handle {
    pub(crate) fn new(client: &Arc<Client>, file: File) -> Handle {
        Handle { client: client.clone(), file }
    }

    /// Its data.
    #[inline]
    pub(crate) fn data(&self) -> Data<'_> {
        Data { namespace: self.client.namespace(), file: &self.file }
    }

    /// Its slot in the node's table.
    pub fn id(&self) -> SlotId {
        self.file.id
    }

    /// Its inode.
    pub fn ino(&self) -> Ino {
        self.file.ino
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.file.directory
    }

    /// The client that it was opened through.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// How long the file was when this process was last told, or wrote through this description. Others may
    /// have changed it since: good for choosing the size of a buffer, and for nothing that has to be right.
    pub fn size_seen(&self) -> u64 {
        self.data().size_seen()
    }

    /// Takes the lock on the shared offset.
    pub(crate) fn lock_offset<'s>(&self, slot: &'s Slot) -> Result<OffsetGuard<'s>, Errno> {
        self.client.session().table().lock_offset(slot).map_err(|error| Errno(error.raw_errno() as u16))
    }

    /// Access mode and status flags, as `F_GETFL` shows them.
    pub fn flags(&self) -> i32 {
        self.data().flags()
    }

    /// Whether it was opened with O_PATH: it names something, and can do little else.
    pub fn is_path_only(&self) -> bool {
        self.flags() & libc::O_PATH != 0
    }

    /// Sets the status flags that may be set (`F_SETFL`).
    pub fn set_flags(&self, flags: i32) {
        if let Ok(slot) = self.data().slot() {
            if flags & libc::O_APPEND == 0 {
                // Best effort is enough for a server that is gone.
                let _ = self.data().no_more_appending(slot);
            }
            let kept = slot.flags.load(Ordering::Relaxed) as i32 & !SETTABLE;
            slot.flags.store((kept | flags & SETTABLE) as u32, Ordering::Relaxed);
        }
    }

    /// Has a small file's data moved into blocks.
    pub fn leave_inline(&self) -> Result<(), Errno> {
        self.data().leave_inline()
    }

    /// Moves the shared offset. `whence` as for `lseek(2)`; a directory's offsets are cookies.
    pub fn seek(&self, offset: i64, whence: i32) -> Result<u64, Errno> {
        let slot = self.data().usable()?;
        let _guard = self.lock_offset(slot)?;
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => slot.offset.load(Ordering::Relaxed) as i64,
            libc::SEEK_END if self.file.directory => i64::MAX,
            libc::SEEK_END => self.data().attr()?.size as i64,
            libc::SEEK_DATA | libc::SEEK_HOLE if !self.file.directory => {
                let found = self.data().seek_data(offset, whence == libc::SEEK_HOLE)?;
                slot.offset.store(found, Ordering::Relaxed);
                return Ok(found);
            }
            _ => return Err(Errno::INVAL),
        };
        // Beyond what can be told is EINVAL, as for a local file.
        let to = base.checked_add(offset).ok_or(Errno::INVAL)?;
        let to = u64::try_from(to).map_err(|_| Errno::INVAL)?;
        slot.offset.store(to, Ordering::Relaxed);
        Ok(to)
    }

    /// The first data (or `hole`) at or after `offset`; the end of the file is a hole. ENXIO where there is
    /// none.
    pub fn seek_data(&self, offset: i64, hole: bool) -> Result<u64, Errno> {
        self.data().seek_data(offset, hole)
    }

    /// A descriptor of the local sub-file, when all of a range lies in it: for mapping it into memory. With
    /// `write` the sub-file is made if need be. (No fence holds up what goes through a mapping.) The range stays there as long
    /// as what comes with it lives.
    pub fn local_descriptor(&self, offset: u64, len: u64, write: bool) -> Option<(Fd, KeptBlocks)> {
        let end = offset.checked_add(len)?;
        self.data().local_server(offset, end)?;
        let kept = self.keep_blocks().ok()?;
        let access = if write { Access::Make } else { Access::Write };
        let request = DataRequest::Pass { ino: self.file.ino, access };
        let passed = self.data().by_newest_layout(|blocks| {
            let server = self.data().local_server(offset, end).ok_or(Errno::NODEV)?;
            let by = (server, blocks.layout.version);
            let answered = self.client.requests().data(by, request, &[], &mut []);
            answered.map_err(|errno| blocks.noted(errno))
        });
        match passed.ok()?? {
            (DataReply::Passed, _, Some(fd)) => Some((fd, kept)),
            _ => None,
        }
    }
}
