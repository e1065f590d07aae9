//! Requests to the metadata.
//!
//! The header's shard says which shard is addressed. A request about an *entry* goes to the shard of the
//! entry ([`bivouac_layout::namespace::entry_shard`]); one about an *inode* goes to the inode's shard.
//! Requests that change something carry an identity, and are answered again (not done again) when repeated.
//!
//! Permissions are checked with the credentials that the connection stated when it authenticated.

use crate::attr::{Attr, DirEntry, Time};
use crate::header::OpenId;
use crate::lazy::{LazyFile, Unfetchable};
use bivouac_layout::{Epoch, Ino, NodeId};
use serde::{Deserialize, Serialize};

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
pub struct At<'a> {
    /// The directory.
    pub dir: Ino,
    /// Whether the sender takes the directory for split, and so addressed the shard of the name's part.
    pub split: bool,
    /// The name: 1 to 255 bytes, neither `/` nor NUL, not `.` or `..`.
    #[serde(with = "serde_bytes")]
    pub name: &'a [u8],
}

/// What an open asks for.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct OpenHow {
    /// Reading is wanted.
    pub read: bool,
    /// Writing is wanted.
    pub write: bool,
    /// All writes append.
    pub append: bool,
    /// Truncate it to 0 bytes (with `write`).
    pub truncate: bool,
    /// It has to be a directory.
    pub directory: bool,
    /// Make the file if it is not there.
    pub create: Option<Create>,
    /// The program is only going to read. If the server that answers has all of the file, and the program is on its node, a
    /// descriptor of the sub-file may come with the answer ([`crate::Reply::Opened`]).
    pub pass: bool,
}

/// How to make a new file.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Create {
    /// Permission bits, the umask already applied.
    pub mode: u16,
    /// EEXIST if it is there already.
    pub exclusive: bool,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// This.
    To(Time),
}

/// Attributes to set; `None` leaves one as it is. Sizes are set by [`MetaRequest::Truncate`].
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u16>,
    /// Owner; [`AS_IT_IS`] for the one that it has.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of data.
    pub mtime: Option<SetTime>,
}

/// In [`SetAttr::uid`]: the owner stays. Set-user-ID and set-group-ID bits are cleared as if it had changed.
pub const AS_IT_IS: u32 = u32::MAX;

/// Takes set-user-ID and set-group-ID bits off, as `chown(path, -1, -1)` does, and a write to a file's
/// blocks.
pub const CHOWN_AS_IT_IS: SetAttr =
    SetAttr { mode: None, uid: Some(AS_IT_IS), gid: None, atime: None, mtime: None };

/// What a closing description wrote to blocks.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Wrote {
    /// The highest end of its writes, bytes; 0 if it wrote nothing.
    pub end: u64,
    /// The size version that it knew; older than the inode's, `end` is ignored.
    pub size_version: u32,
    /// Nanoseconds between its last write and the sending of this; a later explicit change of mtime stays.
    pub age: u64,
    /// `end` may be too low, because the process died in a write: the inode's server has to ask the data
    /// servers.
    pub unsure: bool,
}

/// A description that was open before a server's restart.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Reopened {
    /// The inode.
    pub ino: Ino,
    /// The description.
    pub open: OpenId,
    /// Whether it is open for writing.
    pub write: bool,
    /// Whether it only appends.
    pub append: bool,
}

/// A lock that a server had granted before it was restarted.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Relocked {
    /// The inode.
    pub ino: Ino,
    /// Who has it.
    pub owner: LockOwner,
    /// What it covers.
    pub range: LockRange,
}

/// A file of the forwarded directory that programs have open.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Entrusted {
    /// The file.
    pub ino: Ino,
    /// Its path, relative to the forwarded directory.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
}

/// How rename treats an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// EEXIST (RENAME_NOREPLACE).
    NoReplace,
    /// Swaps the two (RENAME_EXCHANGE).
    Exchange,
}

/// How `setxattr` treats an existing value.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum XattrMode {
    /// Either.
    Set,
    /// EEXIST if it is there.
    Create,
    /// ENODATA if it is not.
    Replace,
}

/// Who owns a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Debug)]
pub enum LockOwner {
    /// A process (`fcntl(F_SETLK)`): its session, and its pid for `F_GETLK`.
    Process {
        /// First session of the process.
        session: u64,
        /// Its pid, shown by `F_GETLK`.
        pid: u32,
    },
    /// An open file description (`F_OFD_SETLK`).
    Description(OpenId),
    /// An open file description, whole-file lock of `flock`, which never meets the other two.
    Flock(OpenId),
}

/// Numbers from this on are no pids, nor what mounts make up for owners that have none. A lock of such an owner only says that a kernel uses blocks of the file past all servers,
/// because a process has mapped them, or a mount passes them through: they stay where they are as long as there is such a
/// lock. It meets no others.
pub const KERNEL: u32 = 1 << 31;

impl LockOwner {
    /// Whether it is a kernel, by one of its processes: see [`KERNEL`].
    pub fn is_kernel(&self) -> bool {
        self.kernel_session().is_some()
    }

    /// The session of the process for which a kernel holds a file, if it is one.
    pub fn kernel_session(&self) -> Option<u64> {
        match self {
            LockOwner::Process { session, pid: KERNEL.. } => Some(*session),
            _ => None,
        }
    }
}

/// A lock on bytes `start..end` (`end` exclusive; `u64::MAX` is to the end of the file, however it grows).
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
    /// Exclusive (write) rather than shared (read).
    pub exclusive: bool,
}

/// Requests to the metadata. The reply follows each in parentheses; [`crate::Reply::Done`] where none is
/// named.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum MetaRequest<'a> {
    /// The attributes of an entry (`Entry`). ENOENT if there is no such name.
    Lookup {
        /// The entry.
        #[serde(borrow)]
        at: At<'a>,
    },
    /// The attributes of an inode (`Attr`).
    GetAttr {
        /// The inode.
        ino: Ino,
    },
    /// Sets attributes (`Attr`). Taking x from a directory is told to all servers before the answer.
    SetAttr {
        /// The inode.
        ino: Ino,
        /// What to set.
        set: SetAttr,
    },
    /// Opens, and with `how.create` makes, an entry, and registers the open (`Opened`). A symbolic link is
    /// not followed: the reply shows it, nothing is registered, and the client goes on from there. If the
    /// inode is in another shard, or a directory, the reply is `Elsewhere`, and the client sends `OpenInode`
    /// there. Nobody opens pipes, sockets and devices: their attributes are told, and nothing is registered.
    Open {
        /// The entry.
        #[serde(borrow)]
        at: At<'a>,
        /// What is wanted.
        how: OpenHow,
        /// The description to register.
        open: OpenId,
    },
    /// Opens an inode by its number and registers the open (`Opened`).
    OpenInode {
        /// The inode.
        ino: Ino,
        /// What is wanted; `create` is ignored.
        how: OpenHow,
        /// The description to register.
        open: OpenId,
    },
    /// Makes a file without a name in a directory, and opens it (`Opened`; O_TMPFILE). It goes with its last
    /// open, unless [`MetaRequest::Link`] gives it a name before; with `how.create.exclusive` it can have
    /// none. Addressed to the directory's shard, whether or not it is split.
    MakeTemporary {
        /// The directory.
        dir: Ino,
        /// What is wanted, with `create`.
        how: OpenHow,
        /// The description to register.
        open: OpenId,
    },
    /// The last holder of an open description is gone. The server releases the description's locks, too.
    /// Usually sent with [`crate::header::NO_REPLY`].
    Release {
        /// The inode.
        ino: Ino,
        /// The description.
        open: OpenId,
        /// What it wrote to blocks, if it was open for writing.
        wrote: Option<Wrote>,
    },
    /// The same, from the agent, which knows that nobody will hold this description any more. Requests for it
    /// that a process sent before it died may still arrive: the server then refuses to open or lock anything
    /// under this number.
    Abandon {
        /// The file. `None`: the process died while it was opening something, so the agent knows only the
        /// shard (in the header) of what it may have opened.
        ino: Option<Ino>,
        /// The description.
        open: OpenId,
        /// What was written through it, if it was open for writing and that is known.
        wrote: Option<Wrote>,
    },
    /// Registers an open again at a server that was restarted.
    Reopen {
        /// The inode.
        ino: Ino,
        /// The description.
        open: OpenId,
        /// Whether it is open for writing.
        write: bool,
    },
    /// Sets the size (`Attr`). Bytes that it adds read as zeros.
    Truncate {
        /// The inode.
        ino: Ino,
        /// New size, bytes, at most [`crate::attr::FILE_MAX`].
        size: u64,
    },
    /// Reads a file's inline data: `Attr` with up to `len` bytes from `offset` as payload. Refused with
    /// `NotInline` once the file is in blocks.
    ReadInline {
        /// The inode.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Most bytes to return.
        len: u32,
    },
    /// Writes the payload into a file's inline data. Refused with `NotInline` once the file is in blocks, or
    /// when the write would end beyond [`crate::attr::INLINE_MAX`]: then the client sends `Spill` and writes
    /// blocks.
    WriteInline {
        /// The inode.
        ino: Ino,
        /// Where in the file.
        offset: u64,
    },
    /// Moves a file's inline data into blocks (`Attr`). If that was done before, only answers.
    Spill {
        /// The inode.
        ino: Ino,
    },
    /// Appends the payload at the file's end, atomically (`Appended`).
    Append {
        /// The inode.
        ino: Ino,
    },
    /// Makes a directory (`Entry`). Addressed to the entry's shard.
    Mkdir {
        /// The new entry.
        #[serde(borrow)]
        at: At<'a>,
        /// Permission bits, the umask already applied.
        mode: u16,
    },
    /// Makes a symbolic link, or another special file without content (`Entry`).
    MakeNode {
        /// The new entry.
        #[serde(borrow)]
        at: At<'a>,
        /// What it is: `Symlink`, `Fifo`, `Socket`, a device (user 0 only), or `File`: an empty file, not
        /// opened.
        kind: crate::attr::FileKind,
        /// Permission bits, the umask already applied.
        mode: u16,
        /// The target of a symbolic link, 1 to 4,095 bytes; the number of a device, 4 bytes, little-endian;
        /// empty otherwise.
        #[serde(with = "serde_bytes")]
        target: &'a [u8],
    },
    /// Makes another name for an inode (`Entry`). Addressed to the new entry's shard.
    Link {
        /// The existing file: not a directory.
        ino: Ino,
        /// The new entry.
        #[serde(borrow)]
        at: At<'a>,
    },
    /// Removes an entry that is not a directory.
    Unlink {
        /// The entry.
        #[serde(borrow)]
        at: At<'a>,
    },
    /// Removes an empty directory.
    Rmdir {
        /// The entry.
        #[serde(borrow)]
        at: At<'a>,
    },
    /// Renames. Addressed to the shard of `from`, whose server coordinates it.
    Rename {
        /// The entry that goes.
        #[serde(borrow)]
        from: At<'a>,
        /// The entry that comes.
        #[serde(borrow)]
        to: At<'a>,
        /// What happens to an existing target.
        mode: RenameMode,
    },
    /// Lists a directory from after a cookie, in cookie order (`Listing`). Permission to read was checked
    /// when the directory was opened. For a packed directory, the request goes to the directory's shard. For
    /// a split one, the client sends it to every server (the header names any shard of that server), each
    /// lists all parts that it holds, and the client merges the lists.
    ReadDir {
        /// The directory.
        dir: Ino,
        /// Whether the sender takes it for split.
        split: bool,
        /// List entries with a greater cookie.
        after: u64,
        /// Most entries wanted. More come only to complete a run of equal cookies.
        limit: u32,
        /// Send attributes along where the server holds them.
        attrs: bool,
    },
    /// A directory's parent and its own name in it (`Parent`). The root is its own parent, with an empty
    /// name.
    Parent {
        /// The directory.
        ino: Ino,
    },
    /// The target of a symbolic link, as payload.
    ReadLink {
        /// The link.
        ino: Ino,
    },
    /// An extended attribute's value, as payload. ENODATA if it is not there.
    GetXattr {
        /// The inode.
        ino: Ino,
        /// Its name with namespace, for example `user.origin`. Those under `user.bivouac.` are the layout's.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// The names of all extended attributes, each ended by NUL, as payload.
    ListXattr {
        /// The inode.
        ino: Ino,
    },
    /// Sets an extended attribute to the payload (at most 64 KiB).
    SetXattr {
        /// The inode.
        ino: Ino,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// What happens to an existing value.
        mode: XattrMode,
    },
    /// Removes an extended attribute. ENODATA if it is not there.
    RemoveXattr {
        /// The inode.
        ino: Ino,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Sets or converts a lock. If another lock conflicts, the answer is EAGAIN; with `wait_ms` only after
    /// the server has waited so long (at most 1,000) for the conflict to end, and then the client asks again.
    /// Without `wait_ms`, a conflict also releases a `flock` that was to be converted; so a client that means
    /// to wait first asks without waiting. EDEADLK if waiting would never end.
    Lock {
        /// The inode.
        ino: Ino,
        /// Who.
        owner: LockOwner,
        /// What.
        range: LockRange,
        /// How long to wait at the server, milliseconds.
        wait_ms: u32,
    },
    /// Takes an owner's locks off a range.
    Unlock {
        /// The inode.
        ino: Ino,
        /// Who.
        owner: LockOwner,
        /// First byte.
        start: u64,
        /// End, exclusive.
        end: u64,
    },
    /// The first lock that would conflict (`Conflict`).
    TestLock {
        /// The inode.
        ino: Ino,
        /// The owner that asks.
        owner: LockOwner,
        /// What it would set.
        range: LockRange,
    },
    /// From the agent of a node to a server that begins to serve it, or does so again: descriptions that
    /// processes of the node hold, of inodes of any of the server's shards. Until the agents of all nodes
    /// have said everything, or a time is over, the server takes none of the files that were in use before it
    /// was restarted for closed.
    Report {
        /// The node.
        node: NodeId,
        /// Which start of the server was told of the node's locks ([`MetaRequest::Relock`]). EAGAIN at the end of a
        /// series if it is not the present one: everything has to be told again.
        start: u64,
        /// By which map it was gathered. EAGAIN at the end of a series, where there are copies, if it is not the newest: the
        /// server may answer for more shards now.
        epoch: Epoch,
        /// Some of its descriptions.
        opens: Vec<Reopened>,
        /// There are more to come.
        more: bool,
    },
    /// A process is gone: its locks go. Sent by its agent to every server where it set any.
    EndSession {
        /// The session.
        session: u64,
    },
    /// Syncs the log that holds the inode to its storage, if the storage keeps anything (disk, not memory).
    Sync {
        /// The inode.
        ino: Ino,
    },
    /// Ends the wait of a request for a lock, also of one that has not arrived yet: unless it gets its lock
    /// at once, the server answers it with EINTR. (This may also end another request of the same owner for
    /// the same lock, which then asks again.)
    CancelLock {
        /// The inode.
        ino: Ino,
        /// The owner that waits.
        owner: LockOwner,
        /// The lock that it waits for.
        range: LockRange,
    },
    /// Attributes of several inodes, and of those that are directories the beginning of their listings, in
    /// one round trip (`Looked`): for processes that go through a tree. The header names any shard of the
    /// server.
    Look {
        /// The inodes, at most [`LOOK_MAX`].
        inos: Vec<Ino>,
        /// Most entries wanted of each directory; 0: no listings.
        limit: u32,
        /// Send attributes along with entries where the server holds them.
        attrs: bool,
    },
    /// From the agent of a node, before the last [`MetaRequest::Report`] of a series: locks that processes of the node
    /// have, of inodes of any of the server's shards (`Relocked`). A server that has forgotten its locks grants none
    /// anew until the agents of all nodes have reported, or a time is over; what comes later than that, or conflicts
    /// with what is there, it refuses. What was unlocked meanwhile stays so.
    ///
    /// The locks have to be gathered after this start of the server began: then the server knows what was unlocked
    /// since. So the agent first asks with `start: 0`, which grants nothing, for the number of the start.
    Relock {
        /// Which start of the server the locks are for. If it is not the present one, nothing is done.
        start: u64,
        /// Some of the node's locks.
        locks: Vec<Relocked>,
    },
    /// Makes a [lazy](crate::lazy) file (`Entry`); an ordinary one, if it is empty. Only for the deployment's own user, whose
    /// files in the backend its servers can read.
    MakeLazy {
        /// The new entry.
        #[serde(borrow)]
        at: At<'a>,
        /// What is made.
        file: Box<LazyFile>,
    },
    /// Has the contents of a lazy file fetched from the backend. Answered when they are there, or the file is not lazy; after a
    /// moment with `Fetching` if it takes longer, then the client asks again; with `Unfetchable` if they cannot be fetched.
    Fetch {
        /// The file.
        ino: Ino,
    },
    /// From one I/O node to another server: the path of something in the forwarded directory, relative to it, as payload. An I/O
    /// node that knows it has put what was written to it on the backend's storage then; another server says what was entrusted to
    /// it. `Kept` if programs have it open there, and it has no name there any more; ENOENT if the other one does not know it.
    Locate {
        /// The file or directory.
        ino: Ino,
    },
    /// From an I/O node to another server: where the files are that programs have open there. They can be found by it if the I/O node
    /// dies.
    Entrust {
        /// At most [`ENTRUST_MAX`].
        files: Vec<Entrusted>,
    },
    /// From one I/O node to another: gives up an owner's locks on a file, and tells which these were (`Locks`).
    GiveLocks {
        /// The file.
        ino: Ino,
        /// Who has them.
        owner: LockOwner,
    },
    /// Attributes of files, and the data of those that are small enough to be in their inodes, in one round trip (`Found`): for
    /// programs that read many files. The header names the shard of any of them. Nothing is waited for.
    Find {
        /// At most [`FIND_MAX`].
        #[serde(borrow)]
        files: Vec<Sought<'a>>,
    },
}

/// Most files in a [`MetaRequest::Find`]. With each go up to [`crate::attr::INLINE_MAX`] bytes of data.
pub const FIND_MAX: usize = 256;

/// A file that a [`MetaRequest::Find`] is about.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
pub enum Sought<'a> {
    /// By its name.
    Name(#[serde(borrow)] At<'a>),
    /// By its number, of which another server has said that the name leads to it.
    Inode(Ino),
}

/// What a [`MetaRequest::Find`] returns for one file.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum Sighted {
    /// It is a file.
    File {
        /// Its attributes.
        attr: Box<Attr>,
        /// All of its data are in the payload, behind those of the files before it: as many bytes as its size says.
        with_data: bool,
    },
    /// The name leads to a file with this number. Another server has it.
    Elsewhere(Ino),
    /// It is no file, or not there, or not shown at once, or not by this server: the client asks for it alone.
    Untold,
}

/// Most files in a [`MetaRequest::Entrust`].
pub const ENTRUST_MAX: usize = 128;

/// Most inodes in a [`MetaRequest::Look`].
pub const LOOK_MAX: usize = 64;

/// What a [`MetaRequest::Look`] returns for one inode.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct Looked {
    /// Its attributes.
    pub attr: Box<Attr>,
    /// The target of a symbolic link; empty otherwise.
    #[serde(with = "serde_bytes")]
    pub target: Vec<u8>,
    /// Of a directory: its parent, and its name there.
    pub place: Option<(Ino, serde_bytes::ByteBuf)>,
    /// The beginning of its listing, and whether that is all of it.
    pub listing: Option<(Vec<DirEntry>, bool)>,
}

/// What a request did besides what its reply says: so that its sender need not ask what follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Change {
    /// The count of the request's shard after the change (see the version page of `bivouac-node`); the one
    /// before is the count before it, and nothing else was changed between the two. 0: that is not told.
    pub count: u64,
    /// The time that the change has in the inodes concerned.
    pub time: Time,
    /// The file is in blocks, and only this description can have written to it what is not in the size of the
    /// reply.
    pub writer: Option<OpenId>,
}

/// Replies to [`MetaRequest`]s.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum MetaReply {
    /// Attributes.
    Attr(Box<Attr>),
    /// An entry's attributes, and for a symbolic link its target.
    Entry {
        /// The inode that the entry names. When it is in a shard of another server, `Elsewhere` comes
        /// instead.
        attr: Box<Attr>,
        /// The target of a symbolic link; empty otherwise.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// The entry names an inode in another shard: ask there.
    Elsewhere {
        /// The inode.
        ino: Ino,
        /// What it is.
        kind: crate::attr::FileKind,
    },
    /// An entry was opened. If reading was asked for, its inline data, if it has any, is the payload.
    Opened {
        /// Its attributes.
        attr: Box<Attr>,
        /// Whether it was made.
        created: bool,
        /// The target if it is a symbolic link (then nothing was opened).
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// Data was appended.
    Appended {
        /// Where it starts.
        offset: u64,
        /// How much of it fitted, bytes.
        written: u32,
        /// The file's size version.
        size_version: u32,
    },
    /// Part of a listing.
    Listing {
        /// In cookie order.
        entries: Vec<DirEntry>,
        /// Nothing comes after these.
        end: bool,
    },
    /// Where a directory is in the tree.
    Parent {
        /// The directory above.
        parent: Ino,
        /// The name in it.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// A lock that conflicts.
    Conflict(Option<(LockOwner, LockRange)>),
    /// One answer for each inode of the request, in its order; `None` for those that the server does not
    /// have, or would have to ask other servers about.
    Looked(Vec<Option<Looked>>),
    /// It is done, and there is nothing to tell.
    Done,
    /// Locks were granted again.
    Relocked {
        /// Which start of the server this is.
        start: u64,
        /// Those of the request, by their places there, that its owners do not have any more.
        refused: Vec<u32>,
    },
    /// The contents of a lazy file are on their way.
    Fetching,
    /// The contents of a lazy file cannot be fetched.
    Unfetchable(Unfetchable),
    /// The locks that an owner has had.
    Locks(Vec<LockRange>),
    /// The file is nowhere in the forwarded directory, and this I/O node has it open: what concerns it is asked here.
    Kept,
    /// One answer for each file of the request, in its order.
    Found(Vec<Sighted>),
}
