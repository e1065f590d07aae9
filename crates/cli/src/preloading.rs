//! Preloading for `run --lazy`: when the names of all trees are there, the command starts, and contents go on to come beside it.
//!
//! A thread for each tree copies it. When the command has ended, what is not there yet is of no use any more: a thread ends when
//! the files are there that servers are just fetching. A file that could not be fetched is only reported then: who opened
//! it has got an error.

use crate::args::Copy;
use crate::copy::{self, How};
use crate::error::Error;
use crate::home::Home;
use bivouac_stage::Direction;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

/// Trees whose contents are still coming.
#[derive(Default)]
pub struct Preloading {
    threads: Vec<JoinHandle<Result<(), Error>>>,
    enough: Arc<AtomicBool>,
}

impl Preloading {
    /// Returns when all names are there.
    pub fn start(home: &Home, name: &str, trees: &[Copy]) -> Result<Preloading, Error> {
        let mut preloading = Preloading::default();
        // One after the other, because a tree may go into another one.
        for tree in trees {
            let (named, names) = channel();
            let how = How::beside(move || _ = named.send(()), preloading.enough.clone());
            let (home, name, tree) = (home.clone(), name.to_owned(), tree.clone());
            let work = move || copy::copy(&home, &name, &tree, Direction::In, &how);
            let thread = std::thread::Builder::new().name("preloading".into()).spawn(work);
            let thread =
                thread.map_err(|cause| Error::System { what: "cannot start a thread".into(), cause })?;
            if names.recv().is_ok() {
                preloading.threads.push(thread);
            } else if let Err(error) = thread.join().unwrap_or(Err(Error::Interrupted(libc::SIGABRT))) {
                preloading.end();
                return Err(error);
            }
        }
        Ok(preloading)
    }

    /// Has no more fetched. What could not be is said.
    pub fn end(self) {
        self.enough.store(true, Ordering::Relaxed);
        for thread in self.threads {
            if let Ok(Err(error)) = thread.join() {
                error.show();
            }
        }
    }
}
