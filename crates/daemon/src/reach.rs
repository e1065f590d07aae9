//! Which other servers this one does not reach.
//!
//! The controller sees whether servers reach the controller, not whether they reach each other: a cable, a port of a switch
//! or a rule of a firewall may be between two of them only. Each of the two is up then, and what they have to tell each
//! other waits. So a server that has been silent, or has taken no connection, is doubted, and a thread tries to reach its
//! machine until that succeeds. (A kernel takes connections for its processes, however busy they are, or stopped: so this
//! tells a cut link from a server that is slow.) Who has not been reached for a while is named in the answers to the
//! controller's pings, and it decides what happens ([`crate::controller`]). When a server is reached again, requests that
//! were under way are sent again over new connections: what was lost on the old ones, the kernel repeats only after as long
//! as the link was cut.
//!
//! Only where something has copies: else nobody can take the place of either of the two.

use crate::links::Links;
use bivouac_layout::ServerId;
use bivouac_transport::Endpoint;
use bivouac_transport::engine::Requester;
use bivouac_transport::engine::budget::reach::{SURE, TRY};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(250);

/// What is known of a server that is doubted.
#[derive(Clone, Copy)]
struct Doubt {
    since: Instant,
    /// A try has failed.
    is_cut: bool,
    /// A try has failed that began [`SURE`] after that.
    is_sure: bool,
}

/// The servers that are doubted.
#[derive(Default)]
pub(crate) struct Reach {
    doubts: Mutex<BTreeMap<ServerId, Doubt>>,
    changed: Condvar,
    /// When servers that were not reached were reached again.
    reached: Mutex<BTreeMap<ServerId, Instant>>,
}

impl Reach {
    /// A server has not answered for a moment.
    pub(crate) fn doubt(&self, server: ServerId) {
        let mut doubts = self.lock();
        if doubts.is_empty() {
            self.changed.notify_all();
        }
        doubts.entry(server).or_insert(Doubt { since: Instant::now(), is_cut: false, is_sure: false });
    }

    /// Whether a server is doubted.
    pub(crate) fn is_doubted(&self, server: ServerId) -> bool {
        self.lock().contains_key(&server)
    }

    /// Whether a server was not reached, and has been reached again since then.
    pub(crate) fn was_cut_off(&self, server: ServerId, since: Instant) -> bool {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached.get(&server).is_some_and(|at| *at >= since)
    }

    /// Servers that this one does not reach.
    pub(crate) fn unreached(&self) -> Vec<ServerId> {
        self.lock().iter().filter(|(_, doubt)| doubt.is_sure).map(|(server, _)| *server).collect()
    }

    /// Ends the thread's wait, when the daemon stops.
    pub(crate) fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ServerId, Doubt>> {
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries to reach everybody who is doubted.
    fn try_all(&self, links: &Links) {
        let (map, doubted) = (links.map(), self.lock().clone());
        let begun = Instant::now();
        let is_cut = |server: &ServerId| {
            // Nobody waits for one that was given up.
            let server = map.server(*server).filter(|server| !map.is_given_up(server.id));
            let address = server.map(|server| server.address);
            address.is_some_and(|address| Endpoint::Tcp(address).is_unreachable(TRY))
        };
        let cut: Vec<bool> = std::thread::scope(|scope| {
            let tries = doubted.keys().map(|server| {
                let attempt = std::thread::Builder::new().stack_size(64 << 10);
                attempt.spawn_scoped(scope, || is_cut(server))
            });
            let tries: Vec<_> = tries.collect();
            // Without a thread nothing is known.
            tries.into_iter().map(|attempt| attempt.is_ok_and(|a| a.join().unwrap_or(false))).collect()
        });
        let mut doubts = self.lock();
        for ((server, doubt), is_cut) in doubted.into_iter().zip(cut) {
            if !is_cut {
                if doubt.is_sure {
                    tracing::info!(%server, "the server is reached again");
                }
                if doubt.is_cut {
                    let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
                    reached.insert(server, Instant::now());
                }
                doubts.remove(&server);
                continue;
            }
            let is_sure = begun.saturating_duration_since(doubt.since) >= SURE;
            if is_sure && !doubt.is_sure {
                tracing::warn!(%server, "this server does not reach the other one");
            }
            doubts.insert(server, Doubt { is_cut: true, is_sure: is_sure || doubt.is_sure, ..doubt });
        }
    }
}

/// Begins. The thread ends when the daemon stops.
pub(crate) fn start(links: &Arc<Links>) -> std::io::Result<JoinHandle<()>> {
    let links = links.clone();
    std::thread::Builder::new().name("reach".into()).stack_size(256 << 10).spawn(move || {
        while !links.is_closing() {
            let reach = &links.reach;
            let doubts = reach.lock();
            let idle = |doubts: &mut BTreeMap<ServerId, Doubt>| doubts.is_empty() && !links.is_closing();
            drop(reach.changed.wait_while(doubts, idle).unwrap_or_else(PoisonError::into_inner));
            reach.try_all(&links);
            std::thread::sleep(PAUSE);
        }
    })
}
