//! A process's view of an open file description: reading, writing, seeking, and what else works on
//! descriptors.
//!
//! What all holders of the description share (offset, flags, how far it wrote) is in its [`Slot`] in the
//! node's table; what only speeds this process up (the layout, descriptors of sub-files) is here.

use crate::blocks::Blocks;
use crate::facts::Contents;
use crate::gather::gather;
use crate::inline::Outcome;
use crate::layouts::{Known, Layouts};
use crate::limits;
use crate::local::SubFiles;
use crate::locks::KeptBlocks;
use crate::names::removed;
use crate::rpc::{DataJob, data_done, data_job, piece_job};
use crate::session::Client;
use crate::unsynced::Unsynced;
use bivouac_layout::{FileLayout, Ino, ServerId};
use bivouac_node::Fd;
use bivouac_node::release::monotonic;
use bivouac_node::{OffsetGuard, Slot, SlotId};
use bivouac_proto::attr::{Attr, FILE_MAX, Store, TRANSFER_MAX};
use bivouac_proto::data::{Access, DataReply, DataRequest, Fallocate};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::meta::{CHOWN_AS_IT_IS, MetaReply, MetaRequest, SetAttr};
use bivouac_proto::{Errno, OpenId};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Flags that `F_SETFL` may change.
const SETTABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;

/// Set-user-ID and set-group-ID bits of a mode.
const SET_ID: u16 = 0o6000;

/// A process's view of an open file description.
pub struct Handle {
    client: &'static Client,
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

/// Counts a write as under way for as long as it lives. So if the process dies during the write, the agent
/// knows that the end of the writes is not known.
struct Writing<'a>(&'a AtomicU32);

impl<'a> Writing<'a> {
    fn begin(slot: &'a Slot) -> Writing<'a> {
        slot.writing.fetch_add(1, Ordering::AcqRel);
        Writing(&slot.writing)
    }

    /// The write failed, and parts of it may have been written: at its close the description reports that it
    /// does not know how far.
    fn failed(self) {
        std::mem::forget(self);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Handle {
    pub(crate) fn new(client: &'static Client, id: SlotId, ino: Ino, directory: bool) -> Handle {
        Handle {
            client,
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

    pub(crate) fn client(&self) -> &'static Client {
        self.client
    }

    #[inline]
    pub(crate) fn slot(&self) -> Result<&'static Slot, Errno> {
        self.client.table().slot(self.id).ok_or(Errno::BADF)
    }

    /// Takes the lock on the shared offset.
    pub(crate) fn lock_offset(&self, slot: &'static Slot) -> Result<OffsetGuard<'static>, Errno> {
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
    pub(crate) fn usable(&self) -> Result<&'static Slot, Errno> {
        let slot = self.slot()?;
        let path_only = slot.flags.load(Ordering::Relaxed) as i32 & libc::O_PATH != 0;
        if path_only { Err(Errno::BADF) } else { Ok(slot) }
    }

    fn readable(&self) -> Result<&'static Slot, Errno> {
        let slot = self.usable()?;
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(Errno::BADF);
        }
        if self.directory { Err(Errno::ISDIR) } else { Ok(slot) }
    }

    pub(crate) fn writable(&self) -> Result<&'static Slot, Errno> {
        let slot = self.usable()?;
        let read_only = slot.flags.load(Ordering::Relaxed) as i32 & libc::O_ACCMODE == libc::O_RDONLY;
        if read_only || self.directory {
            return Err(Errno::BADF);
        }
        Ok(slot)
    }

    /// Reads at the shared offset and moves it.
    pub fn read(&self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let slot = self.readable()?;
        let _guard = self.lock_offset(slot)?;
        let offset = slot.offset.load(Ordering::Relaxed);
        let count = self.read_at(offset, into)?;
        slot.offset.store(offset + count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Reads at an offset.
    pub fn pread(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        self.readable()?;
        self.read_at(offset, into)
    }

    #[inline(always)]
    fn read_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        match into {
            [only] if !only.is_empty() => {
                check_range(offset, only.len())?;
                self.read_one(offset, only)
            }
            _ => self.read_buffers(offset, into),
        }
    }

    #[inline(never)]
    fn read_buffers(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        check_range(offset, into.iter().map(|b| b.len()).sum())?;
        let mut buffers = into.iter_mut().filter(|b| !b.is_empty());
        match (buffers.next(), buffers.next()) {
            (None, _) => Ok(0),
            (Some(only), None) => self.read_one(offset, only),
            _ => self.read_several(offset, into),
        }
    }

    /// Reads into one buffer. (Inlined: see the module `blocks`.)
    #[inline(always)]
    pub(crate) fn read_one(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        if offset >= FILE_MAX {
            return Ok(0);
        }
        loop {
            if let Some(blocks) = self.in_blocks() {
                let count = blocks.read(offset, buffer);
                if !blocks.known.is_outdated() {
                    return count;
                }
                self.renew_layout(blocks.known)?;
                continue;
            }
            match self.read_inline(offset, buffer)? {
                Outcome::Done(count) => return Ok(count),
                Outcome::Moved => self.moved(self.learn_layout()?)?,
            }
        }
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
        Some(Blocks { client: self.client, ino: self.ino, known, layout: &known.layout, local: &self.local })
    }

    /// Writes at the shared offset (at the end, when it appends) and moves it.
    pub fn write(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let slot = self.writable()?;
        let _guard = self.lock_offset(slot)?;
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_APPEND != 0 {
            let (end, count) = self.append(slot, from)?;
            slot.offset.store(end, Ordering::Relaxed);
            return Ok(count);
        }
        let offset = slot.offset.load(Ordering::Relaxed);
        let count = self.write_at(slot, offset, from)?;
        slot.offset.store(offset + count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Writes at an offset. (As Linux does, at the end when the description appends.)
    pub fn pwrite(&self, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let slot = self.writable()?;
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_APPEND != 0 {
            return self.append(slot, from).map(|(_, count)| count);
        }
        self.write_at(slot, offset, from)
    }

    #[inline(always)]
    fn write_at(&self, slot: &Slot, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match from {
            [only] if !only.is_empty() => {
                check_range(offset, only.len())?;
                self.write_one(slot, offset, limits::clipped(offset, only)?)
            }
            _ => self.write_buffers(slot, offset, from),
        }
    }

    #[inline(never)]
    fn write_buffers(&self, slot: &Slot, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        check_range(offset, from.iter().map(|d| d.len()).sum())?;
        let mut slices = from.iter().filter(|d| !d.is_empty());
        let gathered;
        let data = match (slices.next(), slices.next()) {
            (None, _) => return Ok(0),
            (Some(only), None) => only,
            // One request, as one write.
            _ => {
                gathered = gather(from);
                &gathered[..]
            }
        };
        self.write_one(slot, offset, limits::clipped(offset, data)?)
    }

    /// Writes from one buffer. (Inlined: see the module `blocks`.)
    #[inline(always)]
    fn write_one(&self, slot: &Slot, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let sync = slot.flags.load(Ordering::Relaxed) as i32 & libc::O_DSYNC != 0;
        loop {
            if let Some(blocks) = self.in_blocks() {
                self.take_privileges()?;
                if offset > self.size_seen_by(slot) {
                    self.leaves_holes(slot);
                }
                let writing = Writing::begin(slot);
                let count = match self.noting_io_node(|| blocks.write(offset, data, sync)) {
                    _ if blocks.known.is_outdated() => {
                        // The same bytes are written again: the file is as long as this call will make it.
                        if let Err(errno) = self.renew_layout(blocks.known) {
                            writing.failed();
                            return Err(errno);
                        }
                        continue;
                    }
                    Ok(count) => count,
                    Err(errno) => {
                        writing.failed();
                        return Err(errno);
                    }
                };
                wrote(slot, offset + count as u64);
                if count < data.len() {
                    writing.failed();
                }
                if sync {
                    self.sync()?;
                }
                return Ok(count);
            }
            match self.write_inline(offset, data)? {
                Outcome::Done(count) => {
                    self.size_seen.fetch_max(offset + count as u64, Ordering::Relaxed);
                    if sync {
                        self.client.meta_on(self.ino, &MetaRequest::Sync { ino: self.ino })?;
                    }
                    return Ok(count);
                }
                Outcome::Moved => self.moved(self.spill()?)?,
            }
        }
    }

    /// The file's storage will not follow from how far it was written, so at the close its data servers have
    /// to be asked. (This counts a write that never ends, so that the report at the close says that it is
    /// incomplete.)
    fn leaves_holes(&self, slot: &Slot) {
        if !self.uneven.swap(true, Ordering::Relaxed) {
            Writing::begin(slot).failed();
        }
    }

    /// Appends, whatever the description's flags say (`RWF_APPEND`); with `follow` the shared offset goes
    /// along.
    pub fn append_once(&self, from: &[IoSlice<'_>], follow: bool) -> Result<usize, Errno> {
        let slot = self.writable()?;
        let _guard = self.lock_offset(slot)?;
        let (end, count) = self.append(slot, from)?;
        if follow {
            slot.offset.store(end, Ordering::Relaxed);
        }
        Ok(count)
    }

    /// Appends; returns the file's end behind it and the count.
    pub(crate) fn append(&self, slot: &Slot, from: &[IoSlice<'_>]) -> Result<(u64, usize), Errno> {
        let mut end = slot.offset.load(Ordering::Relaxed);
        let mut count = 0;
        // One request, and so atomic, up to what a message carries.
        let gathered;
        let data: &[u8] = match from {
            [only] => only,
            _ => {
                gathered = gather(from);
                &gathered
            }
        };
        let data = match limits::file_size_limit() {
            Some(_) if !data.is_empty() => limits::clipped(self.attr()?.size, data)?,
            _ => data,
        };
        for piece in data.chunks(MAX_PAYLOAD as usize) {
            let request = MetaRequest::Append { ino: self.ino };
            let appended = self.noting_io_node(|| {
                self.client.meta_with(self.ino, &request, &[IoSlice::new(piece)], &mut [])
            });
            match appended {
                // The server keeps size and times of what is appended.
                Ok((MetaReply::Appended { offset, written, .. }, _)) => {
                    count += written as usize;
                    end = offset + u64::from(written);
                    if (written as usize) < piece.len() {
                        break;
                    }
                }
                Ok(_) => return Err(Errno::PROTO),
                Err(_) if count > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_DSYNC != 0 {
            self.sync()?;
        }
        Ok((end, count))
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

    /// Its attributes, exact.
    pub fn attr(&self) -> Result<Attr, Errno> {
        // Who writes knows that nothing is settled yet.
        let writing = self.flags() & libc::O_ACCMODE != libc::O_RDONLY;
        let record = writing.then(|| self.client.known_record(self.ino)).flatten();
        let attr = match record.map_or_else(|| self.client.attr_of(self.ino), |(attr, _)| Ok(attr)) {
            Err(Errno::NOENT) if self.directory => return Ok(*removed(self.ino)),
            // An I/O node has died, and the one in its place has not seen the file yet.
            Err(Errno::NOENT) if self.ino.is_forwarded() => return Err(Errno::STALE),
            found => found?,
        };
        self.learn(&attr);
        let attr = self.client.exact(*attr)?;
        self.size_seen.store(attr.size, Ordering::Relaxed);
        Ok(attr)
    }

    /// Sets attributes.
    pub fn set_attr(&self, set: SetAttr) -> Result<(), Errno> {
        if set.mtime.is_some() {
            // Earlier writes no longer count for mtime, so the close must not report them.
            self.slot()?.wrote_at.store(0, Ordering::Relaxed);
        }
        if let Some(mode) = set.mode {
            self.privileged.store(mode & SET_ID != 0, Ordering::Relaxed);
        }
        self.client.set_attr_of(self.ino, set)
    }

    /// Writes through this description until now do not count for mtime any more, because it is about to be
    /// set explicitly.
    pub fn forget_write_time(&self) {
        if let Ok(slot) = self.slot() {
            slot.wrote_at.store(0, Ordering::Relaxed);
        }
    }

    /// Sets the size (`ftruncate`).
    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.usable()?;
        self.writable().map_err(|_| Errno::INVAL)?;
        // The description keeps its older size version: what it wrote before must not count at its close.
        let attr = self.client.truncate_of(self.ino, size)?;
        self.learn(&attr);
        Ok(())
    }

    /// To be called before blocks change: clears set-user-ID and set-group-ID bits, unless the superuser
    /// writes. (In a mount, the kernel knows who writes and says when to clear them.) For a write to inline
    /// data the server does this.
    fn take_privileges(&self) -> Result<(), Errno> {
        if self.privileged.load(Ordering::Relaxed) && self.client.credentials().uid != 0 {
            match self.client.set_attr_of(self.ino, CHOWN_AS_IT_IS) {
                Ok(()) | Err(Errno::PERM) => self.privileged.store(false, Ordering::Relaxed),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Allocates, punches or zeroes a range; `mode` as for `fallocate(2)`.
    pub fn fallocate(&self, mode: i32, offset: i64, len: i64) -> Result<(), Errno> {
        self.usable()?;
        let (Ok(offset), Ok(len @ 1..)) = (u64::try_from(offset), u64::try_from(len)) else {
            return Err(Errno::INVAL);
        };
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 if keep => Fallocate::KeepSize,
            0 => Fallocate::Extend,
            libc::FALLOC_FL_PUNCH_HOLE if keep => Fallocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::Zero,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let slot = self.writable()?;
        let end = offset.checked_add(len).filter(|&end| end <= FILE_MAX).ok_or(Errno::FBIG)?;
        let size = self.attr()?.size;
        // Within the present size nothing grows, whatever the mode.
        let grow = !keep && end > size;
        if grow && limits::file_size_limit().is_some_and(|limit| end > limit) {
            return Err(limits::exceeded());
        }
        let end =
            if matches!(what, Fallocate::Zero | Fallocate::PunchHole) && !grow { end.min(size) } else { end };
        self.take_privileges()?;
        if offset >= end && !grow {
            return Ok(());
        }
        self.leave_inline()?;
        self.no_more_appending(slot)?;
        self.leaves_holes(slot);
        let mode = if keep && what == Fallocate::Extend { Fallocate::KeepSize } else { what };
        let writing = Writing::begin(slot);
        let allocated = self.by_newest_layout(|blocks| self.fallocate_pieces(blocks, offset..end, mode));
        let allocated = allocated.and_then(|done| done.ok_or(Errno::IO));
        wrote(slot, if grow && allocated.is_ok() { end } else { 0 });
        if allocated.is_err() {
            writing.failed();
        }
        allocated
    }

    fn fallocate_pieces(&self, blocks: &Blocks<'_>, range: Range<u64>, mode: Fallocate) -> Result<(), Errno> {
        let map = self.client.map();
        let request = |offset, len| DataRequest::Fallocate { ino: self.ino, offset, len, mode };
        let mut jobs: Vec<DataJob<'_>> = blocks
            .layout
            .pieces(&map, range)
            .map(|piece| {
                let by = (&piece, blocks.layout.version);
                piece_job(by, request(piece.offset, piece.len), &[], &mut [])
            })
            .collect();
        self.client.data_jobs(&mut jobs);
        jobs.iter_mut().try_for_each(|job| data_done(job).map(drop).map_err(|errno| blocks.noted(errno)))
    }

    /// Puts data and attributes on stable storage, on all servers that hold any. (This also serves
    /// `fdatasync`: the times, which it need not write, are in the same log as the size and the layout, which
    /// it must.)
    pub fn sync(&self) -> Result<(), Errno> {
        self.usable()?;
        if self.ino.is_forwarded() && !self.directory {
            return self.sync_forwarded();
        }
        if !self.directory {
            if self.in_blocks().is_none() {
                // Its data may have moved to blocks without this process noticing.
                self.learn(&*self.client.attr_of(self.ino)?);
            }
            let request = DataRequest::Sync { ino: self.ino };
            self.by_newest_layout(|blocks| {
                self.client.by_newest_map(|map| {
                    let version = blocks.layout.version;
                    let servers = blocks.layout.servers(map, u64::MAX).into_iter();
                    let mut jobs: Vec<_> =
                        servers.map(|s| data_job((s, version), request, &[], &mut [])).collect();
                    self.client.data_jobs(&mut jobs);
                    let done = |job| data_done(job).map(drop).map_err(|errno| blocks.noted(errno));
                    jobs.iter_mut().try_for_each(done)
                })
            })?;
        }
        self.client.meta_on(self.ino, &MetaRequest::Sync { ino: self.ino }).map(|_| ())
    }

    /// An extended attribute's value.
    pub fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.client.get_xattr_of(self.ino, name)
    }

    /// The names of all extended attributes, each ended by NUL.
    pub fn list_xattr(&self) -> Result<Vec<u8>, Errno> {
        self.client.list_xattr_of(self.ino)
    }

    /// Sets an extended attribute; `flags` as for `setxattr(2)`.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], flags: i32) -> Result<(), Errno> {
        self.client.set_xattr_of(self.ino, name, value, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        self.client.remove_xattr_of(self.ino, name)
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

/// Notes in the description's slot how far it wrote, and when.
fn wrote(slot: &Slot, end: u64) {
    // This only grows, so mostly a look is enough. (What it is to be seen with comes by `slot.writing`, which is counted
    // down behind this.)
    if slot.end.load(Ordering::Relaxed) < end {
        slot.end.fetch_max(end, Ordering::AcqRel);
    }
    slot.wrote_at.store(monotonic(), Ordering::Relaxed);
}
