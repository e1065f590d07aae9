//! `copy_file_range`, `sendfile` and `splice` where a file of ours takes part.

use super::{data, fds, state};
use bivouac_client::Handle;
use bivouac_proto::Errno;
use bivouac_proto::attr::FILE_MAX;
use std::io::{IoSlice, IoSliceMut};

/// Most bytes moved by one call: callers go on where it ended.
const MOST: usize = 32 << 20;
/// Bytes in memory at once.
const PIECE: usize = 4 << 20;
/// Bytes to read at once from a file whose size is not known.
const UNKNOWN: usize = 16 << 10;

/// One end of a copy.
struct End<'a> {
    fd: i32,
    file: Option<fds::File>,
    /// The program's own offset, which the call moves instead of the descriptor's.
    offset: Option<&'a mut i64>,
}

impl<'a> End<'a> {
    fn new(fd: i32, offset: Option<&'a mut i64>) -> Result<End<'a>, Errno> {
        let file = fds::get(fd)?;
        if file.as_ref().is_some_and(|file| file.is_path_only()) {
            return Err(Errno::BADF);
        }
        Ok(End { fd, file, offset })
    }

    fn ours(&self) -> Option<&Handle> {
        self.file.as_deref()
    }

    /// The current offset.
    fn position(&self) -> Result<i64, Errno> {
        match &self.offset {
            Some(offset) => Ok(**offset),
            None => data::lseek(self.fd, 0, libc::SEEK_CUR),
        }
    }

    /// How much is worth trying to read from `at` on: what the file was last seen to have there. Where that
    /// is nothing, the first time (not `going_on`) a look at the file tells; a call that has moved something
    /// already ends there.
    fn readable(&self, at: i64, going_on: bool) -> Result<usize, Errno> {
        let at = data::position(at)?;
        let left = |size: u64| usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX);
        let Some(file) = self.ours().filter(|file| !file.is_directory()) else {
            let size = super::fstat(self.fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
            // Files of /proc and devices do not show their sizes: only reading finds their end.
            return Ok(if left(size) == 0 { UNKNOWN } else { left(size) });
        };
        match left(file.size_seen()) {
            0 if going_on => Ok(0),
            0 => state::apart(|| file.attr()).map(|attr| left(attr.size)),
            seen => Ok(seen),
        }
    }

    /// Moves past what was read.
    fn advance(&mut self, by: usize) -> Result<(), Errno> {
        match &mut self.offset {
            Some(offset) => **offset += by as i64,
            None => drop(data::lseek(self.fd, by as i64, libc::SEEK_CUR)?),
        }
        Ok(())
    }

    /// Writes and moves.
    fn put(&mut self, from: &[u8]) -> Result<usize, Errno> {
        match &mut self.offset {
            Some(offset) => {
                let written = data::pwrite(self.fd, from, **offset)?;
                **offset += written as i64;
                Ok(written)
            }
            None => data::write(self.fd, from),
        }
    }
}

/// `copy_file_range(2)`. `None`: both are the kernel's.
pub fn copy_file_range(
    from: (i32, Option<&mut i64>),
    to: (i32, Option<&mut i64>),
    len: usize,
    flags: u32,
) -> Option<Result<usize, Errno>> {
    if fds::is_foreign(from.0) && fds::is_foreign(to.0) {
        super::beside::refresh_size(from.0);
        return None;
    }
    let ends = End::new(from.0, from.1).and_then(|from| Ok((from, End::new(to.0, to.1)?)));
    let (from, to) = match ends {
        Ok(ends) => ends,
        Err(errno) => return Some(Err(errno)),
    };
    if from.file.is_none() && to.file.is_none() {
        return None;
    }
    if flags != 0 {
        return Some(Err(Errno::INVAL));
    }
    Some(
        regular(&from, false)
            .and_then(|()| regular(&to, true))
            .and_then(|()| apart(&from, &to, len))
            .and_then(|len| move_bytes(from, to, len)),
    )
}

/// Refuses ranges that no offset could name the end of, and those of one file that overlap, as the kernel
/// does. Answers how much is to be copied: nothing beyond the greatest size of a file; within one file, what
/// lies before its end now. (The copy itself may make it longer.)
fn apart(from: &End<'_>, to: &End<'_>, len: usize) -> Result<usize, Errno> {
    let (at, to_at) = (from.position()?, to.position()?);
    if [at, to_at].into_iter().any(|at| (at as u64).checked_add(len as u64).is_none()) {
        return Err(Errno::OVERFLOW);
    }
    let (at, to_at) = (data::position(at)?, data::position(to_at)?);
    let room = usize::try_from(FILE_MAX.saturating_sub(to_at)).unwrap_or(usize::MAX);
    if room == 0 && len > 0 {
        return Err(Errno::FBIG);
    }
    let len = len.min(room);
    let (Some(source), Some(target)) = (from.ours(), to.ours()) else { return Ok(len) };
    if source.ino() != target.ino() {
        return Ok(len);
    }
    let size = state::apart(|| source.attr())?.size;
    let count = (len as u64).min(size.saturating_sub(at));
    if to_at + count > at && to_at < at + count { Err(Errno::INVAL) } else { Ok(count as usize) }
}

/// Both ends have to be regular files, open for what is done.
fn regular(end: &End<'_>, write: bool) -> Result<(), Errno> {
    let flags = match end.ours() {
        Some(file) if file.is_directory() => return Err(Errno::ISDIR),
        Some(file) => file.flags(),
        None => {
            let stat = super::fstat(end.fd)?;
            match stat.st_mode & libc::S_IFMT {
                libc::S_IFREG => {}
                libc::S_IFDIR => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
            sys!(SYS_fcntl, end.fd, libc::F_GETFL)? as i32
        }
    };
    let wrong = if write { libc::O_RDONLY } else { libc::O_WRONLY };
    if flags & libc::O_ACCMODE == wrong || write && flags & libc::O_APPEND != 0 {
        return Err(Errno::BADF);
    }
    Ok(())
}

/// `sendfile(2)`. `None`: both are the kernel's.
pub fn sendfile(to: i32, from: i32, offset: Option<&mut i64>, len: usize) -> Option<Result<usize, Errno>> {
    if fds::is_foreign(from) && fds::is_foreign(to) {
        return None;
    }
    if offset.as_ref().is_some_and(|offset| **offset < 0) {
        return Some(Err(Errno::INVAL));
    }
    let ends = End::new(from, offset).and_then(|from| Ok((from, End::new(to, None)?)));
    let (from, to) = match ends {
        Ok(ends) => ends,
        Err(errno) => return Some(Err(errno)),
    };
    if from.file.is_none() && to.file.is_none() {
        return None;
    }
    // What cannot be read at an offset cannot be sent.
    Some(if from.file.is_none() && from.position().is_err() {
        Err(Errno::INVAL)
    } else {
        move_bytes(from, to, len)
    })
}

/// Moves bytes until `len`, the end of the source as it was last seen, or a short write; an error counts only
/// when nothing was moved. The source is read once for each [`PIECE`], and at its end only looked at.
fn move_bytes(mut from: End<'_>, mut to: End<'_>, len: usize) -> Result<usize, Errno> {
    let len = len.min(MOST);
    let mut at = from.position()?;
    let mut buffer = Vec::new();
    let mut moved = 0;
    while moved < len {
        let step = from.readable(at, moved > 0).and_then(|readable| {
            let wanted = (len - moved).min(PIECE).min(readable);
            if buffer.len() < wanted {
                buffer = vec![0u8; wanted];
            }
            let room = buffer.get_mut(..wanted).unwrap_or_default();
            let read = if wanted == 0 { 0 } else { data::pread(from.fd, room, at)? };
            let filled = room.get(..read).unwrap_or_default();
            let written = if read == 0 { 0 } else { to.put(filled)? };
            from.advance(written)?;
            Ok((wanted, read, written))
        });
        match step {
            Ok((wanted, read, written)) => {
                moved += written;
                at += written as i64;
                // The end of the file, or the target is full for now: the program's next call will tell.
                if read == 0 || written < read || read < wanted {
                    break;
                }
            }
            Err(errno) if moved == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(moved)
}

/// Whether a call that only the kernel can do (`splice`, `tee`, `vmsplice`) has to be refused.
pub fn refuses(fds: &[i32]) -> bool {
    state::active() && fds.iter().any(|fd| fds::is_ours(*fd))
}

/// Reads into several buffers; a shorthand for the faces.
pub fn read_into(file: &Handle, buffers: &mut [IoSliceMut<'_>], offset: Option<u64>) -> Result<usize, Errno> {
    state::apart(|| match offset {
        None => file.read(buffers),
        Some(offset) => file.pread(offset, buffers),
    })
}

/// Writes from several buffers; likewise.
pub fn write_from(file: &Handle, buffers: &[IoSlice<'_>], offset: Option<u64>) -> Result<usize, Errno> {
    state::apart(|| match offset {
        None => file.write(buffers),
        Some(offset) => file.pwrite(offset, buffers),
    })
}
