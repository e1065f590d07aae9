//! A plain client: walks every path from the root, follows refusals, and gives what a program would get.

use super::{Cluster, Inner};
use bivouac_layout::namespace::entry_shard;
use bivouac_layout::{Ino, NodeId, ServerId, ShardId};
use bivouac_meta::Caller;
use bivouac_proto::auth::Credentials;
use bivouac_proto::header::{OpenId, RequestId};
use bivouac_proto::meta::{At, Create, MetaReply, MetaRequest, OpenHow, Relocked, RenameMode, Wrote};
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, DirEntry, Errno, FileKind, Refusal, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

pub struct Client {
    pub inner: Arc<Inner>,
    pub who: Credentials,
    pub node: NodeId,
    pub session: u64,
    sequence: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
pub struct Dir {
    pub ino: Ino,
    pub split: bool,
}

pub const ROOT: Dir = Dir { ino: Ino::ROOT, split: false };

impl Client {
    pub fn new(cluster: &Cluster) -> Client {
        Client::of(cluster, 0)
    }

    pub fn of(cluster: &Cluster, uid: u32) -> Client {
        let session = NEXT.fetch_add(1, Ordering::SeqCst);
        let who = Credentials { uid, gid: uid, groups: vec![] };
        Client { inner: cluster.inner.clone(), who, node: NodeId(0), session, sequence: AtomicU64::new(0) }
    }

    pub fn open_id(&self) -> OpenId {
        OpenId { agent: self.session, slot: NEXT.fetch_add(1, Ordering::SeqCst) as u32, incarnation: 1 }
    }

    pub fn next_id(&self) -> RequestId {
        RequestId {
            session: self.session,
            slot: 0,
            sequence: 1 + self.sequence.fetch_add(1, Ordering::SeqCst),
        }
    }

    /// One request with a given identity, once.
    pub fn send_as(
        &self,
        id: RequestId,
        shard: ShardId,
        request: &MetaRequest<'_>,
        payload: &[u8],
    ) -> Result<(Reply, Vec<u8>), Failure> {
        const TURNS: usize = 20;
        for turn in 1..=TURNS {
            let server = self.inner.primary(shard);
            let answer = self.send_to(server, id, shard, request, payload);
            let died = self.inner.store(server).is_none();
            let again = matches!(answer, Err(Failure::Refused(Refusal::OldServer | Refusal::Busy)));
            let stays_busy = turn == TURNS && answer == Err(Failure::Refused(Refusal::Busy));
            if self.inner.map().copies == 1 || !died && !again || stays_busy {
                return answer;
            }
            // As clients do: the same again, at the server that answers for the shard now.
            self.inner.failover();
            self.inner.keep();
        }
        panic!("nobody answers for {shard:?}: {request:?}");
    }

    pub fn send_to(
        &self,
        server: ServerId,
        id: RequestId,
        shard: ShardId,
        request: &MetaRequest<'_>,
        payload: &[u8],
    ) -> Result<(Reply, Vec<u8>), Failure> {
        let caller =
            Caller { credentials: self.who.clone(), node: self.node, id, shard, change: Default::default() };
        let mut out = Vec::new();
        let reply = self.inner.serve(server, |store| store.meta(&caller, request, payload, &mut out))?;
        let mut encoded = Vec::new();
        bivouac_proto::encode(&reply, &mut encoded);
        assert!(encoded.len() <= bivouac_proto::header::MAX_BODY as usize);
        Ok((reply, out))
    }

    pub fn send(
        &self,
        shard: ShardId,
        request: &MetaRequest<'_>,
        payload: &[u8],
    ) -> Result<(Reply, Vec<u8>), Failure> {
        self.send_as(self.next_id(), shard, request, payload)
    }

    /// As an agent: has locks of this node granted again by the server of a shard, if that is its start of this number.
    /// Returns the number of its present start, and which locks it refuses.
    pub fn relock(&self, shard: ShardId, start: u64, locks: Vec<Relocked>) -> (u64, Vec<u32>) {
        match self.send(shard, &MetaRequest::Relock { start, locks }, &[]) {
            Ok((Reply::Meta(MetaReply::Relocked { start, refused }), _)) => (start, refused),
            other => panic!("{other:?}"),
        }
    }

    /// The number of the present start of a shard's server.
    pub fn start(&self, shard: ShardId) -> u64 {
        self.relock(shard, 0, Vec::new()).0
    }

    /// A request about an inode.
    pub fn inode(
        &self,
        ino: Ino,
        request: MetaRequest<'_>,
        payload: &[u8],
    ) -> Result<(Reply, Vec<u8>), Errno> {
        for _ in 0..3 {
            match self.send(ino.shard(), &request, payload) {
                Err(Failure::Refused(Refusal::Busy)) => {}
                Err(Failure::Refused(other)) => panic!("{request:?} was refused: {other:?}"),
                Err(Failure::Errno(errno)) => return Err(errno),
                Ok(reply) => return Ok(reply),
            }
        }
        Err(Errno::BUSY)
    }

    pub fn attr(&self, ino: Ino) -> Result<Attr, Errno> {
        match self.inode(ino, MetaRequest::GetAttr { ino }, &[])?.0 {
            Reply::Meta(MetaReply::Attr(attr)) => Ok(*attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn dir(&self, path: &str) -> Result<Dir, Errno> {
        let mut at = Dir { split: self.attr(Ino::ROOT)?.split, ..ROOT };
        for name in path.split('/').filter(|n| !n.is_empty()) {
            let attr = self.lookup(at, name)?;
            if attr.kind != FileKind::Directory {
                return Err(Errno::NOTDIR);
            }
            at = Dir { ino: attr.ino, split: attr.split };
        }
        Ok(at)
    }

    /// The directory of a path's last component, and that component.
    pub fn place<'a>(&self, path: &'a str) -> Result<(Dir, &'a str), Errno> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.dir(dir)?, name))
    }

    pub fn lookup(&self, dir: Dir, name: &str) -> Result<Attr, Errno> {
        match self.entry(dir, name, |at| MetaRequest::Lookup { at }, &[])?.0 {
            Reply::Meta(MetaReply::Entry { attr, .. }) => Ok(*attr),
            Reply::Meta(MetaReply::Elsewhere { ino, .. }) => self.attr(ino),
            other => panic!("{other:?}"),
        }
    }

    /// A request about an entry; `UnknownDirectory` comes out as ENOENT.
    pub fn entry<'a>(
        &self,
        mut dir: Dir,
        name: &'a str,
        request: impl Fn(At<'a>) -> MetaRequest<'a>,
        payload: &[u8],
    ) -> Result<(Reply, Vec<u8>), Errno> {
        let name = name.as_bytes();
        let id = self.next_id();
        for _ in 0..3 {
            let at = At { dir: dir.ino, split: dir.split, name };
            match self.send_as(id, entry_shard(dir.ino, dir.split, name), &request(at), payload) {
                Ok(reply) => return Ok(reply),
                Err(Failure::Errno(errno)) => return Err(errno),
                Err(Failure::Refused(Refusal::DirectorySplit)) => dir.split = true,
                Err(Failure::Refused(Refusal::UnknownDirectory)) => return Err(Errno::NOENT),
                Err(Failure::Refused(Refusal::Busy)) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        Err(Errno::BUSY)
    }

    pub fn stat(&self, path: &str) -> Result<Attr, Errno> {
        if path.is_empty() {
            return self.attr(Ino::ROOT);
        }
        let (dir, name) = self.place(path)?;
        self.lookup(dir, name)
    }

    pub fn mkdir(&self, path: &str) -> Result<(), Errno> {
        let (dir, name) = self.place(path)?;
        self.entry(dir, name, |at| MetaRequest::Mkdir { at, mode: 0o755 }, &[]).map(drop)
    }

    pub fn rmdir(&self, path: &str) -> Result<(), Errno> {
        let (dir, name) = self.place(path)?;
        self.entry(dir, name, |at| MetaRequest::Rmdir { at }, &[]).map(drop)
    }

    pub fn unlink(&self, path: &str) -> Result<(), Errno> {
        let (dir, name) = self.place(path)?;
        self.entry(dir, name, |at| MetaRequest::Unlink { at }, &[]).map(drop)
    }

    pub fn symlink(&self, target: &str, path: &str) -> Result<(), Errno> {
        let (dir, name) = self.place(path)?;
        let target = target.as_bytes();
        let request = |at| MetaRequest::MakeNode { at, kind: FileKind::Symlink, mode: 0o777, target };
        self.entry(dir, name, request, &[]).map(drop)
    }

    pub fn link(&self, old: &str, new: &str) -> Result<(), Errno> {
        let ino = self.stat(old)?.ino;
        let (dir, name) = self.place(new)?;
        self.entry(dir, name, |at| MetaRequest::Link { ino, at }, &[]).map(drop)
    }

    pub fn rename(&self, old: &str, new: &str, mode: RenameMode) -> Result<(), Errno> {
        let (from, from_name) = self.place(old)?;
        let (to, to_name) = self.place(new)?;
        let to = At { dir: to.ino, split: to.split, name: to_name.as_bytes() };
        self.entry(from, from_name, |from| MetaRequest::Rename { from, to, mode }, &[]).map(drop)
    }

    /// Opens by a path, following no link.
    pub fn open(&self, path: &str, how: OpenHow) -> Result<(Attr, OpenId, Vec<u8>), Errno> {
        let (dir, name) = self.place(path)?;
        let open = self.open_id();
        let (mut reply, mut data) = self.entry(dir, name, |at| MetaRequest::Open { at, how, open }, &[])?;
        if let Reply::Meta(MetaReply::Elsewhere { ino, .. }) = reply {
            (reply, data) = self.inode(ino, MetaRequest::OpenInode { ino, how, open }, &[])?;
        }
        match reply {
            Reply::Meta(MetaReply::Opened { attr, .. }) if attr.kind == FileKind::Symlink => Err(Errno::LOOP),
            Reply::Meta(MetaReply::Opened { attr, .. }) => Ok((*attr, open, data)),
            other => panic!("{other:?}"),
        }
    }

    /// Creates (or opens) for writing; the mode is 0644.
    pub fn create(&self, path: &str, exclusive: bool) -> Result<(Attr, OpenId), Errno> {
        let how =
            OpenHow { write: true, create: Some(Create { mode: 0o644, exclusive }), ..OpenHow::default() };
        self.open(path, how).map(|(attr, open, _)| (attr, open))
    }

    pub fn release(&self, ino: Ino, open: OpenId, wrote: Option<Wrote>) -> Result<(), Errno> {
        self.inode(ino, MetaRequest::Release { ino, open, wrote }, &[]).map(drop)
    }

    /// A new (or emptied) small file.
    pub fn put(&self, path: &str, data: &[u8]) -> Result<Ino, Errno> {
        let how = OpenHow {
            write: true,
            truncate: true,
            create: Some(Create { mode: 0o644, exclusive: false }),
            ..OpenHow::default()
        };
        let (attr, open, _) = self.open(path, how)?;
        let written = self.inode(attr.ino, MetaRequest::WriteInline { ino: attr.ino, offset: 0 }, data);
        self.release(attr.ino, open, None)?;
        written.map(|_| attr.ino)
    }

    pub fn get(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let (attr, open, data) = self.open(path, OpenHow { read: true, ..OpenHow::default() })?;
        self.release(attr.ino, open, None)?;
        Ok(data)
    }

    pub fn truncate(&self, ino: Ino, size: u64) -> Result<Attr, Errno> {
        match self.inode(ino, MetaRequest::Truncate { ino, size }, &[])?.0 {
            Reply::Meta(MetaReply::Attr(attr)) => Ok(*attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn spill(&self, ino: Ino) -> Result<Attr, Errno> {
        match self.inode(ino, MetaRequest::Spill { ino }, &[])?.0 {
            Reply::Meta(MetaReply::Attr(attr)) => Ok(*attr),
            other => panic!("{other:?}"),
        }
    }

    /// Appends; where it went and how much of it.
    pub fn append(&self, ino: Ino, data: &[u8]) -> Result<(u64, u32), Errno> {
        match self.inode(ino, MetaRequest::Append { ino }, data)?.0 {
            Reply::Meta(MetaReply::Appended { offset, written, .. }) => Ok((offset, written)),
            other => panic!("{other:?}"),
        }
    }

    /// Writes blocks as a client does, around the metadata.
    pub fn write_blocks(&self, cluster: &Cluster, attr: &Attr, offset: u64, data: &[u8]) {
        let layout = attr.layout.as_ref().expect("the file is in blocks");
        let now = cluster.now();
        for piece in layout.pieces(&self.inner.map(), offset..offset + data.len() as u64) {
            let mut files = self.inner.data[piece.server.0 as usize].lock().unwrap();
            let file = files.entry(attr.ino).or_default();
            let end = (piece.offset + piece.len) as usize;
            file.bytes.resize(file.bytes.len().max(end), 0);
            let from = (piece.offset - offset) as usize;
            file.bytes[piece.offset as usize..end].copy_from_slice(&data[from..from + piece.len as usize]);
            file.written = now;
        }
    }

    /// All entries of a directory, in pieces of `limit`.
    pub fn list(&self, path: &str, limit: u32) -> Result<Vec<DirEntry>, Errno> {
        let dir = self.dir(path)?;
        self.list_dir(dir, limit)
    }

    pub fn list_dir(&self, mut dir: Dir, limit: u32) -> Result<Vec<DirEntry>, Errno> {
        let mut all: Vec<DirEntry> = Vec::new();
        loop {
            let after = all.last().map_or(0, |e| e.cookie);
            match self.list_some(dir, after, limit) {
                Err(Failure::Refused(Refusal::DirectorySplit)) => dir.split = true,
                Err(Failure::Refused(Refusal::UnknownDirectory)) => return Err(Errno::NOENT),
                Err(Failure::Refused(_)) => {}
                Err(Failure::Errno(errno)) => return Err(errno),
                Ok((entries, end)) => {
                    all.extend(entries);
                    if end {
                        return Ok(all);
                    }
                }
            }
        }
    }

    /// The next entries; of a split directory, merged from all servers.
    pub fn list_some(&self, dir: Dir, after: u64, limit: u32) -> Result<(Vec<DirEntry>, bool), Failure> {
        let request = MetaRequest::ReadDir { dir: dir.ino, split: dir.split, after, limit, attrs: true };
        let listing = |reply| match reply {
            (Reply::Meta(MetaReply::Listing { entries, end }), _) => (entries, end),
            other => panic!("{other:?}"),
        };
        if !dir.split {
            return self.send(dir.ino.shard(), &request, &[]).map(listing);
        }
        let (mut all, mut all_end, mut bound) = (Vec::new(), true, u64::MAX);
        for server in &self.inner.map().servers {
            let shard = self.inner.map().shards_of(server.id).next().unwrap();
            let (entries, end) =
                self.send_to(server.id, self.next_id(), shard, &request, &[]).map(listing)?;
            assert!(entries.is_sorted_by_key(|e| e.cookie), "a listing is in the order of cookies");
            if !end {
                all_end = false;
                bound = bound.min(entries.last().map_or(after, |e| e.cookie));
            }
            all.extend(entries);
        }
        all.retain(|e| e.cookie <= bound);
        all.sort_by_key(|e| e.cookie);
        Ok((all, all_end))
    }

    pub fn names(&self, path: &str) -> Result<Vec<String>, Errno> {
        let mut names: Vec<String> =
            self.list(path, 100)?.into_iter().map(|e| String::from_utf8(e.name).unwrap()).collect();
        names.sort();
        Ok(names)
    }
}

/// A name whose directory's shard satisfies something.
pub fn name_where(prefix: &str, good: impl Fn(&str) -> bool) -> String {
    (0..100_000).map(|n| format!("{prefix}{n}")).find(|name| good(name)).expect("some name does")
}

/// Which server makes the directory `name` in `parent`, while all are well.
pub fn directory_server(inner: &Inner, parent: Ino, name: &str) -> ServerId {
    inner.home(bivouac_layout::namespace::directory_shard(parent, name.as_bytes()))
}
