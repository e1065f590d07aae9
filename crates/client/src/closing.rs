//! What happens when a description's last descriptor goes.

use crate::client::Client;
use crate::host::OwnFd;
use crate::requests::To;
use bivouac_layout::Ino;
use bivouac_node::SlotId;
use bivouac_node::release::{Release, release};
use bivouac_proto::Errno;
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::status::Failure;
use std::sync::atomic::Ordering;

impl Client {
    /// A descriptor of a description was closed: if it was the last one anywhere, the server is told.
    pub fn closed(&self, id: SlotId) {
        if !self.is_held(id) {
            self.close_alone(id);
        }
    }

    /// Closes a description that only this process uses. Its server may hear of it with a later request.
    pub fn close_alone(&self, id: SlotId) {
        self.close(id, false);
    }

    /// The same. When this returns, its server knows.
    pub fn close_waiting(&self, id: SlotId) {
        self.close(id, true);
    }

    fn close(&self, id: SlotId, waits: bool) {
        let table = self.session().table();
        if !table.retire(id) {
            return;
        }
        self.forget_locks(id);
        let release = release(table, self.session().agent_number(), id);
        match release.map(|release| Release { wait: waits || release.wait, ..release }) {
            Some(release) if !release.wait && release.may_be_late => {
                self.requests().close_later(id, &release.request, release.shard);
            }
            Some(release) if !self.tell_release(&release) => {}
            _ => table.free(id),
        }
    }

    /// What was noted of a retired description's locks goes.
    pub(crate) fn forget_locks(&self, id: SlotId) {
        if let Some(slot) =
            self.session().table().slot(id).filter(|slot| slot.locks.load(Ordering::Acquire) != 0)
        {
            self.session().table().forget_locks_of(id, Ino(slot.ino.load(Ordering::Relaxed)));
        }
    }

    /// Whether any process holds a description. Keeps the descriptor through which it asks the kernel, for
    /// the next time.
    fn is_held(&self, id: SlotId) -> bool {
        let asker = self.asker(id).take();
        let kept = asker.as_ref().and_then(|asker| self.session().table().held_through(asker.get()?, id));
        let (asker, held) = match (asker, kept) {
            (Some(asker), Some(held)) => (asker, held),
            _ => match self
                .session()
                .table()
                .asker(id)
                .map(|fd| Box::new(OwnFd::new(self.session().host(), fd)))
            {
                // Out of descriptors: the agent finds out later.
                None => return true,
                Some(asker) => {
                    let held = asker
                        .get()
                        .and_then(|fd| self.session().table().held_through(fd, id))
                        .unwrap_or(true);
                    (asker, held)
                }
            },
        };
        self.asker(id).put(asker);
        held
    }

    /// Tells the server that a retired description is gone. Says whether that was possible; if not, the slot
    /// stays retired, and the agent does it.
    pub(crate) fn tell_release(&self, release: &Release) -> bool {
        if release.wait {
            let asked = self.requests().meta(whom(release), &release.request, &[], &mut []);
            !matches!(asked, Err(Failure::Errno(Errno::IO)))
        } else {
            self.requests().post_meta(whom(release), &release.request)
        }
    }
}

/// Who has to hear that a description is gone.
fn whom(release: &Release) -> To {
    match release.request {
        MetaRequest::Release { ino, .. } => To::inode(ino),
        _ => To::Shard(release.shard),
    }
}
