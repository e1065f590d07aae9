//! Files whose data goes past the mount (`both`).
//!
//! A process of this node that uses the preload library asks for the open file description behind a
//! descriptor, and then reads and writes the file's data without the kernel ([`bivouac_client::DESCRIBE`]).
//! The kernel's page cache, which only mappings use, does not see that. So when the kernel wants a page of a
//! file, or a process says that it is about to map the file, the mount first sends all processes that use the
//! file's descriptions back to the mount, and waits until their current reads and writes have ended. This
//! lasts until nobody has the file open here any more: a mapping keeps its file open.
//!
//! The mount also does this for a file with a set-user-ID or set-group-ID bit that the next write clears,
//! because only the kernel can say which writes do that.

use crate::abi::Reply;
use crate::face::{Answer, Call, lock};
use crate::files::OpenFile;
use crate::pages::Pages;
use bivouac_client::{DESCRIBE, MAPS};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long to wait for changes that are under way. There is no wait for those of a process that died in the
/// middle of one, unless its death cannot be noticed: because it is in another PID namespace, or because more
/// than twelve threads wrote through the description at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before looking again, at first; then twice as long each time, up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));
/// "Inappropriate ioctl for device".
const NOTTY: Errno = Errno(libc::ENOTTY as u16);

/// All files that are open.
#[derive(Default)]
pub(crate) struct Shortcuts(Mutex<HashMap<Ino, File>>);

#[derive(Default)]
struct File {
    open: usize,
    /// Descriptions that processes have asked for.
    told: Vec<Arc<OpenFile>>,
    detoured: bool,
    /// Detoured, and nothing is under way any more.
    settled: bool,
    /// The pages that the kernel has of it.
    pages: Arc<Pages>,
}

impl Shortcuts {
    /// Counts an open. All opens of a file share what is known of the kernel's pages.
    pub(crate) fn opened(&self, ino: Ino) -> Arc<Pages> {
        let mut files = lock(&self.0);
        let entry = files.entry(ino).or_default();
        entry.open += 1;
        entry.pages.clone()
    }

    pub(crate) fn closed(&self, file: &Arc<OpenFile>) {
        let mut files = lock(&self.0);
        let ino = file.handle.ino();
        let Some(entry) = files.get_mut(&ino) else { return };
        entry.told.retain(|told| !Arc::ptr_eq(told, file));
        entry.open -= 1;
        if entry.open == 0 {
            files.remove(&ino);
        }
    }

    /// Whether a process may use a description past the mount. If so, notes that one does.
    fn tell(&self, file: &Arc<OpenFile>) -> bool {
        let mut files = lock(&self.0);
        match files.get_mut(&file.handle.ino()) {
            Some(entry) if !entry.detoured => {
                if !entry.told.iter().any(|told| Arc::ptr_eq(told, file)) {
                    entry.told.push(file.clone());
                }
                true
            }
            _ => false,
        }
    }

    /// Whether pages of a file may be in the kernel's cache, and changed there.
    pub(crate) fn is_detoured(&self, ino: Ino) -> bool {
        lock(&self.0).get(&ino).is_some_and(|entry| entry.detoured)
    }

    /// From now on, data of a file has to go through the mount. When this returns, no change is under way
    /// past it.
    pub(crate) fn detour(&self, ino: Ino) {
        let told = {
            let mut files = lock(&self.0);
            let Some(entry) = files.get_mut(&ino).filter(|entry| !entry.settled) else { return };
            entry.detoured = true;
            for file in &entry.told {
                file.handle.detour();
            }
            entry.told.clone()
        };
        let end = Instant::now() + PATIENCE;
        let (mut pause, longest) = PAUSES;
        while !told.iter().all(|file| file.handle.has_left()) {
            if Instant::now() > end {
                tracing::warn!(ino = ino.0, "a process does not end a write past the mount");
                break;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
        if let Some(entry) = lock(&self.0).get_mut(&ino) {
            entry.settled = true;
        }
    }
}

impl Call<'_> {
    pub(crate) fn ioctl(&mut self) -> Result<Answer, Errno> {
        let fh = self.fields.u64()?;
        self.fields.skip(4)?;
        let command = self.fields.u32()?;
        let file = match command {
            DESCRIBE | MAPS => self.file(fh)?,
            _ => return Err(NOTTY),
        };
        // Directories are numbered by themselves, and theirs may be another file's number.
        if file.handle.ino() != self.ino() {
            return Err(NOTTY);
        }
        let mut reply = Reply::new();
        // The result; the kernel must not repeat the call.
        reply.zeros(16);
        if command == MAPS {
            if !file.is_backed() {
                self.face.shortcuts.detour(self.ino());
            }
        } else {
            let direct = self.face.direct && !self.face.privileged.has(self.ino());
            if !direct || !self.face.shortcuts.tell(&file) {
                return Err(NOTTY);
            }
            reply.0.extend_from_slice(&file.handle.shared().to_bytes());
        }
        Ok(Answer::Told(reply))
    }
}
