//! Finding out that another process has this server's number.
//!
//! A server that was replaced (`bivouac replace`) may live: it was stopped, or its node was cut off. The controller does
//! not know where it is any more, and tells it nothing. It answers for nothing that has copies, because it has no lease;
//! but it should end. So a server that has not heard of the controller for a while asks the agents for their map. It
//! only looks whether that map says that it was replaced ([`Links::is_replaced_by`]): newer maps come from the
//! controller.

use crate::controller::ControlLink;
use crate::links::Links;
use bivouac_layout::Map;
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

/// Begins. The thread ends when the daemon stops.
pub(crate) fn start(links: &Arc<Links>) -> std::io::Result<JoinHandle<()>> {
    let links = links.clone();
    std::thread::Builder::new().name("lookout".into()).stack_size(256 << 10).spawn(move || {
        let mut map = links.map();
        while let Some(newest) = links.wait_for_map(map.epoch, LOOK) {
            map = newest;
            if links.refusals.unheard().is_none_or(|unheard| unheard >= UNHEARD) {
                look(&links, &map);
            }
        }
    })
}

/// Asks agents, until one knows a newer map.
fn look(links: &Links, map: &Map) {
    for node in &map.nodes {
        if links.is_replaced() || links.wait_for_map(map.epoch, Duration::ZERO).is_none() {
            return;
        }
        let endpoint = Endpoint::Tcp(node.agent);
        let asked = ControlLink::connect(&endpoint, links.key(), map.deployment, control::LOOK)
            .and_then(|mut link| link.request(ControlRequest::Group));
        let Ok(Some(ControlReply::Group { map: theirs, .. })) = asked else { continue };
        if theirs.deployment == map.deployment && theirs.epoch > map.epoch && theirs.check().is_ok() {
            links.is_replaced_by(&theirs);
            return;
        }
    }
}
