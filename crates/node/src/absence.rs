//! Since when a server is not up.
//!
//! A server that has died is started again, and who needs it waits for a while. That while is the server's and not the
//! waiter's: programs that are started when it has been away for long do not wait. So daemons note when their map changes, and an agent
//! shows that to the processes of its node in the table ([`crate::OpenTable::absence`]).

use crate::by_server::ByServer;
use bivouac_layout::{Map, ServerId, ServerState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Of one server: nanoseconds of [`crate::release::monotonic`], the lowest bit set while it joins; 0 while it is up.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Absence(AtomicU64);

impl Absence {
    /// Notes the server's state by a map that has come at `now`. By one thread at a time.
    pub fn note(&self, state: ServerState, now: u64) {
        let joins = u64::from(state == ServerState::Joining);
        let known = self.0.load(Ordering::Relaxed);
        if state == ServerState::Up {
            self.0.store(0, Ordering::Release);
        } else if known == 0 || known & 1 != joins {
            // Not 0, whatever the clock says.
            self.0.store(now & !1 | 2 | joins, Ordering::Release);
        }
    }

    /// How long the server has been down, or has been joining. `None`: it is up, as far as is known here.
    pub fn lasts(&self, now: u64) -> Option<Duration> {
        let since = self.0.load(Ordering::Acquire);
        (since != 0).then(|| Duration::from_nanos(now.saturating_sub(since & !1)))
    }
}

/// Of all servers, as one process knows it.
#[derive(Debug, Default)]
pub struct Absences(ByServer<Absence>);

impl Absences {
    /// Notes all states by a map that has come at `now`. By one thread at a time.
    pub fn note(&self, map: &Map, now: u64) {
        for server in &map.servers {
            if let Some(absence) = self.0.get(server.id) {
                absence.note(server.state, now);
            }
        }
    }

    /// The same as [`Absence::lasts`].
    pub fn lasts(&self, server: ServerId, now: u64) -> Option<Duration> {
        self.0.get(server)?.lasts(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_each_change_and_ends_when_the_server_is_up() {
        let absence = Absence::default();
        assert_eq!(absence.lasts(1_000), None);
        let lasts = |at| absence.lasts(at).map(|lasts| lasts.as_nanos());
        absence.note(ServerState::Down, 1_002);
        absence.note(ServerState::Down, 5_002);
        assert_eq!((lasts(1_002), lasts(9_002), lasts(7)), (Some(0), Some(8_000), Some(0)));
        absence.note(ServerState::Joining, 10_003);
        absence.note(ServerState::Joining, 12_003);
        assert_eq!(lasts(14_002), Some(4_000));
        absence.note(ServerState::Up, 15_000);
        assert_eq!(lasts(16_000), None);
        absence.note(ServerState::Down, 0);
        assert!(lasts(16_000).is_some());
    }
}
