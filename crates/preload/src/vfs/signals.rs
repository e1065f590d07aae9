//! Signals during a call that waits: handlers run at once, and then the call ends with EINTR or goes on, as
//! the kernel decides it by `SA_RESTART`.
//!
//! While the program waits for something that is not a system call of its own, signals that have a handler
//! are held back ([`Held`]). One that comes is noticed through a signalfd, together with what is waited for
//! ([`Held::comes_before`]). The caller then brings what is under way to an end, and lets the handler run
//! ([`Held::let_in`]); so a handler may do anything there, also leave by `siglongjmp`. Signals without a
//! handler (which end or stop the process, or are ignored) are not held back.

use crate::hidden::Preloaded;
use bivouac_client::host::OwnFd;
use bivouac_proto::Errno;
use rustix::fd::{AsRawFd, BorrowedFd};

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;
/// Highest signal's number.
const SIGNALS: i32 = 64;
/// Interval between two looks for signals if no descriptor is free, milliseconds.
const LOOK_MS: i32 = 20;
/// Longest wait, milliseconds: longer than any turn.
const LONGEST_MS: i32 = 2_000;

/// The kernel's `struct sigaction`, of what is asked here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: usize,
    flags: u64,
    /// x86_64 has a restorer here before the mask; nothing behind the flags is read.
    rest: [u64; 4],
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn action(signal: i32) -> Action {
    let mut action = Action::default();
    let _ = sys!(SYS_rt_sigaction, signal, 0, &raw mut action, SET_BYTES);
    action
}

/// What comes after handlers have run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The wait begins again.
    GoOn,
    /// The call ends with EINTR.
    GiveUp,
}

/// Signals are held back in this thread; the mask from before comes back with the drop.
pub struct Held {
    before: u64,
    held: u64,
}

impl Held {
    /// All of them, for a moment. (Not what an instruction of the program's own raises: that can't be.)
    pub fn all() -> Held {
        let raised = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
        let held = raised.iter().fold(u64::MAX, |set, signal| set & !bit(*signal));
        let mut before = 0u64;
        let _ = sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const held, &raw mut before, SET_BYTES);
        Held { before, held: held & !before }
    }

    /// From now on only those that have a handler.
    pub fn narrow(&mut self) {
        let handled = |signal: &i32| !matches!(action(*signal).handler, libc::SIG_DFL | libc::SIG_IGN);
        let handled = (1..=SIGNALS).filter(handled).fold(0, |set, signal| set | bit(signal));
        self.held &= handled;
        let mask = self.before | self.held;
        let _ = sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, SET_BYTES);
    }

    /// Waits until `answer` is readable or a signal that is held back has come; whether it is the signal.
    pub fn comes_before(&self, answer: BorrowedFd<'_>) -> bool {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        let coming = sys!(SYS_signalfd4, -1i32, &raw const self.held, SET_BYTES, flags).ok();
        let coming = coming.map(|fd| OwnFd::new(&Preloaded, super::open::owned(fd)));
        let coming = coming.as_ref().and_then(OwnFd::get).map_or(-1, |fd| fd.as_raw_fd());
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut waited = 0;
        while waited < LONGEST_MS {
            let mut both = [poll(answer.as_raw_fd()), poll(coming)];
            // No descriptor is free: look now and then.
            let longest = if coming < 0 { LOOK_MS } else { LONGEST_MS };
            let mut timeout = libc::timespec {
                tv_sec: (longest / 1000).into(),
                tv_nsec: (longest % 1000 * 1_000_000).into(),
            };
            let ready = sys!(SYS_ppoll, both.as_mut_ptr(), both.len(), &raw mut timeout, 0, 0);
            if both[0].revents != 0 {
                return false;
            }
            // EINTR: a handler that was installed only now has run.
            if ready.is_err() || self.pending() != 0 {
                return true;
            }
            waited += longest;
        }
        false
    }

    /// Which of the signals held back have come.
    fn pending(&self) -> u64 {
        let mut pending = 0u64;
        let _ = sys!(SYS_rt_sigpending, &raw mut pending, SET_BYTES);
        pending & self.held
    }

    /// Lets those in that have come: their handlers run. Then the call ends, if one of them is not to restart
    /// calls.
    pub fn let_in(&self) -> Next {
        let pending = self.pending();
        let restarts = (1..=SIGNALS)
            .filter(|signal| pending & bit(*signal) != 0)
            .all(|signal| action(signal).flags & libc::SA_RESTART as u64 != 0);
        // Only those that had come: another one that comes now waits until the next time.
        let mask = (self.before | self.held) & !pending;
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        match sys!(SYS_ppoll, 0, 0, &raw const now, &raw const mask, SET_BYTES) {
            Err(Errno::INTR) if !restarts => Next::GiveUp,
            // Another thread has taken it, or it restarts.
            _ => Next::GoOn,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const self.before, 0, SET_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static RAN: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: i32) {
        RAN.fetch_add(1, Ordering::Relaxed);
    }

    fn install(signal: i32, flags: i32) {
        // SAFETY: a handler that may run anywhere, for a signal that only this test sends, to its own thread.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count as *const () as libc::sighandler_t;
            action.sa_flags = flags;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }

    fn send(signal: i32) {
        // SAFETY: this very thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    #[test]
    fn handlers_run_when_let_in_and_say_by_their_flags_whether_the_wait_ends() {
        install(libc::SIGUSR2, 0);
        install(libc::SIGURG, libc::SA_RESTART);
        let (quiet, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let quiet = std::os::fd::AsFd::as_fd(&quiet);
        for (signals, next) in [
            (&[libc::SIGUSR2][..], Next::GiveUp),
            (&[libc::SIGURG], Next::GoOn),
            (&[libc::SIGURG, libc::SIGUSR2], Next::GiveUp),
        ] {
            let ran = RAN.load(Ordering::Relaxed);
            let mut held = Held::all();
            held.narrow();
            signals.iter().for_each(|signal| send(*signal));
            assert_eq!(RAN.load(Ordering::Relaxed), ran, "held back");
            assert!(held.comes_before(quiet));
            assert_eq!(held.let_in(), next, "{signals:?}");
            assert_eq!(RAN.load(Ordering::Relaxed), ran + signals.len() as u32);
            assert_eq!(held.let_in(), Next::GoOn);
        }
        // The mask is as it was.
        let ran = RAN.load(Ordering::Relaxed);
        send(libc::SIGUSR2);
        assert_eq!(RAN.load(Ordering::Relaxed), ran + 1);
    }

    #[test]
    fn an_answer_ends_the_wait() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &other, b"x").unwrap();
        let held = Held::all();
        assert!(!held.comes_before(std::os::fd::AsFd::as_fd(&one)));
        drop(held);
    }
}
