//! What all ways to open have in common.
//!
//! A description gets its slot in the node's table first. Then whoever answers for the inode registers the open under the
//! slot's name, and answers with the file's attributes and, if it is small, with what is in it. Last, the slot is filled in,
//! and this process has its view of the description, a [`Handle`].

use crate::client::Client;
use crate::data::File;
use crate::error::Fail;
use crate::handle::Handle;
use crate::namespace::{Failing, Place, led_to};
use crate::requests::{Before, Came, Contents, To};
use bivouac_layout::{Ino, namespace};
use bivouac_node::SlotId;
use bivouac_node::release::{KIND_DIRECTORY, KIND_FILE, KIND_OPENING, KIND_PATH};
use bivouac_proto::attr::{Attr, FileKind, INLINE_MAX, Store};
use bivouac_proto::meta::{Create, MetaReply, MetaRequest, OpenHow};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, OpenId};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Flags that stay with the description.
const KEPT: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_DIRECT
    | libc::O_NOATIME
    | libc::O_PATH
    | libc::O_DIRECTORY
    | libc::O_TMPFILE
    | libc::O_NOFOLLOW;

/// What the flags of `open(2)` ask of a file that exists.
pub(crate) fn how(flags: i32) -> OpenHow {
    OpenHow {
        read: flags & libc::O_ACCMODE != libc::O_WRONLY,
        write: flags & libc::O_ACCMODE != libc::O_RDONLY,
        append: flags & libc::O_APPEND != 0,
        truncate: flags & libc::O_TRUNC != 0,
        directory: flags & libc::O_DIRECTORY != 0,
        create: None,
        pass: flags & libc::O_ACCMODE == libc::O_RDONLY,
    }
}

/// What an open found.
pub(crate) enum Found {
    /// Registered at the server.
    File(Registered),
    /// Not registered anywhere.
    Directory(Ino),
    /// Not registered anywhere: O_PATH.
    Path(Ino),
}

/// The same, with the directory and the name where it was found, if others are to know the description by these.
pub(crate) type FoundAt = (Found, Option<(Ino, Vec<u8>)>);

/// A file that a server has registered as open.
pub(crate) struct Registered {
    pub(crate) attr: Box<Attr>,
    /// Whether it was made just now.
    pub(crate) created: bool,
    /// What is in it, if it is small and to be read.
    contents: Option<Contents>,
    /// Of its sub-file, if that is all of it and to be read.
    came: Option<Came>,
}

/// What a server has answered to an open. It registers files only; of all else it says what it is.
pub(crate) struct Opened {
    pub(crate) registered: Registered,
    /// Of a symbolic link.
    pub(crate) target: Vec<u8>,
}

/// What the open of a name has led to.
pub(crate) enum Entry {
    Opened(Opened),
    /// A directory whose attributes are not known yet.
    Directory(Ino),
}

/// What a server has said of a file that was opened, and whether it was made just now.
type Made = (Box<Attr>, bool);

/// A description that has been made.
pub(crate) struct Described<T> {
    pub(crate) handle: Handle,
    /// Of a file.
    pub(crate) file: Option<Made>,
    /// What was to be done before.
    pub(crate) before: T,
}

impl Client {
    /// Makes a description of what `find` finds, and opens under the number that it is given; with the directory and the name
    /// where it found it, if others are to know it by these. `before` runs as soon as the description has its slot in the
    /// table; if it fails, nothing is opened.
    pub(crate) fn described<T>(
        self: &Arc<Self>,
        flags: i32,
        before: impl FnOnce(SlotId) -> Result<T, Errno>,
        find: impl FnOnce(OpenId) -> Result<FoundAt, Fail>,
    ) -> Result<Described<T>, Fail> {
        let id = self.session().table().allocate().map_err(|e| Errno(e.raw_errno() as u16))?;
        let open =
            OpenId { agent: self.session().agent_number(), slot: id.index, incarnation: id.incarnation };
        let described = before(id).map_err(Fail::from).and_then(|before| {
            let (found, named) = find(open)?;
            let (handle, file) = self.filled(id, found, flags, named)?;
            Ok(Described { handle, file, before })
        });
        described.inspect_err(|fail| self.give_up(id, fail))
    }

    /// Gives a slot back whose open has failed. If it is not known whether the server has registered the
    /// open, the agent releases it at the server.
    fn give_up(&self, id: SlotId, fail: &Fail) {
        let unknown = matches!(fail, Fail::Errno(Errno::IO))
            && self
                .session()
                .table()
                .slot(id)
                .is_some_and(|slot| slot.kind.load(Ordering::Acquire) == KIND_OPENING);
        if self.session().table().retire(id) && !unknown {
            self.session().table().free(id);
        }
    }

    fn filled(
        self: &Arc<Self>,
        id: SlotId,
        found: Found,
        flags: i32,
        named: Option<(Ino, Vec<u8>)>,
    ) -> Result<(Handle, Option<Made>), Errno> {
        let slot = self.session().table().slot(id).ok_or(Errno::BADF)?;
        let (ino, kind) = match &found {
            Found::File(file) => (file.attr.ino, KIND_FILE),
            Found::Directory(ino) => (*ino, KIND_DIRECTORY),
            Found::Path(ino) => (*ino, KIND_PATH),
        };
        slot.ino.store(ino.0, Ordering::Relaxed);
        slot.flags.store((flags & KEPT) as u32, Ordering::Relaxed);
        if let Some((dir, name)) = &named {
            slot.set_name(dir.0, name);
        }
        if let Found::File(file) = &found {
            slot.size_version.store(file.attr.size_version, Ordering::Relaxed);
        }
        slot.kind.store(kind, Ordering::Release);
        let mut file = File::new(id, ino, kind == KIND_DIRECTORY);
        let Found::File(Registered { attr, created, contents, came }) = found else {
            return Ok((Handle::new(self, file), None));
        };
        file.contents = contents;
        let handle = Handle::new(self, file);
        handle.data().learn(&attr);
        if let Some(came) = came {
            handle.data().came(came);
        }
        Ok((handle, Some((attr, created))))
    }

    /// Opens what a name leads to, or makes it if `how` says so.
    pub(crate) fn open_entry(&self, place: &Place, how: OpenHow, open: OpenId) -> Result<Entry, Failing> {
        let mut record = [0; INLINE_MAX];
        let shard = namespace::entry_shard(place.dir, self.memory().paths().is_split(place.dir), &place.name);
        let before = self.requests().before(shard);
        let into = &mut [IoSliceMut::new(&mut record)];
        let exclusive = how.create.is_some_and(|create| create.exclusive);
        let (reply, length, came) =
            self.namespace().opening(place, into, |at| MetaRequest::Open { at, how, open })?;
        match reply {
            MetaReply::Opened { attr, created, target } => {
                let record = record.get(..length).unwrap_or_default();
                let registered = self.registered(before, how, (attr, created), (record, came));
                Ok(Entry::Opened(Opened { registered, target }))
            }
            MetaReply::Elsewhere { .. } if exclusive => Err(Errno::EXIST.into()),
            MetaReply::Elsewhere { ino, kind: FileKind::Directory } => Ok(Entry::Directory(ino)),
            MetaReply::Elsewhere { ino, kind: FileKind::Symlink } => {
                let (attr, target) = self.namespace().inode(ino, FileKind::Symlink).map_err(led_to)?;
                let registered = Registered { attr, created: false, contents: None, came: None };
                Ok(Entry::Opened(Opened { registered, target }))
            }
            MetaReply::Elsewhere { ino, .. } => {
                self.open_registered(ino, how, open).map(Entry::Opened).map_err(led_to)
            }
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// Opens an inode, by its number.
    pub(crate) fn open_registered(&self, ino: Ino, how: OpenHow, open: OpenId) -> Result<Opened, Errno> {
        let mut record = [0; INLINE_MAX];
        let before = self.requests().before(ino.shard());
        let request = MetaRequest::OpenInode { ino, how, open };
        let into = &mut [IoSliceMut::new(&mut record)];
        match self.requests().meta_opening(To::inode(ino), &request, into) {
            Ok((MetaReply::Opened { attr, target, .. }, length, came)) => {
                let record = record.get(..length).unwrap_or_default();
                Ok(Opened { registered: self.registered(before, how, (attr, false), (record, came)), target })
            }
            Ok(_) => Err(Errno::PROTO),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Refused(_)) => Err(Errno::STALE),
        }
    }

    /// Makes a file without a name, for a directory, and opens it: O_TMPFILE. `mode` with the umask applied.
    pub(crate) fn open_new_nameless(
        &self,
        dir: Ino,
        flags: i32,
        mode: u16,
        open: OpenId,
    ) -> Result<Registered, Errno> {
        let create = Some(Create { mode, exclusive: flags & libc::O_EXCL != 0 });
        let how = OpenHow { create, truncate: false, directory: false, ..how(flags) };
        match self.requests().meta_on(dir, &MetaRequest::MakeTemporary { dir, how, open })? {
            MetaReply::Opened { attr, .. } => {
                Ok(Registered { attr, created: true, contents: None, came: None })
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// What came with the answer to the question after `before`; `record` are the contents of a small file, `came` is the
    /// descriptor of a larger one.
    fn registered(
        &self,
        before: Option<Before>,
        how: OpenHow,
        (attr, created): Made,
        (record, came): (&[u8], Option<Came>),
    ) -> Registered {
        let mut contents = None;
        if attr.kind == FileKind::File {
            self.requests().learn_inode(before, &attr, b"");
            if how.read && attr.store == Store::Inline {
                contents = self.requests().keep(before, &attr, record);
            }
        }
        Registered { attr, created, contents, came }
    }
}
