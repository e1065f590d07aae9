//! The coordinator's side of intents, and the operations mkdir, rmdir, link, and unlink of an inode in
//! another shard, which may be intents.
//!
//! When all steps are in the shard that is addressed, they are one plain change. Otherwise they are an
//! intent, as described in [`bivouac_proto::peer`]. The decision is one record in the coordinating shard's
//! log, together with its own steps and the answer to the request.

use crate::access::{Owner, READ, SET_GID, SET_UID, WRITE};
use crate::attrs::CHANGE_DIRECTORY;
use crate::draft::Draft;

use crate::mutation::Mutation;
use crate::names::{check_name, may_make, shard_of, shown};
use crate::shard::{Named, Prepared};
use crate::store::{Caller, Core};
use crate::teller::can_wait;
use bivouac_layout::namespace::{PARTS, directory_shard, part_shard};
use bivouac_layout::{Ino, Map, ServerId, ShardId};
use bivouac_proto::auth::Credentials;
use bivouac_proto::meta::{At, MetaReply};
use bivouac_proto::peer::{IntentId, PeerReply, PeerRequest, Step};
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, Errno, FileKind, Refusal, Reply};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// In a step: the directory that the plan makes, whose number is not known yet.
const MADE: Ino = Ino(0);

/// How many numbers of intents are taken out of the log at once.
const INTENT_NUMBERS: u64 = 256;

/// An operation's steps.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// A directory to be made first, and where.
    pub make: Option<(ShardId, Step)>,
    pub steps: Vec<(ShardId, Step)>,
}

/// An intent that is not decided yet. If it is dropped before it is decided, it is given up.
pub(crate) struct Active<'a> {
    core: &'a Core,
    pub id: IntentId,
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        let number = self.id.number;
        let _ = self.core.partitions.with(self.id.shard, |locked| {
            locked.shard.active.remove(&number);
            Ok(())
        });
    }
}

impl Core {
    /// Begins an intent that `shard` coordinates.
    pub(crate) fn begin_intent(&self, shard: ShardId) -> Result<Active<'_>, Failure> {
        let now = self.outside.now();
        let number = self.partitions.with(shard, |locked| {
            let number = locked.shard.next_intent;
            if number >= locked.shard.intent_limit {
                // After a restart, counting goes on after these, so that no number is used twice.
                let mut draft = Draft::freeing(now);
                draft.push(Mutation::IntentLimit(number + INTENT_NUMBERS));
                locked.commit(draft)?;
            }
            locked.shard.next_intent = number + 1;
            locked.shard.active.insert(number);
            Ok(number)
        })?;
        Ok(Active { core: self, id: IntentId { shard, number } })
    }

    /// Carries a plan out, coordinated by the shard `home`. The reply may depend on the number of the
    /// directory made.
    pub(crate) fn carry_out(
        &self,
        caller: &Caller,
        home: ShardId,
        plan: Plan,
        reply: impl Fn(Ino) -> Reply,
    ) -> Result<Reply, Failure> {
        let elsewhere = |(shard, _): &(ShardId, Step)| *shard != home;
        if !plan.make.iter().chain(&plan.steps).any(elsewhere) {
            return self.carry_out_alone(caller, home, &plan, reply);
        }
        let intent = self.begin_intent(home)?;
        self.carry_out_as(caller, &intent, plan, || Ok(()), reply)
    }

    /// All steps are in one shard: one change does it.
    fn carry_out_alone(
        &self,
        caller: &Caller,
        home: ShardId,
        plan: &Plan,
        reply: impl Fn(Ino) -> Reply,
    ) -> Result<Reply, Failure> {
        let now = self.outside.now();
        let map = self.outside.map();
        let (reply, grown) = self.partitions.with(home, |locked| {
            let mut draft = Draft::new(now);
            let made = draft.next_ino(locked.shard, home);
            let all: Vec<Step> =
                plan.make.iter().chain(&plan.steps).map(|(_, s)| filled_in(s.clone(), made)).collect();
            locked.shard.keys_are_free(&all)?;
            for step in &all {
                locked.shard.check(home, step, &all)?;
            }
            locked.shard.perform(&mut draft, &map, &all, &[made])?;
            let reply = reply(made);
            draft.answer(&caller.id, &reply);
            locked.commit_for(caller, draft)?;
            Ok((reply, locked.shard.grown_by(&all)))
        })?;
        grown.into_iter().for_each(|dir| self.keeper.split(dir));
        Ok(reply)
    }

    /// Carries out a plan as an intent. `before` runs when all participants have prepared it; if it fails,
    /// the intent is given up.
    pub(crate) fn carry_out_as(
        &self,
        caller: &Caller,
        intent: &Active<'_>,
        plan: Plan,
        before: impl FnOnce() -> Result<(), Failure>,
        reply: impl Fn(Ino) -> Reply,
    ) -> Result<Reply, Failure> {
        let id = intent.id;
        let elsewhere = plan.make.iter().chain(&plan.steps).filter(|(shard, _)| *shard != id.shard);
        let later = self.tells_later && elsewhere.into_iter().all(|(_, step)| can_wait(step));
        // All participants that may have prepared something, whether or not their answers came.
        let mut asked: Vec<ShardId> = Vec::new();
        let logged = Cell::new(false);
        let decided = self.prepare_all(id, plan, &mut asked).and_then(|made| {
            before()?;
            let reply = reply(made);
            self.decide(caller, id, (&asked, &logged), &reply)?;
            Ok(reply)
        });
        match decided {
            Ok(reply) => {
                if later {
                    self.tell_later(id, &asked);
                } else {
                    self.tell_commit(id, &asked);
                }
                Ok(reply)
            }
            // It is decided, unless the decision is lost with this server: its next primary knows, and participants
            // ask that.
            Err(failure) if logged.get() => {
                // They would only ask when the intent is old, and programs wait for what it holds.
                self.pass_on_outcome(id, &asked);
                Err(failure)
            }
            Err(failure) => {
                let _ = self.conclude_in(id.shard, id, false);
                for (server, shards) in by_server(&self.outside.map(), &asked) {
                    let intents = shards.into_iter().map(|shard| (id, shard)).collect();
                    // A participant that does not hear it asks for the outcome later.
                    let _ = self.ask(server, &PeerRequest::Abort { intents });
                }
                Err(failure)
            }
        }
    }

    /// Asks who answers for an intent's shard now what became of it, and tells those who have prepared something.
    fn pass_on_outcome(&self, id: IntentId, asked: &[ShardId]) {
        if self.is_mine(id.shard) {
            return;
        }
        let answer = self.ask_shard(id.shard, &PeerRequest::Outcome { intent: id });
        let Ok(Reply::Peer(PeerReply::Outcome { committed })) = answer else { return };
        for (server, shards) in by_server(&self.outside.map(), asked) {
            let intents = shards.into_iter().map(|shard| (id, shard)).collect();
            let request =
                if committed { PeerRequest::Commit { intents } } else { PeerRequest::Abort { intents } };
            let _ = self.ask(server, &request);
        }
    }

    fn prepare_all(&self, id: IntentId, plan: Plan, asked: &mut Vec<ShardId>) -> Result<Ino, Failure> {
        let mut made = MADE;
        if let Some((shard, step)) = plan.make {
            // It needs no keys, so it need not be prepared in the order of keys.
            asked.push(shard);
            made = self.prepare_at(shard, id, vec![step])?.first().copied().ok_or(Errno::PROTO)?;
        }
        let mut steps: Vec<(ShardId, Step)> =
            plan.steps.into_iter().map(|(shard, step)| (shard, filled_in(step, made))).collect();
        steps.sort_by_key(|(shard, _)| *shard);
        for group in steps.chunk_by(|a, b| a.0 == b.0) {
            let Some((shard, _)) = group.first() else { continue };
            let steps: Vec<Step> = group.iter().map(|(_, step)| step.clone()).collect();
            if *shard != id.shard && !asked.contains(shard) {
                asked.push(*shard);
            }
            self.prepare_at(*shard, id, steps)?;
        }
        Ok(made)
    }

    /// Prepares steps in a shard, whoever has it.
    fn prepare_at(&self, shard: ShardId, id: IntentId, steps: Vec<Step>) -> Result<Vec<Ino>, Failure> {
        if self.is_mine(shard) {
            return self.prepare_in(shard, id, &steps, shard == id.shard);
        }
        match self.ask_shard(shard, &PeerRequest::Prepare { intent: id, shard, steps })? {
            Reply::Peer(PeerReply::Prepared { made }) => Ok(made),
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// The moment at which the operation happens. `logged`: whether that may be so, also if this fails.
    fn decide(
        &self,
        caller: &Caller,
        id: IntentId,
        (participants, logged): (&[ShardId], &Cell<bool>),
        reply: &Reply,
    ) -> Result<(), Failure> {
        let now = self.outside.now();
        let map = self.outside.map();
        let grown = self.partitions.with(id.shard, |locked| {
            if !locked.shard.active.contains(&id.number) {
                // The shard was another server's for a while: this is not known any more.
                return Err(Refusal::Busy.into());
            }
            let own = locked.shard.intents.get(&id).cloned();
            let Prepared { steps, made, .. } =
                own.unwrap_or(Prepared { steps: Vec::new(), made: Vec::new(), since: None, own: true });
            let mut draft = Draft::freeing(now);
            locked.shard.perform(&mut draft, &map, &steps, &made)?;
            if !participants.is_empty() {
                draft.push(Mutation::Decide(id.number, participants.to_vec()));
            }
            draft.answer(&caller.id, reply);
            locked.commit(draft)?;
            logged.set(true);
            if !participants.is_empty() {
                locked.shard.untold.insert(id.number, participants.to_vec());
            }
            locked.shard.intents.remove(&id);
            locked.shard.release_keys(id, &steps);
            locked.shard.active.remove(&id.number);
            Ok(locked.shard.grown_by(&steps))
        })?;
        grown.into_iter().for_each(|dir| self.keeper.split(dir));
        Ok(())
    }

    /// Tells participants of a decision. Says whether all have heard it; the others are told again later.
    pub(crate) fn tell_commit(&self, id: IntentId, participants: &[ShardId]) -> bool {
        self.tell(&participants.iter().map(|shard| (id, *shard)).collect::<Vec<_>>())
    }

    /// Repeats something as long as other operations are in its way, up to a time limit, and as long as this server answers
    /// for the shard.
    pub(crate) fn patiently<T>(
        &self,
        home: ShardId,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + self.patience;
        let mut pause = Duration::from_micros(200);
        loop {
            match attempt() {
                Err(Failure::Refused(Refusal::Busy))
                    if Instant::now() < deadline && self.partitions.serves(home) =>
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(20));
                }
                other => return other,
            }
        }
    }

    /// An inode anywhere, with its parent if it is a directory.
    pub(crate) fn inode_anywhere(&self, ino: Ino) -> Result<(Attr, Ino), Failure> {
        match self.ask_shard(ino.shard(), &PeerRequest::Inode { ino })? {
            Reply::Peer(PeerReply::Inode { attr, parent }) => Ok((*attr, parent)),
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// An entry anywhere, with its directory's owner.
    pub(crate) fn entry_anywhere(&self, at: &At<'_>) -> Result<(Option<Named>, Owner), Failure> {
        let request = PeerRequest::Entry { dir: at.dir, split: at.split, name: at.name };
        match self.ask_shard(shard_of(at), &request)? {
            Reply::Peer(PeerReply::Entry { named, owner }) => {
                Ok((named.map(|(ino, kind)| Named { ino, kind }), Owner::from_triple(owner)))
            }
            _ => Err(Errno::PROTO.into()),
        }
    }

    pub(crate) fn mkdir(&self, caller: &Caller, at: At<'_>, mode: u16) -> Result<Reply, Failure> {
        check_name(at.name)?;
        let home = shard_of(&at);
        self.once(caller, home, || {
            self.patiently(home, || {
                let now = self.outside.now();
                let (owner, layout) = self.partitions.with(home, |locked| {
                    let place = may_make(locked, caller, &at)?;
                    let (_, owner) = locked.shard.home(at.dir, at.split, at.name)?;
                    Ok((owner.inherit(&caller.credentials, mode, true), locked.shard.template(place)))
                })?;
                let shard = directory_shard(at.dir, at.name);
                let (mode, uid, gid) = owner.triple();
                let name = at.name.to_vec();
                let make =
                    Step::MakeDirectory { shard, parent: at.dir, name: name.clone(), mode, uid, gid, layout };
                let put =
                    Step::PutEntry { dir: at.dir, name, ino: MADE, kind: FileKind::Directory, replace: None };
                let plan = Plan { make: Some((shard, make)), steps: vec![(home, put)] };
                self.carry_out(caller, home, plan, |ino| {
                    let attr = crate::inode::Inode::directory(owner, now, at.dir, at.name, layout).attr(ino);
                    Reply::Meta(MetaReply::Entry { attr: Box::new(attr), target: Vec::new() })
                })
            })
        })
    }

    pub(crate) fn rmdir(&self, caller: &Caller, at: At<'_>) -> Result<Reply, Failure> {
        check_name(at.name)?;
        let home = shard_of(&at);
        self.once(caller, home, || {
            self.patiently(home, || {
                let named = self.may_remove(caller, &at)?;
                if named.kind != FileKind::Directory {
                    return Err(Errno::NOTDIR.into());
                }
                let ino = named.ino;
                let remove = Step::RemoveEntry { dir: at.dir, name: at.name.to_vec(), ino };
                let steps = vec![(home, remove), (ino.shard(), Step::RemoveDirectory { ino })];
                let plan = Plan { make: None, steps: steps.clone() };
                match self.carry_out(caller, home, plan, |_| Reply::Done) {
                    Err(Failure::Refused(Refusal::DirectorySplit)) => {}
                    other => return other,
                }
                // The entry's own directory was found a moment ago, so it is the other one that is split.
                let plan = Plan { make: None, steps: [steps, remove_parts(ino)].concat() };
                self.carry_out(caller, home, plan, |_| Reply::Done)
            })
        })
    }

    /// Checks that an entry can be removed by the caller, and says what it names.
    pub(crate) fn may_remove(&self, caller: &Caller, at: &At<'_>) -> Result<Named, Failure> {
        let (named, owner) = self.partitions.with(shard_of(at), |locked| {
            let (_, owner) = locked.shard.home(at.dir, at.split, at.name)?;
            owner.check(&caller.credentials, crate::access::EXECUTE)?;
            locked.shard.entry_is_free(at.dir, at.name)?;
            let named = locked.shard.find(at.dir, at.name).ok_or(Errno::NOENT)?;
            owner.check(&caller.credentials, CHANGE_DIRECTORY)?;
            Ok((named, owner))
        })?;
        self.check_sticky(caller, owner, named.ino)?;
        Ok(named)
    }

    /// In a sticky directory only owners remove entries.
    pub(crate) fn check_sticky(&self, caller: &Caller, owner: Owner, ino: Ino) -> Result<(), Failure> {
        if owner.is_restricted(&caller.credentials) {
            let (attr, _) = self.inode_anywhere(ino)?;
            Owner { mode: attr.mode, uid: attr.uid, gid: attr.gid }.check_owner(&caller.credentials)?;
        }
        Ok(())
    }

    pub(crate) fn unlink_far(&self, caller: &Caller, at: At<'_>) -> Result<Reply, Failure> {
        let home = shard_of(&at);
        self.once(caller, home, || {
            self.patiently(home, || {
                let named = self.may_remove(caller, &at)?;
                if named.kind == FileKind::Directory {
                    return Err(Errno::ISDIR.into());
                }
                let remove = Step::RemoveEntry { dir: at.dir, name: at.name.to_vec(), ino: named.ino };
                let steps = vec![(home, remove), (named.ino.shard(), Step::DropLink { ino: named.ino })];
                self.carry_out(caller, home, Plan { make: None, steps }, |_| Reply::Done)
            })
        })
    }

    pub(crate) fn link(&self, caller: &Caller, ino: Ino, at: At<'_>) -> Result<Reply, Failure> {
        check_name(at.name)?;
        let home = shard_of(&at);
        self.once(caller, home, || {
            self.patiently(home, || {
                self.partitions.with(home, |locked| may_make(locked, caller, &at).map(drop))?;
                let now = self.outside.now();
                let (mut attr, target) = self.linked(ino)?;
                if attr.kind == FileKind::Directory {
                    return Err(Errno::PERM.into());
                }
                may_link(&attr, &caller.credentials)?;
                attr.nlink += 1;
                attr.ctime = now;
                let name = at.name.to_vec();
                let put = Step::PutEntry { dir: at.dir, name, ino, kind: attr.kind, replace: None };
                let steps = vec![(home, put), (ino.shard(), Step::AddLink { ino })];
                self.carry_out(caller, home, Plan { make: None, steps }, |_| {
                    Reply::Meta(MetaReply::Entry { attr: Box::new(attr.clone()), target: target.clone() })
                })
            })
        })
    }

    /// Attributes and, where it is at hand, the target of what is to be linked.
    fn linked(&self, ino: Ino) -> Result<(Attr, Vec<u8>), Failure> {
        if self.is_mine(ino.shard()) {
            let shown = self.partitions.with(ino.shard(), |locked| shown(locked, ino))?;
            return Ok((shown.attr, shown.target));
        }
        Ok((self.inode_anywhere(ino)?.0, Vec::new()))
    }
}

/// Checks who may give a file another name: its owner; others only if the name gives them no rights that they
/// do not have already, as is Linux's default (`fs.protected_hardlinks`). EPERM if not.
fn may_link(attr: &Attr, who: &Credentials) -> Result<(), Errno> {
    let owner = Owner { mode: attr.mode, uid: attr.uid, gid: attr.gid };
    if owner.check_owner(who).is_ok() {
        return Ok(());
    }
    let privileged = attr.mode & SET_UID != 0 || attr.mode & SET_GID != 0 && attr.mode & 0o010 != 0;
    let usable = attr.kind == FileKind::File && !privileged && owner.check(who, READ | WRITE).is_ok();
    if usable { Ok(()) } else { Err(Errno::PERM) }
}

/// Steps that remove the parts of a split directory, wherever they are. One step is always for the
/// directory's own shard: by it that shard's server sees that the coordinator knows of the split.
pub(crate) fn remove_parts(dir: Ino) -> Vec<(ShardId, Step)> {
    let mut shards: Vec<ShardId> =
        (0..PARTS).map(|part| part_shard(dir, part)).chain([dir.shard()]).collect();
    shards.sort();
    shards.dedup();
    shards.into_iter().map(|shard| (shard, Step::RemoveParts { dir, shard })).collect()
}

/// Shards by the servers that answer for them.
fn by_server(map: &Map, shards: &[ShardId]) -> BTreeMap<ServerId, Vec<ShardId>> {
    let mut by_server: BTreeMap<ServerId, Vec<ShardId>> = BTreeMap::new();
    for shard in shards {
        by_server.entry(map.primary(*shard)).or_default().push(*shard);
    }
    by_server
}

/// A step with the number of the new directory in its place.
fn filled_in(step: Step, made: Ino) -> Step {
    match step {
        Step::PutEntry { dir, name, ino, kind, replace } if ino == MADE => {
            Step::PutEntry { dir, name, ino: made, kind, replace }
        }
        other => other,
    }
}
