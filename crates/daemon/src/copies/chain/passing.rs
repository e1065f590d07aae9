//! Sending bytes on while they come.

use crate::links::{Links, encoded};
use bivouac_layout::ServerId;
use bivouac_proto::copies::CopyRequest;
use bivouac_proto::{Header, Kind, Request};
use bivouac_transport::engine::Lane;
use bivouac_transport::{Outgoing, TransportError};
use std::io::IoSlice;
use std::sync::Arc;

/// Bytes on their way to the next server. If this is dropped before all were sent, the connection ends, by
/// which that server sees that no more come.
pub(crate) struct Passing {
    links: Arc<Links>,
    to: ServerId,
    /// `None`: they could not be sent.
    lane: Option<Lane>,
    header: Header,
    body: Vec<u8>,
}

impl Passing {
    /// Begins with a request whose payload has `len` bytes. `None`: the server cannot be reached.
    pub(super) fn begin(
        links: &Arc<Links>,
        to: ServerId,
        request: &CopyRequest,
        len: usize,
    ) -> Option<Passing> {
        let map = links.map();
        let mut lane = links.take_for_chain(to, &map).ok()?;
        let body = encoded(&Request::Copy(request.clone()));
        let mut header = Header::new(Kind::Request);
        header.epoch = map.epoch;
        let outgoing = Outgoing { before: &[], header, body: &body, payload: &[] };
        lane.connection.post_begin(&outgoing, len).ok()?;
        Some(Passing { links: links.clone(), to, lane: Some(lane), header, body })
    }

    /// Sends what can be sent without waiting. The beginning of the payload is there.
    pub(super) fn more(&mut self, so_far: &[u8]) {
        self.send(so_far, false);
    }

    /// Sends the rest of the payload. Whether all of it was sent: what arrives is not known by that.
    pub(super) fn finish(mut self, payload: &[u8]) -> bool {
        self.send(payload, true);
        let Some(lane) = self.lane.take() else { return false };
        self.links.give_to_chain(self.to, lane);
        true
    }

    fn send(&mut self, payload: &[u8], waits: bool) {
        let Some(lane) = &mut self.lane else { return };
        let payload = [IoSlice::new(payload)];
        let outgoing = Outgoing { before: &[], header: self.header, body: &self.body, payload: &payload };
        let sent: Result<(), TransportError> = lane.connection.post_more(&outgoing, waits);
        if let Err(error) = sent {
            tracing::debug!(to = %self.to, %error, "bytes that were sent ahead do not arrive");
            self.lane = None;
        }
    }
}
