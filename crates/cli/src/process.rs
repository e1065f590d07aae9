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
