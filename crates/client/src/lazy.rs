//! Lazy files: their contents come from the backend before they are opened, or truncated to anything but nothing.
//!
//! The server refuses such a request ([`bivouac_proto::Refusal::Unfetched`]); the client then has the file fetched, and repeats
//! it. Files that are not lazy cost nothing. It waits as long as the backend takes: signals end the process meanwhile, or run
//! their handlers, as during any request.

use crate::error::Fail;
use crate::rpc::To;
use crate::session::Client;
use crate::walk::{Failing, Last};
use bivouac_layout::Ino;
use bivouac_proto::attr::{Attr, Store};
use bivouac_proto::lazy::{LazyFile, Unfetchable};
use bivouac_proto::meta::{MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply, Request};
use bivouac_transport::engine::Answered;

impl Client {
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

    /// Has the contents of what a path names fetched, if it is a lazy file; whether it was one. Symbolic links are not
    /// followed.
    pub fn fetch_path(&self, start: Ino, path: &[u8]) -> Result<bool, Unfetchable> {
        let attr = self.find(start, path, false).map_err(|fail| fail.errno())?;
        if attr.store != Store::Lazy {
            return Ok(false);
        }
        self.fetch(attr.ino).map(|()| true)
    }

    /// Makes a lazy file; its attributes.
    pub fn make_lazy(&self, start: Ino, path: &[u8], file: &LazyFile) -> Result<Attr, Fail> {
        self.at_last(start, path, |_, last| match last {
            Last::Directory(_) => Err(Errno::EXIST.into()),
            Last::Name(place) => {
                let request = |at| MetaRequest::MakeLazy { at, file: Box::new(file.clone()) };
                match self.entry(&place, &mut [], request)?.0 {
                    MetaReply::Entry { attr, .. } => Ok(*attr),
                    _ => Err(Failing::from(Errno::PROTO)),
                }
            }
        })
    }
}
