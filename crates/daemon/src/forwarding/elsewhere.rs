//! Files that another I/O node keeps: they were removed, or moved out of the forwarded directory, while programs had them open there.
//!
//! Nobody else can open such a file. So whoever serves these programs by now passes on what concerns it, until it is closed; programs
//! notice nothing. Each request is carried out once: it has its place in the order of its program's requests at the I/O node that
//! was asked, and an identity of its own between the two. If the one that keeps the file dies, the file is lost (ESTALE).

use super::{Forwarding, lock};
use bivouac_layout::{Ino, ServerId, ShardId};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Reply, Request};
use bivouac_transport::Call;
use bivouac_transport::engine::To;
use std::collections::HashMap;
use std::sync::Mutex;

/// Files that are remembered, at most. Others are asked for again.
const REMEMBERED: usize = 64 << 10;
/// The longest value of an extended attribute, and the longest list of their names, bytes.
const XATTR_MAX: usize = 64 << 10;

/// Where requests about a file or directory are carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// By this I/O node.
    Here,
    /// By another one, which keeps it.
    At(ServerId),
}

/// Which files others have kept.
#[derive(Default)]
pub(super) struct Elsewhere(Mutex<HashMap<Ino, ServerId>>);

impl Elsewhere {
    /// Who has kept a file. It may be another file's number by now.
    pub(super) fn find(&self, ino: Ino) -> Option<ServerId> {
        lock(&self.0).get(&ino).copied()
    }

    pub(super) fn note(&self, ino: Ino, server: ServerId) {
        let mut known = lock(&self.0);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(ino, server);
    }
}

impl Forwarding {
    /// Has a request about a file carried out by the I/O node that keeps it.
    pub(super) fn pass_on(
        &self,
        server: ServerId,
        request: &MetaRequest<'_>,
        payload: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        let room = match request {
            MetaRequest::GetXattr { .. } | MetaRequest::ListXattr { .. } => XATTR_MAX,
            _ => 0,
        };
        buffer.resize(room, 0);
        let to = To::Server(server, ShardId::FORWARDED);
        let asked = self.links.ask_into(to, &Request::Meta(request.clone()), payload, buffer);
        let length = asked.as_ref().map_or(0, |(_, length)| *length);
        buffer.truncate(length);
        asked.map(|(reply, _)| reply)
    }

    /// The same for its bytes, and answers.
    pub(super) fn pass_on_data(&self, server: ServerId, call: &mut Call, request: DataRequest) {
        let to = To::Server(server, ShardId::FORWARDED);
        let (_, _, payload, reply) = call.parts();
        let answer = match request.plain().0 {
            DataRequest::Read { len, .. } => {
                let len = len.min(MAX_PAYLOAD);
                let request = Request::Data(request);
                let asked = self.links.ask_into(to, &request, &[], reply.room(len as usize));
                let length = asked.as_ref().map_or(0, |(_, length)| *length);
                reply.buffer().truncate(length);
                asked.map(|(answer, _)| answer)
            }
            _ => self.links.ask_into(to, &Request::Data(request), payload, &mut []).map(|(answer, _)| answer),
        };
        match answer {
            Ok(Reply::Done) => reply.ok(&Reply::Data(DataReply::Done)),
            Ok(answer) => reply.ok(&answer),
            Err(failure) => {
                reply.buffer().clear();
                reply.fail(&failure);
            }
        }
    }
}
