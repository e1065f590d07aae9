//! How long operations took: an HDR histogram, so that a million operations need no more room than ten, and
//! those of several processes can be added up.
//!
//! Percentiles are exact to 1 %; sum and longest time are kept beside them, exactly.

use hdrhistogram::Histogram as Counts;
use serde::{Deserialize, Serialize};

/// Decimal digits of a time that count: two are 1 %.
const DIGITS: u8 = 2;

/// Times in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Sent", into = "Sent")]
pub struct Histogram {
    counts: Counts<u64>,
    sum: u64,
    longest: u64,
}

/// What one process tells another: times with their counts.
#[derive(Serialize, Deserialize)]
struct Sent {
    counts: Vec<(u64, u64)>,
    sum: u64,
    longest: u64,
}

impl From<Histogram> for Sent {
    fn from(histogram: Histogram) -> Sent {
        let recorded = histogram.counts.iter_recorded();
        let counts = recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        Sent { counts, sum: histogram.sum, longest: histogram.longest }
    }
}

impl From<Sent> for Histogram {
    fn from(sent: Sent) -> Histogram {
        let mut histogram = Histogram { sum: sent.sum, longest: sent.longest, ..Histogram::new() };
        for (time, count) in sent.counts {
            histogram.count(time, count);
        }
        histogram
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// An empty one; it grows with the times.
    pub fn new() -> Histogram {
        let counts = Counts::new(DIGITS).expect("the crate takes up to five digits");
        Histogram { counts, sum: 0, longest: 0 }
    }

    /// Counts one.
    pub fn record(&mut self, nanoseconds: u64) {
        self.count(nanoseconds, 1);
        self.sum = self.sum.saturating_add(nanoseconds);
        self.longest = self.longest.max(nanoseconds);
    }

    fn count(&mut self, nanoseconds: u64, times: u64) {
        // One that grows takes every time; there is no other error.
        let _ = self.counts.record_n(nanoseconds, times);
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Histogram) {
        // Of the same digits, and one that grows: it always fits.
        let _ = self.counts.add(&other.counts);
        self.sum = self.sum.saturating_add(other.sum);
        self.longest = self.longest.max(other.longest);
    }

    /// How many were counted.
    pub fn total(&self) -> u64 {
        self.counts.len()
    }

    /// The mean, nanoseconds; 0 if there is none.
    pub fn mean(&self) -> f64 {
        if self.counts.is_empty() { 0.0 } else { self.sum as f64 / self.total() as f64 }
    }

    /// The longest, nanoseconds.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// The time that the given share (0 to 1) of all operations did not exceed, nanoseconds.
    pub fn percentile(&self, share: f64) -> u64 {
        self.counts.value_at_quantile(share).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_sends_is_what_it_counted() {
        let mut sent = Histogram::new();
        [1, 5, 5, 1000, 123_456_789, 1 << 45].into_iter().for_each(|time| sent.record(time));
        let text = serde_json::to_string(&sent).unwrap();
        let got: Histogram = serde_json::from_str(&text).unwrap();
        assert_eq!((got.total(), got.longest(), got.mean()), (sent.total(), sent.longest(), sent.mean()));
        for share in [0.1, 0.5, 0.9, 1.0] {
            assert_eq!(got.percentile(share), sent.percentile(share));
        }
    }

    #[test]
    fn percentiles_of_a_known_distribution_are_right() {
        let mut histogram = Histogram::new();
        for time in 1..=100_000u64 {
            histogram.record(time);
        }
        for (share, expected) in [(0.5, 50_000.0), (0.9, 90_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
            let found = histogram.percentile(share) as f64;
            assert!((found - expected).abs() / expected < 0.017, "{share}: {found}");
        }
        assert_eq!((histogram.longest(), histogram.total()), (100_000, 100_000));
        assert_eq!(histogram.mean(), 50_000.5);
    }

    #[test]
    fn the_sum_of_two_counts_all_of_both() {
        let (mut a, mut b) = (Histogram::new(), Histogram::default());
        a.record(10);
        b.record(1 << 50);
        b.record(20);
        a.add(&b);
        assert_eq!((a.total(), a.longest(), a.percentile(0.5)), (3, 1 << 50, 20));
    }

    #[test]
    fn nothing_counted_is_zero_everywhere() {
        let none = Histogram::new();
        assert_eq!((none.total(), none.mean(), none.percentile(0.99), none.longest()), (0, 0.0, 0, 0));
    }
}
