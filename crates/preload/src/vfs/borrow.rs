//! What `vfork` children use, and leave behind.
//!
//! Such a child works in its parent's memory while the parent's thread waits, with descriptors of its own. It
//! needs a client of its own (connections are descriptors), and what it has allocated when it executes a
//! program stays allocated. A shell makes thousands of them, so both are kept for the next child of the same
//! thread: that one comes only after the one before has gone. Which thread it is, is told by where its
//! thread-local memory lies, which the child shares.

use super::state::make_client;
use bivouac_client::Client;
use bivouac_node::process;
use bivouac_proto::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The number of threads whose children have such a place. What children of further threads use is leaked.
const THREADS: usize = 64;

/// What is kept for the children of one thread. Used by one process at a time.
struct Kept {
    /// The thread whose children use it; 0: none.
    thread: AtomicUsize,
    /// The child that used it last.
    pid: AtomicUsize,
    client: AtomicPtr<Arc<Client>>,
    /// What the child has lent, newest first.
    lent: AtomicPtr<Lent>,
}

static KEPT: [Kept; THREADS] = [const {
    Kept {
        thread: AtomicUsize::new(0),
        pid: AtomicUsize::new(0),
        client: AtomicPtr::new(std::ptr::null_mut()),
        lent: AtomicPtr::new(std::ptr::null_mut()),
    }
}; THREADS];

/// The head of something lent; the value lies behind it.
struct Lent {
    next: *mut Lent,
    free: unsafe fn(*mut Lent),
}

#[repr(C)]
struct Holding<T> {
    head: Lent,
    value: T,
}

/// What is kept for this child. Frees first what an earlier child has left.
fn mine() -> Option<&'static Kept> {
    let thread = process::thread_mark();
    let free = |kept: &&Kept| {
        let seen = kept.thread.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire);
        seen.is_ok() || seen == Err(thread)
    };
    let kept = KEPT.iter().find(free)?;
    let pid = process::real_pid() as usize;
    if kept.pid.swap(pid, Ordering::AcqRel) != pid {
        let mut at = kept.lent.swap(std::ptr::null_mut(), Ordering::AcqRel);
        while !at.is_null() {
            // SAFETY: put there by `lend` of a child that is gone, and by this taken out for good.
            unsafe {
                let next = (*at).next;
                ((*at).free)(at);
                at = next;
            }
        }
        // SAFETY: never freed.
        let client = unsafe { kept.client.load(Ordering::Acquire).as_ref() };
        match client {
            // A child may change its user before it executes a program; then it needs another client.
            Some(client) if !client.acts_for_this_user() => {
                kept.client.store(std::ptr::null_mut(), Ordering::Release);
            }
            // SAFETY: its last user is gone, and nobody but this child has it.
            Some(client) => unsafe { client.begin_again() },
            None => {}
        }
    }
    Some(kept)
}

/// The client of this child.
#[cold]
pub fn client() -> Result<&'static Arc<Client>, Errno> {
    let Some(kept) = mine() else { return make_client() };
    let known = kept.client.load(Ordering::Acquire);
    // SAFETY: never freed.
    if let Some(client) = unsafe { known.as_ref() } {
        return Ok(client);
    }
    let client = make_client()?;
    kept.client.store(std::ptr::from_ref(client).cast_mut(), Ordering::Release);
    Ok(client)
}

/// Runs `body`, which may not return because it executes a program: then the value is freed later, if this is
/// a `vfork` child. (In any other process it goes with the process.)
pub fn lend<T, R>(value: T, body: impl FnOnce(&T) -> R) -> R {
    let kept = if super::state::borrowed() { mine() } else { None };
    let Some(kept) = kept else { return body(&value) };
    unsafe fn free<T>(lent: *mut Lent) {
        // SAFETY: the head of a `Holding<T>`, which begins with it, from `Box::into_raw`.
        drop(unsafe { Box::from_raw(lent.cast::<Holding<T>>()) });
    }
    let next = kept.lent.load(Ordering::Relaxed);
    let holding = Box::into_raw(Box::new(Holding { head: Lent { next, free: free::<T> }, value }));
    kept.lent.store(holding.cast(), Ordering::Release);
    // SAFETY: it lives until it is freed below, or after this process is gone.
    let result = body(unsafe { &(*holding).value });
    kept.lent.store(next, Ordering::Release);
    // SAFETY: taken out of the list, so that nobody else frees it.
    drop(unsafe { Box::from_raw(holding) });
    result
}
