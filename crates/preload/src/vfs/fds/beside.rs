//! Descriptors beside a mount: which of them stand for its files, and for which ones data goes past the
//! kernel.
//!
//! A number that is not known is looked at when data is first read or written through it: whether it lies in
//! the mount costs one system call, and is asked of the kernel without the mount. Which description it is
//! costs as much as reading through the mount once, or more; so that is asked only when it has been used a
//! few times ([`NEW`], [`USED`]): most small files never come to that. From then on the number has an entry
//! as one of ours has without a mount, and is told from others in the same way.
//!
//! For all other calls the number stays foreign, so that the kernel handles them.

use super::steps::{self, CHANGING, DOUBTED, FIRST_ENTRY, FOREIGN, NEW, STATE, UNKNOWN, USED, meaning};
use super::{File, HIGHEST, is_another_here, word};
use crate::vfs::beside::{describe, is_in_mount};
use crate::vfs::state;
use std::sync::atomic::{AtomicU32, Ordering};

/// The file whose data may go past the mount that a number stands for. `None`: the kernel is to do the call.
#[inline]
pub fn get(fd: i32) -> Option<File> {
    let word = word(fd)?;
    if word.load(Ordering::Relaxed) & STATE == FOREIGN { None } else { find(fd, word) }
}

#[inline(never)]
fn find(fd: i32, word: &'static AtomicU32) -> Option<File> {
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen & DOUBTED != 0 && is_another_here(word, seen) {
            return None;
        }
        match meaning(seen) {
            FOREIGN | CHANGING => return None,
            UNKNOWN | NEW | USED => return approach(fd, word, seen),
            entry => {
                let held = steps::hold(word, seen, || File::again(entry - FIRST_ENTRY));
                if held.is_some() {
                    return held;
                }
            }
        }
    }
}

/// One more use of a number that has no entry.
#[cold]
fn approach(fd: i32, word: &'static AtomicU32, seen: u32) -> Option<File> {
    if state::borrowed() {
        return None;
    }
    let learn = |state: u32| {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
        steps::learn(word, seen, state)
    };
    match meaning(seen) {
        UNKNOWN => learn(if is_in_mount(fd) { NEW } else { FOREIGN }),
        NEW => learn(USED),
        _ => {
            let Some(file) = describe(fd).and_then(File::new) else {
                learn(FOREIGN);
                return None;
            };
            let shared = file.clone();
            if learn(FIRST_ENTRY + shared.index) {
                std::mem::forget(shared);
            }
            return Some(file);
        }
    };
    None
}

/// The number does not stand for its file any more: makes it unknown.
pub fn forget(fd: i32) {
    super::set(fd, super::Standing::Unknown);
}
