//! What servers say that they have caught up with, gathered for one change of the map.
//!
//! After a failure all servers catch up at once, and tell within one interval of pings. With a change for each of them,
//! programs and servers would have to hear of as many maps; and what a server has caught up with of shards is worth
//! nothing by the next map, so that all others would begin again each time.

use bivouac_layout::{Epoch, Group, Map, MoveStage, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Longest time that a report waits for others.
const GATHER: Duration = Duration::from_millis(200);

/// The reports that are not in the map yet.
#[derive(Default)]
pub(crate) struct Reports {
    /// By which map each server has caught up, and with what.
    by_server: BTreeMap<ServerId, (Epoch, Vec<Group>)>,
    /// When the first of them came.
    first: Option<Instant>,
}

impl Reports {
    /// A server says by this map what it has caught up with; what it said before does not count any more. It says it again
    /// with every ping until a map has it; what it says by an older map is left out, and comes again by the newest one.
    pub(crate) fn note(&mut self, now: Instant, map: &Map, server: ServerId, groups: Vec<Group>) {
        self.by_server.insert(server, (map.epoch, groups));
        self.keep_what_counts(map);
        if !self.by_server.is_empty() {
            self.first.get_or_insert(now);
        }
    }

    /// A server has caught up with nothing.
    pub(crate) fn withdraw(&mut self, server: ServerId) {
        self.by_server.remove(&server);
        if self.by_server.is_empty() {
            self.first = None;
        }
    }

    fn keep_what_counts(&mut self, map: &Map) {
        self.by_server.retain(|server, (epoch, groups)| {
            groups.retain(|group| map.counts_as_caught_up(*group, *server, *epoch));
            !groups.is_empty()
        });
        if self.by_server.is_empty() {
            self.first = None;
        }
    }

    /// What is to be changed now, if it is time: when everybody who has to catch up has told something, or has not for
    /// a while.
    pub(crate) fn take(&mut self, now: Instant, map: &Map) -> Vec<(ServerId, Vec<Group>)> {
        self.keep_what_counts(map);
        let waited = self.first.is_some_and(|first| now.saturating_duration_since(first) >= GATHER);
        let all_have_told = || Reports::awaited(map).iter().all(|server| self.by_server.contains_key(server));
        if !waited && !all_have_told() {
            return Vec::new();
        }
        self.first = None;
        let told = std::mem::take(&mut self.by_server).into_iter();
        told.map(|(server, (_, groups))| (server, groups)).collect()
    }

    /// Those that are up and behind in something, or are to answer for a shard that others had.
    fn awaited(map: &Map) -> BTreeSet<ServerId> {
        let behind = map.behind.iter().flat_map(|lag| map.holders(lag.group).behind());
        let handed = map.moving.iter().filter(|entry| entry.stage == MoveStage::HandingOver);
        let handed = handed.filter_map(|entry| map.answers_for(entry.shard));
        behind.chain(handed).filter(|server| map.is_up(*server)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::tests::founding;
    use bivouac_layout::{MapChange, ServerState};

    /// Three servers and two copies; server 0 was killed, and is back. With what it has to catch up.
    fn one_is_behind() -> (Map, Vec<Group>) {
        let addresses = [1, 2, 3].map(|port| format!("127.0.0.1:{port}").parse().expect("an address"));
        let mut founding = founding(&addresses);
        (founding.replicas, founding.metadata_replicas) = (2, 2);
        let mut map = founding.map().expect("a map");
        for state in [ServerState::Down, ServerState::Joining, ServerState::Up] {
            map = MapChange::State { server: ServerId(0), state }.apply(&map).expect("it is listed");
        }
        let behind = map.replicated().filter(|group| map.is_behind(*group, ServerId(0))).collect();
        (map, behind)
    }

    /// The same, when server 1 has been killed and is back, too.
    fn two_are_behind() -> Map {
        let (mut map, _) = one_is_behind();
        for state in [ServerState::Down, ServerState::Joining, ServerState::Up] {
            map = MapChange::State { server: ServerId(1), state }.apply(&map).expect("it is listed");
        }
        assert_eq!(Reports::awaited(&map).len(), 2);
        map
    }

    #[test]
    fn one_that_is_alone_waits_for_nobody() {
        let (map, behind) = one_is_behind();
        let (mut reports, now) = (Reports::default(), Instant::now());
        reports.note(now, &map, ServerId(0), behind.clone());
        assert_eq!(reports.take(now, &map), [(ServerId(0), behind)]);
        assert_eq!(reports.take(now + GATHER, &map), []);
    }

    #[test]
    fn several_are_one_change_when_all_have_told_or_after_a_while() {
        let map = two_are_behind();
        let behind =
            |server| map.replicated().filter(|group| map.is_behind(*group, server)).collect::<Vec<_>>();
        let [a, b] = [0, 1].map(|number| (ServerId(number), behind(ServerId(number))));
        let (mut reports, now) = (Reports::default(), Instant::now());
        reports.note(now, &map, a.0, a.1.clone());
        assert_eq!(reports.take(now, &map), [], "the other one may tell, too");
        reports.note(now, &map, b.0, b.1.clone());
        assert_eq!(reports.take(now, &map), [a.clone(), b]);
        reports.note(now, &map, a.0, a.1.clone());
        assert_eq!(reports.take(now, &map), []);
        reports.note(now + GATHER, &map, a.0, a.1.clone());
        assert_eq!(reports.take(now + GATHER, &map), [a], "the other one takes longer");
    }

    #[test]
    fn what_is_withdrawn_or_out_of_date_begins_no_wait_and_is_not_committed() {
        let map = two_are_behind();
        let behind =
            |server| map.replicated().filter(|group| map.is_behind(*group, server)).collect::<Vec<_>>();
        let [a, b] = [0, 1].map(ServerId);
        let (mut reports, now) = (Reports::default(), Instant::now());
        reports.note(now, &map, a, behind(a));
        reports.withdraw(a);
        reports.note(now + GATHER, &map, b, behind(b));
        assert_eq!(reports.take(now + GATHER, &map), [], "the wait began with the second one");
        assert_eq!(reports.take(now + 2 * GATHER, &map), [(b, behind(b))]);
        let done = MapChange::InStep { servers: vec![(b, behind(b))] }.apply(&map).expect("listed");
        reports.note(now, &done, b, behind(b));
        assert!(reports.first.is_none(), "it is in step already");
    }

    #[test]
    fn after_a_change_blocks_count_unless_something_was_missed_since_and_shards_do_not() {
        let (map, behind) = one_is_behind();
        let take_by = |newer: &Map| {
            let (mut reports, now) = (Reports::default(), Instant::now());
            reports.note(now, &map, ServerId(0), behind.clone());
            reports.take(now + GATHER, newer)
        };
        let mut newer = map.clone();
        newer.epoch = Epoch(map.epoch.0 + 1);
        let blocks: Vec<Group> =
            behind.iter().copied().filter(|group| matches!(group, Group::Blocks { .. })).collect();
        assert!(!blocks.is_empty() && blocks.len() < behind.len());
        assert_eq!(take_by(&newer), [(ServerId(0), blocks)]);
        let mut away = map.clone();
        for state in [ServerState::Down, ServerState::Up] {
            away = MapChange::State { server: ServerId(0), state }.apply(&away).expect("it is listed");
        }
        assert_eq!(take_by(&away), []);
    }
}
