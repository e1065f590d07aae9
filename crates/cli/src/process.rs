//! Processes by number and start time: a number alone may by now belong to somebody else.

use rustix::fd::OwnedFd;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A process of this machine, once and for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started, in the kernel's ticks since the machine did.
    pub start: u64,
}

impl ProcessId {
    /// This process.
    pub fn own() -> ProcessId {
        ProcessId::of(std::process::id()).unwrap_or(ProcessId { pid: std::process::id(), start: 0 })
    }

    /// The process that has this number now.
    pub fn of(pid: u32) -> Option<ProcessId> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let (state, start) = parse_stat(&stat)?;
        // A zombie has ended; only its parent does not know yet.
        (state != b'Z' && state != b'X').then_some(ProcessId { pid, start })
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        ProcessId::of(self.pid) == Some(self)
    }

    /// Whether it still runs although it has been killed: it has not got round to dying yet, which may take a second on a busy
    /// machine, or it has begun to, and frees its memory.
    pub fn is_dying(self) -> bool {
        let read = |file| std::fs::read_to_string(format!("/proc/{}/{file}", self.pid)).ok();
        let (stat, status) = (read("stat").unwrap_or_default(), read("status").unwrap_or_default());
        shows_death(&stat, &status) && self.is_alive()
    }

    /// Waits until it has ended; whether it has.
    pub fn wait_end(self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(1);
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        true
    }

    /// A pidfd of this very process; `None` if it has ended.
    pub fn open(self) -> Option<OwnedFd> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw)?;
        // The descriptor pins the process: if it is the right one once it is open, it stays the right one.
        let pinned = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
        self.is_alive().then_some(pinned)
    }

    /// Sends a signal, to this very process or to nobody.
    pub fn signal(self, signal: Signal) {
        if let Some(pinned) = self.open() {
            let _ = rustix::process::pidfd_send_signal(&pinned, signal);
        }
    }

    /// Waits for its end, and after `grace` kills it. Whether it has ended.
    pub fn end(self, grace: Duration) -> bool {
        if self.wait_end(grace) {
            return true;
        }
        self.signal(Signal::KILL);
        self.wait_end(Duration::from_secs(5))
    }
}

/// Whether `/proc/PID/stat` and `/proc/PID/status` are those of a process that was killed, or ends.
fn shows_death(stat: &str, status: &str) -> bool {
    parse_flags(stat).is_some_and(|flags| flags & PF_EXITING != 0) || is_kill_pending(status)
}

/// The kernel's flag of a task that ends.
const PF_EXITING: u64 = 0x4;

/// The kernel's flags from `/proc/PID/stat`: field 9 of the whole line; the state, behind the name, is field 3.
fn parse_flags(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// Whether SIGKILL waits for the first thread or for all, by `/proc/PID/status`.
fn is_kill_pending(status: &str) -> bool {
    let masks = status.lines().filter_map(|line| line.split_once(":\t"));
    let masks = masks.filter(|(name, _)| matches!(*name, "SigPnd" | "ShdPnd"));
    let bit = 1 << (Signal::KILL.as_raw() - 1);
    masks.filter_map(|(_, mask)| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & bit != 0)
}

/// State and start time from `/proc/PID/stat`. The second field, the program's name, may hold anything, also
/// spaces and parentheses; what follows its last `)` is safe.
fn parse_stat(stat: &[u8]) -> Option<(u8, u64)> {
    let name_end = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // Field 22 of the whole line; the state is field 3.
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_confuse_the_start_time() {
        let stat = b"17 (a) b) (S 1) S 1 17 17 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 10";
        assert_eq!(parse_stat(stat), Some((b'S', 987_654)));
        assert_eq!(parse_stat(b"17 (cut"), None);
        assert_eq!(parse_stat(b"17 (cut) S 1 2"), None);
    }

    #[test]
    fn the_kernel_shows_that_a_process_was_killed_and_that_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().expect("spawns");
        let process = ProcessId::of(child.id()).expect("runs");
        assert!(process.is_alive() && !process.is_dying());
        // What it shows of a stopped one that was killed, and of one that ends.
        assert!(is_kill_pending("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\nSigBlk:\t0"));
        assert!(!is_kill_pending("SigPnd:\t0000000000000200\nShdPnd:\t0000000000000000\nSigBlk:\t100"));
        assert_eq!(parse_flags("17 (a) b) (S 1) S 1 17 17 0 -1 4194564 1 2 3"), Some(4_194_564));
        let runs = "17 (sleep) S 1 17 17 0 -1 4194560 1 2 3";
        assert!(!shows_death(runs, "SigPnd:\t0000000000000000"));
        assert!(shows_death("17 (sleep) S 1 17 17 0 -1 4194564 1 2 3", ""));
        assert!(shows_death(runs, "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100"));
        process.signal(Signal::KILL);
        assert!(process.wait_end(Duration::from_secs(5)) && !process.is_dying());
        child.wait().expect("ends");
    }

    #[test]
    fn a_number_with_another_start_time_is_never_signalled() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().expect("spawns");
        let real = ProcessId::of(child.id()).expect("runs");
        let stranger = ProcessId { start: real.start + 1, ..real };
        assert!(!stranger.is_alive());
        assert!(stranger.end(Duration::ZERO), "it counts as ended");
        assert!(real.is_alive(), "and whoever has the number now lives on");
        real.signal(Signal::KILL);
        assert!(real.wait_end(Duration::from_secs(5)), "a zombie has ended");
        child.wait().expect("reaped");
    }

    #[test]
    fn this_process_is_alive() {
        assert!(ProcessId::own().is_alive());
        assert!(!ProcessId::own().wait_end(Duration::from_millis(5)));
    }
}
