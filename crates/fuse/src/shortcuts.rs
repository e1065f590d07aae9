//! Files whose data goes past the mount.
//!
//! A process of this node that uses the preload library asks for the description behind a descriptor, and
//! then reads and writes the file's data without the kernel ([`bivouac_client::DESCRIBE`]). The kernel's page
//! cache knows nothing of that, and only mappings use it. So as soon as the kernel wants a page of a file (or
//! a process says that it is about to map one), all that were told of its descriptions are sent back to the
//! mount, what they have under way is waited for, and then the page is given. That holds as long as anybody
//! has the file open here: a mapping keeps its file open.
//!
//! A file whose set-user-ID or set-group-ID bit goes with the next write is sent back too: the kernel tells
//! us of writes by whom that is due, and nobody else can.

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

/// How long changes under way are waited for. Those of a process that died in the middle of one are not,
/// where its death can be seen: not from another PID namespace, and not of the thirteenth thread that writes
/// through one description at a time.
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
    /// Descriptions that processes were told of.
    told: Vec<Arc<OpenFile>>,
    detoured: bool,
    /// Detoured, and nothing is under way any more.
    settled: bool,
    /// What the kernel has of it.
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

    /// Whether a process may be told of a description; then it counts as told.
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

    /// Data of a file has to go through the mount from here on. When this returns, nothing is under way past
    /// it.
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
        // Its result, and how the kernel is to go on: not.
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
