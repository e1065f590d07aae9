//! Which files have blocks where.

use crate::inode::Body;
use crate::outside::Outside;
use crate::store::Core;
use bivouac_layout::{FileLayout, Ino, ServerId, ShardId};
use bivouac_proto::status::Failure;

/// Most files in one answer.
const FILES: usize = 1000;

impl<O: Outside> Core<O> {
    /// Files of a shard that have copies, in the order of their numbers, behind this one: those in blocks, and those that
    /// are just being moved there.
    pub(crate) fn files_with_copies(
        &self,
        shard: ShardId,
        after: Ino,
    ) -> Result<Vec<(Ino, FileLayout)>, Failure> {
        let map = self.outside.map();
        self.partitions.with(shard, |locked| {
            let later = locked.shard.inodes.iter().filter(|(ino, _)| *ino > after);
            let mut found: Vec<(Ino, FileLayout)> = later
                .filter_map(|(ino, inode)| match &inode.body {
                    Body::Blocks(blocks) => Some((ino, blocks.layout.clone())),
                    Body::Inline(_) if locked.shard.purges.contains_key(&ino) => {
                        Some((ino, inode.layout(ino, &map)))
                    }
                    _ => None,
                })
                .filter(|(_, layout)| layout.copies(&map) > 1)
                .collect();
            found.sort_unstable_by_key(|(ino, _)| *ino);
            found.truncate(FILES);
            Ok(found)
        })
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
