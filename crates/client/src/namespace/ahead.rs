//! Looking ahead. A program that goes through a tree asks about one entry after the other, and lists one
//! directory after the other.
//!
//! A listing shows what its entries are, but attributes and listings of most subdirectories lie on other
//! servers, and each would cost a round trip of its own. So when a process asks about one entry of a
//! directory that it has listed, the client also asks about the next ones, with one request to each server.
//! It keeps the answers as facts (`requests::known`), and the beginnings of listings ([`crate::memory::ahead`]), until the program
//! asks for them. Both are valid only as long as nothing has changed in their shards, so that programs see no
//! difference. The client asks about few entries at first, then about more, and only asks servers of this
//! node, because it can keep only their answers.

use super::Namespace;
use crate::memory::ahead::{BEGINNING, Kept};
use crate::memory::listing::Entries;
use crate::requests::{Before, To};
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::meta::{Looked, MetaReply, MetaRequest};

impl Namespace {
    /// Asks about an entry of a directory and those behind it. What came is known then.
    pub(crate) fn look_ahead(&self, dir: Ino, ino: Ino, listing: bool) {
        let Some((inos, limit)) = self.memory().listing().ahead.next(dir, ino, listing) else { return };
        // A single one is asked about in the ordinary way.
        if inos.len() < 2 {
            return;
        }
        let map = self.session().map();
        let mut servers: Vec<ServerId> = inos.iter().map(|ino| map.primary(ino.shard())).collect();
        servers.sort();
        servers.dedup();
        for server in servers {
            let there = inos.iter().copied().filter(|ino| map.primary(ino.shard()) == server);
            self.look(there.collect(), limit);
        }
    }

    /// Asks one server about several of its inodes.
    fn look(&self, inos: Vec<Ino>, limit: u32) {
        let Some(first) = inos.first() else { return };
        let shard = first.shard();
        let before: Vec<_> = inos.iter().map(|ino| self.requests().before(ino.shard())).collect();
        if before.iter().any(Option::is_none) {
            return;
        }
        let attrs = self.memory().listing().wants_attributes();
        let request = MetaRequest::Look { inos, limit, attrs };
        let Ok((MetaReply::Looked(found), _)) =
            self.requests().meta(To::Shard(shard), &request, &[], &mut [])
        else {
            // If the program asks for one of them, it will get the error.
            return;
        };
        for (before, looked) in before.into_iter().zip(found) {
            let Some(Looked { attr, target, place, listing }) = looked else { continue };
            let dir = attr.ino;
            self.requests().learn_inode(before, &attr, &target);
            if let Some((parent, name)) = place {
                self.requests().learn_place(before, dir, parent, &name);
            }
            let (Some((entries, end)), Some(count)) = (listing, before.map(|b| b.count())) else { continue };
            self.requests().learn_listing(before, dir, false, (&entries, attrs));
            self.memory().listing().ahead.expect(dir, true, (&entries, attrs));
            self.memory().listing().ahead.keep(dir, Kept { entries, end, count, used: false });
        }
    }

    /// Keeps a short listing that was not asked for ahead, to the question after `before`.
    pub(crate) fn keep_listing(&self, before: Option<Before>, dir: Ino, listed: &Entries) {
        if let Some(before) = before
            && listed.end
            && listed.entries.len() <= BEGINNING as usize
        {
            let (entries, end) = (listed.entries.clone(), listed.end);
            self.memory().listing().ahead.keep(dir, Kept { entries, end, count: before.count(), used: true });
        }
    }

    /// The beginning of a directory's listing, if it is kept and nothing has changed since.
    pub(crate) fn listed_ahead(&self, dir: Ino, most: usize) -> Option<Entries> {
        let count = self.requests().seen(dir.shard());
        self.memory().listing().ahead.kept(dir, most, count)
    }
}
