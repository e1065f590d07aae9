//! Requests from server to server: operations that touch several shards, directory splits, moved directories.
//!
//! An operation over several shards is an *intent*. Its coordinator (the shard of the first entry) makes
//! every participant *prepare* (check, lock the keys, log what it will do), in ascending order of shard and
//! key so that two intents never wait for each other in a circle; then logs the decision with its own part,
//! which is the moment the operation happens; then tells the participants to commit. After a crash of the
//! coordinator its log says which intents were decided; a participant with a prepared intent asks
//! ([`PeerRequest::Outcome`]); one that the coordinator does not know was never decided and is undone.
//!
//! Coordinators and participants are shards and not servers: whose message it is, the sender asks its map when it
//! sends it.

use crate::attr::{Attr, FileKind, Time};
use bivouac_layout::{FileLayout, Ino, ServerId, ShardId, Template};
use serde::{Deserialize, Serialize};
use serde_bytes::{ByteBuf, Bytes};

/// The name of an intent: the coordinator's shard and a number that the shard never gives twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub struct IntentId {
    /// The shard that coordinates, and whose log holds the decision.
    pub shard: ShardId,
    /// Counts its intents.
    pub number: u64,
}

/// The place of a record in a shard's stream of records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Debug, Default)]
pub struct Position {
    /// The term of the primary that made the record.
    pub term: u64,
    /// Counts the shard's records.
    pub sequence: u64,
}

/// Records of a shard for one of its copies.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct Shipment<'a> {
    /// The shard.
    pub shard: ShardId,
    /// The sender's term. A server that knows of a later one refuses.
    pub term: u64,
    /// The record before these.
    pub after: Position,
    /// All records up to this are everywhere, and need not be kept for others.
    pub everywhere: u64,
    /// The records, encoded as in the log.
    #[serde(borrow)]
    pub records: Vec<&'a Bytes>,
}

/// What a server says of its copy of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Held {
    /// It has everything up to here.
    Has(Position),
    /// It has everything up to here but what is volatile: it was restarted.
    Restarted(Position),
    /// What it was sent does not follow what it has, which ends here.
    Lacks(Position),
    /// It knows of a primary with this later term.
    Deposed(u64),
}

/// A copy of a shard, so short that it can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Compared {
    /// Up to here.
    pub at: Position,
    /// How many records it has.
    pub records: u64,
    /// The sum of what its records hash to.
    pub digest: u64,
}

/// One participant's step of an intent, checked when prepared, done when committed.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum Step {
    /// An entry appears. `replace` is what it must replace. If that is not what is there, the participant
    /// answers `Busy`, and the coordinator looks again.
    PutEntry {
        /// Its directory.
        dir: Ino,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The inode that it will name.
        ino: Ino,
        /// What that is.
        kind: FileKind,
        /// The inode that it names now; `None` if it must not exist.
        replace: Option<Ino>,
    },
    /// An entry goes.
    RemoveEntry {
        /// Its directory.
        dir: Ino,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The inode that it must name.
        ino: Ino,
    },
    /// A directory inode is made; preparing answers its number.
    MakeDirectory {
        /// The shard to make it in.
        shard: ShardId,
        /// Directory above.
        parent: Ino,
        /// Its name there.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Permission bits.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// What it says about the layout of new files.
        layout: Template,
    },
    /// An empty directory goes: preparing checks that it is empty and seals it against new entries.
    RemoveDirectory {
        /// The directory.
        ino: Ino,
    },
    /// A part of a split directory must be empty, is sealed, and goes.
    RemoveParts {
        /// The directory.
        dir: Ino,
        /// One of the shards that hold parts.
        shard: ShardId,
    },
    /// A directory gets another parent or another name there.
    SetParent {
        /// The directory.
        ino: Ino,
        /// Directory above.
        parent: Ino,
        /// Its name there.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// A file has one more name. EMLINK at [`crate::attr::LINK_MAX`].
    AddLink {
        /// The file.
        ino: Ino,
    },
    /// A file has one name less; without any and without opens it goes.
    DropLink {
        /// The file.
        ino: Ino,
    },
    /// The inode's ctime becomes now (a rename).
    Touch {
        /// The inode.
        ino: Ino,
    },
}

/// An entry as a split moves it.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct MovedEntry {
    /// Its name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The inode that it names.
    pub ino: Ino,
    /// What that is.
    pub kind: FileKind,
}

/// Requests from server to server.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum PeerRequest<'a> {
    /// Check, lock and log these steps (`Prepared`). If it is repeated, the participant answers again. An
    /// intent takes its locks in ascending order, so that it only ever waits for locks greater than those
    /// that it holds.
    Prepare {
        /// The intent.
        intent: IntentId,
        /// The shard in which they are.
        shard: ShardId,
        /// The steps there.
        steps: Vec<Step>,
    },
    /// They were decided: do the prepared steps. An intent that the participant does not know was committed
    /// before.
    Commit {
        /// The intents, each with a shard in which it was prepared.
        intents: Vec<(IntentId, ShardId)>,
    },
    /// They were given up: undo what was prepared. It is no error if the participant does not know the intent.
    Abort {
        /// The intents, each with a shard in which it may have been prepared.
        intents: Vec<(IntentId, ShardId)>,
    },
    /// Was it decided? (`Outcome`)
    Outcome {
        /// The intent.
        intent: IntentId,
    },
    /// Give me what I have missed of the shards that you answer for, and from now on all that is new. When this is
    /// answered I have everything that was acknowledged, as long as the map stays as it is.
    CatchUp,
    /// The files of a shard that have copies (`Files`), as many as go into an answer; none: that was all.
    Files {
        /// The shard.
        shard: ShardId,
        /// Those behind this one.
        after: Ino,
    },
    /// The shards in which there is no file that has copies, of those that the receiver answers for (`Shards`).
    ShardsWithout,
    /// Holds these entries of a directory that is being split; replaces what an earlier try left.
    InstallParts {
        /// The directory.
        dir: Ino,
        /// Its permission bits, owner and group, which the parts check against.
        owner: (u16, u32, u32),
        /// What the directory says about the layout of new files.
        layout: Template,
        /// Time of the split, for the parts' mtime.
        time: Time,
        /// Which parts, also the empty ones.
        parts: Vec<u16>,
        /// The entries of those parts.
        entries: Vec<MovedEntry>,
    },
    /// Entries, subdirectories and last change of parts of a directory (`Parts`).
    StatParts {
        /// The directory.
        dir: Ino,
        /// Which parts.
        parts: Vec<u16>,
    },
    /// A split directory's permission bits, owner, group or layout changed.
    OwnParts {
        /// The directory.
        dir: Ino,
        /// Its permission bits, owner and group now.
        owner: (u16, u32, u32),
        /// What it says about the layout of new files now.
        layout: Template,
        /// Which of its parts are told.
        parts: Vec<u16>,
    },
    /// Directories are about to move, or lost search permission: from now on, refuse requests along cached
    /// paths from senders who have not heard of it.
    NoteMoves {
        /// The directories.
        moved: Vec<Ino>,
    },
    /// Take or give back the one lock under which directories change their parent (`Done`; Busy while another
    /// holds it). Held by shard 0's server; a holder that is gone loses it.
    DirectoryMoves {
        /// Who: an intent.
        intent: IntentId,
        /// Take it, or give it back.
        take: bool,
    },
    /// What an inode is, for a coordinator's checks and for the way up to the root (`Inode`). ENOENT if there
    /// is none. Waits while an intent holds the inode.
    Inode {
        /// The inode.
        ino: Ino,
    },
    /// What an entry names, and who owns its directory, for a coordinator's checks (`Entry`).
    Entry {
        /// The directory.
        dir: Ino,
        /// Whether the asker takes it for split.
        split: bool,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Records for copies (`Held`, one for each shipment).
    Ship {
        /// Of each shard at most one.
        #[serde(borrow)]
        shipments: Vec<Shipment<'a>>,
    },
    /// A part of a shard's image, which replaces the receiver's copy when it is complete (`Held`, one).
    Image {
        /// The shard.
        shard: ShardId,
        /// The sender's term.
        term: u64,
        /// Where the image's parts begin, continue and end: the number of this one.
        part: u32,
        /// It is the last one.
        last: bool,
        /// Batches of changes, encoded as in the log.
        batches: Vec<ByteBuf>,
    },
    /// A server that takes shards over asks where their copies are (`Held`, one for each shard). From then on the
    /// receiver refuses primaries with earlier terms.
    Positions {
        /// The shards, each with the asker's term.
        shards: Vec<(ShardId, u64)>,
    },
    /// A server that takes a shard over lacks records that the receiver has: it is to send them (`Done`). ESTALE if the
    /// receiver knows of a later term.
    Supply {
        /// The shard.
        shard: ShardId,
        /// The asker's term.
        term: u64,
        /// The asker.
        to: ServerId,
        /// Where the asker's copy ends.
        from: Position,
    },
    /// What a server has of shards, for their primary to compare (`Compared`, in the same order).
    Compare {
        /// The shards.
        shards: Vec<ShardId>,
    },
}

/// A request that is encoded like the [`crate::Request::Peer`] of it, without being copied first.
pub struct Borrowed<'r, 'a>(pub &'r PeerRequest<'a>);

impl Serialize for Borrowed<'_, '_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_variant("Request", PEER, "Peer", self.0)
    }
}

/// The place of [`crate::Request::Peer`] among the requests.
const PEER: u32 = 2;

impl PeerRequest<'_> {
    /// Whether it only asks what the server knows of shards for which it answers.
    pub fn reads(&self) -> bool {
        matches!(
            self,
            PeerRequest::Outcome { .. }
                | PeerRequest::Files { .. }
                | PeerRequest::ShardsWithout
                | PeerRequest::StatParts { .. }
                | PeerRequest::Inode { .. }
                | PeerRequest::Entry { .. }
        )
    }
}

/// Replies from server to server.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum PeerReply {
    /// Prepared: for each `MakeDirectory` its number, in the steps' order.
    Prepared {
        /// New inode numbers.
        made: Vec<Ino>,
    },
    /// Whether the intent was decided.
    Outcome {
        /// It was.
        committed: bool,
    },
    /// Parts of a directory, taken together.
    Parts {
        /// Entries.
        entries: u64,
        /// Subdirectories.
        subdirectories: u32,
        /// Last change.
        mtime: Time,
    },
    /// Files, in the order of their numbers, each with its layout.
    Files(Vec<(Ino, FileLayout)>),
    /// Shards.
    Shards(Vec<ShardId>),
    /// An inode.
    Inode {
        /// Its attributes. Of a split directory they lack what the parts know.
        attr: Box<Attr>,
        /// The directory above, if it is a directory; the root is its own.
        parent: Ino,
    },
    /// An entry and its directory.
    Entry {
        /// What it names; `None` if it is not there.
        named: Option<(Ino, FileKind)>,
        /// Permission bits, owner and group of the directory.
        owner: (u16, u32, u32),
    },
    /// What the receiver has of shards.
    Held(Vec<Held>),
    /// What the receiver has of shards.
    Compared(Vec<Compared>),
}
