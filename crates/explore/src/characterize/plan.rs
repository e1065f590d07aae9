//! Which measurements a storage gets.
//!
//! Each request's length is measured with one process and with all processes; numbers of processes and nodes
//! between these get the shortest requests and those nearest to 1 MiB. The order within a repetition is: for
//! each number of processes all reads, then sequential writes, then random writes (which change what is
//! read), each shuffled by the seed; then floods, then metadata.

use super::protocol::{Group, Transfer};
use super::results::Access;
use crate::error::ExploreError;
use crate::random::mix;
use crate::sequence::shuffle;

/// Bytes of a file of a flood.
pub const SMALL: u64 = 4096;
/// Most room that a small file or an empty one takes beside its bytes, bytes: an inode, a block, an entry.
const OVERHEAD: u64 = 4096;
/// The request that stands for long ones.
const LONG: u64 = 1 << 20;

/// What is measured on each storage.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Nodes.
    pub nodes: u32,
    /// Processes on each of them.
    pub each: u32,
    /// Bytes of all processes' files together.
    pub size: u64,
    /// Longest time of one measurement, seconds.
    pub seconds: f64,
    /// Numbers of files of floods.
    pub files: Vec<u64>,
    /// Bytes of requests.
    pub requests: Vec<u64>,
    /// Most directories, and most files, for each measurement of metadata.
    pub entries: u64,
    /// How often everything is measured.
    pub repetitions: u32,
    /// What the order and random places follow from.
    pub seed: u64,
    /// Numbers of processes between one and all are measured, too.
    pub between: bool,
}

impl Plan {
    /// Refuses what cannot be measured.
    pub fn check(&self) -> Result<(), ExploreError> {
        let largest = self.requests.iter().copied().max().unwrap_or(0);
        let least = largest.saturating_mul(self.whole().processes().into());
        if self.size < least {
            return Err(ExploreError::Results(format!(
                "files of {} bytes in all are too small: {} processes take {least} bytes for one request of {largest} each",
                self.size,
                self.whole().processes()
            )));
        }
        Ok(())
    }

    /// All processes.
    pub fn whole(&self) -> Group {
        Group { nodes: self.nodes, each: self.each }
    }

    /// Who measures: from one process to all.
    pub fn groups(&self) -> Vec<Group> {
        let doubled = |most: u32| {
            let mut numbers: Vec<u32> =
                std::iter::successors(Some(1u32), |n| n.checked_mul(2)).take_while(|n| *n < most).collect();
            if !self.between {
                numbers.truncate(1);
            }
            numbers.push(most);
            numbers.dedup();
            numbers
        };
        let on_one = doubled(self.each).into_iter().map(|each| Group { nodes: 1, each });
        let on_several = doubled(self.nodes).into_iter().map(|nodes| Group { nodes, each: self.each });
        let mut groups: Vec<Group> = on_one.chain(on_several).collect();
        groups.dedup();
        groups
    }

    /// The lengths of requests that a group is measured with.
    fn requests_of(&self, group: Group) -> Vec<u64> {
        let is_end = group.processes() == 1 || group == self.whole();
        let far = |request: &u64| request.abs_diff(LONG);
        let some = [self.requests.iter().min().copied(), self.requests.iter().copied().min_by_key(far)];
        let mut requests: Vec<u64> =
            if is_end { self.requests.clone() } else { some.into_iter().flatten().collect() };
        requests.sort_unstable();
        requests.dedup();
        requests
    }

    /// Bytes of each process's file: a multiple of each request.
    pub fn bytes_each(&self, group: Group, request: u64) -> u64 {
        let part = self.size / u64::from(group.processes().max(1));
        part - part.checked_rem(request).unwrap_or(0)
    }

    /// The transfers of a group in their order.
    pub fn transfers(&self, group: Group, repetition: u32) -> Vec<Transfer> {
        let accesses = [Access::Sequential, Access::Random];
        let kind = |writes: bool, access: Access| {
            let syncs: &[bool] = if writes { &[false, true] } else { &[false] };
            let mut of_kind: Vec<Transfer> = Vec::new();
            for request in self.requests_of(group) {
                of_kind.extend(syncs.iter().map(|fsync| Transfer {
                    writes,
                    random: access == Access::Random,
                    fsync: *fsync,
                    request,
                    bytes: self.bytes_each(group, request),
                    seconds: self.seconds,
                    filled: 0,
                }));
            }
            of_kind
        };
        let mut reads: Vec<Transfer> = accesses.into_iter().flat_map(|access| kind(false, access)).collect();
        let mut writes = accesses.map(|access| kind(true, access));
        let seed = mix(self.seed) ^ u64::from(repetition) ^ u64::from(group.processes()) << 32;
        shuffle(&mut reads, seed);
        writes.iter_mut().for_each(|list| shuffle(list, seed));
        reads.into_iter().chain(writes.into_iter().flatten()).collect()
    }

    /// How many measurements there are in a repetition.
    pub fn count(&self) -> usize {
        let groups = self.groups();
        let transfers: usize = groups.iter().map(|group| self.transfers(*group, 0).len()).sum();
        transfers + self.files.len() + groups.len() * super::protocol::Operation::ALL.len()
    }

    /// Bytes that are there at the same time, at most.
    pub fn room(&self) -> u64 {
        let files = self.files_at_once().saturating_mul(SMALL + OVERHEAD);
        self.size.saturating_mul(2).max(files)
    }

    /// Files that are there at the same time, at most.
    pub fn files_at_once(&self) -> u64 {
        let flood = self.files.iter().copied().max().unwrap_or(0);
        flood.max(self.entries.saturating_mul(2)).saturating_add(u64::from(self.whole().processes()) * 2 + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(nodes: u32, each: u32) -> Plan {
        Plan {
            nodes,
            each,
            size: 64 << 20,
            seconds: 1.0,
            files: vec![100, 200],
            requests: vec![4096, 65536, 1 << 20, 16 << 20],
            entries: 100,
            repetitions: 2,
            seed: 7,
            between: true,
        }
    }

    #[test]
    fn processes_and_nodes_are_doubled_up_to_all() {
        let of = |nodes, each| -> Vec<(u32, u32)> {
            plan(nodes, each).groups().iter().map(|group| (group.nodes, group.each)).collect()
        };
        assert_eq!(of(1, 1), [(1, 1)]);
        assert_eq!(of(1, 6), [(1, 1), (1, 2), (1, 4), (1, 6)]);
        assert_eq!(of(3, 2), [(1, 1), (1, 2), (2, 2), (3, 2)]);
        let ends = Plan { between: false, ..plan(4, 8) };
        assert_eq!(ends.groups().iter().map(|group| group.processes()).collect::<Vec<_>>(), [1, 8, 32]);
    }

    #[test]
    fn both_ends_get_everything_and_what_is_between_gets_short_and_long_requests() {
        let plan = plan(1, 4);
        let groups = plan.groups();
        // Four lengths, in two orders, read, written, and written with fsync.
        assert_eq!(groups.iter().map(|g| plan.transfers(*g, 0).len()).collect::<Vec<_>>(), [24, 12, 24]);
        assert_eq!(plan.count(), 60 + 2 + 18);
        assert!(plan.transfers(groups[1], 0).iter().all(|t| [4096, 1 << 20].contains(&t.request)));
    }

    #[test]
    fn reads_come_before_the_writes_that_change_what_is_read_and_the_seed_shuffles() {
        let plan = plan(1, 2);
        let list = plan.transfers(plan.whole(), 0);
        let stage = |t: &Transfer| match (t.writes, t.random) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        assert!(list.is_sorted_by_key(stage));
        assert_eq!(list, plan.transfers(plan.whole(), 0));
        assert_ne!(list, plan.transfers(plan.whole(), 1));
        assert_ne!(list, Plan { seed: 8, ..plan.clone() }.transfers(plan.whole(), 0));
    }

    #[test]
    fn files_are_whole_requests_and_take_at_least_one() {
        let mut plan = plan(1, 3);
        assert_eq!(plan.bytes_each(plan.whole(), 16 << 20), 16 << 20);
        assert!(plan.transfers(plan.whole(), 0).iter().all(|t| t.requests() > 0 && t.bytes % t.request == 0));
        plan.check().expect("fits");
        plan.each = 5;
        assert!(plan.check().is_err());
        assert!(plan.room() >= 128 << 20 && plan.files_at_once() >= 200);
    }
}
