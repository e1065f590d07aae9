//! How fast the backend is, as far as that decides whether requests wait for others.

use crate::request::Kind;
use std::time::Duration;

/// What a batch takes at most at a backend that is as fast as memory: so much, and for each byte a nanosecond.
const QUICK: Duration = Duration::from_micros(150);

/// Each batch changes how slow the backend is by this part of the difference.
const WEIGHT: f32 = 1.0 / 8.0;

/// What takes less has not been at the backend, but in memory.
const MOMENT: Duration = Duration::from_micros(20);

/// With so many batches under way it shows whether the backend does them at once.
const MANY: usize = 4;

/// One after the other, each of many batches takes as long as one that is alone. At once, it takes a part of that: the part that is one of
/// [`MANY`], and less with more.
const SERIAL: f64 = 0.4;

/// A mean is over so many values, or somewhat more: disks that are limited do much at once and then nothing for a while.
const LATEST: f64 = 128.0;

/// The mean of the latest values.
#[derive(Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        if self.count >= 2.0 * LATEST {
            (self.sum, self.count) = (self.sum / 2.0, self.count / 2.0);
        }
        self.sum += value;
        self.count += 1.0;
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// What about a fifth of the values are below: what is usual where some take far longer than others. (Each value below lowers it by a
/// tenth, and each other one raises it by a part of that.)
#[derive(Default)]
struct Usual(Option<f64>);

impl Usual {
    fn add(&mut self, value: f64) {
        let before = self.0.unwrap_or(value);
        self.0 = Some(if value < before { before * 0.9 } else { before * 1.03 });
    }
}

/// What batches of one request take, seconds: one that is alone, and for each of many that are under way.
#[derive(Default)]
struct Takes {
    alone: Usual,
    among: Mean,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pace {
    /// Which part of the latest batches was slow.
    slow: f32,
    reads: Takes,
    writes: Takes,
}

impl Pace {
    /// Whether so large a part of the latest batches took long.
    pub(crate) fn is_slow(&self, part: f32) -> bool {
        self.slow >= part
    }

    /// Whether batches take the backend as long together as one after the other, or nearly so.
    pub(crate) fn is_serial(&self, kind: Kind) -> bool {
        let Takes { alone, among } = match kind {
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
        };
        matches!((alone.0, among.get()), (Some(alone), Some(among)) if among >= alone * SERIAL)
    }

    /// A batch of so many requests and bytes has taken so long; when it was issued, so many were under way, itself among them.
    pub(crate) fn note(&mut self, kind: Kind, (parts, len): (usize, u64), took: Duration, flights: usize) {
        let was_slow = f32::from(u8::from(took > QUICK + Duration::from_nanos(len)));
        self.slow += (was_slow - self.slow) * WEIGHT;
        if parts > 1 || took < MOMENT {
            return;
        }
        let takes = match kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
        };
        match flights {
            1 => takes.alone.add(took.as_secs_f64()),
            MANY.. => takes.among.add(took.as_secs_f64() / flights as f64),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a backend that takes so many microseconds for a request that is alone, and for each of eight.
    fn of(alone: u64, each: u64) -> Pace {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.note(Kind::Write, (1, 4096), Duration::from_micros(alone), 1);
            pace.note(Kind::Write, (1, 4096), Duration::from_micros(each), 8);
        }
        pace
    }

    #[test]
    fn a_backend_that_does_one_after_the_other_is_told_from_one_that_does_many_at_once() {
        assert!(of(1000, 8000).is_serial(Kind::Write) && of(1000, 8000).is_slow(0.5));
        assert!(of(100, 8000).is_serial(Kind::Write), "one is quick, and many are too many");
        assert!(!of(1000, 1000).is_serial(Kind::Write) && of(1000, 1000).is_slow(0.5));
        assert!(!of(1000, 2500).is_serial(Kind::Write));
        assert!(!of(1000, 8000).is_serial(Kind::Read), "nothing is known of reads");
        assert!(!of(10, 8000).is_serial(Kind::Write), "what is in memory says nothing");
        assert!(!of(60, 100).is_slow(0.5));
        let mut limited = of(100, 8000);
        for turn in 0..100u64 {
            // Every other one waits until the disk is allowed to go on.
            let took = Duration::from_micros(if turn.is_multiple_of(2) { 200 } else { 50_000 });
            limited.note(Kind::Write, (1, 4096), took, 1);
        }
        assert!(limited.is_serial(Kind::Write));
    }
}
