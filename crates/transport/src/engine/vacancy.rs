//! Servers that are not up, and in whose place nobody can answer: their senders wait while they are started again.
//!
//! Without copies, the controller calls such a server down only when it was waited for long enough: so who meets one that is
//! down does not wait. One that joins is about to be up.
//!
//! With copies, a server is down at once, because others take its place. If it was the last one that had everything of
//! something, nobody can: another one that has died before and is back may lack what was acknowledged last. So it is waited
//! for like a server that refuses connections, for as long as its agent may take to start it again
//! ([`GONE`](super::budget::refusing::GONE)). That time is counted from when the map called it
//! down, and once more from when it began to join, whoever waits and whenever that begins.

use super::{Backoff, Requester};
use bivouac_layout::map::ServerState;
use bivouac_layout::{Map, ServerId};
use std::time::Duration;

/// Longest pause before the map is looked at again.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Whether a server that is not up by this map is to be waited for, where nobody can answer in its place.
pub(super) fn is_worth_waiting_for<R: Requester>(requester: &R, map: &Map, server: ServerId) -> bool {
    may_come(map, server) && !requester.is_missed(server)
}

/// Whether a server that is not up may come up by itself, where nobody can answer in its place.
pub(super) fn may_come(map: &Map, server: ServerId) -> bool {
    match state(map, server) {
        Some(ServerState::Joining) => true,
        Some(ServerState::Down) => map.copies > 1,
        Some(ServerState::Up) | None => false,
    }
}

fn state(map: &Map, server: ServerId) -> Option<ServerState> {
    map.server(server).map(|server| server.state)
}

/// How waiting for servers has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// All of them are up by the map.
    Up,
    /// There is another map now, by which to choose servers again.
    NewerMap,
    /// One of them stays away.
    GivenUp,
}

/// Waits for those of these servers that are not up, though this map names them: by it, nobody can answer in their place.
pub fn wait_until_up<R: Requester>(requester: &R, map: &Map, servers: &[ServerId]) -> Waited {
    let is_away = |server: &&ServerId| state(map, **server) != Some(ServerState::Up);
    let away: Vec<ServerId> = servers.iter().filter(is_away).copied().collect();
    if away.is_empty() {
        return Waited::Up;
    }
    let mut backoff = Backoff::new(&R::BUDGET);
    loop {
        let is_worth_it = away.iter().all(|server| is_worth_waiting_for(requester, map, *server));
        let goes_on = is_worth_it && !requester.is_closing() && backoff.wait(PAUSE);
        requester.refresh();
        match (requester.map().epoch != map.epoch, goes_on) {
            (true, _) => return Waited::NewerMap,
            (false, true) => {}
            (false, false) => return Waited::GivenUp,
        }
    }
}
