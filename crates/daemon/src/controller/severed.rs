//! Servers that the controller reaches, and that do not reach each other.
//!
//! Servers say with their answers to pings whom they do not reach ([`crate::reach`]). Of two that are cut off from each
//! other one has to be left out, so that the other goes on: the one that is cut off from more servers; of two of which
//! this is the same, one that has to catch up anyway; and else the one with the higher number. It must be one that others
//! can take the place of. It gets no lease any more, is declared down when it has none, and stays that until it and those
//! that are up reach each other again.
//!
//! A report counts for a while after it was last given: who reports may have died.

use bivouac_layout::map::ServerState;
use bivouac_layout::{Map, ServerId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So long after the first report, others that have to do with it have come, too.
const GATHER: Duration = Duration::from_secs(1);
/// For so long a report counts after it was last given.
const FRESH: Duration = Duration::from_secs(2);

/// When it was first and last reported that one server does not reach another one.
#[derive(Clone, Copy, Debug)]
struct Told {
    first: Instant,
    last: Instant,
}

/// What servers have reported: by who reports, and whom it does not reach.
#[derive(Debug, Default)]
pub(super) struct Severed {
    told: BTreeMap<(ServerId, ServerId), Told>,
}

impl Severed {
    /// A server says whom it does not reach.
    pub(super) fn note(&mut self, now: Instant, from: ServerId, unreached: &[ServerId]) {
        if self.told.is_empty() && unreached.is_empty() {
            return;
        }
        self.told.retain(|(who, whom), told| {
            (*who != from || unreached.contains(whom)) && now.saturating_duration_since(told.last) < FRESH
        });
        for whom in unreached.iter().filter(|whom| **whom != from) {
            self.told.entry((from, *whom)).or_insert(Told { first: now, last: now }).last = now;
        }
    }

    /// Pairs of servers of which none is down, and that have been cut off from each other for long enough.
    fn pairs<'s>(
        &'s self,
        now: Instant,
        map: &'s Map,
    ) -> impl Iterator<Item = (ServerId, ServerId)> + Clone + 's {
        let takes_part = |server: ServerId| map.server(server).is_some_and(|s| s.state != ServerState::Down);
        let counts = move |told: &Told| {
            now.saturating_duration_since(told.last) < FRESH
                && now.saturating_duration_since(told.first) >= GATHER
        };
        let pairs = self.told.iter().filter(move |(_, told)| counts(told)).map(|(pair, _)| *pair);
        // If both report, it is one pair.
        let pairs = pairs.filter(|(a, b)| a < b || !self.told.contains_key(&(*b, *a)));
        pairs.filter(move |(a, b)| takes_part(*a) && takes_part(*b))
    }

    /// Whether this server is to be left out, for those from which it is cut off.
    pub(super) fn leaves_out(&self, now: Instant, map: &Map, server: ServerId) -> bool {
        let pairs = self.pairs(now, map);
        // Most often there is none: what is down is in no pair, however many report it.
        if !pairs.clone().any(|(a, b)| a == server || b == server) {
            return false;
        }
        let cuts = |of: ServerId| pairs.clone().filter(|(a, b)| *a == of || *b == of).count();
        let is_joining = |of: ServerId| map.server(of).is_some_and(|s| s.state == ServerState::Joining);
        let rank = |of: ServerId| (is_dispensable(map, of), cuts(of), is_joining(of), of);
        let mine = rank(server);
        let others = pairs.clone().filter_map(|(a, b)| match () {
            () if a == server => Some(b),
            () if b == server => Some(a),
            () => None,
        });
        mine.0 && others.map(rank).any(|other| mine > other)
    }

    /// Whether a server that is down has to stay that, because it and one that is not do not reach each other, and others
    /// have what it has.
    pub(super) fn keeps_out(&self, now: Instant, map: &Map, server: ServerId) -> bool {
        let takes_part = |server: ServerId| map.server(server).is_some_and(|s| s.state != ServerState::Down);
        let is_cut_off = self.told.iter().any(|((a, b), told)| {
            now.saturating_duration_since(told.last) < FRESH
                && ((*a == server && takes_part(*b)) || (*b == server && takes_part(*a)))
        });
        is_cut_off && !is_missed(map, server)
    }
}

/// Whether others have everything that a server has.
fn is_dispensable(map: &Map, server: ServerId) -> bool {
    let is_needed = |group| {
        let mut serving = map.serving(group);
        serving.next() == Some(server) && serving.next().is_none()
    };
    !map.replicated().any(is_needed)
}

/// Whether a server that is down has something that nobody serves without it.
fn is_missed(map: &Map, server: ServerId) -> bool {
    let is_missed = |group| {
        let mut in_step = map.holders(group).in_step();
        in_step.any(|holder| holder == server) && map.serving(group).next().is_none() && !map.is_gone(group)
    };
    map.replicated().any(is_missed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::tests::founding;
    use bivouac_layout::MapChange;

    fn map(servers: u16) -> Map {
        let addresses: Vec<_> =
            (1..=servers).map(|port| format!("127.0.0.1:{port}").parse().expect("an address")).collect();
        let mut founding = founding(&addresses);
        (founding.replicas, founding.metadata_replicas) = (2, 2);
        founding.map().expect("a map")
    }

    fn with(map: &Map, server: u16, state: ServerState) -> Map {
        MapChange::State { server: ServerId(server), state }.apply(map).expect("it is listed")
    }

    /// Who is left out, and who would be kept out, after these reports have been given for long enough.
    fn outcome(map: &Map, reports: &[(u16, &[u16])]) -> (Vec<u16>, Vec<u16>) {
        let (mut severed, begun) = (Severed::default(), Instant::now());
        let now = begun + GATHER;
        for at in [begun, now] {
            for (from, whom) in reports {
                let whom: Vec<ServerId> = whom.iter().copied().map(ServerId).collect();
                severed.note(at, ServerId(*from), &whom);
            }
        }
        let all = || (0..map.servers.len() as u16).map(ServerId);
        let left_out = all().filter(|server| severed.leaves_out(now, map, *server));
        let kept_out = all().filter(|server| severed.keeps_out(now, map, *server));
        (left_out.map(|server| server.0).collect(), kept_out.map(|server| server.0).collect())
    }

    #[test]
    fn one_of_two_is_left_out_whoever_reports() {
        let map = map(4);
        for reports in [&[(1, &[2][..])][..], &[(2, &[1])], &[(1, &[2]), (2, &[1])]] {
            assert_eq!(outcome(&map, reports), (vec![2], vec![1, 2]));
        }
        assert_eq!(outcome(&map, &[(1, &[])]), (vec![], vec![]));
    }

    #[test]
    fn it_is_the_one_that_is_cut_off_from_more_and_the_others_stay() {
        let map = map(4);
        assert_eq!(outcome(&map, &[(0, &[1, 2, 3])]).0, [0]);
        assert_eq!(outcome(&map, &[(1, &[0]), (2, &[0]), (3, &[0])]).0, [0]);
    }

    #[test]
    fn one_that_has_to_catch_up_is_left_out_and_one_that_others_need_is_not() {
        let map = map(4);
        let joining = with(&with(&map, 1, ServerState::Down), 1, ServerState::Joining);
        assert_eq!(outcome(&joining, &[(2, &[1])]).0, [1]);
        // 0 has died: what it shared with another one, that one has alone.
        let without = with(&map, 0, ServerState::Down);
        assert_eq!(outcome(&without, &[(1, &[2])]).0, [] as [u16; 0]);
        // What is down is no reason to leave out anybody, and is kept out.
        assert_eq!(outcome(&without, &[(1, &[0])]), (vec![], vec![0]));
        assert_eq!(outcome(&without, &[(0, &[1])]), (vec![], vec![0]));
        // Who has died since then, and is back, is needed as before: 0 has missed what it has alone.
        let both = with(&without, 2, ServerState::Down);
        assert_eq!(outcome(&both, &[(1, &[2, 0])]), (vec![], vec![0]));
    }

    #[test]
    fn two_that_could_each_be_done_without_are_not_left_out_one_after_the_other() {
        // Two cuts; by the same map 2 and 3 are left out, and 2 and 3 share something that nobody else has.
        let map = map(4);
        let reports: &[(u16, &[u16])] = &[(0, &[2]), (1, &[3])];
        assert_eq!(outcome(&map, reports).0, [2, 3]);
        let without = with(&map, 2, ServerState::Down);
        let (left_out, _) = outcome(&without, reports);
        assert!(!left_out.contains(&3), "{left_out:?}");
        let is_served = |map: &Map| map.replicated().all(|group| map.serving(group).next().is_some());
        assert!(is_served(&without));
        let next = left_out.iter().fold(without, |map, server| with(&map, *server, ServerState::Down));
        assert!(is_served(&next), "{left_out:?}");
    }

    #[test]
    fn a_report_counts_after_a_while_and_for_a_while() {
        let (map, begun) = (map(3), Instant::now());
        let mut severed = Severed::default();
        let [one, two] = [1, 2].map(ServerId);
        severed.note(begun, one, &[two]);
        assert!(!severed.leaves_out(begun, &map, two));
        assert!(severed.leaves_out(begun + GATHER, &map, two));
        assert!(
            !severed.leaves_out(begun + FRESH, &map, two) && !severed.keeps_out(begun + FRESH, &map, two)
        );
        severed.note(begun + FRESH, one, &[two]);
        assert!(!severed.leaves_out(begun + FRESH, &map, two), "it begins anew");
        severed.note(begun + FRESH + GATHER, one, &[]);
        assert!(!severed.keeps_out(begun + FRESH + GATHER, &map, two));
    }
}
