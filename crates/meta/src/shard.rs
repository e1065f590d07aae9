//! One shard's state in memory: what its log says, and what lives only as long as the process.
//!
//! The durable part is changed by [`crate::mutation`] alone, after the change is in the log. Everything here
//! is read and written under the lock of the shard's partition.

use crate::access::Owner;
use crate::append::Placed;
use crate::entries::Entries;
use crate::error::{Op, Stop};
use crate::grace::Grace;
use crate::inode::{Part, Spread};
use crate::inodes::{Inodes, Seen};
use crate::locks::LockTable;
use crate::mutation::Mutation;
use crate::restripe::Pending;
use crate::stream::Stream;
use bivouac_layout::namespace;
use bivouac_layout::{Ino, ServerId, ShardId};
use bivouac_proto::header::OpenId;
use bivouac_proto::peer::{IntentId, Step};
use bivouac_proto::{Errno, FileKind, Refusal, Reply, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// What an entry names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub ino: Ino,
    pub kind: FileKind,
}

/// Which thing counts a directory's entries here: its inode, or one of its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    Packed(Ino),
    Part(Ino, u16),
}

/// What an intent holds in this shard until it is decided.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Prepared {
    pub steps: Vec<Step>,
    /// The numbers of the directories that it will make, in the steps' order.
    pub made: Vec<Ino>,
    /// When it was prepared, unless that was before a restart.
    #[serde(skip)]
    pub since: Option<Instant>,
    /// The coordinator's own part: not logged before the decision.
    #[serde(skip)]
    pub own: bool,
}

/// The answer to a request, for when it is repeated.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Answer {
    pub sequence: u64,
    pub time: Time,
    /// Nothing for [`Reply::Done`], which is most answers and so takes no memory of its own.
    #[serde(with = "serde_bytes")]
    pub reply: Box<[u8]>,
}

/// What intents lock.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Key {
    /// An entry: exclusive.
    Entry(Ino, Box<[u8]>),
    /// The existence of a directory's entries here: shared by intents that change entries, exclusive for one
    /// that removes the directory.
    Content(Ino),
    /// The link count of a file, or the parent and name of a directory: exclusive.
    Inode(Ino),
    /// The attributes of an inode that is about to lose a link: exclusive. The client that asked for the
    /// removal may have its answer already.
    Leaving(Ino),
}

/// Who holds a key. (One intent alone, or several that share it.)
#[derive(Debug, Default)]
pub(crate) struct Holders {
    pub exclusive: bool,
    pub intents: Vec<IntentId>,
}

/// An open file description.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(crate) struct Opened {
    pub id: OpenId,
    pub write: bool,
    pub append: bool,
}

/// The volatile state of an inode that is in use.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub opens: Vec<Opened>,
    /// Somebody works on its data: see the module `steps`.
    pub busy: bool,
    /// A truncation that was unfinished at the server's start has not been tried again yet.
    pub restoring: bool,
    /// An earlier try to move its data out of the inode has left something at a server that cannot be
    /// reached.
    pub stuck: bool,
    pub locks: LockTable,
    pub written: Written,
}

/// What is known of a file in blocks that is being written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    /// The highest end that a closed description or an append reported, bytes.
    pub end: u64,
    /// The latest write that was reported; 0 is none.
    pub last: Time,
    /// Reports are missing: the servers have to be asked.
    pub unsure: bool,
    /// The file's end, while all writers append.
    pub append_end: Option<u64>,
}

impl Answer {
    /// What the request is answered with again.
    pub(crate) fn reply(&self) -> Result<Reply, Errno> {
        match &*self.reply {
            [] => Ok(Reply::Done),
            encoded => bivouac_proto::decode(encoded).map_err(|_| Errno::IO),
        }
    }
}

impl Live {
    pub(crate) fn is_idle(&self) -> bool {
        self.opens.is_empty() && !self.busy && !self.restoring && !self.stuck && self.locks.is_empty()
    }

    pub(crate) fn has_writer(&self) -> bool {
        self.opens.iter().any(|o| o.write)
    }
}

/// A shard.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    // Durable.
    pub entries: Entries,
    pub inodes: Inodes,
    pub parts: BTreeMap<(Ino, u16), Part>,
    /// Counter of the newest inode.
    pub last: u64,
    /// Numbers of intents below this were, or may have been, given out.
    pub intent_limit: u64,
    pub intents: BTreeMap<IntentId, Prepared>,
    /// Decided intents of this shard, with the shards that take part.
    pub decisions: BTreeMap<u64, Vec<ShardId>>,
    pub answers: HashMap<(u64, u32), Answer>,
    /// Inodes without links, with those who have them open.
    pub orphans: BTreeMap<Ino, Vec<OpenId>>,
    /// Removed files, with the servers that may still have blocks of them.
    pub purges: BTreeMap<Ino, Vec<ServerId>>,
    /// The intent that holds the lock of directory moves (in shard 0).
    pub mover: Option<IntentId>,
    /// Directories about whose latest change an announcement is due, with the change's number.
    pub announcements: BTreeMap<Ino, u64>,
    /// Files to which an append was begun that is not answered.
    pub appends: BTreeMap<Ino, Placed>,
    /// Files of which a range is on its way to other servers.
    pub restripes: BTreeMap<Ino, Pending>,

    pub stream: Stream,

    // Volatile.
    pub live: HashMap<Ino, Live>,
    pub keys: BTreeMap<Key, Holders>,
    pub next_intent: u64,
    /// Intents of this shard that are neither decided nor given up.
    pub active: HashSet<u64>,
    /// Requests under way that let go of the partition in between.
    pub running: HashSet<(u64, u32)>,
    /// Participants that may not have heard of a decision, each with the intent's number.
    pub untold: BTreeMap<u64, Vec<ShardId>>,
    /// Decisions that all participants have heard; the next change logs that.
    pub concluded: Vec<u64>,
    /// Open descriptions that their agents have given up, and when: requests for them are refused.
    pub abandoned: HashMap<OpenId, Instant>,
    /// The time in which opens from before a restart may be registered again.
    pub grace: Option<Arc<Grace>>,
    /// Locks were granted that are forgotten: until the grace time is over, agents tell which, and none is granted anew.
    /// The next primary has to go on with that, so it is a part of the stream.
    pub forgot_locks: bool,
    /// What was unlocked in that time: agents may not have known it yet.
    pub unlocked: HashMap<Ino, LockTable>,
    /// Holders of inodes without links, by the log, which nobody has named since the server's start.
    pub revived: HashSet<(Ino, OpenId)>,
    /// Opens that the shard's primary before this server has told of, and nobody has named since.
    pub unconfirmed: HashSet<(Ino, OpenId)>,
    /// The shard was handed over with decisions that not all participants may have heard of: until they have, but not after
    /// this moment, programs wait.
    pub resumes_until: Option<Instant>,
    /// Answers that were put since old ones were last dropped.
    pub answers_put: usize,
}

impl Shard {
    /// What `name` names in `dir`.
    pub(crate) fn find(&self, dir: Ino, name: &[u8]) -> Option<Named> {
        self.entries.find(dir, name)
    }

    /// An inode; ENOENT if there is none.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Seen<'_>, Errno> {
        self.inodes.get(ino).ok_or(Errno::NOENT)
    }

    /// Where a directory's entry `name` is counted here. `split`: whether the sender believes that the
    /// directory is split. Waits while the directory is being removed, because its path may name another
    /// directory afterwards.
    pub(crate) fn home(&self, dir: Ino, split: bool, name: &[u8]) -> Op<(Home, Owner)> {
        self.content_stays(dir)?;
        if split {
            let part = namespace::part_of(namespace::cookie(dir, name));
            let found = self.parts.get(&(dir, part)).ok_or(Refusal::UnknownDirectory)?;
            return Ok((Home::Part(dir, part), found.owner()));
        }
        let inode = self.inodes.get(dir).ok_or(Refusal::UnknownDirectory)?;
        match inode.as_directory() {
            None => Err(Errno::NOTDIR.into()),
            Some(d) if d.state == Spread::Split => Err(Refusal::DirectorySplit.into()),
            Some(_) if inode.nlink == 0 => Err(Errno::NOENT.into()),
            Some(_) => Ok((Home::Packed(dir), inode.owner())),
        }
    }

    /// Like [`Shard::home`], but finds out itself whether the directory is split.
    pub(crate) fn home_of(&self, dir: Ino, name: &[u8]) -> Op<(Home, Owner)> {
        match self.home(dir, false, name) {
            Ok(home) => Ok(home),
            Err(failed) => self.home(dir, true, name).map_err(|_| failed),
        }
    }

    /// Waits while a directory's entries are on the move. (That it is not being removed, [`Shard::home`] has
    /// seen to.)
    pub(crate) fn may_change(&self, home: Home) -> Op<()> {
        let splitting = match home {
            Home::Packed(dir) => {
                let state = self.inodes.get(dir).and_then(|i| i.as_directory().map(|d| d.state));
                state == Some(Spread::Splitting)
            }
            Home::Part(..) => false,
        };
        if splitting { Err(Stop::Wait) } else { Ok(()) }
    }

    /// Waits while an intent removes the directory.
    fn content_stays(&self, dir: Ino) -> Op<()> {
        if !self.keys.is_empty() && self.keys.get(&Key::Content(dir)).is_some_and(|held| held.exclusive) {
            return Err(Stop::Wait);
        }
        Ok(())
    }

    /// Waits while an intent holds the entry.
    pub(crate) fn entry_is_free(&self, dir: Ino, name: &[u8]) -> Op<()> {
        if !self.keys.is_empty() && self.keys.contains_key(&Key::Entry(dir, name.into())) {
            return Err(Stop::Wait);
        }
        Ok(())
    }

    /// Waits while an intent holds the inode.
    pub(crate) fn inode_is_free(&self, ino: Ino) -> Op<()> {
        if !self.keys.is_empty() && self.keys.contains_key(&Key::Inode(ino)) {
            return Err(Stop::Wait);
        }
        Ok(())
    }

    /// Waits while an intent takes a link from the inode.
    pub(crate) fn is_not_leaving(&self, ino: Ino) -> Op<()> {
        if !self.keys.is_empty() && self.keys.contains_key(&Key::Leaving(ino)) {
            return Err(Stop::Wait);
        }
        Ok(())
    }

    /// Whether an inode without links is still in use.
    pub(crate) fn in_use(&self, ino: Ino) -> bool {
        self.live.get(&ino).is_some_and(|l| l.busy || !l.opens.is_empty())
            || self.restripes.contains_key(&ino)
    }

    /// Whether an inode must stay when it loses its last link: it is in use, or may turn out to be.
    pub(crate) fn must_stay(&self, ino: Ino) -> bool {
        self.in_use(ino) || self.grace.as_ref().is_some_and(|grace| !grace.is_over())
    }

    /// Whether there may be locks that no agent has told of yet. (At the server that answers for the shard.)
    pub(crate) fn learns_locks(&mut self, id: ShardId) -> bool {
        if !self.forgot_locks {
            return false;
        }
        let learns = self.grace.as_ref().is_some_and(|grace| !grace.is_over());
        if !learns {
            (self.forgot_locks, self.unlocked) = (false, HashMap::new());
            // Before anything is granted: a primary after this one is not to believe what is told later.
            self.tell(id, &[Mutation::LocksForgotten(false)]);
        }
        learns
    }

    /// All nodes have said what they hold: whoever is known by the log alone holds nothing any more.
    pub(crate) fn forget_revived(&mut self) {
        for (ino, id) in std::mem::take(&mut self.revived) {
            if let Some(live) = self.live.get_mut(&ino) {
                live.opens.retain(|open| open.id != id);
            }
        }
    }

    /// The descriptions that have an inode open.
    pub(crate) fn holders(&self, ino: Ino) -> Vec<OpenId> {
        self.live.get(&ino).map(|l| l.opens.iter().map(|o| o.id).collect()).unwrap_or_default()
    }

    /// Forgets the answers to requests from before `horizon`.
    pub(crate) fn forget_answers(&mut self, horizon: Time) {
        self.answers.retain(|_, answer| answer.time >= horizon);
        self.answers.shrink_to_fit();
        self.answers_put = 0;
    }

    /// Drops an inode's volatile state if it is not in use.
    pub(crate) fn rest(&mut self, ino: Ino) {
        if self.live.get(&ino).is_some_and(Live::is_idle) {
            self.live.remove(&ino);
        }
    }
}
