//! Which files have blocks where.

use crate::draft::Draft;
use crate::inode::{Blocks, Body, Inode};
use crate::restripe::Pending;
use crate::shard::Shard;
use crate::store::Core;
use bivouac_layout::{FileLayout, Ino, Loss, Map, ServerId, ShardId};
use bivouac_proto::control::{FileLoss, LOSSES_MAX};
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

impl Core {
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

    /// What files of the shards that this server answers for lose if these servers leave as they are, in the order of their
    /// numbers, behind this one.
    pub(crate) fn losses(&self, servers: &[ServerId], after: Ino) -> Result<Vec<FileLoss>, Failure> {
        let map = self.outside.map();
        let mut found: Vec<FileLoss> = Vec::new();
        for shard in map.shards_of(self.outside.me()).filter(|shard| *shard >= after.shard()) {
            let mut concerned = self.partitions.with(shard, |locked| {
                let shard = &*locked.shard;
                let later = shard.inodes.iter().filter(|(ino, _)| *ino > after);
                let layout = |ino: Ino, inode: &Inode| {
                    let blocks = inode.as_blocks()?;
                    let goes = shard.restripes.get(&ino).and_then(Pending::goes);
                    let known = (inode.size, blocks.settled, inode.size_version);
                    Some((ino, goes.unwrap_or(&blocks.layout).clone(), known))
                };
                let files = later.filter_map(|(ino, inode)| layout(ino, &inode));
                let is_on = |layout: &FileLayout| layout.bytes_on(&map, servers, u64::MAX) != Loss::default();
                Ok(files.filter(|(_, layout, ..)| is_on(layout)).collect::<Vec<_>>())
            })?;
            concerned.sort_unstable_by_key(|(ino, ..)| *ino);
            for (ino, layout, (size, settled, version)) in concerned {
                // Of a file that is being written, the servers of its blocks know the length, as far as they are there.
                let length = if settled { None } else { self.extent(ino, &layout).ok() };
                let size = length.map_or(size, |extent| extent.length.max(size));
                let Loss { lost, fewer } = layout.bytes_on(&map, servers, size);
                if lost > 0 && !settled {
                    self.note_size(ino, version, size)?;
                }
                if lost + fewer > 0 {
                    found.push(FileLoss { ino, size, lost, fewer });
                }
                if found.len() >= LOSSES_MAX {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// Notes in the inode how far a file reaches that is being written, while all servers of its blocks can still say so; unless it
    /// was truncated since it had this size version.
    fn note_size(&self, ino: Ino, version: u32, size: u64) -> Result<(), Failure> {
        self.partitions.with(ino.shard(), |locked| {
            let Some(inode) = locked.shard.inodes.get(ino) else { return Ok(()) };
            let is_written = |blocks: &Blocks| !blocks.settled && blocks.truncating.is_none();
            let is_same = inode.size_version == version && inode.as_blocks().is_some_and(is_written);
            if size <= inode.size || !is_same {
                return Ok(());
            }
            let mut draft = Draft::new(self.outside.now());
            if let Some(inode) = draft.inode(locked.shard, ino) {
                inode.size = size;
            }
            locked.commit(draft)
        })
    }

    /// How many files of the shards that this server answers for have a range that is on its way from server to server.
    pub(crate) fn on_their_way(&self) -> u64 {
        let map = self.outside.map();
        let count = |shard| self.partitions.with(shard, |locked| Ok(locked.shard.restripes.len() as u64));
        // Whoever answers for the shard by now may have some.
        map.shards_of(self.outside.me()).map(|shard| count(shard).unwrap_or(1)).sum()
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
