//! How long operations took: counts in buckets that grow with the time, so that a million operations need no more room
//! than ten, and those of several processes can be added up.
//!
//! A bucket is at most 1/64 as wide as the times in it: percentiles are exact to 1.6 %. The longest time is kept
//! exactly.

use serde::{Deserialize, Serialize};

/// Buckets for each doubling, as a power of two.
const FINE: u32 = 6;

/// Times in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u64,
    longest: u64,
}

impl Histogram {
    /// An empty one, with room for all times up to a few seconds.
    pub fn new() -> Histogram {
        Histogram { counts: vec![0; bucket(1 << 33)], ..Histogram::default() }
    }

    /// Counts one.
    pub fn record(&mut self, nanoseconds: u64) {
        let bucket = bucket(nanoseconds);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.sum = self.sum.saturating_add(nanoseconds);
        self.longest = self.longest.max(nanoseconds);
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Histogram) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.sum = self.sum.saturating_add(other.sum);
        self.longest = self.longest.max(other.longest);
    }

    /// How many were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The mean, nanoseconds; 0 if there is none.
    pub fn mean(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum as f64 / self.total as f64 }
    }

    /// The longest, nanoseconds.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// The time that the given share (0 to 1) of all operations did not exceed, nanoseconds.
    pub fn percentile(&self, share: f64) -> u64 {
        let wanted = (self.total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(bucket).min(self.longest);
            }
        }
        self.longest
    }
}

/// Small times have a bucket each; from there on every doubling has `2^FINE` buckets.
fn bucket(nanoseconds: u64) -> usize {
    let small = 1u64 << (FINE + 1);
    if nanoseconds < small {
        return nanoseconds as usize;
    }
    let shift = nanoseconds.ilog2() - FINE;
    ((u64::from(shift) << FINE) + (nanoseconds >> shift)) as usize
}

/// The greatest time in a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let small = 1u64 << (FINE + 1);
    if bucket < small {
        return bucket;
    }
    let shift = (bucket >> FINE) - 1;
    let first = (bucket - (shift << FINE)) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gap_and_stay_narrow() {
        for exponent in 0..40 {
            for offset in [0, 1, 2, 1000] {
                let time = (1u64 << exponent) + offset;
                let bucket = bucket(time);
                assert!(upper(bucket) >= time && (bucket == 0 || upper(bucket - 1) < time), "{time}");
                assert!((upper(bucket) - time) as f64 <= time as f64 / 64.0, "{time}");
            }
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
