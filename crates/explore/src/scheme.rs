//! Where each process's requests are: an offset for each process and each number of a request, so that no two
//! requests of a phase overlap.

use crate::patterns::{Layout, Phase, Spatiality};
use crate::random::permuted;

/// What a process has of a file in a phase that is limited by time alone, bytes. When it has gone through all of it,
/// it begins anew.
pub const WINDOW: u64 = 4 << 30;

/// The places of a phase's requests.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    layout: Layout,
    spatiality: Spatiality,
    request: u64,
    processes: u64,
    window: u64,
    seed: u64,
}

impl Scheme {
    /// Of a phase.
    pub fn new(phase: &Phase, processes: u32, seed: u64) -> Scheme {
        Scheme {
            layout: phase.layout,
            spatiality: phase.spatiality,
            request: phase.request,
            processes: processes.into(),
            window: phase.requests(processes).unwrap_or((WINDOW / phase.request).max(1)),
            seed,
        }
    }

    /// How many different requests a process has.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// The offset of a process's request: `index` is below the window.
    pub fn offset(&self, rank: u32, index: u64) -> u64 {
        let rank = u64::from(rank);
        let number = match (self.layout, self.spatiality) {
            (Layout::Own, Spatiality::Contiguous) => index,
            // As large as a request is the gap between two.
            (Layout::Own, Spatiality::Strided) => 2 * index,
            (Layout::Own, Spatiality::Random) => permuted(index, self.window, self.seed ^ rank),
            (Layout::Shared, Spatiality::Contiguous) => rank * self.window + index,
            (Layout::Shared, Spatiality::Strided) => index * self.processes + rank,
            (Layout::Shared, Spatiality::Random) => {
                permuted(index * self.processes + rank, self.window * self.processes, self.seed)
            }
        };
        number * self.request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patterns::{Operation, PROCESSES_MAX, TOTAL_MAX};
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn scheme(
        layout: Layout,
        spatiality: Spatiality,
        request: u64,
        total: Option<u64>,
        processes: u32,
    ) -> Scheme {
        let phase = Phase {
            operation: Operation::Write,
            layout,
            spatiality,
            request,
            total,
            stonewall: Some(1.0),
            read_share: None,
            direct: false,
            fsync: false,
            think: 0.0,
        };
        Scheme::new(&phase, processes, 7)
    }

    const LAYOUTS: [Layout; 2] = [Layout::Own, Layout::Shared];
    const SPATIALITIES: [Spatiality; 3] = [Spatiality::Contiguous, Spatiality::Strided, Spatiality::Random];

    proptest! {
        #[test]
        fn no_two_requests_overlap(layout in 0usize..2, spatiality in 0usize..3, request in 1u64..10_000, each in 1u64..30, processes in 1u32..9) {
            let (layout, spatiality) = (LAYOUTS[layout], SPATIALITIES[spatiality]);
            let scheme = scheme(layout, spatiality, request, Some(request * each * u64::from(processes)), processes);
            prop_assert_eq!(scheme.window(), each);
            let mut seen = HashSet::new();
            for rank in 0..processes {
                let file = if layout == Layout::Own { rank } else { 0 };
                for index in 0..each {
                    let offset = scheme.offset(rank, index);
                    prop_assert!(offset.is_multiple_of(request) && seen.insert((file, offset)));
                }
            }
            // Without gaps, a file is exactly as long as what is in it.
            let dense = spatiality != Spatiality::Strided || layout == Layout::Shared;
            let files = if layout == Layout::Own { 1 } else { u64::from(processes) };
            prop_assert!(!dense || seen.iter().all(|(_, offset)| *offset < request * each * files));
        }
    }

    #[test]
    fn contiguous_is_one_after_the_other_and_strided_is_in_turns() {
        let places = |layout, spatiality| {
            let scheme = scheme(layout, spatiality, 10, Some(90), 3);
            (0..3).map(|index| scheme.offset(1, index)).collect::<Vec<_>>()
        };
        assert_eq!(places(Layout::Own, Spatiality::Contiguous), [0, 10, 20]);
        assert_eq!(places(Layout::Own, Spatiality::Strided), [0, 20, 40]);
        assert_eq!(places(Layout::Shared, Spatiality::Contiguous), [30, 40, 50]);
        assert_eq!(places(Layout::Shared, Spatiality::Strided), [10, 40, 70]);
    }

    #[test]
    fn the_largest_patterns_stay_below_the_largest_file() {
        for (layout, spatiality) in LAYOUTS.into_iter().flat_map(|l| SPATIALITIES.map(|s| (l, s))) {
            for total in [None, Some(TOTAL_MAX)] {
                for request in [1, 1 << 30] {
                    let processes = if request == 1 { PROCESSES_MAX as u32 } else { 1 << 18 };
                    let scheme = scheme(layout, spatiality, request, total, processes);
                    let last = scheme.offset(processes - 1, scheme.window() - 1);
                    assert!(last.checked_add(request).is_some_and(|end| end < i64::MAX as u64));
                }
            }
        }
    }
}
