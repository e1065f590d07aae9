//! Making lazy files, and having their contents fetched before anybody opens them (see `requests::fetching`).

use super::Namespace;
use super::again::Failing;
use super::target::Target;
use super::walk::Last;
use crate::error::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, Store};
use bivouac_proto::lazy::{LazyFile, Unfetchable};
use bivouac_proto::meta::{MetaReply, MetaRequest};

impl Namespace {
    /// Has the contents of a lazy file fetched; whether it was one.
    pub(crate) fn fetch(&self, target: Target<'_>) -> Result<bool, Unfetchable> {
        let attr = self.found(target).map_err(Fail::errno)?;
        if attr.store != Store::Lazy {
            return Ok(false);
        }
        self.requests().fetch(attr.ino).map(|()| true)
    }

    /// Makes a lazy file; its attributes.
    pub(crate) fn make_lazy(&self, start: Ino, path: &[u8], file: &LazyFile) -> Result<Attr, Fail> {
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
