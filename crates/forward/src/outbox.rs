//! Where the files are that programs have open here, for others to know: if this I/O node dies, whoever takes over finds them by
//! that.
//!
//! Nobody who opens a file waits for others. What is opened goes into the outbox, and somebody takes out of it what has gathered and
//! sends it. A file's path is looked for when it is taken out: by then it may have been closed, or renamed once more.

use crate::files::Open;
use crate::tree;
use bivouac_layout::Ino;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// See the module.
pub struct Outbox {
    /// The forwarded directory's path.
    root: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    files: Vec<Weak<Open>>,
    closed: bool,
}

impl Outbox {
    pub(crate) fn new(root: PathBuf) -> Outbox {
        Outbox { root, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Ignores poisoning: each change is a single insertion or assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, file: &Arc<Open>) {
        self.state().files.push(Arc::downgrade(file));
        self.changed.notify_one();
    }

    /// There will be nothing more.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Waits until something is in it, at most so long. `None`: there will be nothing more.
    pub fn wait(&self, limit: Duration) -> Option<()> {
        let empty = |state: &mut State| state.files.is_empty() && !state.closed;
        let waited = self.changed.wait_timeout_while(self.state(), limit, empty);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!state.closed).then_some(())
    }

    /// Takes out where files are, relative to the forwarded directory: those that are open still and have a name there.
    pub fn take(&self) -> Vec<(Ino, PathBuf)> {
        let files = std::mem::take(&mut self.state().files);
        let open = files.iter().filter_map(Weak::upgrade);
        open.filter_map(|file| Some((file.ino, tree::path_below(&self.root, &*file).ok()?))).collect()
    }
}
