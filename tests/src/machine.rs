//! Time that the machine did not give.
//!
//! A bound of how long something may take holds for a machine that runs. A virtual machine may stand still for
//! seconds, or get only a part of its processors, because others on the same hardware want them. A thread notes
//! how much time is lost so: what the hypervisor says that it took (`steal` in `/proc/stat`), or how late the
//! thread itself is woken, whichever is more.

use bivouac_node::release::monotonic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks. Being woken less late than this is usual on a busy machine.
const PAUSE: Duration = Duration::from_millis(20);

/// Watches the machine until it is dropped.
pub struct Machine {
    lost: Arc<Mutex<Lost>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// Begins to watch.
    pub fn watch() -> Machine {
        let (lost, over) = (Arc::new(Mutex::new(Lost::default())), Arc::new(AtomicBool::new(false)));
        let (noted, until) = (lost.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            let (mut at, mut before) = (monotonic(), stolen());
            while !until.load(Ordering::Relaxed) {
                std::thread::sleep(PAUSE);
                let (now, taken) = (monotonic(), stolen());
                let late = (now - at).saturating_sub(PAUSE.as_nanos() as u64);
                let late = if late < PAUSE.as_nanos() as u64 { 0 } else { late };
                let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                noted.add(at, now, late.max(taken.saturating_sub(before)));
                (at, before) = (now, taken);
            }
        });
        Machine { lost, over, thread: Some(thread) }
    }

    /// What was lost so far.
    pub fn lost(&self) -> Lost {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// How much time was lost until when, nanoseconds of the monotonic clock, both rising.
#[derive(Clone, Debug, Default)]
pub struct Lost(Vec<(u64, u64)>);

impl Lost {
    fn add(&mut self, from: u64, to: u64, lost: u64) {
        let before = match self.0.last() {
            Some((_, all)) => *all,
            None => {
                self.0.push((from, 0));
                0
            }
        };
        self.0.push((to, before + lost.min(to - from)));
    }

    /// How much was lost between two times.
    pub fn between(&self, from: u64, to: u64) -> u64 {
        self.until(to) - self.until(from.min(to))
    }

    fn until(&self, at: u64) -> u64 {
        let next = self.0.partition_point(|(time, _)| *time <= at);
        match (next.checked_sub(1).map(|last| self.0[last]), self.0.get(next)) {
            (None, _) => 0,
            (Some((_, lost)), None) => lost,
            (Some((time, lost)), Some((end, more))) => lost + (more - lost) * (at - time) / (end - time),
        }
    }
}

/// What the hypervisor has taken from each processor on average, nanoseconds.
fn stolen() -> u64 {
    stolen_by(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn stolen_by(text: &str) -> u64 {
    let ticks = text.lines().next().and_then(|all| all.split_whitespace().nth(8)?.parse::<u64>().ok());
    let processors = text.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1).max(1);
    // The unit of these numbers is a hundredth of a second on every Linux.
    ticks.unwrap_or(0) * 10_000_000 / processors as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_counts_where_it_was_lost() {
        let mut lost = Lost::default();
        assert_eq!(lost.between(0, 1000), 0);
        lost.add(100, 200, 0);
        lost.add(200, 300, 50);
        lost.add(300, 400, 1000);
        assert_eq!(
            [(0, 200), (0, 250), (210, 230), (250, 350), (0, 900)].map(|(a, b)| lost.between(a, b)),
            [0, 25, 10, 75, 150]
        );
        assert_eq!(lost.between(500, 100), 0);
    }

    #[test]
    fn what_the_hypervisor_took_is_the_mean_of_all_processors() {
        let text =
            "cpu  1 2 3 4 5 6 7 30 9 10\ncpu0 1 2 3 4 5 6 7 10 9 10\ncpu1 1 2 3 4 5 6 7 20 9 10\nintr 5\n";
        assert_eq!((stolen_by(text), stolen_by("")), (150_000_000, 0));
    }
}
