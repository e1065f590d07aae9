//! Signals that ask a process of a load to end: they are only noted, so that the process ends what it is doing
//! between two operations, and what it made can still be removed.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set by a signal.
static CAME: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    CAME.store(true, Ordering::Relaxed);
}

/// Whether a signal has asked this process to end since [`take`].
pub fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}

/// Has SIGINT, SIGTERM and SIGHUP noted from now on. Whoever started this process may have blocked them, which
/// children inherit.
pub fn take() {
    // SAFETY: an all-zero set is a valid value of a plain C structure; it is initialised before it is used.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for the call.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler does nothing but store to an atomic; `set` is initialised.
        unsafe {
            libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t);
            libc::sigaddset(&mut set, signal);
        }
    }
    // SAFETY: `set` is initialised, and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
}
