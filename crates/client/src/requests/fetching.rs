//! Lazy files: their contents come from the backend before they are opened, or truncated to anything but nothing.
//!
//! The server refuses such a request ([`bivouac_proto::Refusal::Unfetched`]); the client then has the file fetched, and repeats
//! it. Files that are not lazy cost nothing. It waits as long as the backend takes: signals end the process meanwhile, or run
//! their handlers, as during any request.

use super::Requests;
use super::to::To;
use bivouac_layout::Ino;
use bivouac_proto::lazy::Unfetchable;
use bivouac_proto::meta::{MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply, Request};
use bivouac_transport::engine::Answered;

impl Requests {
    /// Waits until the contents of a file are there; nothing to wait for if it is not lazy. If this ends early, because the
    /// process does, the fetch goes on: others may wait for the same.
    #[cold]
    pub(crate) fn fetch(&self, ino: Ino) -> Result<(), Unfetchable> {
        let mut body = Vec::with_capacity(16);
        bivouac_proto::encode(&Request::Meta(MetaRequest::Fetch { ino }), &mut body);
        loop {
            match self.call(To::inode(ino), &body, &[], &mut [], None) {
                Ok(Answered { reply: Reply::Done, .. }) => return Ok(()),
                // The server has waited for a while.
                Ok(Answered { reply: Reply::Meta(MetaReply::Fetching), .. }) => {}
                Ok(Answered { reply: Reply::Meta(MetaReply::Unfetchable(failed)), .. }) => {
                    return Err(failed);
                }
                Ok(_) => return Err(Errno::PROTO.into()),
                Err(Failure::Errno(errno)) => return Err(errno.into()),
                Err(Failure::Refused(_)) => return Err(Errno::STALE.into()),
            }
        }
    }
}
