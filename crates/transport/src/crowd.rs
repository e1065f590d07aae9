//! Whether threads wait for a core anywhere on this machine.
//!
//! A thread that busy-waits does not notice that another one waits for another core: the kernel moves threads to
//! idle cores only, and the core of one that busy-waits does not look idle. So a daemon asks how many threads could
//! run, at most once in [`FRESH`]. If these are more than there are cores, its threads sleep: workers that wait for
//! requests, and those that wait for other servers' answers.

use crate::socket::now;
use bivouac_node::Fd;
use rustix::fs::{Mode, OFlags};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long an answer is good.
const FRESH: Duration = Duration::from_micros(500);

/// What is known of the machine.
pub(crate) struct Crowd {
    loads: Option<Fd>,
    cores: u32,
    /// When the answer is to be renewed, nanoseconds of [`now`].
    until: AtomicU64,
    crowded: AtomicBool,
}

impl Crowd {
    /// What this process knows of its machine. It keeps a descriptor open, so this is nothing for processes whose
    /// descriptors are a program's.
    pub(crate) fn here() -> &'static Crowd {
        static HERE: OnceLock<Crowd> = OnceLock::new();
        HERE.get_or_init(Crowd::new)
    }

    fn new() -> Crowd {
        let loads = rustix::fs::open("/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        Crowd {
            loads: loads.ok().map(Fd::from),
            cores: std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1)),
            until: AtomicU64::new(0),
            crowded: AtomicBool::new(true),
        }
    }

    /// Whether more threads could run than there are cores. If that cannot be found out: yes.
    pub(crate) fn is_crowded(&self) -> bool {
        let now = u64::try_from(now().as_nanos()).unwrap_or(u64::MAX);
        let until = self.until.load(Ordering::Relaxed);
        let next = now.saturating_add(FRESH.as_nanos() as u64);
        // One thread asks for all.
        if now >= until
            && self.until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let running = self.running().unwrap_or(u32::MAX);
            self.crowded.store(running > self.cores, Ordering::Relaxed);
        }
        self.crowded.load(Ordering::Relaxed)
    }

    fn running(&self) -> Option<u32> {
        let mut text = [0; 64];
        let n = rustix::io::pread(self.loads.as_ref()?, &mut text, 0).ok()?;
        parse(text.get(..n)?)
    }
}

/// The number of threads that run or could: `0.20 0.18 0.12 RUNNING/ALL LAST`.
fn parse(text: &[u8]) -> Option<u32> {
    let field = text.split(|b| *b == b' ').nth(3)?;
    std::str::from_utf8(field.split(|b| *b == b'/').next()?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_field_begins_with_who_could_run() {
        assert_eq!(parse(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse(b"0.20 0.18"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_machine_with_more_busy_threads_than_cores_is_crowded() {
        let crowd = Crowd::new();
        let end = std::sync::Arc::new(AtomicBool::new(false));
        let busy: Vec<_> = (0..2 * crowd.cores + 2)
            .map(|_| {
                let end = end.clone();
                std::thread::spawn(move || while !end.load(Ordering::Relaxed) {})
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50));
        let crowded = crowd.is_crowded();
        end.store(true, Ordering::Relaxed);
        busy.into_iter().for_each(|thread| thread.join().expect("ends"));
        assert!(crowded);
    }
}
