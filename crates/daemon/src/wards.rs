//! The servers of a node, as its agent looks after them.
//!
//! The agent starts a server of its node again that died. How a process is started is the business of whoever has
//! started this one: it runs the threads that do so, with a [`View`] of what the agent knows, and notes there how each
//! server fares, for `status`.

use crate::daemon::Ending;
use crate::links::Links;
use crate::tether::Tether;
use bivouac_layout::{Epoch, Map, NodeId, ServerId};
use bivouac_proto::control::Ward;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A controller that was not heard of for so long is none: it pings twice a second.
const UNHEARD: Duration = Duration::from_millis(1300);

/// How each server of the node fares.
pub(crate) struct Wards {
    known: Mutex<BTreeMap<ServerId, Ward>>,
    /// The deployment ends.
    held: AtomicBool,
    ending: Arc<Ending>,
}

impl Wards {
    pub(crate) fn new(ending: Arc<Ending>) -> Wards {
        Wards { known: Mutex::default(), held: AtomicBool::new(false), ending }
    }

    /// From now on no server is started any more: the deployment ends, of which this daemon may be told later.
    pub(crate) fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }

    pub(crate) fn all(&self) -> Vec<Ward> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

/// What an agent knows that looks after the servers of its node.
#[derive(Clone)]
pub struct View {
    links: Arc<Links>,
    wards: Arc<Wards>,
    tether: Option<Arc<Tether>>,
}

impl View {
    pub(crate) fn new(links: Arc<Links>, wards: Arc<Wards>, tether: Option<Arc<Tether>>) -> View {
        View { links, wards, tether }
    }

    /// The newest map that the agent has; at epoch 0 it has none yet.
    pub fn map(&self) -> Arc<Map> {
        self.links.map()
    }

    /// Waits for a map newer than `known`, for no longer than `longest`. `None`: the daemon stops.
    pub fn wait_for_map(&self, known: Epoch, longest: Duration) -> Option<Arc<Map>> {
        self.links.wait_for_map(known, longest)
    }

    /// Whether the deployment, or this daemon, is about to end: nothing may be started any more.
    pub fn is_ending(&self) -> bool {
        self.wards.held.load(Ordering::Acquire) || self.wards.ending.is_told()
    }

    /// Whether there is a controller, as far as its pings say. Without one nobody would take a server in that is started.
    pub fn has_controller(&self) -> bool {
        self.links.refusals.unheard().is_some_and(|unheard| unheard < UNHEARD)
    }

    /// Whether the deployment still ends with the `run` that made it.
    pub fn is_tethered(&self) -> bool {
        self.tether.as_ref().is_some_and(|tether| !tether.is_released())
    }

    /// Forgets a server that another process has replaced, unless that one runs on this node, too.
    pub fn forget(&self, server: ServerId, node: NodeId) {
        let is_here = self.map().server(server).is_some_and(|known| known.node == node);
        if !is_here {
            self.wards.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&server);
        }
    }

    /// Notes how a server fares.
    pub fn note(&self, ward: Ward) {
        self.wards.known.lock().unwrap_or_else(PoisonError::into_inner).insert(ward.server, ward);
    }
}
