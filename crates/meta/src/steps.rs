//! Work on a file's data that asks other servers in between. (It has nothing to do with the steps of
//! intents.)
//!
//! Truncating, appending, moving out of the inode and finding out the size of a file have one shape: look and
//! begin under the partition's lock, ask data servers without it, and end under it again. In between the file
//! is *busy*: others that would change its data or size wait, everything else goes on. A file is busy exactly
//! as long as somebody is at work on it, also when that panics.

use crate::error::{Op, Stop};
use crate::inode::Inode;
use crate::opens::reap;
use crate::outside::Standing;
use crate::partition::LockedShard;
use crate::shard::Shard;
use crate::store::Core;
use bivouac_layout::{Group, Ino};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};

/// The result of `begin`.
pub(crate) enum Begun<T, W> {
    /// The work is finished already.
    Done(T),
    /// Other servers have to be asked for this.
    Work(W),
}

/// By what right work is done.
#[derive(Clone, Copy)]
pub(crate) struct Stance {
    /// For others' data.
    pub(crate) standing: Standing,
    /// For the shard: see [`Busy::reign`].
    pub(crate) reign: Option<u64>,
}

/// Keeps a file busy until it is dropped.
struct Busy<'c> {
    core: &'c Core,
    ino: Ino,
    /// The term in which this server became the shard's primary: in another one, it is another's work that keeps the
    /// file busy.
    reign: Option<u64>,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let (ino, Some(reign)) = (self.ino, self.reign) else { return };
        let _ = self.core.partitions.with(ino.shard(), |locked| {
            if locked.shard.stream.reign == reign {
                locked.end_busy(ino);
            }
            Ok(())
        });
    }
}

impl LockedShard<'_> {
    /// Ends a file's being busy.
    fn end_busy(&mut self, ino: Ino) {
        if let Some(live) = self.shard.live.get_mut(&ino) {
            live.busy = false;
        }
        self.changed();
    }
}

impl Shard {
    /// Waits while somebody works on the file's data.
    pub(crate) fn is_not_busy(&self, ino: Ino) -> Op<()> {
        if self.live.get(&ino).is_some_and(|l| l.busy) { Err(Stop::Wait) } else { Ok(()) }
    }

    /// EIO for a file whose truncation is unfinished: what it contains is not known. Waits if nobody has
    /// tried to finish it since the server's start.
    pub(crate) fn has_a_size(&self, ino: Ino, inode: &Inode) -> Op<()> {
        if inode.as_blocks().is_none_or(|blocks| blocks.truncating.is_none()) {
            return Ok(());
        }
        match self.live.get(&ino) {
            Some(live) if live.busy => Ok(()),
            Some(live) if live.restoring => Err(Stop::Wait),
            _ => Err(Errno::IO.into()),
        }
    }
}

impl Core {
    /// Runs `begin` under the lock, `work` without it, and `end` under it again, with what `begin` and `work`
    /// gave. Both `begin` and `end` may run more than once. What `work` has others change, it does with the standing
    /// that it gets with its stance.
    pub(crate) fn in_steps<T, W, R>(
        &self,
        ino: Ino,
        mut begin: impl FnMut(&mut LockedShard<'_>) -> Op<Begun<T, W>>,
        work: impl FnOnce(&W, Stance) -> R,
        mut end: impl FnMut(&mut LockedShard<'_>, &W, &R) -> Op<T>,
    ) -> Result<T, Failure> {
        let mut busy = Busy { core: self, ino, reign: None };
        // Before it is looked whether this server answers for the shard.
        let standing = Standing { group: Group::Shard(ino.shard()), since: self.outside.map().epoch };
        let begun = self.partitions.with(ino.shard(), |locked| {
            locked.shard.is_not_busy(ino)?;
            locked.shard.is_not_restriped(ino)?;
            let begun = begin(locked)?;
            if let Begun::Work(_) = begun {
                locked.shard.live.entry(ino).or_default().busy = true;
                busy.reign = Some(locked.shard.stream.reign);
            }
            Ok(begun)
        })?;
        let to_do = match begun {
            Begun::Done(done) => return Ok(done),
            Begun::Work(to_do) => to_do,
        };
        let (outcome, reign) = (work(&to_do, Stance { standing, reign: busy.reign }), busy.reign);
        if !self.outside.stands(standing) {
            // Another server has answered for the shard meanwhile: that this one could not do it says nothing.
            return Err(Refusal::Busy.into());
        }
        let map = self.outside.map();
        let now = self.outside.now();
        self.partitions.with(ino.shard(), |locked| {
            if reign != Some(locked.shard.stream.reign) {
                // Another server has answered for the shard meanwhile, and has finished this or begun it anew.
                return Err(Refusal::Busy.into());
            }
            locked.end_busy(ino);
            busy.reign = None;
            let ended = end(locked, &to_do, &outcome);
            reap(locked, &map, ino, now)?;
            ended
        })
    }
}
