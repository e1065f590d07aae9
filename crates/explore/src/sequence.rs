//! In which order runs are done: in each repetition all patterns with all numbers of I/O nodes, shuffled, so that
//! what changes slowly on a site meets all of them alike. The order follows from the seed alone; so an exploration
//! that is continued goes on in it, also with more repetitions.

use crate::random::mix;

/// One run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Which pattern, from 0.
    pub pattern: usize,
    /// With how many I/O nodes.
    pub io_nodes: u32,
    /// In which repetition, from 0.
    pub repetition: u32,
    /// Its place in the order, from 0.
    pub order: u64,
}

/// All runs in their order.
pub fn of(patterns: usize, io_nodes: &[u32], repetitions: u32, seed: u64) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for repetition in 0..repetitions {
        let begin = entries.len();
        for pattern in 0..patterns {
            let with = |io_nodes: &u32| Entry { pattern, io_nodes: *io_nodes, repetition, order: 0 };
            entries.extend(io_nodes.iter().map(with));
        }
        shuffle(&mut entries[begin..], mix(seed) ^ u64::from(repetition));
    }
    for (order, entry) in (0..).zip(&mut entries) {
        entry.order = order;
    }
    entries
}

/// Fisher and Yates: with that many random bits for each, the remainder prefers nothing that anybody could see.
pub(crate) fn shuffle<T>(list: &mut [T], seed: u64) {
    let mut state = mix(seed);
    for left in (1..list.len()).rev() {
        state = mix(state);
        list.swap(left, (state % (left as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_run_comes_once_in_each_repetition(patterns in 1usize..20, io_nodes in 1u32..6, repetitions in 1u32..5, seed: u64) {
            let numbers: Vec<u32> = (0..io_nodes).collect();
            let entries = of(patterns, &numbers, repetitions, seed);
            let each = patterns * numbers.len();
            prop_assert_eq!(entries.len(), each * repetitions as usize);
            for (repetition, part) in (0..).zip(entries.chunks(each)) {
                let mut seen: Vec<_> = part.iter().map(|e| (e.pattern, e.io_nodes)).collect();
                seen.sort_unstable();
                seen.dedup();
                prop_assert!(seen.len() == each && part.iter().all(|e| e.repetition == repetition));
            }
            prop_assert_eq!(&of(patterns, &numbers, repetitions + 1, seed)[..entries.len()], &entries[..]);
        }
    }

    #[test]
    fn the_seed_and_the_repetition_make_the_order() {
        let first = of(10, &[0, 1, 2, 4, 8], 2, 7);
        assert_eq!(first, of(10, &[0, 1, 2, 4, 8], 2, 7));
        assert_ne!(first, of(10, &[0, 1, 2, 4, 8], 2, 8));
        let runs = |part: &[Entry]| part.iter().map(|e| (e.pattern, e.io_nodes)).collect::<Vec<_>>();
        assert_ne!(runs(&first[..50]), runs(&first[50..]));
        assert!(!runs(&first[..50]).is_sorted());
    }
}
