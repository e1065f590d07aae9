//! The data of open files.
//!
//! A small file's data is inline, with its inode ([`inline`]); a larger one's lies in blocks on several servers
//! ([`blocks`]), by a layout that can become outdated ([`layouts`]), and is read and written directly where its sub-file is on
//! this node ([`local`]). [`File`] is what this process knows of an open file; [`Data`] is a file at work, with
//! the rooms below that it needs.
//!
//! This room knows the [`Namespace`], because attributes say how long a file is and where it lies. It knows
//! neither paths, nor how descriptions are opened and closed, nor locks.

mod attributes;
mod blocks;
mod gather;
mod holes;
mod inline;
mod layouts;
mod local;
mod reading;
mod unsynced;
mod writing;

use crate::namespace::Namespace;
use crate::requests::{Came, Contents, Requests};
use crate::session::Session;
use bivouac_layout::{FileLayout, Ino, ServerId};
use bivouac_node::{Slot, SlotId};
use bivouac_proto::attr::{Attr, Store};
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::{Errno, OpenId};
use blocks::Blocks;
use layouts::{Known, Layouts};
use local::SubFiles;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use unsynced::Unsynced;

/// Set-user-ID and set-group-ID bits of a mode.
const SET_ID: u16 = 0o6000;

/// An open file, or directory, as far as this process knows it. What all holders of the description share (offset, flags, how
/// far it wrote) is in its [`Slot`] in the node's table; what only speeds this process up (the layout, descriptors of
/// sub-files) is here.
pub(crate) struct File {
    pub(crate) id: SlotId,
    pub(crate) ino: Ino,
    pub(crate) directory: bool,
    /// Once the file is known to live in blocks.
    layouts: Layouts,
    local: SubFiles,
    /// How long the file was when an answer last told; see [`Data::size_seen`].
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

impl File {
    /// Of which nothing is known yet.
    pub(crate) fn new(id: SlotId, ino: Ino, directory: bool) -> File {
        File {
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
}

/// An open file at work.
#[derive(Clone, Copy)]
pub(crate) struct Data<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) file: &'a File,
}

impl<'a> Data<'a> {
    #[inline]
    fn namespace(self) -> &'a Namespace {
        self.namespace
    }

    #[inline]
    fn requests(self) -> &'a Requests {
        self.namespace.requests()
    }

    #[inline]
    fn session(self) -> &'a Session {
        self.namespace.session()
    }

    #[inline]
    pub(crate) fn slot(self) -> Result<&'a Slot, Errno> {
        self.session().table().slot(self.file.id).ok_or(Errno::BADF)
    }

    /// The slot of what may be used. Opened with O_PATH it only names something.
    pub(crate) fn usable(self) -> Result<&'a Slot, Errno> {
        let slot = self.slot()?;
        let path_only = slot.flags.load(Ordering::Relaxed) as i32 & libc::O_PATH != 0;
        if path_only { Err(Errno::BADF) } else { Ok(slot) }
    }

    pub(crate) fn readable(self) -> Result<&'a Slot, Errno> {
        let slot = self.usable()?;
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(Errno::BADF);
        }
        if self.file.directory { Err(Errno::ISDIR) } else { Ok(slot) }
    }

    pub(crate) fn writable(self) -> Result<&'a Slot, Errno> {
        let slot = self.usable()?;
        let read_only = slot.flags.load(Ordering::Relaxed) as i32 & libc::O_ACCMODE == libc::O_RDONLY;
        if read_only || self.file.directory {
            return Err(Errno::BADF);
        }
        Ok(slot)
    }

    #[inline]
    pub(crate) fn in_blocks(self) -> Option<Blocks<'a>> {
        let known = self.file.layouts.newest()?;
        let Data { namespace, file: File { ino, id, local, .. } } = self;
        Some(Blocks { namespace, ino: *ino, id: *id, known, layout: &known.layout, local })
    }
}

impl Data<'_> {
    pub(crate) fn open_id(self) -> OpenId {
        OpenId {
            agent: self.session().agent_number(),
            slot: self.file.id.index,
            incarnation: self.file.id.incarnation,
        }
    }

    /// Access mode and status flags, as `F_GETFL` shows them.
    pub(crate) fn flags(self) -> i32 {
        self.slot().map_or(0, |slot| slot.flags.load(Ordering::Relaxed) as i32)
    }

    /// Takes over what attributes say about where the data is.
    pub(crate) fn learn(self, attr: &Attr) {
        self.file.size_seen.store(attr.size, Ordering::Relaxed);
        self.file.privileged.store(attr.mode & SET_ID != 0, Ordering::Relaxed);
        if let (Store::Blocks { .. }, Some(layout)) = (attr.store, &attr.layout) {
            self.learn_blocks(layout);
        }
    }

    /// Takes over a descriptor that came with the answer to the open.
    pub(crate) fn came(self, came: Came) {
        self.file.local.came((self.requests(), &self.session().map()), self.file.ino, came);
    }

    fn learn_blocks(self, layout: &FileLayout) {
        let is_first = match self.file.layouts.newest() {
            Some(known) if known.layout.version >= layout.version => return,
            known => known.is_none(),
        };
        if !layout.is_valid(&self.session().map()) {
            return;
        }
        self.file.local.have_copies(layout.replicas > 1);
        self.file.layouts.learn(layout.clone());
        if is_first && let Ok(slot) = self.slot() {
            slot.in_blocks.store(1, Ordering::Relaxed);
        }
    }

    /// Does something by the newest layout, again if the layout turns out to be outdated. `None`: the file does not live in
    /// blocks, as far as is known.
    pub(crate) fn by_newest_layout<T>(
        self,
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
    fn renew_layout(self, outdated: &Known) -> Result<(), Errno> {
        let version = outdated.layout.version;
        if self.file.layouts.newest().is_some_and(|known| known.layout.version > version) {
            return Ok(());
        }
        self.learn(&*self.namespace().newer_attr(self.file.ino, version)?);
        // One that makes no sense with the newest map cannot be used.
        let is_newer = self.file.layouts.newest().is_some_and(|known| known.layout.version > version);
        if is_newer { Ok(()) } else { Err(Errno::IO) }
    }

    /// How long the file was when this process was last told, or wrote through this description. Others may
    /// have changed it since: good for choosing the size of a buffer, and for nothing that has to be right.
    pub(crate) fn size_seen(self) -> u64 {
        self.slot()
            .map_or_else(|_| self.file.size_seen.load(Ordering::Relaxed), |slot| self.size_seen_by(slot))
    }

    fn size_seen_by(self, slot: &Slot) -> u64 {
        self.file.size_seen.load(Ordering::Relaxed).max(slot.end.load(Ordering::Relaxed))
    }

    /// To be called before a description that has only appended writes in another way: its server relies on
    /// knowing the file's end as long as all writers append.
    pub(crate) fn no_more_appending(self, slot: &Slot) -> Result<(), Errno> {
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_APPEND == 0 {
            return Ok(());
        }
        let request = MetaRequest::Reopen { ino: self.file.ino, open: self.open_id(), write: true };
        self.requests().meta_on(self.file.ino, &request).map(|_| ())
    }

    /// The file's data has moved to blocks, in this layout.
    fn moved(self, layout: Box<FileLayout>) -> Result<(), Errno> {
        self.learn_blocks(&layout);
        // A layout that makes no sense with the newest map cannot be used.
        if self.file.layouts.newest().is_some() { Ok(()) } else { Err(Errno::IO) }
    }

    /// Has a small file's data moved into blocks.
    pub(crate) fn leave_inline(self) -> Result<(), Errno> {
        if self.in_blocks().is_none() {
            self.moved(self.spill()?)?;
        }
        Ok(())
    }

    /// The server of this node that has all of a range, if one has, and nobody else has copies.
    pub(crate) fn local_server(self, offset: u64, end: u64) -> Option<ServerId> {
        let blocks = self.in_blocks()?;
        let map = self.session().map();
        let piece = blocks.layout.piece_at(&map, offset, end).filter(|piece| piece.len == end - offset)?;
        // What has copies is not accessed past its primary.
        let is_here =
            self.session().local_access() && map.server(piece.server)?.node == self.session().node();
        (is_here && blocks.layout.replicas == 1).then_some(piece.server)
    }
}
