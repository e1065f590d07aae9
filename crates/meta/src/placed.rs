//! Which files have blocks where.

use crate::inode::{Body, Inode};
use crate::outside::Outside;
use crate::restripe::Pending;
use crate::shard::Shard;
use crate::store::Core;
use bivouac_layout::{FileLayout, Ino, Map, ServerId, ShardId};
use bivouac_proto::status::Failure;

/// Most files in one answer.
const FILES: usize = 1000;

/// The layout of a file that has copies: one in blocks, or one that is just being moved there. A range that is decided to go is where it goes to: who catches up now was not asked to
/// take it, and its former servers are giving it up.
fn with_copies(shard: &Shard, map: &Map, ino: Ino, inode: &Inode) -> Option<FileLayout> {
    let layout = match &inode.body {
        Body::Blocks(blocks) => {
            shard.restripes.get(&ino).and_then(Pending::goes).unwrap_or(&blocks.layout).clone()
        }
        Body::Inline(_) | Body::Lazy(_) if shard.purges.contains_key(&ino) => inode.layout(ino, map),
        _ => return None,
    };
    (layout.copies(map) > 1).then_some(layout)
}

impl<O: Outside> Core<O> {
    /// Files of a shard that have copies, in the order of their numbers, behind this one.
    pub(crate) fn files_with_copies(
        &self,
        shard: ShardId,
        after: Ino,
    ) -> Result<Vec<(Ino, FileLayout)>, Failure> {
        let map = self.outside.map();
        self.partitions.with(shard, |locked| {
            let later = locked.shard.inodes.iter().filter(|(ino, _)| *ino > after);
            let mut found: Vec<(Ino, FileLayout)> = later
                .filter_map(|(ino, inode)| Some((ino, with_copies(locked.shard, &map, ino, &inode)?)))
                .collect();
            found.sort_unstable_by_key(|(ino, _)| *ino);
            found.truncate(FILES);
            Ok(found)
        })
    }

    /// The shards that this server answers for at this moment, and in which no file has copies.
    pub(crate) fn shards_without_copies(&self) -> Vec<ShardId> {
        let map = self.outside.map();
        let has_none = |shard: &ShardId| {
            let none = self.partitions.with(*shard, |locked| {
                let mut inodes = locked.shard.inodes.iter();
                Ok(!inodes.any(|(ino, inode)| with_copies(locked.shard, &map, ino, &inode).is_some()))
            });
            none.unwrap_or(false)
        };
        map.shards_of(self.outside.me()).filter(has_none).collect()
    }

    /// How many files of the shards that this server answers for have blocks whose only copy is on a certain server; and
    /// one of them.
    pub(crate) fn alone_on(&self, server: ServerId) -> (u64, Option<Ino>) {
        let map = self.outside.map();
        let is_alone = |layout: &FileLayout| {
            let mut groups = layout.groups(&map, u64::MAX);
            layout.copies(&map) == 1 && groups.any(|group| map.primary_of(group) == Some(server))
        };
        let (mut files, mut example) = (0, None);
        for shard in map.shards_of(self.outside.me()) {
            let _ = self.partitions.with(shard, |locked| {
                for (ino, inode) in locked.shard.inodes.iter() {
                    if matches!(&inode.body, Body::Blocks(blocks) if is_alone(&blocks.layout)) {
                        (files, example) = (files + 1, example.or(Some(ino)));
                    }
                }
                Ok(())
            });
        }
        (files, example)
    }
}
