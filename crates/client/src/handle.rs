//! A process's view of an open file description: reading, writing, seeking, and what else works on
//! descriptors.
//!
//! What all holders of the description share (offset, flags, how far it wrote) is in its [`Slot`] in the
//! node's table; what only speeds this process up (the layout, descriptors of sub-files) is here.

mod attributes;
mod reading;
mod writing;

use crate::blocks::Blocks;
use crate::facts::Contents;
use crate::layouts::{Known, Layouts};
use crate::local::SubFiles;
use crate::locks::KeptBlocks;
use crate::session::Client;
use crate::unsynced::Unsynced;
use bivouac_layout::{FileLayout, Ino, ServerId};
use bivouac_node::Fd;
use bivouac_node::{OffsetGuard, Slot, SlotId};
use bivouac_proto::attr::{Attr, FILE_MAX, Store, TRANSFER_MAX};
use bivouac_proto::data::{Access, DataReply, DataRequest};
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::{Errno, OpenId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Flags that `F_SETFL` may change.
const SETTABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;

/// Set-user-ID and set-group-ID bits of a mode.
const SET_ID: u16 = 0o6000;

/// A process's view of an open file description.
pub struct Handle {
    client: Arc<Client>,
    id: SlotId,
    ino: Ino,
    directory: bool,
    /// Once the file is known to live in blocks.
    layouts: Layouts,
    local: SubFiles,
    /// How long the file was when an answer last told; see [`Handle::size_seen`].
    size_seen: AtomicU64,
    /// At its close it has to report that holes may have been left or filled.
    uneven: AtomicBool,
    /// The inline data as of the open; used as long as its shard has not changed.
    pub(crate) contents: Option<Contents>,
    /// Whether the file has set-user-ID or set-group-ID bits, as far as is known: a write to its blocks
    /// clears them.
    privileged: AtomicBool,
    /// Of a forwarded file.
    unsynced: Unsynced,
}

impl Handle {
    pub(crate) fn new(client: &Arc<Client>, id: SlotId, ino: Ino, directory: bool) -> Handle {
        Handle {
            client: client.clone(),
            id,
            ino,
            directory,
            layouts: Layouts::default(),
            local: SubFiles::new(),
            size_seen: AtomicU64::new(0),
            uneven: AtomicBool::new(false),
            contents: None,
            privileged: AtomicBool::new(false),
            unsynced: Unsynced::default(),
        }
    }

    pub(crate) fn unsynced(&self) -> &Unsynced {
        &self.unsynced
    }

    /// Takes over what attributes say about where the data is.
    pub(crate) fn learn(&self, attr: &Attr) {
        self.size_seen.store(attr.size, Ordering::Relaxed);
        self.privileged.store(attr.mode & SET_ID != 0, Ordering::Relaxed);
        if let (Store::Blocks { .. }, Some(layout)) = (attr.store, &attr.layout) {
            self.learn_blocks(layout);
        }
    }

    fn learn_blocks(&self, layout: &FileLayout) {
        let is_first = match self.layouts.newest() {
            Some(known) if known.layout.version >= layout.version => return,
            known => known.is_none(),
        };
        if !layout.is_valid(&self.client.map()) {
            return;
        }
        self.local.have_copies(layout.replicas > 1);
        self.layouts.learn(layout.clone());
        if is_first && let Ok(slot) = self.slot() {
            slot.in_blocks.store(1, Ordering::Relaxed);
        }
    }

    /// Does something by the newest layout, again if the layout turns out to be outdated. `None`: the file does not live in
    /// blocks, as far as is known.
    pub(crate) fn by_newest_layout<T>(
        &self,
        access: impl Fn(&Blocks<'_>) -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        loop {
            let Some(blocks) = self.in_blocks() else { return Ok(None) };
            let done = access(&blocks);
            if !blocks.known.is_outdated() {
                return done.map(Some);
            }
            self.renew_layout(blocks.known)?;
        }
    }

    /// Learns the file's layout after a server has refused an access by this one.
    #[cold]
    fn renew_layout(&self, outdated: &Known) -> Result<(), Errno> {
        let version = outdated.layout.version;
        if self.layouts.newest().is_some_and(|known| known.layout.version > version) {
            return Ok(());
        }
        self.learn(&*self.client.newer_attr(self.ino, version)?);
        // One that makes no sense with the newest map cannot be used.
        let is_newer = self.layouts.newest().is_some_and(|known| known.layout.version > version);
        if is_newer { Ok(()) } else { Err(Errno::IO) }
    }

    /// Its slot in the node's table.
    pub fn id(&self) -> SlotId {
        self.id
    }

    /// Its inode.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.directory
    }

    /// How long the file was when this process was last told, or wrote through this description. Others may
    /// have changed it since: good for choosing the size of a buffer, and for nothing that has to be right.
    pub fn size_seen(&self) -> u64 {
        self.slot().map_or_else(|_| self.size_seen.load(Ordering::Relaxed), |slot| self.size_seen_by(slot))
    }

    fn size_seen_by(&self, slot: &Slot) -> u64 {
        self.size_seen.load(Ordering::Relaxed).max(slot.end.load(Ordering::Relaxed))
    }

    /// The client that it was opened through.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    #[inline]
    pub(crate) fn slot(&self) -> Result<&Slot, Errno> {
        self.client.table().slot(self.id).ok_or(Errno::BADF)
    }

    /// Takes the lock on the shared offset.
    pub(crate) fn lock_offset<'s>(&self, slot: &'s Slot) -> Result<OffsetGuard<'s>, Errno> {
        self.client.table().lock_offset(slot).map_err(|error| Errno(error.raw_errno() as u16))
    }

    pub(crate) fn open_id(&self) -> OpenId {
        OpenId { agent: self.client.agent_number(), slot: self.id.index, incarnation: self.id.incarnation }
    }

    /// Access mode and status flags, as `F_GETFL` shows them.
    pub fn flags(&self) -> i32 {
        self.slot().map_or(0, |slot| slot.flags.load(Ordering::Relaxed) as i32)
    }

    /// Whether it was opened with O_PATH: it names something, and can do little else.
    pub fn is_path_only(&self) -> bool {
        self.flags() & libc::O_PATH != 0
    }

    /// Sets the status flags that may be set (`F_SETFL`).
    pub fn set_flags(&self, flags: i32) {
        if let Ok(slot) = self.slot() {
            if flags & libc::O_APPEND == 0 {
                // Best effort is enough for a server that is gone.
                let _ = self.no_more_appending(slot);
            }
            let kept = slot.flags.load(Ordering::Relaxed) as i32 & !SETTABLE;
            slot.flags.store((kept | flags & SETTABLE) as u32, Ordering::Relaxed);
        }
    }

    /// To be called before a description that has only appended writes in another way: its server relies on
    /// knowing the file's end as long as all writers append.
    fn no_more_appending(&self, slot: &Slot) -> Result<(), Errno> {
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_APPEND == 0 {
            return Ok(());
        }
        let request = MetaRequest::Reopen { ino: self.ino, open: self.open_id(), write: true };
        self.client.meta_on(self.ino, &request).map(|_| ())
    }

    /// The slot of what may be used. Opened with O_PATH it only names something.
    pub(crate) fn usable(&self) -> Result<&Slot, Errno> {
        let slot = self.slot()?;
        let path_only = slot.flags.load(Ordering::Relaxed) as i32 & libc::O_PATH != 0;
        if path_only { Err(Errno::BADF) } else { Ok(slot) }
    }

    fn readable(&self) -> Result<&Slot, Errno> {
        let slot = self.usable()?;
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(Errno::BADF);
        }
        if self.directory { Err(Errno::ISDIR) } else { Ok(slot) }
    }

    pub(crate) fn writable(&self) -> Result<&Slot, Errno> {
        let slot = self.usable()?;
        let read_only = slot.flags.load(Ordering::Relaxed) as i32 & libc::O_ACCMODE == libc::O_RDONLY;
        if read_only || self.directory {
            return Err(Errno::BADF);
        }
        Ok(slot)
    }

    /// The file's data has moved to blocks, in this layout.
    fn moved(&self, layout: Box<FileLayout>) -> Result<(), Errno> {
        self.learn_blocks(&layout);
        // A layout that makes no sense with the newest map cannot be used.
        if self.layouts.newest().is_some() { Ok(()) } else { Err(Errno::IO) }
    }

    /// Has a small file's data moved into blocks.
    pub fn leave_inline(&self) -> Result<(), Errno> {
        if self.in_blocks().is_none() {
            self.moved(self.spill()?)?;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn in_blocks(&self) -> Option<Blocks<'_>> {
        let known = self.layouts.newest()?;
        let Handle { ref client, ino, id, ref local, .. } = *self;
        Some(Blocks { client, ino, id, known, layout: &known.layout, local })
    }

    /// Moves the shared offset. `whence` as for `lseek(2)`; a directory's offsets are cookies.
    pub fn seek(&self, offset: i64, whence: i32) -> Result<u64, Errno> {
        let slot = self.usable()?;
        let _guard = self.lock_offset(slot)?;
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => slot.offset.load(Ordering::Relaxed) as i64,
            libc::SEEK_END if self.directory => i64::MAX,
            libc::SEEK_END => self.attr()?.size as i64,
            libc::SEEK_DATA | libc::SEEK_HOLE if !self.directory => {
                let found = self.seek_data(offset, whence == libc::SEEK_HOLE)?;
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

    /// A descriptor of the local sub-file, when all of a range lies in it: for mapping it into memory. With
    /// `write` the sub-file is made if need be. (No fence holds up what goes through a mapping.) The range stays there as long
    /// as what comes with it lives.
    pub fn local_descriptor(&self, offset: u64, len: u64, write: bool) -> Option<(Fd, KeptBlocks)> {
        let end = offset.checked_add(len)?;
        self.local_server(offset, end)?;
        let kept = self.keep_blocks().ok()?;
        let access = if write { Access::Make } else { Access::Write };
        let request = DataRequest::Pass { ino: self.ino, access };
        let passed = self.by_newest_layout(|blocks| {
            let server = self.local_server(offset, end).ok_or(Errno::NODEV)?;
            let by = (server, blocks.layout.version);
            let answered = self.client.data(by, request, &[], &mut []);
            answered.map_err(|errno| blocks.noted(errno))
        });
        match passed.ok()?? {
            (DataReply::Passed, _, Some(fd)) => Some((fd, kept)),
            _ => None,
        }
    }

    /// The server of this node that has all of a range, if one has, and nobody else has copies.
    fn local_server(&self, offset: u64, end: u64) -> Option<ServerId> {
        let blocks = self.in_blocks()?;
        let map = self.client.map();
        let piece = blocks.layout.piece_at(&map, offset, end).filter(|piece| piece.len == end - offset)?;
        // What has copies is not accessed past its primary.
        let is_here = self.client.local_access && map.server(piece.server)?.node == self.client.node();
        (is_here && blocks.layout.replicas == 1).then_some(piece.server)
    }
}

/// Refuses a transfer whose end no offset could name, as the kernel does.
fn check_range(offset: u64, len: usize) -> Result<(), Errno> {
    let end = offset.checked_add(len.min(TRANSFER_MAX) as u64);
    if end.is_some_and(|end| end <= FILE_MAX) { Ok(()) } else { Err(Errno::INVAL) }
}
