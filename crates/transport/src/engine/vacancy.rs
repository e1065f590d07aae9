//! Servers that are not up, and in whose place nobody can answer: their senders wait while they are started again.
//!
//! Without copies, the controller calls such a server down only when it was waited for long enough: so who meets one that is
//! down does not wait. One that joins is about to be up.
//!
//! With copies, a server is down at once, because others take its place. If it was the last one that had everything of
//! something, nobody can: another one that has died before and is back may lack what was acknowledged last. So it is waited
//! for like a server that refuses connections, for as long as its agent may take to start it again ([`GONE`]).

use super::budget::refusing::GONE;
use super::{Backoff, Requester};
use crate::socket::now;
use bivouac_layout::map::ServerState;
use bivouac_layout::{Map, ServerId};
use std::time::Duration;

/// Longest pause before the map is looked at again.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// The waiting of one sender for servers that are not up.
#[derive(Default)]
pub(super) struct Vacancy {
    /// Since when it has been waiting for one that joins.
    joins_since: Option<Duration>,
}

impl Vacancy {
    /// Whether a server that is not up by this map is to be waited for, where nobody can answer in its place.
    pub(super) fn is_worth_waiting_for<R: Requester>(
        &mut self,
        requester: &R,
        map: &Map,
        server: ServerId,
    ) -> bool {
        match state(map, server) {
            Some(ServerState::Joining) => {
                now().saturating_sub(*self.joins_since.get_or_insert_with(now)) < GONE
            }
            Some(ServerState::Down) => map.copies > 1 && !requester.is_missed(server, map),
            Some(ServerState::Up) | None => false,
        }
    }
}

/// Whether that a server is not up may end by itself, where nobody can answer in its place.
pub(super) fn may_end(map: &Map, server: ServerId) -> bool {
    state(map, server).is_some_and(|state| map.copies > 1 || state == ServerState::Joining)
}

fn state(map: &Map, server: ServerId) -> Option<ServerState> {
    map.server(server).map(|server| server.state)
}

/// Waits for those of these servers that this map names though they are not up: by it, nobody can answer in their place. Whether
/// there is another map now, by which to choose servers again. (Else, those that are not up have been waited for long enough.)
pub fn wait_until_up<R: Requester>(requester: &R, map: &Map, servers: &[ServerId]) -> bool {
    let (mut backoff, mut vacancy) = (Backoff::new(&R::BUDGET), Vacancy::default());
    let mut is_away = |server: &ServerId| {
        state(map, *server) != Some(ServerState::Up) && vacancy.is_worth_waiting_for(requester, map, *server)
    };
    while servers.iter().any(&mut is_away) && !requester.is_closing() && backoff.wait(PAUSE) {
        requester.refresh();
        if requester.map().epoch != map.epoch {
            return true;
        }
    }
    false
}
