//! What a server does about a new map.
//!
//! By a map, nodes may be away: the server ends what their programs have open here. Where something has copies, a map may
//! make this server the primary of shards and of groups of blocks: then it takes them over. By a map it may be behind,
//! because it was away, or because a shard moves to it: then it gets what it has missed from the primaries. All of this takes other servers' answers, so
//! threads of their own do it, again and again until nothing is left to do. With what the server has caught up, the daemon
//! tells the controller in its answers to pings ([`Follower::caught_up`]). Having caught up with shards by one map is worth
//! nothing by the next one, because a primary that has changed does not know of it; with blocks it is ([`crate::copies`]).

use crate::copies::Copies;
use crate::links::{Links, all_of};
use bivouac_layout::{Epoch, Group, Map, ServerId};
use bivouac_meta::MetaStore;
use bivouac_proto::Request;
use bivouac_proto::peer::PeerRequest;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two tries of what did not work.
const RETRY: Duration = Duration::from_millis(20);
/// Longest time between two tries of catching up: a storage may fail for long.
const LONGEST: Duration = Duration::from_secs(1);
/// Longest sleep when nothing is to be done.
const REST: Duration = Duration::from_secs(60);

/// The shards with which a server has caught up, and by which map.
type CaughtUp = Arc<Mutex<(Epoch, Vec<Group>)>>;

/// The threads.
pub(crate) struct Follower {
    shards: CaughtUp,
    copies: Arc<Copies>,
    threads: Vec<JoinHandle<()>>,
    has_copies: bool,
}

impl Follower {
    /// Begins.
    pub(crate) fn start(
        links: &Arc<Links>,
        store: Arc<MetaStore>,
        copies: &Arc<Copies>,
        me: ServerId,
    ) -> std::io::Result<Follower> {
        let (shards, logs) = (CaughtUp::default(), store.clone());
        let mut threads = vec![each_map(links, ("meta-follower", RETRY), move |_| store.follow())?];
        let (links_too, noted) = (links.clone(), shards.clone());
        let catch_up = move |map: &Map| {
            let mut groups = shards_behind(map, me);
            let catches_up = groups.is_empty() || (logs.mend() && catch_up(&links_too, map, &groups));
            // The controller is told of these, too, when they are served, and on stable storage.
            let handed = map.handed_to(me).collect::<Vec<_>>();
            let is_served = || logs.has_followed() && links_too.epoch() == map.epoch;
            let has_taken_over = handed.is_empty() || (is_served() && logs.sync_handed(&handed));
            let mut done = if catches_up { std::mem::take(&mut groups) } else { Vec::new() };
            done.extend(handed.into_iter().map(Group::Shard).filter(|_| has_taken_over));
            *noted.lock().unwrap_or_else(PoisonError::into_inner) = (map.epoch, done);
            catches_up && has_taken_over
        };
        threads.push(each_map(links, ("meta-catcher", LONGEST), catch_up)?);
        let has_copies = links.map().copies > 1;
        if !has_copies {
            return Ok(Follower { shards, copies: copies.clone(), threads, has_copies });
        }
        let (data, mut before) = (copies.clone(), (*links.map()).clone());
        before.servers.clear();
        let follow = move |map: &Map| {
            let follows = data.follow(&before, map);
            if follows {
                before = map.clone();
            }
            follows
        };
        threads.push(each_map(links, ("data-follower", RETRY), follow)?);
        threads.push(crate::lookout::start(links)?);
        threads.push(crate::reach::start(links)?);
        let data = copies.clone();
        threads.push(each_map(links, ("data-catcher", LONGEST), move |_| data.catch_up())?);
        Ok(Follower { shards, copies: copies.clone(), threads, has_copies })
    }

    /// Whether something has copies.
    pub(crate) fn has_copies(&self) -> bool {
        self.has_copies
    }

    /// The groups in which this server is behind by this map, and has caught up.
    pub(crate) fn caught_up(&self, map: &Map) -> Vec<Group> {
        let noted = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let shards = noted.1.iter().filter(|_| noted.0 == map.epoch).copied();
        shards.chain(self.copies.caught_up(map)).collect()
    }

    /// Waits for the threads, after [`Links::close`].
    pub(crate) fn join(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Does something by each new map, until it says that it is done with it. `longest`: between two tries.
fn each_map(
    links: &Arc<Links>,
    (name, longest): (&str, Duration),
    mut work: impl FnMut(&Map) -> bool + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let links = links.clone();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        let (mut known, mut rest) = (Epoch(0), Duration::ZERO);
        while let Some(map) = links.wait_for_map(known, rest) {
            let again = if map.epoch > known { RETRY } else { (rest * 2).min(longest) };
            rest = if work(&map) { REST } else { again };
            known = map.epoch;
        }
    })
}

/// The shards in which this server has to catch up now: it takes part again.
fn shards_behind(map: &Map, me: ServerId) -> Vec<Group> {
    let groups = map.replicated().filter(|group| matches!(group, Group::Shard(_)));
    if map.is_up(me) { groups.filter(|group| map.is_behind(*group, me)).collect() } else { Vec::new() }
}

/// Gets what was missed of shards from all primaries. Says whether that is everything, by this map.
fn catch_up(links: &Arc<Links>, map: &Map, shards: &[Group]) -> bool {
    let primaries: BTreeSet<ServerId> = shards.iter().filter_map(|group| map.primary_of(*group)).collect();
    let request = Request::Peer(PeerRequest::CatchUp);
    primaries.into_iter().all(|server| links.ask(all_of(server), &request).is_ok())
        && links.epoch() == map.epoch
}
