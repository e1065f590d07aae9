//! Finding out what a daemon is not told any more: that another process has this server's number, or that this agent's node
//! has left.
//!
//! A server that was replaced (`bivouac replace`) may live: it was stopped, or its node was cut off. The controller does
//! not know where it is any more, and tells it nothing. It answers for nothing that has copies, because it has no lease;
//! but it should end. So a server that has not heard of the controller for a while asks the agents for their map. It
//! only looks whether that map says that it was replaced ([`Links::is_replaced_by`]): newer maps come from the
//! controller.
//!
//! An agent whose node was cut off after its servers had left ([`bivouac_layout::Map::has_left`]) does the same.

use crate::controller::ControlLink;
use crate::daemon::{End, Ending};
use crate::links::Links;
use bivouac_layout::{Map, NodeId};
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A controller that was not heard of for so long is asked for.
const UNHEARD: Duration = Duration::from_secs(2);
/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Begins on a server. The thread ends when the daemon stops.
pub(crate) fn start(links: &Arc<Links>) -> std::io::Result<JoinHandle<()>> {
    let links = links.clone();
    spawn(move || {
        let mut map = links.map();
        while let Some(newest) = links.wait_for_map(map.epoch, LOOK) {
            map = newest;
            if is_forgotten(&links)
                && let Some(theirs) = newer(&links, &map)
            {
                links.is_replaced_by(&theirs);
            }
        }
    })
}

/// Begins on an agent. The thread ends when the daemon stops, and has it stop when its node has left.
pub(crate) fn start_on_agent(
    links: &Arc<Links>,
    node: NodeId,
    ending: Arc<Ending>,
) -> std::io::Result<JoinHandle<()>> {
    let links = links.clone();
    spawn(move || {
        let mut map = links.map();
        // One that was just started is on no map yet.
        let mut was_listed = false;
        while let Some(newest) = links.wait_for_map(map.epoch, LOOK) {
            map = newest;
            was_listed |= !map.has_left(node);
            let asks = was_listed && is_forgotten(&links);
            let theirs = if asks { newer(&links, &map) } else { None };
            if was_listed && theirs.as_ref().unwrap_or(&map).has_left(node) {
                tracing::warn!(%node, "this node has left the deployment");
                return ending.tell(End::Left);
            }
        }
    })
}

fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("lookout".into()).stack_size(256 << 10).spawn(work)
}

/// Whether the controller was not heard of for a while.
fn is_forgotten(links: &Links) -> bool {
    links.refusals.unheard().is_none_or(|unheard| unheard >= UNHEARD)
}

/// Asks agents, until one knows a newer map.
fn newer(links: &Links, map: &Map) -> Option<Map> {
    for node in &map.nodes {
        if links.is_replaced() || links.wait_for_map(map.epoch, Duration::ZERO).is_none() {
            return None;
        }
        let endpoint = Endpoint::Tcp(node.agent);
        let asked = ControlLink::connect(&endpoint, links.key(), map.deployment, control::LOOK)
            .and_then(|mut link| link.request(ControlRequest::Group));
        let Ok(Some(ControlReply::Group { map: theirs, .. })) = asked else { continue };
        if theirs.deployment == map.deployment && theirs.epoch > map.epoch && theirs.check().is_ok() {
            return Some(*theirs);
        }
    }
    None
}
