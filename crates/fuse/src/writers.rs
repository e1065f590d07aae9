//! Which descriptions have a file open for writing.
//!
//! When a description is closed, it reports when it wrote last, as an age. The kernel sends RELEASE at some
//! later time and does not wait for it, and a report that takes long makes the write look more recent than it
//! was: perhaps more recent than an explicit setting of mtime after it. So before an mtime is set, the file's
//! descriptions forget when they wrote, and the mount waits for reports that are under way.

use crate::face::lock;
use crate::files::OpenFile;
use bivouac_layout::Ino;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// All files that are open for writing.
#[derive(Default)]
pub(crate) struct Writers {
    files: Mutex<HashMap<Ino, File>>,
    closed: Condvar,
}

#[derive(Default)]
struct File {
    open: Vec<Arc<OpenFile>>,
    /// Reports under way.
    closing: u32,
}

impl Writers {
    pub(crate) fn opened(&self, file: &Arc<OpenFile>) {
        if is_writer(file) {
            lock(&self.files).entry(file.handle.ino()).or_default().open.push(file.clone());
        }
    }

    /// Closes a description, with its report.
    pub(crate) fn close(&self, file: &Arc<OpenFile>, report: impl FnOnce()) {
        let ino = file.handle.ino();
        if !is_writer(file) {
            return report();
        }
        if let Some(entry) = lock(&self.files).get_mut(&ino) {
            entry.open.retain(|open| !Arc::ptr_eq(open, file));
            entry.closing += 1;
        }
        report();
        let mut files = lock(&self.files);
        if let Some(entry) = files.get_mut(&ino) {
            entry.closing -= 1;
            if entry.closing == 0 && entry.open.is_empty() {
                files.remove(&ino);
            }
        }
        self.closed.notify_all();
    }

    /// To be called before an mtime is set: earlier writes do not count for mtime any more.
    pub(crate) fn time_is_set(&self, ino: Ino) {
        let mut files = lock(&self.files);
        while let Some(file) = files.get(&ino) {
            for open in &file.open {
                open.handle.forget_write_time();
            }
            if file.closing == 0 {
                return;
            }
            files = self.closed.wait(files).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn is_writer(file: &OpenFile) -> bool {
    file.handle.flags() & libc::O_ACCMODE != libc::O_RDONLY
}
