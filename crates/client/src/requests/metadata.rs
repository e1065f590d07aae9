//! Requests to the metadata.

use super::Requests;
use super::asking::Asking;
use super::to::To;
use bivouac_layout::Ino;
use bivouac_node::release::begin_opening;
use bivouac_node::{Fd, SlotId};
use bivouac_proto::data::SubFile;
use bivouac_proto::meta::{Change, MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Request};
use bivouac_transport::engine::{self, Answered, Target, Watch};
use std::io::{IoSlice, IoSliceMut};

/// A descriptor of a sub-file that came with the answer to an open.
pub(crate) struct Came {
    pub(crate) of: SubFile,
    pub(crate) fd: Fd,
}

/// What a request to the metadata was answered.
struct Carried {
    reply: MetaReply,
    /// Of the payload, bytes.
    length: usize,
    change: Change,
    came: Option<Came>,
}

impl Requests {
    /// A request about a file or directory by its number, to the shard of that inode.
    pub(crate) fn meta_on(&self, ino: Ino, request: &MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.meta_with(ino, request, &[], &mut []).map(|(reply, _)| reply)
    }

    /// The same, with the answer waited for by `watch`.
    pub(crate) fn meta_watched(
        &self,
        ino: Ino,
        request: &MetaRequest<'_>,
        watch: Watch<'_>,
    ) -> Result<MetaReply, Errno> {
        let mut body = Vec::with_capacity(96);
        bivouac_proto::encode(&Request::Meta(request.clone()), &mut body);
        let received = self.call(To::inode(ino), &body, &[], &mut [], Some(watch));
        match received {
            Ok(Answered { reply: Reply::Meta(reply), .. }) => Ok(reply),
            Ok(Answered { reply: Reply::Done, .. }) => Ok(MetaReply::Done),
            Ok(_) => Err(Errno::PROTO),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Refused(_)) => Err(Errno::STALE),
        }
    }

    /// The same, with a payload to send or room for one to receive; also returns the received payload's
    /// length.
    pub(crate) fn meta_with(
        &self,
        ino: Ino,
        request: &MetaRequest<'_>,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(MetaReply, usize), Errno> {
        match self.meta(To::inode(ino), request, payload, into) {
            Ok(done) => Ok(done),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Refused(_)) => Err(Errno::STALE),
        }
    }

    /// A request to the metadata.
    pub(crate) fn meta(
        &self,
        to: To,
        request: &MetaRequest<'_>,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(MetaReply, usize), Failure> {
        self.meta_changing(to, request, payload, into).map(|(reply, length, _)| (reply, length))
    }

    /// The open of something, with the descriptor that has come.
    pub(crate) fn meta_opening(
        &self,
        to: To,
        request: &MetaRequest<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(MetaReply, usize, Option<Came>), Failure> {
        self.meta_answered(to, request, &[], into)
            .map(|Carried { reply, length, came, .. }| (reply, length, came))
    }

    /// The same, with what it has changed besides what the reply says.
    pub(crate) fn meta_changing(
        &self,
        to: To,
        request: &MetaRequest<'_>,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(MetaReply, usize, Change), Failure> {
        self.meta_answered(to, request, payload, into)
            .map(|Carried { reply, length, change, .. }| (reply, length, change))
    }

    fn meta_answered(
        &self,
        to: To,
        request: &MetaRequest<'_>,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Carried, Failure> {
        let era = self.memory().era();
        if let MetaRequest::Open { open, .. }
        | MetaRequest::OpenInode { open, .. }
        | MetaRequest::MakeTemporary { open, .. } = request
            && let Some(slot) =
                self.session().table().slot(SlotId { index: open.slot, incarnation: open.incarnation })
        {
            // Should this process die before it knows what it has opened, the agent knows whom to tell.
            begin_opening(slot, to.shard());
        }
        let mut body = Vec::with_capacity(96);
        bivouac_proto::encode(&Request::Meta(request.clone()), &mut body);
        let received = loop {
            match self.call(to, &body, payload, into, None) {
                Err(Failure::Refused(Refusal::Unfetched { ino })) => {
                    self.fetch(ino).map_err(|failed| failed.errno)?
                }
                received => break received?,
            }
        };
        let (length, nothing) = (received.payload_len, Change::default());
        let (reply, change, came) = match received.reply {
            Reply::Changed(change, reply) => {
                let written = payload.iter().map(|slice| slice.len()).sum();
                self.has_changed(era, to.shard(), (request, written), &reply, change);
                (reply, change, None)
            }
            Reply::Meta(reply) => (reply, nothing, None),
            Reply::Done => (MetaReply::Done, nothing, None),
            // Without the descriptor: the process may have no room for another one.
            Reply::Opened(of, reply) => (reply, nothing, received.fd.map(|fd| Came { of, fd })),
            _ => return Err(Errno::PROTO.into()),
        };
        Ok(Carried { reply, length, change, came })
    }

    /// Sends a request to the metadata for which no answer is awaited; it may still be lost with a lost
    /// connection. Says whether it was sent.
    pub(crate) fn post_meta(&self, to: To, request: &MetaRequest<'_>) -> bool {
        let mut body = Vec::with_capacity(64);
        bivouac_proto::encode(&Request::Meta(request.clone()), &mut body);
        engine::post(&Asking(self), to, &body)
    }
}
