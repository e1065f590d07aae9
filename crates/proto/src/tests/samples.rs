//! Messages for the tests: at least one of every variant, with numbers as long as they can get where it
//! matters.

use crate::agent::{AgentReply, AgentRequest};
use crate::attr::{Attr, DirEntry, FileKind, Store};
use crate::auth::{Credentials, Hello, Role};
use crate::control::{
    ControlReply, ControlRequest, FileLoss, Grant, HeldFile, Holder, Member, ServerHealth, Stats, Ward,
};
use crate::copies::{self, Copied, CopyReply, CopyRequest, Mark, Sender, Sent, Stripe};
use crate::data::{
    Access, DataReply, DataRequest, Fallocate, GATHER_MAX, Gather, Share, SmallPiece, SubFile,
};
use crate::lazy::{FetchRequest, LazyFile, Source, Unfetchable};
use crate::meta::{
    At, Change, Create, ENTRUST_MAX, Entrusted, LOOK_MAX, LockOwner, LockRange, Looked, MetaReply,
    MetaRequest, OpenHow, Relocked, RenameMode, Reopened, SetAttr, SetTime, Sighted, Sought, Wrote,
    XattrMode,
};
use crate::node::NodeRequest;
use crate::peer::{Compared, Held, IntentId, MovedEntry, PeerReply, PeerRequest, Position, Shipment, Step};
use crate::raft::RaftRequest;
use crate::restripe::{Restripe, RestripeReply, RestripeRequest};
use crate::verify::{Fault, Finding, Name, Outcome, Stage, VerifyRequest, VerifyState};
use crate::{Errno, OpenId, Refusal, Reply, Request};
use bivouac_layout::map::{Generation, Map, Node, Server, ServerState};
use bivouac_layout::{
    Assign, Epoch, FileLayout, First, Former, Forwarding, Founding, GenerationId, Group, Growth, Ino, Lag,
    MoveStage, News, NodeId, Rebuild, Replacement, Rule, ServerId, ShardId, ShardMove, Spare, Template,
};

const INO: Ino = Ino(u64::MAX);
const AT: At = At { dir: INO, split: true, name: b"a name of 20 bytes.." };
const OTHER: At = At { dir: Ino(1), split: false, name: b"\xff not UTF-8" };
const OPEN: OpenId = OpenId { agent: u64::MAX, slot: u32::MAX, incarnation: u32::MAX };
const INTENT: IntentId = IntentId { shard: ShardId(4095), number: u64::MAX };
const GROUP: Group =
    Group::Blocks { generation: GenerationId(u32::MAX), position: u16::MAX, spread: 63, copies: 8 };
const LAYOUT: Template = Template {
    block_size: Some(128 << 20),
    width: Some(u16::MAX),
    first: Some(First::Server(ServerId(u16::MAX))),
    replicas: Some(u8::MAX),
};
const RANGE: LockRange = LockRange { start: 0, end: u64::MAX, exclusive: true };
const OWNERS: [LockOwner; 3] = [
    LockOwner::Process { session: u64::MAX, pid: 4_194_304 },
    LockOwner::Description(OPEN),
    LockOwner::Flock(OPEN),
];

const BLOCKS: Group = Group::Blocks { generation: GenerationId(1), position: 1, spread: 0, copies: 2 };

/// A map of two servers, one of them down, with addresses of both families.
pub(super) fn map() -> Box<Map> {
    let server = |id: u16, address: &str, state| Server {
        id: ServerId(id),
        node: NodeId(id),
        address: address.parse().unwrap(),
        state,
        joined: u32::from(id),
        former: (0..id).map(|n| Former { node: NodeId(n), until: GenerationId(1) }).collect(),
    };
    let servers =
        vec![server(0, "10.0.0.1:4711", ServerState::Up), server(1, "[fe80::1]:65535", ServerState::Down)];
    let generation = |ids: &[u16]| Generation { servers: ids.iter().copied().map(ServerId).collect() };
    Box::new(Map {
        epoch: Epoch(u64::MAX),
        deployment: u64::MAX,
        mount: "/bivouac".into(),
        block_size: 512 << 10,
        width: 2,
        first: First::Local,
        replicas: 2,
        nodes: (0..2)
            .map(|n| Node {
                id: NodeId(n),
                host: format!("node{n}"),
                agent: ([10, 0, 0, 1], n).into(),
                domain: n,
            })
            .collect(),
        servers,
        shards: (0..4096).flat_map(|shard| [ServerId(shard % 2), ServerId((shard + 1) % 2)]).collect(),
        copies: 2,
        min_copies: 2,
        heal_after: u32::MAX,
        heal_rate: u64::MAX,
        lease: u32::MAX,
        generations: vec![generation(&[0]), generation(&[1, 0])],
        behind: [(Group::Shard(ShardId(7)), 1), (BLOCKS, 2)]
            .map(|(group, holders)| Lag { group, holders, since: Epoch(u64::MAX) })
            .to_vec(),
        lost: Vec::new(),
        spares: vec![Spare { server: ServerId(1), since: GenerationId(u32::MAX) }],
        gone: vec![Group::Blocks { generation: GenerationId(1), position: 2, spread: 3, copies: 2 }],
        away: vec![NodeId(1)],
        vacated: vec![NodeId(u16::MAX)],
        arriving: vec![ServerId(u16::MAX)],
        departing: vec![ServerId(1)],
        moving: vec![ShardMove {
            shard: ShardId(9),
            from: ServerId(0),
            to: ServerId(1),
            stage: MoveStage::HandingOver,
        }],
        balancing: true,
        numbers: u16::MAX,
        primaries_since: Epoch(u64::MAX),
        successors: vec![(GenerationId(0), GenerationId(1))],
        rebuild: Some(Rebuild { number: 7, rule: Rule::Metadata, rate: u64::MAX }),
        rebuilds: 7,
        emptied: vec![ServerId(1)],
        members_since: Epoch(7),
        shards_since: vec![(ShardId(7), Epoch(u64::MAX)), (ShardId(9), Epoch(8))],
        forwarding: Some(forwarding()),
    })
}

/// A directory that one of the map's servers forwards.
fn forwarding() -> Forwarding {
    let (directory, scheduler) = ("/scratch/me".into(), "aioli".into());
    let (io_nodes, former) = (vec![ServerId(1)], vec![ServerId(0)]);
    Forwarding { directory, io_nodes, former, assign: Assign::File, scheduler }
}

/// What a deployment of the map's nodes and servers begins with.
fn founding() -> Founding {
    let map = *map();
    Founding::new(u64::MAX, "/bivouac", map.nodes, map.servers)
}

/// A small file's attributes.
pub(super) fn small_attr() -> Attr {
    Attr {
        ino: Ino(5),
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        size: 12,
        atime: 1,
        mtime: -1,
        ctime: 64,
        btime: 0,
        store: Store::Inline,
        size_version: 0,
        split: false,
        xattrs: false,
        layout: None,
        mtime_set: None,
        allocated: None,
    }
}

/// Attributes with every number as long as it gets.
pub(super) fn largest_attr() -> Attr {
    Attr {
        ino: INO,
        mode: 0o7777,
        nlink: u32::MAX,
        uid: u32::MAX,
        gid: u32::MAX,
        size: i64::MAX as u64,
        atime: i64::MIN,
        mtime: i64::MAX,
        ctime: i64::MAX,
        btime: i64::MAX,
        store: Store::Blocks { settled: false },
        size_version: u32::MAX,
        layout: Some(layout()),
        mtime_set: Some(i64::MIN),
        allocated: Some(u64::MAX),
        ..small_attr()
    }
}

fn layout() -> Box<FileLayout> {
    let mut layout = FileLayout::spread(INO, 128 << 20, GenerationId(u32::MAX));
    layout.ranges[0].first = u32::MAX;
    (layout.version, layout.placed) = (u32::MAX, true);
    Box::new(layout)
}

/// Every variant of every family of requests.
pub(super) fn requests() -> Vec<Request<'static>> {
    let meta = meta_requests().into_iter().map(Request::Meta);
    let data = data_requests().into_iter().map(Request::Data);
    let peer = peer_requests().into_iter().map(Request::Peer);
    let agent = [
        AgentRequest::Attach { pid: u32::MAX },
        AgentRequest::Map,
        AgentRequest::HoldsLocks { session: u64::MAX, server: ServerId(u16::MAX) },
        AgentRequest::Detach { session: u64::MAX },
    ];
    let control = [
        ControlRequest::Ping { epoch: Epoch(u64::MAX), leader: NodeId(u16::MAX), lease: None },
        ControlRequest::Ping {
            epoch: Epoch(0),
            leader: NodeId(0),
            lease: Some(Grant { from: u64::MAX, millis: u32::MAX }),
        },
        ControlRequest::Install { news: News::Whole(map()) },
        ControlRequest::Found { founding: Box::new(founding()) },
        ControlRequest::Resume {
            agents: vec![(NodeId(u16::MAX), "[fe80::1]:65535".parse().unwrap())],
            servers: vec![(ServerId(4095), "[fe80::1]:65535".parse().unwrap())],
        },
        ControlRequest::Wake {
            number: u64::MAX,
            agents: vec![(NodeId(u16::MAX), "[fe80::1]:65535".parse().unwrap())],
            servers: vec![(ServerId(4095), "[fe80::1]:65535".parse().unwrap())],
        },
        ControlRequest::Enlist { agents: vec![(NodeId(1), "10.0.0.1:7".parse().unwrap())] },
        ControlRequest::Group,
        ControlRequest::Beginning,
        ControlRequest::Wards,
        ControlRequest::Replace(Box::new(Replacement {
            server: ServerId(7),
            succession: u32::MAX,
            node: map().nodes[1].clone(),
            address: ([10, 0, 0, 9], 7).into(),
            accept_loss: true,
        })),
        ControlRequest::Alone { server: ServerId(u16::MAX) },
        ControlRequest::Held,
        ControlRequest::Kept,
        ControlRequest::Admit { programs: false },
        ControlRequest::Leave { ask: true },
        ControlRequest::Programs { held: vec![HeldFile { ino: INO, session: u64::MAX }] },
        ControlRequest::Abandon { servers: vec![ServerId(u16::MAX)] },
        ControlRequest::Losses { servers: vec![ServerId(u16::MAX)], after: INO },
        ControlRequest::Add(Box::new(Growth { nodes: map().nodes, servers: map().servers })),
        ControlRequest::Depart { servers: vec![ServerId(u16::MAX)] },
        ControlRequest::Stay { servers: vec![ServerId(u16::MAX)] },
        ControlRequest::Remove { servers: vec![ServerId(u16::MAX)], nodes: vec![NodeId(u16::MAX)] },
        ControlRequest::Dismiss { servers: vec![ServerId(u16::MAX)], nodes: vec![NodeId(u16::MAX)] },
        ControlRequest::Rebuild { rule: Rule::Direct, rate: u64::MAX },
        ControlRequest::EndRebuild { number: u32::MAX },
        ControlRequest::Forward { forwarding: Some(forwarding()) },
        ControlRequest::Forward { forwarding: None },
        ControlRequest::Forwarding,
        ControlRequest::Backend { directory: "/scratch/me".into() },
        ControlRequest::Stats,
        ControlRequest::Overview,
        ControlRequest::GiveUp { servers: vec![ServerId(7)], accept_loss: true },
        ControlRequest::Shutdown { keep: true },
        ControlRequest::Lifeline,
        ControlRequest::Release,
        ControlRequest::Verify(VerifyRequest::Start {
            stage: Stage::Together,
            dry_run: true,
            rate: u64::MAX,
        }),
        ControlRequest::Verify(VerifyRequest::State { from: u32::MAX }),
        ControlRequest::Verify(VerifyRequest::Cancel),
        ControlRequest::Verify(VerifyRequest::Names { inos: vec![INO, Ino(1)] }),
    ];
    let node =
        [NodeRequest::Table, NodeRequest::Versions, NodeRequest::Fences].into_iter().map(Request::Node);
    let copied = data_requests()
        .into_iter()
        .map(|request| Request::Copied(Copied { group: GROUP, request, here: None }));
    let request = DataRequest::Write { ino: INO, offset: u64::MAX, sync: true };
    let here = Some((ServerId(u16::MAX), u64::MAX));
    let copied = copied.chain([Request::Copied(Copied { group: GROUP, request, here })]);
    let copies = copied.chain(copy_requests().into_iter().map(Request::Copy));
    let rest =
        agent.into_iter().map(Request::Agent).chain(control.into_iter().map(Request::Control)).chain(node);
    let raft = [RaftRequest::Append, RaftRequest::Vote, RaftRequest::Canvass, RaftRequest::Snapshot]
        .map(Request::Raft);
    let raft = raft.into_iter().chain(restripe_requests().into_iter().map(Request::Restripe));
    let fetch = FetchRequest {
        ino: INO,
        number: u64::MAX,
        epoch: Epoch(u64::MAX),
        since: Epoch(1),
        start: 0,
        end: u64::MAX,
        layout: *layout(),
        source: source(),
    };
    let fetch = [Request::Fetch(Box::new(fetch))];
    let piece = SmallPiece { ino: INO, offset: u64::MAX, len: u32::MAX };
    let gather = [Vec::new(), vec![piece; GATHER_MAX]].map(|pieces| Request::Gather(Gather { pieces }));
    meta.chain(data).chain(peer).chain(rest).chain(copies).chain(raft).chain(fetch).chain(gather).collect()
}

fn source() -> Source {
    Source { path: b"/work/\xff".to_vec(), ino: u64::MAX, size: u64::MAX, mtime: i64::MIN }
}

fn restripe_requests() -> Vec<RestripeRequest> {
    let (old, new) = (*layout(), FileLayout { version: 7, ..*layout() });
    let step = || {
        Box::new(Restripe {
            ino: INO,
            number: u64::MAX,
            start: 1,
            end: u64::MAX,
            old: old.clone(),
            new: new.clone(),
        })
    };
    vec![
        RestripeRequest::Fence(step()),
        RestripeRequest::Take { step: step(), length: u64::MAX, rate: u64::MAX },
        RestripeRequest::Finish(step()),
        RestripeRequest::Undo(step()),
        RestripeRequest::Give {
            group: GROUP,
            ino: INO,
            number: u64::MAX,
            stretches: vec![(u64::MAX, u32::MAX), (0, 1)],
        },
    ]
}

fn meta_requests() -> Vec<MetaRequest<'static>> {
    let how = OpenHow {
        read: true,
        write: true,
        append: true,
        truncate: true,
        directory: false,
        create: Some(Create { mode: 0o7777, exclusive: true }),
        pass: true,
    };
    let set = SetAttr {
        mode: Some(0o7777),
        uid: Some(u32::MAX),
        gid: None,
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::To(i64::MIN)),
    };
    let wrote = Wrote { end: i64::MAX as u64, size_version: u32::MAX, age: u64::MAX, unsure: true };
    let [process, description, flock] = OWNERS;
    let lazy = |owner| Box::new(LazyFile { source: source(), mode: 0o7777, owner, atime: i64::MIN });
    vec![
        MetaRequest::Lookup { at: AT },
        MetaRequest::GetAttr { ino: INO },
        MetaRequest::SetAttr { ino: INO, set },
        MetaRequest::Open { at: AT, how, open: OPEN },
        MetaRequest::OpenInode { ino: INO, how: OpenHow::default(), open: OPEN },
        MetaRequest::MakeTemporary { dir: INO, how, open: OPEN },
        MetaRequest::Release { ino: INO, open: OPEN, wrote: Some(wrote) },
        MetaRequest::Release { ino: INO, open: OPEN, wrote: None },
        MetaRequest::Abandon { ino: None, open: OPEN, wrote: Some(wrote) },
        MetaRequest::Reopen { ino: INO, open: OPEN, write: true },
        MetaRequest::Truncate { ino: INO, size: u64::MAX },
        MetaRequest::ReadInline { ino: INO, offset: u64::MAX, len: u32::MAX },
        MetaRequest::WriteInline { ino: INO, offset: 4095 },
        MetaRequest::Spill { ino: INO },
        MetaRequest::Append { ino: INO },
        MetaRequest::Mkdir { at: AT, mode: 0o1777 },
        MetaRequest::MakeNode { at: AT, kind: FileKind::Symlink, mode: 0o777, target: &[b'x'; 4095] },
        MetaRequest::MakeNode { at: OTHER, kind: FileKind::Fifo, mode: 0, target: b"" },
        MetaRequest::Link { ino: INO, at: AT },
        MetaRequest::Unlink { at: OTHER },
        MetaRequest::Rmdir { at: OTHER },
        MetaRequest::Rename { from: AT, to: OTHER, mode: RenameMode::Replace },
        MetaRequest::Rename { from: AT, to: AT, mode: RenameMode::NoReplace },
        MetaRequest::Rename { from: OTHER, to: AT, mode: RenameMode::Exchange },
        MetaRequest::ReadDir { dir: INO, split: true, after: u64::MAX, limit: u32::MAX, attrs: true },
        MetaRequest::Parent { ino: INO },
        MetaRequest::ReadLink { ino: INO },
        MetaRequest::GetXattr { ino: INO, name: b"user.origin" },
        MetaRequest::ListXattr { ino: INO },
        MetaRequest::SetXattr { ino: INO, name: b"user.origin", mode: XattrMode::Set },
        MetaRequest::SetXattr { ino: INO, name: b"user.origin", mode: XattrMode::Create },
        MetaRequest::SetXattr { ino: INO, name: b"user.origin", mode: XattrMode::Replace },
        MetaRequest::RemoveXattr { ino: INO, name: b"" },
        MetaRequest::Lock { ino: INO, owner: process, range: RANGE, wait_ms: 1000 },
        MetaRequest::Unlock { ino: INO, owner: description, start: 0, end: u64::MAX },
        MetaRequest::TestLock { ino: INO, owner: flock, range: RANGE },
        MetaRequest::Report {
            node: NodeId(u16::MAX),
            start: u64::MAX,
            epoch: bivouac_layout::Epoch(0),
            opens: vec![Reopened { ino: INO, open: OPEN, write: true, append: false }; 3],
            more: true,
        },
        MetaRequest::EndSession { session: u64::MAX },
        MetaRequest::CancelLock { ino: INO, owner: process, range: RANGE },
        MetaRequest::Sync { ino: INO },
        MetaRequest::Look { inos: vec![INO; LOOK_MAX], limit: u32::MAX, attrs: true },
        MetaRequest::Look { inos: Vec::new(), limit: 0, attrs: false },
        MetaRequest::Find { files: Vec::new() },
        MetaRequest::Find { files: vec![Sought::Name(AT), Sought::Inode(INO)] },
        MetaRequest::MakeLazy { at: AT, file: lazy(None) },
        MetaRequest::MakeLazy { at: OTHER, file: lazy(Some((u32::MAX, 0))) },
        MetaRequest::Locate { ino: INO },
        MetaRequest::Entrust { files: Vec::new() },
        MetaRequest::Entrust { files: vec![Entrusted { ino: INO, path: b"a/b".to_vec() }; ENTRUST_MAX] },
        MetaRequest::GiveLocks { ino: INO, owner: LockOwner::Process { session: u64::MAX, pid: 7 } },
        MetaRequest::Fetch { ino: INO },
        MetaRequest::Relock { start: 0, locks: Vec::new() },
        MetaRequest::Relock {
            start: u64::MAX,
            locks: OWNERS.map(|owner| Relocked { ino: INO, owner, range: RANGE }).to_vec(),
        },
    ]
}

fn data_requests() -> Vec<DataRequest> {
    let share = Share { block_size: 128 << 20, width: u32::MAX, turn: 4095 };
    let allocate = |mode| DataRequest::Fallocate { ino: INO, offset: u64::MAX, len: u64::MAX, mode };
    vec![
        DataRequest::Read { ino: INO, offset: u64::MAX, len: u32::MAX },
        DataRequest::Write { ino: INO, offset: u64::MAX, sync: true },
        DataRequest::Extent { ino: INO },
        DataRequest::Truncate { ino: INO, size: u64::MAX, extend: true, closing: u64::MAX },
        allocate(Fallocate::Extend),
        allocate(Fallocate::KeepSize),
        allocate(Fallocate::PunchHole),
        allocate(Fallocate::Zero),
        DataRequest::Seek { ino: INO, offset: 1, end: u64::MAX, hole: true, share },
        DataRequest::Sync { ino: INO },
        DataRequest::Remove { ino: INO },
        DataRequest::Pass { ino: INO, access: Access::Read },
        DataRequest::Pass { ino: INO, access: Access::Write },
        DataRequest::Pass { ino: INO, access: Access::Make },
        DataRequest::Space,
        DataRequest::TakeBack { ino: INO, undo: 1, end: u64::MAX, size: 3 },
        DataRequest::Close { ino: INO, closing: 1 },
        DataRequest::Open { ino: INO, closing: u64::MAX },
        DataRequest::ReadDirect { ino: INO, offset: u64::MAX, len: u32::MAX },
        DataRequest::WriteDirect { ino: INO, offset: u64::MAX, sync: true },
    ]
}

fn copy_requests() -> Vec<CopyRequest> {
    let forward = |change| CopyRequest::Forward {
        group: GROUP,
        slot: u32::MAX,
        turn: u64::MAX,
        ino: INO,
        offset: u64::MAX,
        len: u64::MAX,
        change,
    };
    let sent = |by| Sent { by, number: u64::MAX };
    vec![
        forward(copies::Change::Write { sync: true }),
        forward(copies::Change::Fallocate(Fallocate::Zero)),
        forward(copies::Change::Mirror { undoes: true }),
        CopyRequest::Fetch { group: GROUP, ino: INO, offset: u64::MAX, len: u32::MAX },
        CopyRequest::Digest { group: GROUP, ino: INO, offset: u64::MAX, len: u64::MAX },
        CopyRequest::Extent { group: GROUP, ino: INO },
        CopyRequest::UnderWay { group: GROUP },
        CopyRequest::Marks,
        CopyRequest::Stripes { after: INO },
        CopyRequest::Sums { group: GROUP, ino: INO, offset: u64::MAX, len: u64::MAX },
        CopyRequest::Bytes { group: GROUP, ino: INO, offset: u64::MAX, len: u32::MAX },
        forward(copies::Change::Restore),
        forward(copies::Change::Sent { sent: sent(Sender::Server(ServerId(1))), sum: u32::MAX, sync: true }),
        CopyRequest::Ahead { sent: sent(Sender::Program(u64::MAX)), rest: vec![ServerId(u16::MAX)] },
    ]
}

fn peer_requests() -> Vec<PeerRequest<'static>> {
    let name = || b"\xff name".to_vec();
    let steps = vec![
        Step::PutEntry { dir: INO, name: name(), ino: INO, kind: FileKind::Socket, replace: Some(INO) },
        Step::RemoveEntry { dir: INO, name: name(), ino: INO },
        Step::MakeDirectory {
            shard: ShardId(4095),
            parent: INO,
            name: name(),
            mode: 0o755,
            uid: 1,
            gid: 2,
            layout: LAYOUT,
        },
        Step::RemoveDirectory { ino: INO },
        Step::RemoveParts { dir: INO, shard: ShardId(0) },
        Step::SetParent { ino: INO, parent: Ino::ROOT, name: name() },
        Step::AddLink { ino: INO },
        Step::DropLink { ino: INO },
        Step::Touch { ino: INO },
    ];
    let entries = vec![MovedEntry { name: name(), ino: INO, kind: FileKind::Directory }];
    let owner = (0o7777, u32::MAX, u32::MAX);
    let position = Position { term: u64::MAX, sequence: 300 };
    let bytes = || serde_bytes::ByteBuf::from(vec![0xff; 9]);
    let record = || serde_bytes::Bytes::new(&[0xff; 9]);
    let records = vec![record(), record()];
    let shipment = Shipment { shard: ShardId(7), term: 5, after: position, everywhere: 299, records };
    vec![
        PeerRequest::Prepare { intent: INTENT, shard: ShardId(9), steps },
        PeerRequest::Commit { intents: vec![(INTENT, ShardId(0)), (INTENT, ShardId(4095))] },
        PeerRequest::Abort { intents: vec![(INTENT, ShardId(7))] },
        PeerRequest::Outcome { intent: INTENT },
        PeerRequest::CatchUp,
        PeerRequest::Files { shard: ShardId(9), after: INO },
        PeerRequest::ShardsWithout,
        PeerRequest::InstallParts {
            dir: INO,
            owner,
            layout: LAYOUT,
            time: i64::MIN,
            parts: vec![0, 255],
            entries,
        },
        PeerRequest::StatParts { dir: INO, parts: vec![3, 255] },
        PeerRequest::OwnParts { dir: INO, owner, layout: LAYOUT, parts: vec![0] },
        PeerRequest::NoteMoves { moved: vec![INO] },
        PeerRequest::DirectoryMoves { intent: INTENT, take: true },
        PeerRequest::Inode { ino: INO },
        PeerRequest::Entry { dir: INO, split: true, name: b"\xff name" },
        PeerRequest::Ship { shipments: vec![shipment] },
        PeerRequest::Image { shard: ShardId(9), term: 3, part: u32::MAX, last: true, batches: vec![bytes()] },
        PeerRequest::Positions { shards: vec![(ShardId(0), u64::MAX), (ShardId(4095), 0)] },
        PeerRequest::Supply { shard: ShardId(1), term: 7, to: ServerId(2), from: position },
        PeerRequest::Compare { shards: vec![ShardId(7)] },
    ]
}

/// Every variant of every family of replies.
pub(super) fn replies() -> Vec<Reply> {
    let attr = || Box::new(largest_attr());
    let entry =
        |attr| DirEntry { name: b"\xff".to_vec(), ino: INO, kind: FileKind::File, cookie: u64::MAX, attr };
    let looked = Looked {
        attr: attr(),
        target: b"../elsewhere".to_vec(),
        place: Some((INO, serde_bytes::ByteBuf::from(b"\xff".to_vec()))),
        listing: Some((vec![entry(None), entry(Some(attr()))], true)),
    };
    let meta = [
        MetaReply::Attr(attr()),
        MetaReply::Entry { attr: Box::new(small_attr()), target: b"../elsewhere".to_vec() },
        MetaReply::Elsewhere { ino: INO, kind: FileKind::Directory },
        MetaReply::Opened { attr: attr(), created: true, target: Vec::new() },
        MetaReply::Appended { offset: u64::MAX, written: u32::MAX, size_version: u32::MAX },
        MetaReply::Listing { entries: vec![entry(None), entry(Some(attr()))], end: true },
        MetaReply::Parent { parent: INO, name: b"\xff".to_vec() },
        MetaReply::Done,
        MetaReply::Conflict(None),
        MetaReply::Fetching,
        MetaReply::Unfetchable(unfetchable()),
        MetaReply::Locks(vec![LockRange { start: 0, end: u64::MAX, exclusive: true }; 3]),
        MetaReply::Kept,
        MetaReply::Relocked { start: u64::MAX, refused: vec![0, 1, u32::MAX] },
        MetaReply::Conflict(Some((OWNERS[0], RANGE))),
        MetaReply::Looked(vec![None, Some(looked)]),
        MetaReply::Found(vec![
            Sighted::File { attr: attr(), with_data: true },
            Sighted::Elsewhere(INO),
            Sighted::Untold,
        ]),
    ];
    let data = [
        DataReply::Read { length: u64::MAX },
        DataReply::Written { count: u32::MAX, before: 1, undo: 2 },
        DataReply::Extent { length: u64::MAX, allocated: u64::MAX, written: None },
        DataReply::Extent {
            length: 0,
            allocated: 0,
            written: Some(crate::data::LastWrite { age: u64::MAX, at: i64::MIN }),
        },
        DataReply::Position { offset: u64::MAX },
        DataReply::Passed,
        DataReply::Truncated { exists: true },
        DataReply::NotTruncated { excused: true },
        DataReply::Done,
        DataReply::Space { total: u64::MAX, available: 0, device: 7, inodes: 9 },
        DataReply::Elsewhere,
    ];
    let peer = [
        PeerReply::Prepared { made: vec![INO, Ino(1)] },
        PeerReply::Outcome { committed: true },
        PeerReply::Parts { entries: u64::MAX, subdirectories: u32::MAX, mtime: i64::MIN },
        PeerReply::Inode { attr: attr(), parent: INO },
        PeerReply::Entry { named: Some((INO, FileKind::File)), owner: (0o755, 1, 2) },
        PeerReply::Files(vec![(INO, FileLayout::spread(INO, 4096, GenerationId(0)))]),
        PeerReply::Shards(vec![ShardId(0), ShardId(4095)]),
        PeerReply::Held(vec![
            Held::Has(Position { term: 1, sequence: u64::MAX }),
            Held::Lacks(Position::default()),
            Held::Restarted(Position { term: 300, sequence: 0 }),
            Held::Deposed(u64::MAX),
        ]),
        PeerReply::Compared(vec![Compared {
            at: Position { term: 1, sequence: 2 },
            records: u64::MAX,
            digest: u64::MAX,
        }]),
    ];
    let agent = [
        AgentReply::Attached {
            session: u64::MAX,
            owner: u64::MAX,
            locked: vec![ServerId(0), ServerId(u16::MAX)],
            agent: u64::MAX,
            node: NodeId(u16::MAX),
            run_dir: "/dev/shm/bivouac".into(),
            map: map(),
        },
        AgentReply::Map(map()),
    ];
    let health = vec![ServerHealth { server: ServerId(1), alive: false, silent_ms: u64::MAX }];
    let control = [
        ControlReply::Pong {
            epoch: Epoch(u64::MAX),
            boot: u64::MAX,
            caught_up: vec![Group::Shard(ShardId(7))],
            suspects: vec![(GROUP, ServerId(7))],
            clock: u64::MAX,
            accounted: Epoch(u64::MAX),
            unreached: vec![ServerId(7)],
            rebuilt: u32::MAX,
        },
        ControlReply::Stats(Box::new(Stats { inodes: u64::MAX, opens: 1, ..Stats::default() })),
        ControlReply::Beginning {
            pending: u32::MAX,
            failed: vec![
                (Member::Agent(NodeId(1)), String::new()),
                (Member::Server(ServerId(7)), "no".into()),
            ],
        },
        ControlReply::Overview {
            leader: NodeId(3),
            voters: vec![NodeId(u16::MAX)],
            map: map(),
            health,
            false_failovers: u64::MAX,
        },
        ControlReply::NotLeader { leader: Some(NodeId(u16::MAX)) },
        ControlReply::Woken { last: Some((u64::MAX, u64::MAX)), voters: vec![NodeId(0), NodeId(u16::MAX)] },
        ControlReply::Group { leader: None, voters: vec![NodeId(u16::MAX)], map: map() },
        ControlReply::Failed { cause: "damaged".into() },
        ControlReply::Forwarding(Some(forwarding())),
        ControlReply::Forwarding(None),
        ControlReply::Verify(Box::new(VerifyState { findings: findings(), ..VerifyState::default() })),
        ControlReply::Names(vec![Name { ino: INO, dir: Ino(1), name: b"\xff".to_vec() }]),
        ControlReply::Wards(vec![Ward {
            server: ServerId(u16::MAX),
            pid: Some(u32::MAX),
            restarts: u32::MAX,
            trouble: Some("damaged".into()),
            given_up: true,
        }]),
        ControlReply::Alone { files: u64::MAX, example: Some(INO) },
        ControlReply::Users(vec![(u32::MAX, "a.out".into())]),
        ControlReply::Leaving { idle: true, programs: vec![(u32::MAX, "a.out".into())] },
        ControlReply::Held(vec![HeldFile { ino: INO, session: u64::MAX }]),
        ControlReply::Programs(vec![Holder { ino: INO, pid: u32::MAX, command: "a.out".into() }]),
        ControlReply::Losses {
            files: vec![FileLoss { ino: INO, size: u64::MAX, lost: 1, fewer: u64::MAX }],
            on_their_way: u64::MAX,
        },
    ];
    let mark = Mark { group: GROUP, ino: INO, offset: 1, len: u64::MAX };
    let written = Some(crate::data::LastWrite { age: u64::MAX, at: i64::MIN });
    let copies = [
        CopyReply::Made,
        CopyReply::Failed(Errno::NOSPC),
        CopyReply::Read,
        CopyReply::Extent { length: u64::MAX, written },
        CopyReply::Marks(vec![mark]),
        CopyReply::UnderWay { first: 1, changes: vec![(u32::MAX, u64::MAX)] },
        CopyReply::Sums { length: u64::MAX, is_sure: true, sums: vec![(u32::MAX, 0)] },
        CopyReply::Missing,
        CopyReply::Stripes(vec![Stripe {
            ino: INO,
            needed: u32::MAX,
            fences: vec![(u64::MAX, 1, u64::MAX)],
        }]),
    ];
    let restripe = [
        RestripeReply::Done,
        RestripeReply::Fenced { length: u64::MAX },
        RestripeReply::Took { bytes: u64::MAX },
        RestripeReply::Gave { holes: vec![true, false], length: u64::MAX, written },
        RestripeReply::Excused,
    ];
    let writer = OpenId { agent: u64::MAX, slot: 1, incarnation: 2 };
    let change = Change { count: u64::MAX, time: i64::MIN, writer: Some(writer) };
    std::iter::once(Reply::Done)
        .chain(meta.into_iter().map(Reply::Meta))
        .chain(data.into_iter().map(Reply::Data))
        .chain(peer.into_iter().map(Reply::Peer))
        .chain(agent.into_iter().map(Reply::Agent))
        .chain(control.into_iter().map(Reply::Control))
        .chain([Reply::Changed(change, MetaReply::Done)])
        .chain(copies.into_iter().map(Reply::Copy))
        .chain(restripe.map(Reply::Restripe))
        .chain([Ok(()), Err(unfetchable())].map(Reply::Fetch))
        .chain([Reply::Gathered(vec![true, false, true])])
        .chain([Reply::Opened(
            SubFile { server: ServerId(u16::MAX), succession: u32::MAX, moved: u64::MAX },
            MetaReply::Opened { attr: attr(), created: false, target: Vec::new() },
        )])
        .collect()
}

fn unfetchable() -> Unfetchable {
    Unfetchable { errno: Errno::IO, why: "/work/a is gone".into(), unseen: true }
}

fn findings() -> Vec<Finding> {
    let (server, outcome) = (ServerId(7), Outcome::Damaged);
    vec![
        Finding::SubFile { ino: INO, server, fault: Fault::Missing, offset: u64::MAX, len: 1, outcome },
        Finding::Log { server, partition: 63, outcome },
        Finding::Shard { shard: ShardId(7), server, outcome },
        Finding::Away { ino: INO },
    ]
}

/// Every refusal.
pub(super) fn refusals() -> Vec<Refusal> {
    vec![
        Refusal::StaleMap(News::Whole(map())),
        Refusal::StaleMap(map().news_for(Epoch(8))),
        Refusal::OldServer,
        Refusal::StaleNamespace { version: u64::MAX, moved: None },
        Refusal::StaleNamespace { version: 7, moved: Some(vec![INO]) },
        Refusal::UnknownDirectory,
        Refusal::DirectorySplit,
        Refusal::NotInline,
        Refusal::Busy,
        Refusal::StaleLayout,
        Refusal::Unfetched { ino: INO },
    ]
}

/// A greeting in every role.
pub(super) fn hellos() -> Vec<Hello> {
    let credentials = Credentials { uid: 1000, gid: 100, groups: vec![4, 27] };
    let client = Role::Client { credentials, node: NodeId(2), job: 9 };
    [client, Role::Server(ServerId(1)), Role::Agent(u64::MAX), Role::Control]
        .map(|role| Hello { nonce: [1; 32], deployment: 0xeedc_9664_f1f2_fc99, role })
        .into()
}
