//! The participant's side of an intent: check, hold, log; then do or undo.
//!
//! In each shard, the server checks all steps and takes the keys that they need at once. An intent goes
//! through its shards in ascending order, so that intents never wait for each other in a circle. A prepared
//! intent is in the log with everything that is needed to carry it out. Its changes are computed when it is
//! committed, from the state at that time. The keys have prevented changes that would make the steps
//! impossible.

use crate::access::Owner;
use crate::draft::Draft;
use crate::error::{Op, Stop};
use crate::inode::{Body, Inode, Spread};
use crate::mutation::Mutation;
use crate::partition::LockedShard;
use crate::shard::{Holders, Key, Named, Prepared, Shard};
use crate::store::Core;
use bivouac_layout::{Ino, Map, ShardId};
use bivouac_proto::attr::LINK_MAX;
use bivouac_proto::peer::{IntentId, Step};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, FileKind, Refusal};
use std::time::Instant;

/// The keys that a step holds, each with whether it holds the key exclusively.
fn keys_of(step: &Step) -> Vec<(Key, bool)> {
    match step {
        Step::PutEntry { dir, name, .. } | Step::RemoveEntry { dir, name, .. } => {
            vec![(Key::Entry(*dir, name.as_slice().into()), true), (Key::Content(*dir), false)]
        }
        Step::RemoveDirectory { ino } => {
            vec![(Key::Content(*ino), true), (Key::Inode(*ino), true), (Key::Leaving(*ino), true)]
        }
        Step::DropLink { ino } => vec![(Key::Inode(*ino), true), (Key::Leaving(*ino), true)],
        Step::RemoveParts { dir, .. } => vec![(Key::Content(*dir), true)],
        Step::SetParent { ino, .. } | Step::AddLink { ino } => vec![(Key::Inode(*ino), true)],
        Step::MakeDirectory { .. } | Step::Touch { .. } => Vec::new(),
    }
}

impl Shard {
    /// Waits while others hold what the steps need.
    pub(crate) fn keys_are_free(&self, steps: &[Step]) -> Op<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        for (key, exclusive) in steps.iter().flat_map(keys_of) {
            if self.keys.get(&key).is_some_and(|held| held.exclusive || exclusive) {
                return Err(Stop::Wait);
            }
        }
        Ok(())
    }

    /// Takes the keys of a prepared intent.
    pub(crate) fn hold_keys(&mut self, intent: IntentId) {
        let steps = self.intents.get(&intent).map(|p| p.steps.as_slice()).unwrap_or_default();
        for (key, exclusive) in steps.iter().flat_map(keys_of) {
            let holders: &mut Holders = self.keys.entry(key).or_default();
            holders.exclusive |= exclusive;
            holders.intents.push(intent);
        }
    }

    /// Releases the keys of an intent.
    pub(crate) fn release_keys(&mut self, intent: IntentId, steps: &[Step]) {
        for (key, _) in steps.iter().flat_map(keys_of) {
            if let Some(holders) = self.keys.get_mut(&key) {
                holders.intents.retain(|holder| *holder != intent);
                if holders.intents.is_empty() {
                    self.keys.remove(&key);
                }
            }
        }
    }

    /// Checks that a step could be carried out now, so that it can be promised.
    pub(crate) fn check(&self, id: ShardId, step: &Step, all: &[Step]) -> Op<()> {
        match step {
            Step::PutEntry { dir, name, replace, .. } => {
                let (home, _) = self.home_of(*dir, name)?;
                self.may_change(home)?;
                if self.find(*dir, name).map(|named| named.ino) != *replace {
                    return Err(Refusal::Busy.into());
                }
            }
            Step::RemoveEntry { dir, name, ino } => {
                let (home, _) = self.home_of(*dir, name)?;
                self.may_change(home)?;
                if self.find(*dir, name).map(|named| named.ino) != Some(*ino) {
                    return Err(Refusal::Busy.into());
                }
            }
            Step::RemoveDirectory { ino } => {
                let inode = self.inodes.get(*ino).filter(|i| i.nlink > 0).ok_or(Refusal::Busy)?;
                let directory = inode.as_directory().ok_or(Errno::NOTDIR)?;
                // A coordinator that knows of the split adds a step for the parts here.
                let knows = all.contains(&Step::RemoveParts { dir: *ino, shard: id });
                match directory.state {
                    _ if *ino == Ino::ROOT => return Err(Errno::BUSY.into()),
                    Spread::Splitting => return Err(Stop::Wait),
                    Spread::Split if !knows => return Err(Refusal::DirectorySplit.into()),
                    Spread::Packed if inode.size > 0 => return Err(Errno::NOTEMPTY.into()),
                    _ => {}
                }
            }
            Step::RemoveParts { dir, .. } => {
                if self.parts.range((*dir, 0)..=(*dir, u16::MAX)).any(|(_, part)| part.entries > 0) {
                    return Err(Errno::NOTEMPTY.into());
                }
            }
            Step::AddLink { ino } => {
                let inode = self.inode(*ino)?;
                if inode.as_directory().is_some() {
                    return Err(Errno::PERM.into());
                }
                if inode.nlink == 0 && !inode.is_linkable() {
                    return Err(Errno::NOENT.into());
                }
                if inode.nlink >= LINK_MAX {
                    return Err(Errno::MLINK.into());
                }
            }
            Step::DropLink { ino } | Step::SetParent { ino, .. } => {
                self.inodes.get(*ino).filter(|i| i.nlink > 0).ok_or(Refusal::Busy)?;
            }
            Step::MakeDirectory { .. } | Step::Touch { .. } => {}
        }
        Ok(())
    }

    /// Drafts what steps do that were checked. `made`: the numbers of new directories that are not there yet.
    /// A step that cannot be done is an error: the intent stays as it is, and is tried again.
    pub(crate) fn perform(&self, draft: &mut Draft, map: &Map, steps: &[Step], made: &[Ino]) -> Op<()> {
        let now = draft.now;
        make_directories(draft, steps, made);
        for step in steps {
            match step {
                Step::PutEntry { dir, name, ino, kind, .. } => {
                    let (home, _) = self.home_of(*dir, name)?;
                    let replaced = self.find(*dir, name).map(|named| named.kind);
                    draft.put_entry(home, name, Named { ino: *ino, kind: *kind }, replaced);
                }
                Step::RemoveEntry { dir, name, .. } => {
                    let (home, _) = self.home_of(*dir, name)?;
                    if let Some(named) = self.find(*dir, name) {
                        draft.drop_entry(home, name, named.kind);
                    }
                }
                Step::MakeDirectory { .. } => {}
                Step::RemoveDirectory { ino } | Step::DropLink { ino } => draft.drop_link(self, map, *ino),
                Step::RemoveParts { dir, .. } => {
                    for part in self.parts_of(*dir) {
                        draft.push(Mutation::DropPart(*dir, part));
                    }
                }
                Step::SetParent { ino, parent, name } => {
                    let inode = draft.inode(self, *ino).ok_or(Errno::IO)?;
                    inode.ctime = now;
                    if let Body::Directory(directory) = &mut inode.body {
                        directory.parent = *parent;
                        directory.name = name.as_slice().into();
                    }
                }
                Step::AddLink { ino } => {
                    let inode = draft.inode(self, *ino).ok_or(Errno::IO)?;
                    let nameless = inode.nlink == 0;
                    if nameless {
                        // It was made without a name. From its first name on, it is removed with its last
                        // one.
                        inode.change_extra(|extra| extra.linkable = false);
                    }
                    inode.nlink += 1;
                    inode.ctime = now;
                    if nameless {
                        draft.push(Mutation::DropOrphan(*ino));
                    }
                }
                Step::Touch { ino } => {
                    if let Some(inode) = draft.inode(self, *ino) {
                        inode.ctime = now;
                    }
                }
            }
        }
        Ok(())
    }

    /// The directories that steps may have made too large, of those packed here.
    pub(crate) fn grown_by(&self, steps: &[Step]) -> Vec<Ino> {
        let put = |step: &Step| match step {
            Step::PutEntry { dir, .. } => Some(*dir),
            _ => None,
        };
        let grown = |dir: &Ino| self.inodes.get(*dir).is_some_and(|inode| crate::draft::wants_split(&inode));
        steps.iter().filter_map(put).filter(grown).collect()
    }
}

/// Drafts the directories of steps that make some.
fn make_directories(draft: &mut Draft, steps: &[Step], made: &[Ino]) {
    let making = steps.iter().filter_map(|step| match step {
        Step::MakeDirectory { parent, name, mode, uid, gid, layout, .. } => {
            let owner = Owner { mode: *mode, uid: *uid, gid: *gid };
            Some(Inode::directory(owner, draft.now, *parent, name, *layout))
        }
        _ => None,
    });
    let inodes: Vec<Inode> = making.collect();
    for (ino, inode) in made.iter().zip(inodes) {
        draft.put_inode(*ino, inode);
    }
}

/// Prepares an intent in one shard: checks the steps, takes their keys and, unless this is the coordinator's
/// `own` part, logs them. Returns the numbers of the directories that it will make.
pub(crate) fn promise(
    locked: &mut LockedShard<'_>,
    draft: Draft,
    intent: IntentId,
    steps: &[Step],
    own: bool,
) -> Op<Vec<Ino>> {
    if let Some(known) = locked.shard.intents.get(&intent) {
        return if known.steps == steps { Ok(known.made.clone()) } else { Err(Refusal::Busy.into()) };
    }
    locked.shard.keys_are_free(steps)?;
    for step in steps {
        locked.shard.check(locked.id, step, steps)?;
    }
    let directories = steps.iter().filter(|s| matches!(s, Step::MakeDirectory { .. })).count() as u64;
    let made = (1..=directories).map(|n| Ino::new(locked.id, locked.shard.last + n)).collect::<Vec<_>>();
    let prepared = Prepared { steps: steps.to_vec(), made: made.clone(), since: Some(Instant::now()), own };
    if own {
        locked.shard.intents.insert(intent, prepared);
    } else {
        let mut draft = draft;
        // A new directory is there from now on: nobody knows its number before the decision.
        make_directories(&mut draft, steps, &made);
        draft.push(Mutation::PutIntent(intent, Box::new(prepared)));
        locked.commit(draft)?;
    }
    locked.shard.hold_keys(intent);
    Ok(made)
}

impl Core {
    /// Prepares steps in one shard.
    pub(crate) fn prepare_in(
        &self,
        shard: ShardId,
        intent: IntentId,
        steps: &[Step],
        own: bool,
    ) -> Result<Vec<Ino>, Failure> {
        let now = self.outside.now();
        let made = self.partitions.with(shard, |locked| {
            // Space is reserved for finishing changes that free space. Only such steps may be promised with
            // it.
            promise(locked, Draft::new(now), intent, steps, own)
        })?;
        if !own {
            self.keeper.watch();
        }
        Ok(made)
    }

    /// Does what was prepared in a shard. Unknown intents were done before.
    pub(crate) fn commit(&self, shard: ShardId, intent: IntentId) -> Result<(), Failure> {
        let done = self.conclude_in(shard, intent, true);
        if let Err(Failure::Errno(errno)) = &done {
            // The intent stays prepared, and the keeper tries again.
            tracing::error!(?intent, %errno, "a change that was decided could not be made");
        }
        done
    }

    /// Undoes what was prepared in a shard, which is to forget it.
    pub(crate) fn abort(&self, shard: ShardId, intent: IntentId) -> Result<(), Failure> {
        self.conclude_in(shard, intent, false)
    }

    /// Ends an intent in one shard.
    pub(crate) fn conclude_in(&self, shard: ShardId, intent: IntentId, doing: bool) -> Result<(), Failure> {
        let now = self.outside.now();
        let map = self.outside.map();
        let grown = self.partitions.with(shard, |locked| {
            let Some(Prepared { steps, made, own, .. }) = locked.shard.intents.get(&intent).cloned() else {
                return Ok(Vec::new());
            };
            if own {
                locked.shard.intents.remove(&intent);
                locked.changed();
            } else {
                let mut draft = Draft::freeing(now);
                if doing {
                    locked.shard.perform(&mut draft, &map, &steps, &[])?;
                } else {
                    made.iter().for_each(|ino| draft.push(Mutation::DropInode(*ino)));
                }
                draft.push(Mutation::DropIntent(intent));
                locked.commit(draft)?;
            }
            locked.shard.release_keys(intent, &steps);
            Ok(locked.shard.grown_by(&steps))
        })?;
        grown.into_iter().for_each(|dir| self.keeper.split(dir));
        Ok(())
    }

    /// Whether an intent of one of this server's shards was decided; refused while it is neither.
    pub(crate) fn outcome(&self, intent: IntentId) -> Result<bool, Failure> {
        self.partitions.with(intent.shard, |locked| {
            if locked.shard.active.contains(&intent.number) {
                return Err(Refusal::Busy.into());
            }
            // What all participants have carried out is over, though its record may still be in the log.
            Ok(locked.shard.untold.contains_key(&intent.number))
        })
    }
}

/// Whether a kind is a directory.
pub(crate) fn is_directory(kind: FileKind) -> bool {
    kind == FileKind::Directory
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was decided is done or kept: a step that is left out would lose a name, or a file behind one.
    #[test]
    fn a_step_that_cannot_be_done_is_an_error_and_not_left_out() {
        let map = Map::before_the_first(1);
        let (dir, ino, name) = (Ino(7), Ino(8), b"name".to_vec());
        let steps = [
            Step::PutEntry { dir, name: name.clone(), ino, kind: FileKind::File, replace: None },
            Step::RemoveEntry { dir, name: name.clone(), ino },
            Step::SetParent { ino, parent: dir, name },
            Step::AddLink { ino },
        ];
        for step in steps {
            let done = Shard::default().perform(&mut Draft::new(0), &map, std::slice::from_ref(&step), &[]);
            assert!(done.is_err(), "{step:?}");
        }
    }
}
