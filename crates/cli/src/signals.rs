//! Signals: taken one at a time by a thread that waits for them, never in a handler.
//!
//! They are blocked in the whole process before any thread starts, so that they stay pending until the thread
//! takes them. Children get the mask that this process began with.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// The mask that this process began with.
static ORIGINAL: OnceLock<libc::sigset_t> = OnceLock::new();
/// The signal that asks this process to end; 0: none came.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

/// Signals that are taken.
const TAKEN: [i32; 9] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
];

/// A signal that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Its number.
    pub number: i32,
    /// The kernel sent it to the terminal's foreground group, so that every process of the group has it.
    pub from_kernel: bool,
}

impl Taken {
    /// Whether it asks for an end.
    pub fn is_final(self) -> bool {
        matches!(self.number, libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT)
    }
}

/// Blocks the signals that are taken; call before any thread starts. Then `on_signal` is called with each one
/// that comes, by a thread of its own.
pub fn take(on_signal: impl Fn(Taken) + Send + 'static) -> std::io::Result<()> {
    let set = set_of(&TAKEN);
    let mut original = set_of(&[]);
    // SAFETY: both point to initialised sets that outlive the call.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut original) };
    if failed != 0 {
        return Err(std::io::Error::from_raw_os_error(failed));
    }
    let _ = ORIGINAL.set(original);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        loop {
            // SAFETY: an all-zero `siginfo_t` is a valid value of a plain C structure.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: both point to initialised values that outlive the call.
            let number = unsafe { libc::sigwaitinfo(&set, &mut info) };
            if number > 0 {
                on_signal(Taken { number, from_kernel: info.si_code == libc::SI_KERNEL });
            }
        }
    })?;
    Ok(())
}

/// Notes that this process is asked to end.
pub fn interrupt(number: i32) {
    INTERRUPTED.store(number, Ordering::SeqCst);
}

/// The signal that asked this process to end.
pub fn interrupted() -> Option<i32> {
    match INTERRUPTED.load(Ordering::SeqCst) {
        0 => None,
        number => Some(number),
    }
}

/// The interruption has been heeded: what is done about it may take its time, until the next one.
pub fn heeded() {
    INTERRUPTED.store(0, Ordering::SeqCst);
}

/// What the process does with signals becomes its child's business as it was before.
pub fn unblock_in_child(command: &mut Command) {
    let Some(original) = ORIGINAL.get().copied() else {
        return;
    };
    // SAFETY: between fork and exec only `sigprocmask` is called, which is async-signal-safe, on a copied
    // set.
    unsafe {
        command.pre_exec(move || {
            match libc::sigprocmask(libc::SIG_SETMASK, &original, std::ptr::null_mut()) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

fn set_of(numbers: &[i32]) -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid value, and `sigemptyset` initialises it in any case.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a set of ours.
    unsafe { libc::sigemptyset(&mut set) };
    for number in numbers {
        // SAFETY: likewise; the numbers are valid signals.
        unsafe { libc::sigaddset(&mut set, *number) };
    }
    set
}
