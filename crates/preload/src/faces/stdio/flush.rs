//! Flushing our streams, and no others, at the end of the process.
//!
//! The C library flushes all streams when everything else is done. That is too late for streams on files
//! whose locks are given up before. A stream that a thread is blocked in is left alone: waiting for it would
//! keep the process from ending.

use super::stream::{self, FILE};

unsafe extern "C" {
    static mut _IO_list_all: *mut FILE;
}

real! {
    lock_list = _IO_list_lock() -> (), else {};
    unlock_list = _IO_list_unlock() -> (), else {};
}

/// Writes out what waits in our streams, and moves their descriptors to where the program has read to.
pub fn flush_ours() {
    // SAFETY: the C library's list of its streams, under its lock, which keeps streams from being freed. It
    // lets the same thread in again.
    unsafe {
        lock_list();
        let mut at = _IO_list_all;
        while !at.is_null() {
            if stream::is_ours(at) && stream::ftrylockfile(at) == 0 {
                libc::fflush(at);
                stream::funlockfile(at);
            }
            at = (*stream::layout(at)).chain;
        }
        unlock_list();
    }
}
