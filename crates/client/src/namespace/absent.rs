//! Names that are looked up and are not there.

use super::Namespace;
use crate::memory::facts::KEPT;
use crate::requests::To;
use bivouac_layout::Ino;
use bivouac_proto::meta::{MetaReply, MetaRequest};

/// A directory with more entries is not listed for the sake of what is not in it.
const WHOLE: u32 = 256;

impl Namespace {
    /// A name was looked up in a directory and was not there. Who does so again and again mostly makes what
    /// he has not found: then it costs less to know all names of the directory. (It is listed the less often,
    /// the more often that was no good.)
    pub(crate) fn was_absent(&self, dir: Ino) {
        let times = match self.memory().facts().0.try_write() {
            Ok(mut known) => {
                if known.absent.len() > KEPT {
                    known.absent.clear();
                }
                let times = known.absent.entry(dir).or_default();
                *times = times.saturating_add(1);
                *times
            }
            Err(_) => return,
        };
        if times > 1
            && times.is_power_of_two()
            && !self.memory().paths().is_split(dir)
            && self.requests().may_search(dir)
        {
            self.learn_all(dir);
        }
    }

    /// Learns all names of a directory, if it is not large.
    fn learn_all(&self, dir: Ino) {
        let Some(before) = self.requests().before(dir.shard()) else { return };
        let request = MetaRequest::ReadDir { dir, split: false, after: 2, limit: WHOLE, attrs: false };
        let listed = self.requests().meta(To::inode(dir), &request, &[], &mut []);
        let Ok((MetaReply::Listing { entries, end: true }, _)) = listed else { return };
        let Ok(mut known) = self.memory().facts().0.try_write() else { return };
        if known.era != before.era || known.runs.is_past(before.shard, before.seen) {
            return;
        }
        for entry in &entries {
            known.put_name((before.shard, before.seen), dir, &entry.name, Some((entry.ino, entry.kind)));
        }
        known.complete.insert(dir, before.seen);
    }
}
