//! Changes of a directory that others still have to hear of.
//!
//! The parts of a split directory carry its owner, mode and layout, and clients cache which directories may
//! be searched. So some changes of a directory's inode are followed by a word to other servers. The change is
//! logged together with a note that the word is owed, and answered once it was given: a server that fails or
//! dies in between gives it later, by its keeper or when the change is repeated, and nobody has to notice
//! that nothing is left to change.

use crate::access::Owner;
use crate::draft::Draft;
use crate::inode::{Inode, Spread};
use crate::mutation::Mutation;
use crate::shard::Shard;
use crate::store::{Core, Outside};
use bivouac_layout::Ino;
use bivouac_proto::status::Failure;

/// Bits that let somebody search a directory.
const SEARCH: u16 = 0o111;

/// Whether others have to hear of a directory's change from one owner and layout to another.
pub(crate) fn concerns_others(before: &Inode, after: &Inode) -> bool {
    let Some(directory) = after.as_directory() else { return false };
    let (old, new) = (before.owner(), after.owner());
    let split = directory.state != Spread::Packed;
    split && (old != new || before.template() != after.template()) || narrows(old, new)
}

/// Whether who could search a directory may not be able to now.
fn narrows(before: Owner, after: Owner) -> bool {
    before.mode & SEARCH & !after.mode != 0 || (before.uid, before.gid) != (after.uid, after.gid)
}

impl Draft {
    /// Notes that others have to hear how a directory is now.
    pub(crate) fn owe_announcement(&mut self, shard: &Shard, dir: Ino) {
        let number = shard.announcements.get(&dir).map_or(1, |last| last + 1);
        self.push(Mutation::PutAnnouncement(dir, number));
    }
}

impl<O: Outside> Core<O> {
    /// Gives the word that is owed about a directory, if any is. When it cannot be given to all, the keeper
    /// goes on.
    pub(crate) fn announce(&self, dir: Ino) -> Result<(), Failure> {
        let given = self.try_announce(dir);
        if given.is_err() {
            self.keeper.announce(dir);
        }
        given
    }

    /// The same, once.
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
            // A later change owes a word of its own.
            if locked.shard.announcements.get(&dir) == Some(&number) {
                let mut draft = Draft::freeing(now);
                draft.push(Mutation::DropAnnouncement(dir));
                locked.commit(draft)?;
            }
            Ok(())
        })
    }
}
