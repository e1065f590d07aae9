//! Changes of a directory of which the server still has to tell other servers (*announcements*).
//!
//! The parts of a split directory carry its owner, mode and layout, and clients cache which directories may
//! be searched. So after some changes of a directory's inode, its server has to tell other servers. It logs
//! the change together with a note that an announcement is due, tells the others, and only then answers its
//! client. If that fails, or the server dies in between, the keeper tells the others later, or the server
//! does when a client repeats the request. (A repeated request need not change the inode any more; the note
//! says all the same that others have not been told.)

use crate::access::Owner;
use crate::draft::Draft;
use crate::inode::{Inode, Spread};
use crate::mutation::Mutation;
use crate::shard::Shard;
use crate::store::Core;
use bivouac_layout::Ino;
use bivouac_proto::status::Failure;

/// Bits that let somebody search a directory.
const SEARCH: u16 = 0o111;

/// Whether other servers have to be told of a directory's change from one owner and layout to another.
pub(crate) fn concerns_others(before: &Inode, after: &Inode) -> bool {
    let Some(directory) = after.as_directory() else { return false };
    let (old, new) = (before.owner(), after.owner());
    let split = directory.state != Spread::Packed;
    split && (old != new || before.template() != after.template()) || narrows(old, new)
}

/// Whether somebody may have lost the permission to search a directory.
fn narrows(before: Owner, after: Owner) -> bool {
    before.mode & SEARCH & !after.mode != 0 || (before.uid, before.gid) != (after.uid, after.gid)
}

impl Draft {
    /// Notes that other servers have to be told of a directory's new state.
    pub(crate) fn owe_announcement(&mut self, shard: &Shard, dir: Ino) {
        let number = shard.announcements.get(&dir).map_or(1, |last| last + 1);
        self.push(Mutation::PutAnnouncement(dir, number));
    }
}

impl Core {
    /// Makes the announcement that is due about a directory, if one is. If not all servers can be told, the
    /// keeper goes on.
    pub(crate) fn announce(&self, dir: Ino) -> Result<(), Failure> {
        let given = self.try_announce(dir);
        if given.is_err() {
            self.keeper.announce(dir);
        }
        given
    }

    /// Tries the same once.
    pub(crate) fn try_announce(&self, dir: Ino) -> Result<(), Failure> {
        let owed = self.partitions.with(dir.shard(), |locked| {
            let number = locked.shard.announcements.get(&dir).copied();
            let inode = locked.shard.inodes.get(dir);
            let now = inode.as_ref().and_then(|inode| {
                let split = inode.as_directory()?.state == Spread::Split;
                Some((inode.owner(), inode.template(), split))
            });
            Ok(number.map(|number| (number, now)))
        })?;
        let Some((number, now)) = owed else { return Ok(()) };
        if let Some((owner, layout, split)) = now {
            if split {
                self.own_everywhere(dir, owner, layout)?;
            }
            self.note_moves(&[dir])?;
        }
        let now = self.outside.now();
        self.partitions.with(dir.shard(), |locked| {
            // If the directory has changed again meanwhile, that change needs its own announcement.
            if locked.shard.announcements.get(&dir) == Some(&number) {
                let mut draft = Draft::freeing(now);
                draft.push(Mutation::DropAnnouncement(dir));
                locked.commit(draft)?;
            }
            Ok(())
        })
    }
}
