//! What servers of this node share with their processes: version pages, by which a process sees what has changed
//! ([`bivouac_node::versions`]), and fence pages for direct accesses to blocks ([`bivouac_node::fences`]).

use super::Requests;
use crate::host::OwnFd;
use bivouac_layout::{ServerId, ShardId};
use bivouac_node::{ByServer, FencePage, VersionPage};
use bivouac_proto::Errno;
use bivouac_proto::node::NodeRequest;
use rustix::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What this node's servers share with its processes, by server number: the version pages to read, and the
/// fence pages for direct accesses.
#[derive(Default)]
pub(crate) struct Pages {
    pub(super) versions: ByServer<Shared<VersionPage>>,
    fences: ByServer<Shared<Fences>>,
}

/// A server's fence page.
struct Fences {
    page: Arc<FencePage>,
    /// Of which succession of the server: another process may have its number since, on the same node.
    succession: u32,
    /// Kept for a server that follows when this one is killed: it looks for the page in `/proc`.
    _for_server: OwnFd,
}

/// A server's page as far as it is known: null before it was asked for, [`Shared::ABSENT`] where there is
/// none, or from `Box::into_raw`. (Not a `OnceLock`: a child that is forked while another thread fills that
/// in would wait for ever.)
pub(super) struct Shared<T>(AtomicPtr<T>);

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(AtomicPtr::default())
    }
}

impl<T> Shared<T> {
    /// There is no page.
    const ABSENT: *mut T = std::ptr::dangling_mut();

    fn get(&self) -> Option<&T> {
        let page = self.0.load(Ordering::Acquire);
        // SAFETY: from Box::into_raw, freed only when `self` is dropped.
        (!page.is_null() && page != Shared::ABSENT).then(|| unsafe { &*page })
    }

    /// Fills it in, unless another thread was faster.
    fn set(&self, page: Option<T>) {
        let new = page.map_or(Shared::ABSENT, |page| Box::into_raw(Box::new(page)));
        let null = std::ptr::null_mut();
        let lost = self.0.compare_exchange(null, new, Ordering::AcqRel, Ordering::Relaxed).is_err();
        if lost && new != Shared::ABSENT {
            // SAFETY: not installed, so nobody else has it.
            drop(unsafe { Box::from_raw(new) });
        }
    }

    /// Takes the place of a page that is of no use any more. That one stays: others may be looking at it.
    fn replace(&self, old: &T, page: T) {
        let (old, new) = (std::ptr::from_ref(old).cast_mut(), Box::into_raw(Box::new(page)));
        if self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: not installed, so nobody else has it.
            drop(unsafe { Box::from_raw(new) });
        }
    }

    pub(super) fn is_known(&self) -> bool {
        !self.0.load(Ordering::Acquire).is_null()
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let page = *self.0.get_mut();
        if !page.is_null() && page != Shared::ABSENT {
            // SAFETY: from Box::into_raw; `&mut self` excludes users.
            drop(unsafe { Box::from_raw(page) });
        }
    }
}

impl Requests {
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(crate) fn page(&self, server: ServerId) -> Option<&VersionPage> {
        let page = self.pages().versions.get(server)?.get()?;
        (page.is_live() && !self.session().table().is_down(server)).then_some(page)
    }

    /// Asks a server of this node for its page, once. With no lock held: answers may take some.
    #[cold]
    pub(super) fn fetch_page(&self, server: ServerId, page: &Shared<VersionPage>) {
        let here = self.session().map().server(server).is_some_and(|s| s.node == self.session().node());
        let asked = here && self.session().local_access();
        let memory = asked.then(|| self.node_memory(server, NodeRequest::Versions).ok()).flatten();
        page.set(memory.and_then(|memory| VersionPage::attach(memory.as_fd()).ok()));
    }

    /// The fence page of a server of this node, of this succession, once it was asked for.
    fn fences(&self, server: ServerId, succession: u32) -> Option<Arc<FencePage>> {
        let known = self.pages().fences.get(server)?.get()?;
        (known.succession == succession).then(|| known.page.clone())
    }

    /// The same, and asks for it. Without one, nothing is accessed directly.
    pub(crate) fn fetch_fences(&self, server: ServerId, succession: u32) -> Option<Arc<FencePage>> {
        let place = self.pages().fences.get(server)?;
        let known = place.get();
        if known.is_some_and(|known| known.succession == succession) || known.is_none() && place.is_known() {
            return self.fences(server, succession);
        }
        match self.node_memory(server, NodeRequest::Fences) {
            Ok(memory) => {
                let page = FencePage::attach(memory.as_fd()).ok().map(Arc::new);
                let keep = |page| Fences {
                    page,
                    succession,
                    _for_server: OwnFd::new(self.session().host(), memory),
                };
                let page = page.map(keep);
                match (known, page) {
                    (None, page) => place.set(page),
                    (Some(known), Some(page)) => place.replace(known, page),
                    (Some(_), None) => {}
                }
            }
            Err(Errno::NOENT) if known.is_none() => place.set(None),
            Err(_) => {}
        }
        self.fences(server, succession)
    }

    pub(crate) fn seen(&self, shard: ShardId) -> Option<u64> {
        Some(self.page(self.session().map().primary(shard))?.shard(shard))
    }
}
