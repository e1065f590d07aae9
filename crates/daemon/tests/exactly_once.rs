//! Requests that are repeated after a lost answer, and what arrives late, at real daemons.

mod common;

use bivouac_layout::{Ino, NodeId, ServerId, ShardId, namespace};
use bivouac_proto::auth::{Credentials, Role};
use bivouac_proto::copies::Copied;
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::RequestId;
use bivouac_proto::meta::{At, MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, FileKind, Header, Kind, Refusal, Reply, Request, Status};
use bivouac_transport::{ConnectOptions, Connection, Endpoint, Outgoing};
use common::{Cluster, cluster, cluster_of_copies};
use std::io::{IoSlice, IoSliceMut};

const SESSION: u64 = 0xfeed_0000_0001;

/// A client that says itself who it is and how often it has tried.
struct Raw {
    connection: Connection,
    header: Header,
}

impl Raw {
    fn to(cluster: &Cluster, server: ServerId) -> Raw {
        let credentials = Credentials { uid: rustix::process::geteuid().as_raw(), ..Credentials::default() };
        Raw::with(cluster, server, Role::Client { credentials, node: NodeId::NONE, job: 0 })
    }

    fn with(cluster: &Cluster, server: ServerId, role: Role) -> Raw {
        let address = cluster.map.server(server).expect("listed").address;
        let options = ConnectOptions::default();
        let (connection, welcome) = Connection::connect(
            &Endpoint::Tcp(address),
            &cluster.key,
            cluster.map.deployment,
            role,
            &options,
        )
        .expect("connects");
        let mut header = Header::new(Kind::Request);
        (header.epoch, header.namespace) = (cluster.map.epoch, welcome.namespace);
        Raw { connection, header }
    }

    /// The `attempt`-th attempt at the `sequence`-th request of a slot.
    fn ask(
        &mut self,
        (slot, sequence, attempt): (u32, u64, u16),
        shard: ShardId,
        request: &Request<'_>,
        payload: &[u8],
    ) -> Result<Reply, Failure> {
        let id = RequestId { session: SESSION, slot, sequence };
        let header = Header { shard, id, attempt, ..self.header };
        let mut body = Vec::new();
        bivouac_proto::encode(request, &mut body);
        let payload = [IoSlice::new(payload)];
        let outgoing = Outgoing { before: &[], header, body: &body, payload: &payload };
        let answer =
            self.connection.call(&outgoing, &mut [IoSliceMut::new(&mut [0; 64])]).expect("an answer");
        match answer.header.status {
            Status::OK => Ok(bivouac_proto::decode(answer.body).expect("a reply")),
            Status::REFUSED => Err(bivouac_proto::decode::<Refusal>(answer.body).expect("a refusal").into()),
            other => Err(other.errno().unwrap_or(Errno::PROTO).into()),
        }
    }
}

fn mkdir(name: &[u8]) -> (ShardId, Request<'_>) {
    let at = At { dir: Ino::ROOT, split: false, name };
    let shard = namespace::entry_shard(Ino::ROOT, false, name);
    (shard, Request::Meta(MetaRequest::Mkdir { at, mode: 0o755 }))
}

#[test]
fn what_was_done_is_answered_again_also_to_who_is_out_of_date_by_then() {
    let c = cluster("once-refused", 3);
    c.client.mkdir(Ino::ROOT, b"a", 0o755).expect("made");
    let (shard, request) = mkdir(b"new");
    let mut raw = Raw::to(&c, c.map.primary(shard));
    // The answer to this one is lost.
    let first = raw.ask((1, 1, 0), shard, &request, &[]).expect("made");
    c.client.rename(Ino::ROOT, b"a", Ino::ROOT, b"b", 0).expect("moved");
    let refused = raw.ask((2, 1, 0), shard, &mkdir(b"new").1, &[]);
    assert!(matches!(refused, Err(Failure::Refused(Refusal::StaleNamespace { .. }))), "{refused:?}");
    assert_eq!(raw.ask((1, 1, 1), shard, &request, &[]), Ok(first), "done is done");
    // What was not done is refused, however often it is repeated.
    let again = raw.ask((2, 1, 1), shard, &mkdir(b"new").1, &[]);
    assert!(matches!(again, Err(Failure::Refused(Refusal::StaleNamespace { .. }))), "{again:?}");
}

#[test]
fn a_write_that_arrives_late_does_not_undo_a_later_one() {
    let c = cluster("once-late", 1);
    c.write("f", &[0; 100_000]);
    let ino = c.client.stat((Ino::ROOT, b"f", true)).expect("there").ino;
    let mut raw = Raw::to(&c, ServerId(0));
    let write = Request::Data(DataRequest::Write { ino, offset: 0, sync: false });
    let shard = ShardId(0);
    let first = raw.ask((1, 1, 0), shard, &write, b"first").expect("written");
    raw.ask((2, 1, 0), shard, &write, b"other").expect("written");
    // The first one's repetition, whose answer was lost: it is answered, and not written again.
    assert_eq!(raw.ask((1, 1, 1), shard, &write, b"first"), Ok(first));
    assert_eq!(c.read("f")[..5], *b"other");
    // And the first one itself, which was on its way all the time.
    assert_eq!(raw.ask((1, 1, 0), shard, &write, b"first"), Err(Refusal::Busy.into()));
    raw.ask((1, 2, 0), shard, &write, b"third").expect("written");
    assert_eq!(raw.ask((1, 1, 5), shard, &write, b"first"), Err(Refusal::Busy.into()));
    assert_eq!(c.read("f")[..5], *b"third");
    let truncate = Request::Data(DataRequest::Truncate { ino, size: 0, extend: false, closing: 0 });
    assert_eq!(raw.ask((1, 1, 6), shard, &truncate, &[]), Err(Refusal::Busy.into()));
    assert_eq!(c.read("f").len(), 100_000);
}

#[test]
fn a_server_that_answered_for_a_file_once_does_not_change_it_any_more() {
    for copies in [1, 2] {
        let c = cluster_of_copies("once-deposed", 3, copies);
        c.write("f", &[0; 100_000]);
        let file = c.client.stat((Ino::ROOT, b"f", true)).expect("there");
        let (ino, owner) = (file.ino, c.map.primary(file.ino.shard()));
        let piece = file.layout.expect("it has blocks").pieces(&c.map, 0..1).next().expect("a piece");
        let write = DataRequest::Write { ino, offset: 0, sync: false };
        let request = match copies {
            1 => Request::Data(write),
            _ => Request::Copied(Copied { group: piece.group, request: write, here: None }),
        };
        for server in c.map.servers.iter().map(|server| server.id) {
            let mut raw = Raw::with(&c, piece.server, Role::Server(server));
            let done = raw.ask((u32::from(server.0), 1, 0), ShardId(0), &request, b"late!");
            assert_eq!(done.is_ok(), server == owner, "{copies} copies: {server} of {owner}: {done:?}");
            let now = if server < owner { b"\0\0\0\0\0" } else { b"late!" };
            assert_eq!(c.read("f")[..5], *now, "{copies} copies: {server} of {owner}");
        }
    }
}

#[test]
fn only_ones_own_write_is_taken_back() {
    let c = cluster("once-undo", 1);
    c.write("f", &[0; 100_000]);
    let ino = c.client.stat((Ino::ROOT, b"f", true)).expect("there").ino;
    let mut raw = Raw::to(&c, ServerId(0));
    let shard = ShardId(0);
    let mut write = |sequence, offset| {
        let request = Request::Data(DataRequest::Write { ino, offset, sync: false });
        match raw.ask((1, sequence, 0), shard, &request, &[1; 1000]) {
            Ok(Reply::Data(DataReply::Written { count: 1000, undo, .. })) => undo,
            other => panic!("{other:?}"),
        }
    };
    let (first, second) = (write(1, 100_000), write(2, 100_500));
    let mut raw = Raw::to(&c, ServerId(0));
    let mut take_back = |sequence, undo, end, size| {
        let request = Request::Data(DataRequest::TakeBack { ino, undo, end, size });
        raw.ask((2, sequence, 0), shard, &request, &[]).expect("answered");
    };
    take_back(1, first, 101_000, 100_000);
    assert_eq!(c.read("f").len(), 101_500, "somebody has written since");
    take_back(2, second, 101_500, 101_000);
    assert_eq!(c.read("f").len(), 101_000);
}

#[test]
fn a_change_of_attributes_that_arrives_late_does_not_undo_a_later_one() {
    let c = cluster("once-attr", 1);
    c.write("f", b"x");
    let ino = c.client.stat((Ino::ROOT, b"f", true)).expect("there").ino;
    let mut raw = Raw::to(&c, ServerId(0));
    let chmod = |mode| {
        let set = bivouac_proto::meta::SetAttr { mode: Some(mode), ..Default::default() };
        Request::Meta(MetaRequest::SetAttr { ino, set })
    };
    raw.ask((1, 1, 0), ino.shard(), &chmod(0o600), &[]).expect("set");
    raw.ask((2, 1, 0), ino.shard(), &chmod(0o640), &[]).expect("set");
    match raw.ask((1, 1, 1), ino.shard(), &chmod(0o600), &[]) {
        Ok(Reply::Meta(MetaReply::Attr(attr))) => assert_eq!((attr.mode, attr.kind), (0o600, FileKind::File)),
        other => panic!("{other:?}"),
    }
    assert_eq!(c.client.stat((Ino::ROOT, b"f", true)).expect("there").mode, 0o640);
}
