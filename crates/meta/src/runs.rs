//! Many small records in order, in little memory: what a shard has most of.
//!
//! Records lie behind one another in *runs* of some hundred bytes, and a tree leads to the runs. So a record
//! costs its own bytes, ten more, and the share of its run that is empty: not an allocation and a place in a
//! tree of its own. To find one is to find its run and to pass over a few others in it.
//!
//! A record has a key of two numbers. Several may share a key; they are never in different runs. The first
//! number is the run's: runs do not mix records that differ in it. What the bytes mean is the users' business
//! ([`crate::entries`], [`crate::inodes`]).

use std::collections::BTreeMap;

/// By what records are ordered.
pub(crate) type Key = (u64, u64);

/// A run is split when it would get longer than this, bytes.
const RUN: usize = 640;

/// Memory for runs is taken and given back in steps of this, bytes.
const STEP: usize = 128;

/// The second number of the key, and the length of the bytes.
const HEAD: usize = 8 + 2;

/// Records in order: see the module.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// Each under a key that is at most the first in the run, and greater than the last in the run before.
    runs: BTreeMap<u128, Vec<u8>>,
    records: usize,
}

/// A record in its run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub key: Key,
    pub bytes: &'a [u8],
}

/// Goes through a run.
#[derive(Clone, Copy)]
struct Walk<'a> {
    run: &'a [u8],
    at: usize,
}

/// A record's place in its run.
#[derive(Clone, Copy)]
struct Place<'a> {
    start: usize,
    end: usize,
    low: u64,
    bytes: &'a [u8],
}

impl<'a> Iterator for Walk<'a> {
    type Item = Place<'a>;

    fn next(&mut self) -> Option<Place<'a>> {
        let start = self.at;
        let rest = self.run.get(start..)?;
        let (low, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let bytes = rest.get(..usize::from(u16::from_le_bytes(*len)))?;
        self.at = start + HEAD + bytes.len();
        Some(Place { start, end: self.at, low: u64::from_le_bytes(*low), bytes })
    }
}

fn walk(run: &[u8]) -> Walk<'_> {
    Walk { run, at: 0 }
}

impl Runs {
    /// How many records there are.
    pub(crate) fn len(&self) -> usize {
        self.records
    }

    /// The records with this key.
    pub(crate) fn with(&self, key: Key) -> impl Iterator<Item = &[u8]> {
        self.run_of(key)
            .into_iter()
            .flat_map(|(_, run)| walk(run))
            .skip_while(move |place| place.low < key.1)
            .take_while(move |place| place.low == key.1)
            .map(|place| place.bytes)
    }

    /// The records with this key and all above, in order.
    pub(crate) fn from(&self, key: Key) -> impl Iterator<Item = Record<'_>> {
        let first = self.run_of(key).map_or(joined(key), |(first, _)| first);
        self.runs
            .range(first..)
            .flat_map(|(first, run)| {
                let high = high(*first);
                walk(run).map(move |place| Record { key: (high, place.low), bytes: place.bytes })
            })
            .skip_while(move |record| record.key < key)
    }

    /// Puts a record, of less than 64 KiB, in the place of the first with this key that is `it`, or without
    /// one behind those with the key. Says whether there was one.
    pub(crate) fn put(&mut self, key: Key, it: impl Fn(&[u8]) -> bool, bytes: &[u8]) -> bool {
        debug_assert!(u16::try_from(bytes.len()).is_ok());
        if self.run_of(key).is_none() {
            self.make_run(key);
        }
        let Some((&first, run)) = self.runs.range_mut(..=joined(key)).next_back() else { return false };
        let (mut at, mut last) = (0, None);
        for place in walk(run) {
            if place.low > key.1 {
                break;
            }
            if place.low == key.1 && it(place.bytes) {
                let (start, end) = (place.start, place.end);
                splice(run, (start, end), key.1, bytes);
                if run.len() > 2 * RUN {
                    self.halve(first);
                }
                return true;
            }
            (at, last) = (place.end, Some(place.low));
        }
        self.records += 1;
        let full = run.len() + HEAD + bytes.len() > RUN;
        // Records that come in ascending order fill runs completely.
        let in_order = at == run.len() && last < Some(key.1);
        let cut = if !full || run.is_empty() {
            0
        } else if in_order {
            run.len()
        } else {
            middle(run)
        };
        if cut == 0 {
            splice(run, (at, at), key.1, bytes);
            return false;
        }
        let mut right = run.split_off(cut);
        let low = walk(&right).next().map_or(key.1, |place| place.low);
        if low <= key.1 {
            splice(&mut right, (at - cut, at - cut), key.1, bytes);
        } else {
            splice(run, (at, at), key.1, bytes);
        }
        trim(run);
        trim(&mut right);
        self.runs.insert(joined((key.0, low)), right);
        false
    }

    /// Removes the first record with this key that is `it`. Says whether there was one.
    pub(crate) fn remove(&mut self, key: Key, it: impl Fn(&[u8]) -> bool) -> bool {
        let Some((&first, run)) = self.runs.range_mut(..=joined(key)).next_back() else { return false };
        if high(first) != key.0 {
            return false;
        }
        let mut same = walk(run).skip_while(|p| p.low < key.1).take_while(|p| p.low == key.1);
        let Some((start, end)) = same.find(|p| it(p.bytes)).map(|p| (p.start, p.end)) else {
            return false;
        };
        self.records -= 1;
        run.drain(start..end);
        if run.is_empty() {
            self.runs.remove(&first);
        } else {
            trim(run);
        }
        true
    }

    /// Removes the records with this first number of the key for which `gone` says so of the second.
    pub(crate) fn remove_if(&mut self, high: u64, gone: impl Fn(u64) -> bool) {
        let range = joined((high, 0))..=joined((high, u64::MAX));
        let mut removed = 0;
        for (_, run) in self.runs.range_mut(range.clone()) {
            let mut kept = Vec::new();
            for place in walk(run) {
                if gone(place.low) {
                    removed += 1;
                } else {
                    kept.extend_from_slice(run.get(place.start..place.end).unwrap_or_default());
                }
            }
            *run = kept;
        }
        self.records -= removed;
        self.runs.extract_if(range, |_, run| run.is_empty()).for_each(drop);
    }

    /// The run in which a key's records are, if they are.
    fn run_of(&self, key: Key) -> Option<(u128, &Vec<u8>)> {
        let (first, run) = self.runs.range(..=joined(key)).next_back()?;
        (high(*first) == key.0).then_some((*first, run))
    }

    /// Makes a run for a key's records.
    fn make_run(&mut self, key: Key) {
        let key = joined(key);
        // Below all others with its first number: the lowest run takes it.
        let next =
            self.runs.range(key..).next().map(|(next, _)| *next).filter(|next| high(*next) == high(key));
        let run = next.and_then(|next| self.runs.remove(&next)).unwrap_or_default();
        self.runs.insert(key, run);
    }

    fn halve(&mut self, first: u128) {
        let Some(run) = self.runs.get_mut(&first) else { return };
        let cut = middle(run);
        if cut == 0 {
            return;
        }
        let mut right = run.split_off(cut);
        trim(run);
        trim(&mut right);
        if let Some(low) = walk(&right).next().map(|place| place.low) {
            self.runs.insert(joined((high(first), low)), right);
        }
    }
}

/// A key as one number, so that the tree compares it with one operation.
fn joined((high, low): Key) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

fn high(joined: u128) -> u64 {
    (joined >> 64) as u64
}

/// Where a run is best divided: not between records with the same key. 0: nowhere.
fn middle(run: &[u8]) -> usize {
    let (mut best, mut last) = (0, None);
    for place in walk(run) {
        if last.is_some_and(|last| last < place.low) {
            best = place.start;
            if best >= run.len() / 2 {
                break;
            }
        }
        last = Some(place.low);
    }
    best
}

/// Puts a record in the place of those from `start` to `end`.
fn splice(run: &mut Vec<u8>, (start, end): (usize, usize), low: u64, bytes: &[u8]) {
    let (old, new) = (run.len(), HEAD + bytes.len());
    let len = old - (end - start) + new;
    if len > run.capacity() {
        run.reserve_exact(len.next_multiple_of(STEP) - old);
    }
    run.resize(len.max(old), 0);
    run.copy_within(end..old, start + new);
    run.truncate(len);
    if let Some((head, body)) = run.get_mut(start..start + new).and_then(|r| r.split_at_mut_checked(HEAD)) {
        head[..8].copy_from_slice(&low.to_le_bytes());
        head[8..].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
        body.copy_from_slice(bytes);
    }
}

/// Gives back what is not needed.
fn trim(run: &mut Vec<u8>) {
    if run.capacity() - run.len() >= 2 * STEP {
        run.shrink_to(run.len().next_multiple_of(STEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listed(runs: &Runs, key: Key) -> Vec<(Key, Vec<u8>)> {
        runs.from(key).map(|record| (record.key, record.bytes.to_vec())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn runs_hold_what_a_plain_list_holds(
            steps in prop::collection::vec((0u8..10, 0u64..3, 0u64..200, 1usize..90), 1..900),
            spread in prop::sample::select(vec![1u64, 7, 40]),
        ) {
            let mut runs = Runs::default();
            // In the order of keys; the bytes of each record are told apart by their first.
            let mut plain: Vec<(Key, Vec<u8>)> = Vec::new();
            for (number, (what, high, low, len)) in steps.into_iter().enumerate() {
                let key = (high, low / spread);
                let bytes = vec![number as u8; len];
                let found = plain.iter().position(|(k, _)| *k == key);
                match what {
                    0..6 => {
                        runs.put(key, |_| false, &bytes);
                        let at = plain.iter().position(|(k, _)| *k > key).unwrap_or(plain.len());
                        plain.insert(at, (key, bytes));
                    }
                    6 | 7 => {
                        prop_assert_eq!(runs.remove(key, |_| true), found.is_some());
                        found.map(|at| plain.remove(at));
                    }
                    8 => {
                        let it = found.map(|at| plain[at].1.clone()).unwrap_or_default();
                        prop_assert_eq!(runs.put(key, |b| b == it, &bytes), found.is_some());
                        match found {
                            Some(at) => plain[at].1 = bytes,
                            None => {
                                let at = plain.iter().position(|(k, _)| *k > key).unwrap_or(plain.len());
                                plain.insert(at, (key, bytes));
                            }
                        }
                    }
                    _ if len < 10 => {
                        runs.remove_if(high, |l| l % 3 == 0);
                        plain.retain(|((h, l), _)| *h != high || l % 3 != 0);
                    }
                    _ => {
                        let here: Vec<_> = runs.with(key).map(<[u8]>::to_vec).collect();
                        let there: Vec<_> =
                            plain.iter().filter(|(k, _)| *k == key).map(|(_, b)| b.clone()).collect();
                        prop_assert_eq!(here, there);
                        let behind: Vec<_> = plain.iter().filter(|(k, _)| *k >= key).cloned().collect();
                        prop_assert_eq!(listed(&runs, key), behind);
                    }
                }
            }
            prop_assert_eq!(runs.len(), plain.len());
            prop_assert_eq!(listed(&runs, (0, 0)), plain);
        }
    }

    #[test]
    fn records_that_come_in_order_fill_their_runs() {
        let mut runs = Runs::default();
        for low in 0..10_000 {
            runs.put((0, low), |_| true, &[7; 30]);
        }
        let held: usize = runs.runs.values().map(Vec::capacity).sum();
        assert!(held < 10_000 * 44, "{held} bytes for 400,000");
    }

    #[test]
    fn what_is_removed_gives_its_memory_back() {
        let mut runs = Runs::default();
        for low in 0..10_000 {
            runs.put((0, low * 7919 % 10_007), |_| true, &[7; 30]);
        }
        let full: usize = runs.runs.values().map(Vec::capacity).sum();
        (0..10_000).filter(|low| low % 10 != 0).for_each(|low| {
            assert!(runs.remove((0, low * 7919 % 10_007), |_| true));
        });
        let left: usize = runs.runs.values().map(Vec::capacity).sum();
        assert!(left < full / 2, "{left} of {full} bytes left for a tenth of the records");
        (0..10_000).step_by(10).for_each(|low| assert!(runs.remove((0, low * 7919 % 10_007), |_| true)));
        assert!(runs.runs.is_empty() && runs.len() == 0);
    }

    #[test]
    fn many_records_with_one_key_stay_together() {
        let mut runs = Runs::default();
        for n in 0..500u16 {
            runs.put((1, 5), |_| false, &n.to_le_bytes());
            runs.put((1, u64::from(n) + 6), |_| true, b"");
        }
        let same: Vec<u16> = runs.with((1, 5)).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        assert_eq!(same, (0..500).collect::<Vec<_>>());
        assert!(runs.remove((1, 5), |b| b == 77u16.to_le_bytes()));
        assert_eq!(runs.with((1, 5)).count(), 499);
    }
}
