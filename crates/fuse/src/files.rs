//! Operations on open files.

use crate::abi::{
    OPEN_KILL_SUIDGID, OPENED_DIRECT_IO, OPENED_PARALLEL_WRITES, OPENED_PASSTHROUGH, READ_LOCK_OWNER, Reply,
    WRITE_CACHE, WRITE_KILL_SUIDGID,
};
use crate::face::{Answer, Call};
use crate::pages::{Pages, Source};
use crate::passthrough::Opened;
use bivouac_client::{Fail, Handle, OpenedFile};
use bivouac_proto::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Most that one COPY_FILE_RANGE copies, bytes: its reply counts in 32 bits.
const LARGEST_COPY: u64 = 1 << 30;

/// A file that the kernel has open.
pub(crate) struct OpenFile {
    pub(crate) handle: Arc<Handle>,
    opened: Opened,
    pages: Arc<Pages>,
}

impl OpenFile {
    /// Whether it is mapped without the mount's page cache.
    pub(crate) fn is_backed(&self) -> bool {
        matches!(self.opened, Opened::Backed { .. })
    }

    /// A program's `write`.
    fn write(&self, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let change = self.pages.change(Source::Call, offset..offset.saturating_add(data.len() as u64));
        let count = self.handle.pwrite(offset, &[IoSlice::new(data)])?;
        change.written(offset..offset.saturating_add(count as u64));
        Ok(count)
    }

    /// The kernel writes back pages of its cache. Leaves out bytes that are older than a `write`.
    fn write_back(&self, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let change = self.pages.change(Source::Cache, offset..offset.saturating_add(data.len() as u64));
        for part in change.allowed() {
            let mut at = part.start;
            while at < part.end {
                let left = data.get((at - offset) as usize..(part.end - offset) as usize).unwrap_or_default();
                match self.handle.pwrite(at, &[IoSlice::new(left)])? {
                    0 => return Err(Errno::IO),
                    count => at += count as u64,
                }
            }
        }
        Ok(data.len())
    }
}

impl Call<'_> {
    pub(crate) fn file(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        self.face.files.get(number)
    }

    /// Appends what an open answers: the file's number, and how the kernel is to treat it.
    fn put_opened(&self, reply: &mut Reply, handle: Arc<Handle>) {
        let opened = self.face.passthrough.opened(&handle, self.face.privileged.has(handle.ino()));
        let pages = self.face.shortcuts.opened(handle.ino());
        let file = Arc::new(OpenFile { handle, opened, pages });
        self.face.writers.opened(&file);
        let number = self.face.files.add(file);
        // Without direct I/O: drop cached pages of an earlier open, and later those that size and time show
        // to be outdated.
        let direct = if self.face.direct { OPENED_DIRECT_IO | OPENED_PARALLEL_WRITES } else { 0 };
        let (flags, backing) = match opened {
            Opened::Uncounted | Opened::Plain => (direct, 0),
            Opened::Backed { id, seen, .. } => (OPENED_PASSTHROUGH | if seen { direct } else { 0 }, id),
        };
        reply.u64(number).u32(flags).u32(backing);
    }

    pub(crate) fn open(&mut self) -> Result<Answer, Errno> {
        let (flags, how) = (self.fields.u32()? as i32, self.fields.u32()?);
        if flags & libc::O_TRUNC != 0 && how & OPEN_KILL_SUIDGID != 0 {
            self.take_privileges_of_all(self.ino())?;
        }
        let opened = self.face.client.open_file(self.ino(), flags, 0).map_err(Fail::errno)?;
        let mut reply = Reply::new();
        self.put_opened(&mut reply, opened.handle);
        Ok(Answer::Told(reply))
    }

    pub(crate) fn create(&mut self) -> Result<Answer, Errno> {
        let (flags, mode) = (self.fields.u32()? as i32, self.fields.u32()?);
        self.fields.skip(8)?;
        let name = self.fields.name()?;
        let client = &self.face.client;
        // The kernel found no such name, and so has checked no permission on a file. If the name exists now,
        // a caller without privilege has to look again.
        let strict = self.asked.uid != 0 && self.asked.uid != self.face.user.0;
        let wanted = libc::O_CREAT | if strict { flags | libc::O_EXCL } else { flags };
        let opened = match client.open_file((self.ino(), name, false), wanted, mode).map_err(Fail::errno) {
            Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => {
                // Answered directly: an ESTALE in `Err` would become ENOENT.
                self.channel.answer(self.asked.unique, Err(Errno::STALE));
                return Ok(Answer::None);
            }
            other => other?,
        };
        self.created(opened)
    }

    /// O_TMPFILE.
    pub(crate) fn create_nameless(&mut self) -> Result<Answer, Errno> {
        let (flags, mode) = (self.fields.u32()? as i32, self.fields.u32()?);
        let flags = flags | libc::O_TMPFILE;
        let opened = self.face.client.open_file(self.ino(), flags, mode).map_err(Fail::errno)?;
        self.created(opened)
    }

    fn created(&self, opened: OpenedFile) -> Result<Answer, Errno> {
        let OpenedFile { handle, attr, created } = opened;
        let attr = match created.then(|| self.give_to_caller(attr.clone())) {
            None => attr,
            Some(Ok(given)) => given,
            Some(Err(errno)) => {
                self.face.client.close_waiting(handle.id());
                return Err(errno);
            }
        };
        let mut reply = self.entry(&attr);
        self.put_opened(&mut reply, handle);
        Ok(Answer::Told(reply))
    }

    pub(crate) fn read(&mut self) -> Result<Answer, Errno> {
        let (fh, offset, size) = (self.fields.u64()?, self.fields.u64()?, self.fields.u32()? as usize);
        let how = self.fields.u32()?;
        let file = self.file(fh)?;
        if how & READ_LOCK_OWNER == 0 && self.face.direct && !file.is_backed() {
            // A page of a mapping.
            self.face.shortcuts.detour(file.handle.ino());
            file.pages.fetch(offset..offset.saturating_add(size as u64));
        }
        let size = size.min(self.scratch.len());
        let into = self.scratch.get_mut(..size).ok_or(Errno::INVAL)?;
        let count = file.handle.pread(offset, &mut [IoSliceMut::new(into)])?;
        Ok(Answer::Data(count))
    }

    pub(crate) fn write(&mut self) -> Result<Answer, Errno> {
        let (fh, offset) = (self.fields.u64()?, self.fields.u64()?);
        let (size, how) = (self.fields.u32()? as usize, self.fields.u32()?);
        self.fields.skip(8)?;
        let flags = self.fields.u32()? as i32;
        self.fields.skip(4)?;
        let data = self.fields.bytes(size)?;
        let file = self.file(fh)?;
        if how & WRITE_KILL_SUIDGID != 0 {
            self.take_privileges(self.ino())?;
        }
        let handle = &file.handle;
        let known = handle.flags();
        // A page that is written back goes to its own offset, even if the description appends.
        let append = flags & libc::O_APPEND != 0 && how & WRITE_CACHE == 0;
        if (flags ^ known) & libc::O_APPEND != 0 && how & WRITE_CACHE == 0 {
            // A program without the library has switched O_APPEND. Processes that go past the mount would not
            // know it.
            handle.detour();
        }
        let count = if append {
            // Only the inode's server knows where the end is.
            let change = file.pages.change(Source::Call, 0..u64::MAX);
            let (end, count) = handle.append_for_end(&[IoSlice::new(data)])?;
            change.written(end.saturating_sub(count as u64)..end);
            count
        } else {
            if known & libc::O_APPEND != 0 {
                handle.set_flags(known & !libc::O_APPEND);
            }
            if how & WRITE_CACHE == 0 { file.write(offset, data)? } else { file.write_back(offset, data)? }
        };
        let mut reply = Reply::new();
        reply.u32(count as u32).u32(0);
        Ok(Answer::Told(reply))
    }

    /// A descriptor was closed: the locks of the process that did it go.
    pub(crate) fn flush(&mut self) -> Result<Answer, Errno> {
        let fh = self.fields.u64()?;
        self.fields.skip(8)?;
        let owner = self.fields.u64()?;
        let file = self.file(fh)?;
        if let Some(leaving) = self.face.lockers.forget(owner, file.handle.ino()) {
            self.unlock_all(&file.handle, leaving);
        }
        Ok(Answer::Empty)
    }

    /// The last descriptor is gone, and with it all locks that were taken through it.
    pub(crate) fn release(&mut self) -> Result<Answer, Errno> {
        let fh = self.fields.u64()?;
        let file = self.face.files.remove(fh)?;
        for leaving in self.face.lockers.closed(fh, file.handle.ino()) {
            self.unlock_all(&file.handle, leaving);
        }
        self.face.shortcuts.closed(&file);
        if self.face.passthrough.closed(file.handle.ino(), file.opened) {
            file.handle.writes_unseen(false);
        }
        self.face.writers.close(&file, || self.face.client.close_waiting(file.handle.id()));
        Ok(Answer::Empty)
    }

    pub(crate) fn fsync(&mut self) -> Result<Answer, Errno> {
        let fh = self.fields.u64()?;
        self.file(fh)?.handle.sync()?;
        Ok(Answer::Empty)
    }

    pub(crate) fn fallocate(&mut self) -> Result<Answer, Errno> {
        let (fh, offset, length) = (self.fields.u64()?, self.fields.u64()?, self.fields.u64()?);
        let mode = self.fields.u32()? as i32;
        let (offset, length) = (i64::try_from(offset), i64::try_from(length));
        let (Ok(offset), Ok(length)) = (offset, length) else { return Err(Errno::INVAL) };
        let file = self.file(fh)?;
        // If the kernel knew of set-id bits that have to be cleared, it has sent a `setattr` with nothing to set.
        if self.asked.uid != 0 {
            self.take_privileges_of_all(self.ino())?;
        }
        let range = offset as u64..(offset as u64).saturating_add(length as u64);
        let change = file.pages.change(Source::Call, range.clone());
        file.handle.fallocate(mode, offset, length)?;
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
            change.written(range);
        }
        Ok(Answer::Empty)
    }

    /// Where data or a hole begins; all other kinds of seeking the kernel does itself.
    pub(crate) fn lseek(&mut self) -> Result<Answer, Errno> {
        let (fh, offset, whence) = (self.fields.u64()?, self.fields.u64()?, self.fields.u32()? as i32);
        let offset = i64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let file = self.file(fh)?;
        let handle = &file.handle;
        let found = match whence {
            // Mappings may have filled holes in the kernel's cache, so everything may be data.
            libc::SEEK_DATA | libc::SEEK_HOLE if self.face.shortcuts.is_detoured(handle.ino()) => {
                let size = handle.seek(0, libc::SEEK_END)?;
                let at = u64::try_from(offset).ok().filter(|at| *at < size).ok_or(Errno::NXIO)?;
                if whence == libc::SEEK_DATA { at } else { size }
            }
            _ => handle.seek(offset, whence)?,
        };
        let mut reply = Reply::new();
        reply.u64(found);
        Ok(Answer::Told(reply))
    }

    pub(crate) fn copy_file_range(&mut self) -> Result<Answer, Errno> {
        let (fh_in, mut from) = (self.fields.u64()?, self.fields.u64()?);
        let (_to_ino, fh_out, mut to) = (self.other_ino()?, self.fields.u64()?, self.fields.u64()?);
        let length = self.fields.u64()?.min(LARGEST_COPY);
        let (source, target) = (self.file(fh_in)?, self.file(fh_out)?);
        if self.face.shortcuts.is_detoured(target.handle.ino()) {
            // After the copy, the kernel would drop the first and the last page, and lose what a mapping has
            // changed in them outside the copied range. With this error it copies by reading and writing,
            // which is coherent with mappings.
            return Err(Errno::OPNOTSUPP);
        }
        let mut done = 0;
        while done < length {
            let room = ((length - done) as usize).min(self.scratch.len());
            let Some(piece) = self.scratch.get_mut(..room) else { break };
            let copied = source.handle.pread(from, &mut [IoSliceMut::new(piece)]).and_then(|count| {
                let data = piece.get(..count).unwrap_or_default();
                if data.is_empty() { Ok(0) } else { target.handle.pwrite(to, &[IoSlice::new(data)]) }
            });
            match copied {
                Ok(count) => {
                    let moved = count as u64;
                    (from, to, done) = (from + moved, to + moved, done + moved);
                    // The source has ended, or the target is full: the next call tells which.
                    if count < room {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        let mut reply = Reply::new();
        reply.u32(done as u32).u32(0);
        Ok(Answer::Told(reply))
    }
}
