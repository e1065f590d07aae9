//! Making lazy files, and having their contents fetched before anybody opens them (see `requests::fetching`).

use super::Namespace;
use super::again::Failing;
use super::walk::Last;
use crate::error::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, Store};
use bivouac_proto::lazy::{LazyFile, Unfetchable};
use bivouac_proto::meta::{MetaReply, MetaRequest};

impl Namespace {
    /// Has the contents of what a path names fetched, if it is a lazy file; whether it was one. Symbolic links are not
    /// followed.
    pub(crate) fn fetch_path(&self, start: Ino, path: &[u8]) -> Result<bool, Unfetchable> {
        let attr = self.find(start, path, false).map_err(|fail| fail.errno())?;
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
