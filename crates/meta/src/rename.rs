//! Rename, and what else is necessary to move a directory.
//!
//! A directory's move makes cached paths wrong: every server notes it ([`crate::moves`]) while the entries
//! are held, before anybody can see the move. A move to another parent could close a circle: such moves
//! happen one at a time, under a lock that shard 0's server keeps, and walk up from the new parent first.

use crate::access::{Owner, WRITE};
use crate::attrs::CHANGE_DIRECTORY;
use crate::coordinate::{Active, Plan, remove_parts};
use crate::draft::Draft;
use crate::intents::is_directory;
use crate::mutation::Mutation;
use crate::names::{check_name, shard_of};
use crate::shard::Named;
use crate::store::{Caller, Core};
use bivouac_layout::{Ino, ShardId};
use bivouac_proto::meta::{At, RenameMode};
use bivouac_proto::peer::{IntentId, PeerReply, PeerRequest, Step};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, FileKind, Refusal, Reply};

/// The shard that keeps the lock of directory moves.
const MOVES: ShardId = ShardId(0);
/// Longest way up to the root: more is a damaged tree.
const DEPTH_MAX: usize = 1 << 16;

/// What a rename found and means to do.
struct Rename<'a> {
    from: At<'a>,
    to: At<'a>,
    source: Named,
    target: Option<Named>,
    exchange: bool,
}

impl Rename<'_> {
    /// The directories that get another parent or name.
    fn moved_directories(&self) -> Vec<Ino> {
        let exchanged = self.target.filter(|_| self.exchange);
        let named = std::iter::once(self.source).chain(exchanged);
        named.filter(|named| is_directory(named.kind)).map(|named| named.ino).collect()
    }
}

impl Core {
    pub(crate) fn rename(
        &self,
        caller: &Caller,
        from: At<'_>,
        to: At<'_>,
        mode: RenameMode,
    ) -> Result<Reply, Failure> {
        check_name(from.name)?;
        check_name(to.name)?;
        let home = shard_of(&from);
        self.once(caller, home, || self.patiently(home, || self.try_rename(caller, from, to, mode)))
    }

    fn try_rename(
        &self,
        caller: &Caller,
        from: At<'_>,
        to: At<'_>,
        mode: RenameMode,
    ) -> Result<Reply, Failure> {
        let source = self.may_remove(caller, &from)?;
        let (target, owner) = self.target(&to)?;
        owner.check(&caller.credentials, CHANGE_DIRECTORY)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            // Two names of one file, or one name twice: nothing happens.
            (_, Some(target)) if target.ino == source.ino => return Ok(Reply::Done),
            _ => {}
        }
        let rename = Rename { from, to, source, target, exchange: mode == RenameMode::Exchange };
        if let Some(target) = target {
            self.check_sticky(caller, owner, target.ino)?;
            self.check_replaced(&rename, target)?;
        }
        if from.dir != to.dir {
            self.check_moved(caller, &rename)?;
        }
        let home = shard_of(&from);
        let steps = self.rename_steps(&rename)?;
        let plan = Plan { make: None, steps };
        let moved = rename.moved_directories();
        if moved.is_empty() {
            return self.carry_out(caller, home, plan, |_| Reply::Done);
        }
        let intent = self.begin_intent(home)?;
        if from.dir == to.dir {
            return self.carry_out_as(caller, &intent, plan, || self.note_moves(&moved), |_| Reply::Done);
        }
        self.take_moves(&intent)?;
        let result = self.check_circles(&rename).and_then(|()| {
            self.carry_out_as(caller, &intent, plan, || self.note_moves(&moved), |_| Reply::Done)
        });
        let give_back = PeerRequest::DirectoryMoves { intent: intent.id, take: false };
        // If this is not heard, shard 0's server asks for the outcome when somebody else wants the lock.
        let _ = self.ask_shard(MOVES, &give_back);
        result
    }

    /// The target's entry. (A refusal would say something about the source's directory, so the client's error
    /// about that of the target is corrected here.)
    fn target(&self, to: &At<'_>) -> Result<(Option<Named>, Owner), Failure> {
        self.entry_anywhere(to)
    }

    fn check_replaced(&self, rename: &Rename<'_>, target: Named) -> Result<(), Failure> {
        if rename.exchange {
            return Ok(());
        }
        match (is_directory(rename.source.kind), is_directory(target.kind)) {
            (true, false) => Err(Errno::NOTDIR.into()),
            (false, true) => Err(Errno::ISDIR.into()),
            // What contains the source is not empty.
            (true, true) if target.ino == rename.from.dir => Err(Errno::NOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    /// A directory that gets another parent changes itself (its `..`), which asks for permission.
    fn check_moved(&self, caller: &Caller, rename: &Rename<'_>) -> Result<(), Failure> {
        if caller.credentials.uid == 0 {
            return Ok(());
        }
        let exchanged = rename.target.filter(|_| rename.exchange);
        for named in [Some(rename.source), exchanged].into_iter().flatten() {
            if is_directory(named.kind) {
                let (attr, _) = self.inode_anywhere(named.ino)?;
                Owner { mode: attr.mode, uid: attr.uid, gid: attr.gid }.check(&caller.credentials, WRITE)?;
            }
        }
        Ok(())
    }

    fn rename_steps(&self, rename: &Rename<'_>) -> Result<Vec<(ShardId, Step)>, Failure> {
        let (from, to, source) = (&rename.from, &rename.to, rename.source);
        let put = |at: &At<'_>, named: Named, replace: Option<Named>| {
            let (name, replace) = (at.name.to_vec(), replace.map(|named| named.ino));
            (shard_of(at), Step::PutEntry { dir: at.dir, name, ino: named.ino, kind: named.kind, replace })
        };
        let settle = |named: Named, at: &At<'_>| {
            let ino = named.ino;
            let step = match named.kind {
                FileKind::Directory => Step::SetParent { ino, parent: at.dir, name: at.name.to_vec() },
                _ => Step::Touch { ino },
            };
            (ino.shard(), step)
        };
        let mut steps = vec![put(to, source, rename.target), settle(source, to)];
        match rename.target {
            Some(target) if rename.exchange => {
                steps.push(put(from, target, Some(source)));
                steps.push(settle(target, from));
                return Ok(steps);
            }
            Some(target) if is_directory(target.kind) => {
                let ino = target.ino;
                steps.push((ino.shard(), Step::RemoveDirectory { ino }));
                if self.inode_anywhere(ino)?.0.split {
                    steps.extend(remove_parts(ino));
                }
            }
            Some(target) => steps.push((target.ino.shard(), Step::DropLink { ino: target.ino })),
            None => {}
        }
        steps.push((
            shard_of(from),
            Step::RemoveEntry { dir: from.dir, name: from.name.to_vec(), ino: source.ino },
        ));
        Ok(steps)
    }

    /// Refuses to move a directory into itself. The lock of directory moves is held, so no other move can
    /// close a circle.
    fn check_circles(&self, rename: &Rename<'_>) -> Result<(), Failure> {
        let upwards = |start: Ino, moved: Named| -> Result<(), Failure> {
            let mut at = start;
            for _ in 0..DEPTH_MAX {
                if at == moved.ino {
                    return Err(Errno::INVAL.into());
                }
                if at == Ino::ROOT {
                    return Ok(());
                }
                let above = self.inode_anywhere(at).map_err(|failure| match failure {
                    // It was removed meanwhile.
                    Failure::Errno(Errno::NOENT) => Refusal::UnknownDirectory.into(),
                    other => other,
                })?;
                at = above.1;
            }
            Err(Errno::LOOP.into())
        };
        if is_directory(rename.source.kind) {
            upwards(rename.to.dir, rename.source)?;
        }
        match rename.target {
            Some(target) if rename.exchange && is_directory(target.kind) => upwards(rename.from.dir, target),
            _ => Ok(()),
        }
    }

    fn take_moves(&self, intent: &Active<'_>) -> Result<(), Failure> {
        let request = PeerRequest::DirectoryMoves { intent: intent.id, take: true };
        self.patiently(intent.id.shard, || self.ask_shard(MOVES, &request).map(drop))
    }

    /// Keeps the lock of directory moves.
    pub(crate) fn serve_moves(&self, intent: IntentId, take: bool) -> Result<(), Failure> {
        let now = self.outside.now();
        // Tries to set the holder, and returns the present one if that is another intent.
        let set = |expected: Option<IntentId>| {
            self.partitions.with(MOVES, |locked| {
                let mover = locked.shard.mover;
                if mover == expected || mover.is_none() || mover == Some(intent) {
                    let new = take.then_some(intent);
                    if mover != new && (take || mover == Some(intent)) {
                        let mut draft = Draft::freeing(now);
                        draft.push(Mutation::PutMover(new));
                        locked.commit(draft)?;
                    }
                    return Ok(None);
                }
                Ok(mover.filter(|_| take))
            })
        };
        let Some(holder) = set(None)? else { return Ok(()) };
        // The present holder keeps the lock only while it is neither decided nor given up.
        match self.ask_shard(holder.shard, &PeerRequest::Outcome { intent: holder })? {
            // It is decided, but some participants may not have carried it out yet.
            Reply::Peer(PeerReply::Outcome { committed: true }) => Err(Refusal::Busy.into()),
            Reply::Peer(PeerReply::Outcome { committed: false }) => match set(Some(holder))? {
                None => Ok(()),
                Some(_) => Err(Refusal::Busy.into()),
            },
            _ => Err(Errno::PROTO.into()),
        }
    }
}
