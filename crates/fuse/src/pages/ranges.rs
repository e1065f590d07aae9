//! Sets of numbers, kept as ranges that neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers: the end of each range by its start.
#[derive(Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The ranges that overlap this one, as they are kept.
    fn overlapping(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.0.range(..=range.start).next_back();
        let from = before.map_or(range.start, |(start, _)| *start);
        if range.is_empty() {
            return Vec::new();
        }
        let near = self.0.range(from..range.end).map(|(start, end)| *start..*end);
        near.filter(|near| near.end > range.start).collect()
    }

    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut whole = range.clone();
        // One further on both sides, to join what touches.
        for other in self.overlapping(&(range.start.saturating_sub(1)..range.end.saturating_add(1))) {
            whole = whole.start.min(other.start)..whole.end.max(other.end);
            self.0.remove(&other.start);
        }
        self.0.insert(whole.start, whole.end);
    }

    pub(super) fn remove(&mut self, range: Range<u64>) {
        for other in self.overlapping(&range) {
            self.0.remove(&other.start);
            if other.start < range.start {
                self.0.insert(other.start, range.start);
            }
            if range.end < other.end {
                self.0.insert(range.end, other.end);
            }
        }
    }

    /// The parts of a range that are in the set, in order.
    pub(super) fn inside(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let overlapping = self.overlapping(&range).into_iter();
        overlapping.map(|other| other.start.max(range.start)..other.end.min(range.end)).collect()
    }

    /// The parts of a range that are not in the set, in order.
    pub(super) fn outside(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut start = range.start;
        for other in self.inside(range.clone()) {
            parts.push(start..other.start);
            start = other.end;
        }
        parts.push(start..range.end);
        parts.retain(|part| !part.is_empty());
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_the_set_that_they_stand_for() {
        // Every pair of changes within a few numbers, against a set of single numbers.
        let all = || (0..8u64).flat_map(|start| (start..8).map(move |end| start..end));
        for first in all() {
            for second in all() {
                for third in all() {
                    let mut ranges = Ranges::default();
                    ranges.add(first.clone());
                    ranges.add(second.clone());
                    ranges.remove(third.clone());
                    let is_in = |n: &u64| (first.contains(n) || second.contains(n)) && !third.contains(n);
                    let flat = |parts: Vec<Range<u64>>| parts.into_iter().flatten().collect::<Vec<_>>();
                    assert_eq!(flat(ranges.inside(1..7)), (1..7).filter(is_in).collect::<Vec<_>>());
                    assert_eq!(flat(ranges.outside(1..7)), (1..7).filter(|n| !is_in(n)).collect::<Vec<_>>());
                    let kept: Vec<_> = ranges.0.iter().collect();
                    assert!(kept.windows(2).all(|pair| pair[0].1 < pair[1].0), "{kept:?}");
                }
            }
        }
    }
}
