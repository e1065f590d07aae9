//! Listing directories.
//!
//! Positions are the cookies of the client core, which stay valid whatever happens to the directory, so that
//! a listing needs no state. The mount only keeps entries that came from the servers and did not fit into the
//! kernel's buffer, and whether they were the last.
//!
//! The kernel is told no attributes (no READDIRPLUS): it may keep neither names nor attributes, so that it
//! would ask again for each of them all the same. The client core asks the servers for them, and answers what
//! the kernel asks from that for as long as nothing has changed.

use crate::abi::Reply;
use crate::face::{Answer, Call, lock};
use bivouac_client::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{DirEntry, FileKind};
use std::sync::{Arc, Mutex};

/// Entries that are asked for at once.
const BATCH: usize = 1024;
/// Positions of `.` and `..`.
const SELF: u64 = 1;
const PARENT: u64 = 2;
/// A record before its name, bytes; records are aligned to 8.
const FIXED: usize = 24;

/// A directory that the kernel has open.
pub(crate) struct OpenDirectory {
    pub(crate) ino: Ino,
    listed: Mutex<Listed>,
}

/// Entries that came from the servers and that the kernel has not asked for yet.
#[derive(Default)]
struct Listed {
    /// Position before the first of them.
    after: u64,
    /// The next one first.
    entries: std::collections::VecDeque<DirEntry>,
    /// Of a listing that begins: the directory above.
    above: Option<Ino>,
    /// Nothing came after these.
    end: bool,
}

impl Call<'_> {
    pub(crate) fn opendir(&mut self) -> Result<Answer, Errno> {
        // A forwarded directory may be one that others have removed from the backend and made anew: with ESTALE the kernel walks the path
        // once more. If it arrives here again, that is the directory, and it is empty.
        if self.ino().is_forwarded()
            && let Err(Errno::STALE) = self.face.client.parent(self.ino())
            && self.face.removed.get(self.ino()).is_none()
            && lock(&self.face.gone).replace(self.ino()) != Some(self.ino())
        {
            return Err(Errno::STALE);
        }
        let number =
            self.face.directories.add(Arc::new(OpenDirectory { ino: self.ino(), listed: Mutex::default() }));
        let mut reply = Reply::new();
        reply.u64(number).u32(0).u32(0);
        Ok(Answer::Told(reply))
    }

    pub(crate) fn releasedir(&mut self) -> Result<Answer, Errno> {
        self.face.directories.remove(self.fields.u64()?)?;
        Ok(Answer::Empty)
    }

    pub(crate) fn fsyncdir(&mut self) -> Result<Answer, Errno> {
        self.face.client.sync(self.ino()).map_err(Fail::errno)?;
        Ok(Answer::Empty)
    }

    pub(crate) fn readdir(&mut self) -> Result<Answer, Errno> {
        let (fh, mut after) = (self.fields.u64()?, self.fields.u64()?);
        let room = self.fields.u32()? as usize;
        let directory = self.face.directories.get(fh)?;
        let mut listed = lock(&directory.listed);
        let mut reply = Reply(Vec::with_capacity(room));
        if after < PARENT {
            let ino = self.ino();
            // A directory that was removed is empty.
            let above = match self.face.client.parent(ino) {
                Ok(above) => above,
                Err(Errno::STALE | Errno::NOENT) => return Ok(Answer::Told(reply)),
                Err(errno) => return Err(errno),
            };
            for (cookie, name, ino) in [(SELF, &b"."[..], ino), (PARENT, b"..", above)] {
                if after < cookie {
                    if !put(&mut reply, room, ino.0, cookie, FileKind::Directory, name) {
                        return Ok(Answer::Told(reply));
                    }
                    after = cookie;
                }
            }
            *listed = Listed { after, above: Some(above), ..Listed::default() };
        }
        if listed.after != after {
            // The program has moved the position (`seekdir`).
            *listed = Listed { after, ..Listed::default() };
        }
        loop {
            if listed.entries.is_empty() && !listed.end {
                let begins = listed.above.take();
                let more = self.face.client.list(self.ino(), begins, listed.after, BATCH)?;
                // A batch of none is the end, too.
                listed.end = more.end || more.entries.is_empty();
                listed.entries = more.entries.into();
            }
            let Some(entry) = listed.entries.front() else { break };
            if !put(&mut reply, room, entry.ino.0, entry.cookie, entry.kind, &entry.name) {
                break;
            }
            listed.after = entry.cookie;
            listed.entries.pop_front();
            // The kernel's buffer is smaller than a batch: what does not fit is kept for the next request.
        }
        if reply.0.is_empty() {
            // The kernel has been told of the end; who reads on wants to know what came since.
            listed.end = false;
        }
        Ok(Answer::Told(reply))
    }
}

/// Appends a record; false if there is no room for it.
fn put(reply: &mut Reply, room: usize, ino: u64, cookie: u64, kind: FileKind, name: &[u8]) -> bool {
    let length = (FIXED + name.len()).next_multiple_of(8);
    if reply.0.len() + length > room {
        return false;
    }
    reply.u64(ino).u64(cookie).u32(name.len() as u32).u32(u32::from(kind.d_type()));
    reply.0.extend_from_slice(name);
    reply.zeros(length - FIXED - name.len());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_aligned_and_stop_at_the_buffer_s_end() {
        let mut reply = Reply::new();
        assert!(put(&mut reply, 64, 5, 9, FileKind::File, b"name"));
        assert_eq!(reply.0.len(), 32);
        assert_eq!(&reply.0[16..28], [&[4, 0, 0, 0, 8, 0, 0, 0][..], b"name"].concat());
        assert!(put(&mut reply, 64, 6, 10, FileKind::Directory, b"12345678"));
        assert_eq!(reply.0.len(), 64);
        assert!(!put(&mut reply, 64, 7, 11, FileKind::File, b"x"));
        assert_eq!(reply.0.len(), 64);
    }
}
