//! Groups in one process, over a network that loses and delays messages.

use super::super::Proposal;
use super::super::peers::Carrier;
use super::super::voter::{Voter, VoterConfig};
use super::{QUICK, identity};
use crate::controller::ControllerError;
use crate::controller::tests::two_servers;
use bivouac_layout::{Epoch, Map, MapChange, NodeId, ServerId, ServerState};
use bivouac_proto::raft::RaftRequest;
use bivouac_testing::{HANG, eventually};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Who can be reached, and how many of a hundred messages or answers are lost.
#[derive(Default)]
struct Net {
    voters: Mutex<BTreeMap<u64, Arc<Voter>>>,
    cut: Mutex<BTreeSet<u64>>,
    lost: Mutex<u32>,
}

impl Net {
    fn cut(&self, voter: u64, is_cut: bool) {
        let mut cut = self.cut.lock().expect("locks");
        if is_cut {
            cut.insert(voter)
        } else {
            cut.remove(&voter)
        };
    }

    fn reach(&self, from: u64, to: u64) -> Option<Arc<Voter>> {
        let cut = self.cut.lock().expect("locks");
        if cut.contains(&from) || cut.contains(&to) {
            return None;
        }
        self.voters.lock().expect("locks").get(&to).cloned()
    }

    fn loses(&self, random: &mut u64) -> bool {
        *random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*random >> 33) % 100 < u64::from(*self.lost.lock().expect("locks"))
    }
}

struct Way {
    net: Arc<Net>,
    from: u64,
    to: u64,
    random: u64,
}

impl Carrier for Way {
    fn carry(&mut self, kind: RaftRequest, message: &[u8], limit: Duration) -> Result<Vec<u8>, String> {
        let lost = || Err("lost".to_owned());
        let Some(to) = self.net.reach(self.from, self.to) else { return lost() };
        if self.net.loses(&mut self.random) {
            std::thread::sleep(limit);
            return lost();
        }
        let mut answer = Vec::new();
        to.serve(kind, message, limit, &mut answer).map_err(|error| error.to_string())?;
        // The answer may be lost although the message was not.
        if self.net.loses(&mut self.random) || self.net.reach(self.from, self.to).is_none() {
            return lost();
        }
        Ok(answer)
    }
}

struct Cluster {
    net: Arc<Net>,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Voters 0 to `count` - 1, with a map.
    fn of(count: u64) -> Cluster {
        let cluster = Cluster { net: Arc::default(), dir: tempfile::tempdir().expect("a directory") };
        for voter in 0..count {
            let voter = Voter::create(cluster.config(voter)).expect("made");
            cluster.add(Arc::new(voter));
        }
        let first = cluster.voter(0);
        first.found(HANG).expect("founded");
        eventually("it leads", || first.standing().leads);
        first.propose(Proposal::Found(Box::new(two_servers())), HANG).expect("committed");
        let all: Vec<NodeId> = (0..count).map(|n| NodeId(n as u16)).collect();
        first.set_voters(&all, HANG).expect("agreed");
        cluster
    }

    fn config(&self, voter: u64) -> VoterConfig {
        let net = self.net.clone();
        let way = move |to| -> Box<dyn Carrier> {
            Box::new(Way { net: net.clone(), from: voter, to, random: voter * 100 + to })
        };
        let directory = self.dir.path().join(voter.to_string());
        VoterConfig { identity: identity(voter as u16), directory, carriers: Box::new(way), times: QUICK }
    }

    fn add(&self, voter: Arc<Voter>) {
        let number = u64::from(voter.number().0);
        self.net.voters.lock().expect("locks").insert(number, voter);
    }

    fn voter(&self, voter: u64) -> Arc<Voter> {
        self.net.voters.lock().expect("locks")[&voter].clone()
    }

    /// Takes a voter out, and stops it; its files stay.
    fn kill(&self, voter: u64) {
        let voter = self.net.voters.lock().expect("locks").remove(&voter).expect("lives");
        voter.stop();
    }

    fn restart(&self, voter: u64) {
        self.add(Arc::new(Voter::open(self.config(voter)).expect("opens").expect("is there")));
    }

    /// The voter that leads and can still change something.
    fn leader(&self) -> u64 {
        let mut found = None;
        eventually("somebody leads", || {
            let voters: Vec<_> = self.net.voters.lock().expect("locks").clone().into_iter().collect();
            found = voters
                .into_iter()
                .find(|(_, voter)| voter.standing().leads && voter.confirm(Duration::from_secs(1)).is_ok())
                .map(|(number, _)| number);
            found.is_some()
        });
        found.expect("found")
    }

    /// Has the map changed once more by whoever can, and returns it.
    fn change(&self) -> Arc<Map> {
        let mut changed = None;
        eventually("the map is changed", || {
            let leader = self.voter(self.leader());
            changed = propose(&leader, Duration::from_secs(2)).ok();
            changed.is_some()
        });
        changed.expect("changed")
    }

    fn all_have(&self, map: &Map) {
        eventually("all have the map", || {
            let voters = self.net.voters.lock().expect("locks").clone();
            voters.values().all(|voter| voter.map().is_some_and(|own| *own == *map))
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let voters = std::mem::take(&mut *self.net.voters.lock().expect("locks"));
        voters.into_values().for_each(|voter| voter.stop());
    }
}

fn propose(voter: &Voter, limit: Duration) -> Result<Arc<Map>, ControllerError> {
    let map = voter.map().expect("a map");
    let state = match map.server(ServerId(1)).expect("listed").state {
        ServerState::Down => ServerState::Up,
        _ => ServerState::Down,
    };
    let change = MapChange::State { server: ServerId(1), state };
    voter.propose(Proposal::Change { expected: map.epoch, change }, limit)
}

#[test]
fn a_leader_that_was_alone_and_left_leads_no_more() {
    let cluster = Cluster::of(1);
    let first = cluster.voter(0);
    cluster.add(Arc::new(Voter::create(cluster.config(1)).expect("made")));
    first.set_voters(&[NodeId(1)], HANG).expect("agreed");
    assert!(!first.standing().leads_alone());
    eventually("the other one leads", || cluster.voter(1).standing().leads_alone());
    eventually("it does not", || !first.standing().leads && !first.standing().leads_alone());
}

#[test]
fn a_voter_that_is_alone_rests_and_a_group_that_grows_from_it_does_not() {
    let cluster = Cluster::of(1);
    let first = cluster.voter(0);
    eventually("nothing wakes who waits", || {
        let begun = Instant::now();
        first.wait(20 * QUICK.heartbeat);
        begun.elapsed() >= 20 * QUICK.heartbeat
    });
    assert!(first.standing().leads && !first.misses_a_leader());
    cluster.all_have(&cluster.change());
    for voter in 1..3 {
        cluster.add(Arc::new(Voter::create(cluster.config(voter)).expect("made")));
    }
    first.set_voters(&[NodeId(0), NodeId(1), NodeId(2)], HANG).expect("agreed");
    // The others hear of it all the time, and go on without it.
    std::thread::sleep(10 * QUICK.election.1);
    assert_eq!(cluster.leader(), 0);
    assert!(!cluster.voter(1).misses_a_leader() && !cluster.voter(2).misses_a_leader());
    drop(first);
    cluster.kill(0);
    cluster.all_have(&cluster.change());
}

#[test]
fn another_voter_leads_when_the_leader_dies_and_nothing_that_was_committed_is_lost() {
    let cluster = Cluster::of(3);
    let mut epoch = Epoch(1);
    for _ in 0..4 {
        let map = cluster.change();
        assert!(map.epoch > epoch);
        epoch = map.epoch;
        let leader = cluster.leader();
        cluster.kill(leader);
        let next = cluster.change();
        assert!(next.epoch > epoch, "it went on from what was committed");
        epoch = next.epoch;
        cluster.restart(leader);
        cluster.all_have(&next);
    }
}

#[test]
fn a_leader_that_is_cut_off_cannot_change_the_map_and_follows_when_it_is_back() {
    let cluster = Cluster::of(3);
    let old = cluster.leader();
    cluster.net.cut(old, true);
    let deposed = cluster.voter(old);
    assert!(matches!(propose(&deposed, Duration::from_millis(500)), Err(ControllerError::Unconfirmed)));
    assert!(deposed.confirm(Duration::from_millis(500)).is_err(), "it does not lead any more");
    let others = || cluster.net.voters.lock().expect("locks").clone().into_iter().filter(|(n, _)| *n != old);
    let mut next = None;
    eventually("the others elect one", || {
        next = others().find(|(_, voter)| voter.confirm(Duration::from_millis(500)).is_ok());
        next.is_some()
    });
    let (_, next) = next.expect("elected");
    let map = propose(&next, HANG).expect("committed");
    assert_eq!(deposed.map().expect("a map").epoch, Epoch(1), "it knows nothing of that");
    cluster.net.cut(old, false);
    cluster.all_have(&map);
    eventually("one leads", || {
        let leading =
            cluster.net.voters.lock().expect("locks").values().filter(|v| v.standing().leads).count();
        leading == 1
    });
    assert!(cluster.change().epoch > map.epoch, "what it had proposed was not applied late");
}

#[test]
fn changes_are_committed_although_messages_and_answers_are_lost() {
    let cluster = Cluster::of(3);
    *cluster.net.lost.lock().expect("locks") = 15;
    let mut last = cluster.change();
    for _ in 0..40 {
        let map = cluster.change();
        assert!(map.epoch > last.epoch);
        last = map;
    }
    *cluster.net.lost.lock().expect("locks") = 0;
    let last = cluster.change();
    cluster.all_have(&last);
}

#[test]
fn without_most_voters_nothing_changes_and_with_them_it_goes_on() {
    let cluster = Cluster::of(5);
    let leader = cluster.leader();
    let others: Vec<u64> = (0..5).filter(|voter| *voter != leader).collect();
    others[..2].iter().for_each(|voter| cluster.kill(*voter));
    let map = cluster.change();
    cluster.kill(others[2]);
    let begun = Instant::now();
    assert!(propose(&cluster.voter(leader), Duration::from_millis(700)).is_err());
    assert!(begun.elapsed() < HANG, "the wait is bounded");
    cluster.restart(others[2]);
    assert!(cluster.change().epoch > map.epoch);
    others[..2].iter().for_each(|voter| cluster.restart(*voter));
    let map = cluster.change();
    cluster.all_have(&map);
}

#[test]
fn a_voter_that_was_away_for_long_gets_a_snapshot() {
    let cluster = Cluster::of(3);
    let leader = cluster.leader();
    let away = (leader + 1) % 3;
    cluster.kill(away);
    // More than anybody keeps.
    let mut map = cluster.change();
    for _ in 0..4 * QUICK.snapshot_after {
        map = cluster.change();
    }
    cluster.restart(away);
    cluster.all_have(&map);
    assert!(cluster.dir.path().join(away.to_string()).join(super::super::machine::SNAPSHOT).exists());
}

#[test]
fn a_dead_voter_is_replaced_by_one_that_begins_empty() {
    let cluster = Cluster::of(3);
    let leader = cluster.leader();
    let dead = (leader + 1) % 3;
    cluster.kill(dead);
    let spare = Voter::create(cluster.config(3)).expect("made");
    cluster.add(Arc::new(spare));
    let voters: Vec<NodeId> = (0..4).filter(|n| *n != dead).map(|n| NodeId(n as u16)).collect();
    cluster.voter(leader).set_voters(&voters, HANG).expect("agreed");
    eventually("all know it", || {
        let mut known = cluster.voter(3).standing().voters;
        known.sort_unstable();
        known == voters
    });
    // One of the three may die now.
    let third = (0..3).find(|n| *n != dead && *n != leader).expect("there is one");
    cluster.kill(third);
    let map = cluster.change();
    cluster.all_have(&map);
}

#[test]
fn all_voters_may_die_and_come_back_with_the_newest_map() {
    let cluster = Cluster::of(3);
    let mut map = cluster.change();
    for _ in 0..30 {
        map = cluster.change();
    }
    (0..3).for_each(|voter| cluster.kill(voter));
    (0..3).for_each(|voter| cluster.restart(voter));
    cluster.leader();
    cluster.all_have(&map);
}

#[test]
fn who_is_cut_off_finds_nobody_who_misses_a_leader_and_others_do_when_it_is_dead() {
    let cluster = Cluster::of(3);
    let leader = cluster.leader();
    let others: Vec<u64> = (0..3).filter(|voter| *voter != leader).collect();
    let nodes = |voter: u64| -> Vec<NodeId> {
        (0..3).filter(|other| *other != voter).map(|other| NodeId(other as u16)).collect()
    };
    let asks = |voter: u64| cluster.voter(voter).canvass(&nodes(voter), Duration::from_millis(500));
    eventually("all have a leader", || others.iter().all(|voter| !cluster.voter(*voter).misses_a_leader()));
    assert!(!asks(others[0]));
    cluster.net.cut(others[0], true);
    eventually("it misses the leader", || cluster.voter(others[0]).misses_a_leader());
    assert!(!asks(others[0]), "nobody answers");
    cluster.net.cut(others[0], false);
    assert!(!asks(others[0]), "the others have a leader");
    others.iter().for_each(|voter| cluster.voter(*voter).retire());
    eventually("it hears of the leader", || !cluster.voter(others[0]).misses_a_leader());
    cluster.kill(leader);
    eventually("the other one misses the leader, too", || asks(others[0]));
    cluster.voter(others[1]).set_candidate(true);
    std::thread::sleep(5 * QUICK.election.1);
    assert!(!cluster.voter(others[1]).standing().leads, "who has retired does not want to lead any more");
}
