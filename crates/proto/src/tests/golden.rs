//! One message of each family, byte for byte: a change of the format that was not meant fails here, and one
//! that was meant needs a new [`crate::header::VERSION`].

use super::{encoded, samples};
use crate::agent::AgentRequest;
use crate::control::ControlRequest;
use crate::data::{DataReply, DataRequest, Share};
use crate::header::{Header, Kind, NO_REPLY, RequestId};
use crate::meta::{At, Create, LockOwner, LockRange, MetaRequest, OpenHow, Relocked};
use crate::node::NodeRequest;
use crate::peer::{IntentId, PeerRequest};
use crate::raft::RaftRequest;
use crate::{Errno, OpenId, Refusal, Reply, Request, Status};
use bivouac_layout::{Epoch, Ino, NodeId, ShardId};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_header_is_these_bytes() {
    let header = Header {
        kind: Kind::Reply,
        flags: NO_REPLY,
        body_len: 0x0001_0203,
        payload_len: 0x0040_5060,
        status: Status::from(Errno::NOENT),
        shard: ShardId(0x0fed),
        epoch: Epoch(0x1112_1314_1516_1718),
        namespace: 0x2122_2324_2526_2728,
        id: RequestId { session: 0x3132_3334_3536_3738, slot: 0x4142_4344, sequence: 0x5152_5354_5556_5758 },
        attempt: 0x6162,
        layout: 0x7172_7374,
    };
    let expected = [
        "4256574b", // magic
        "1c00",     // version
        "01",       // kind
        "01",       // flags
        "03020100", // body
        "60504000", // payload
        "0200",     // status
        "ed0f",     // shard
        "44434241", // slot
        "1817161514131211",
        "2827262524232221",
        "3837363534333231",
        "5857565554535251",
        "6261000074737271",
    ];
    assert_eq!(hex(&header.to_bytes()), expected.concat());
}

#[test]
fn requests_are_these_bytes() {
    let how =
        OpenHow { read: true, create: Some(Create { mode: 0o644, exclusive: true }), ..OpenHow::default() };
    let open = OpenId { agent: 300, slot: 5, incarnation: 6 };
    let at = At { dir: Ino(1), split: false, name: b"a.out" };
    let cases = [
        (
            Request::Meta(MetaRequest::Open { at, how, open }),
            "0003010005612e6f7574010000000001a4030100ac020506",
        ),
        (
            Request::Data(DataRequest::Read { ino: Ino(1 << 52), offset: 1 << 20, len: 512 }),
            "010080808080808080088080408004",
        ),
        (
            Request::Peer(PeerRequest::Commit {
                intents: vec![(IntentId { shard: ShardId(9), number: 130 }, ShardId(300))],
            }),
            "020101098201ac02",
        ),
        (
            Request::Data(DataRequest::Seek {
                ino: Ino(5),
                offset: 300,
                end: 1 << 20,
                hole: true,
                share: Share { block_size: 4096, width: 3, turn: 2 },
            }),
            "010505ac028080400180200302",
        ),
        (Request::Agent(AgentRequest::Attach { pid: 4711 }), "0300e724"),
        (
            Request::Control(ControlRequest::Ping { epoch: Epoch(2), leader: NodeId(300), lease: None }),
            "040002ac0200",
        ),
        (
            Request::Meta(MetaRequest::Relock {
                start: 300,
                locks: vec![Relocked {
                    ino: Ino(1 << 52 | 7),
                    owner: LockOwner::Process { session: 200, pid: 4711 },
                    range: LockRange { start: 100, end: 200, exclusive: true },
                }],
            }),
            "0023ac0201878080808080800800c801e72464c80101",
        ),
        (Request::Node(NodeRequest::Versions), "0501"),
        (Request::Raft(RaftRequest::Snapshot), "0803"),
    ];
    for (request, expected) in cases {
        assert_eq!(hex(&encoded(&request)), expected, "{request:?}");
    }
}

#[test]
fn replies_are_these_bytes() {
    assert_eq!(hex(&encoded(&Reply::Done)), "00");
    assert_eq!(
        hex(&encoded(&Reply::Data(DataReply::Written { count: 512, before: 3, undo: 9 }))),
        "020180040309"
    );
    let stale = Refusal::StaleNamespace { version: 7, moved: Some(vec![Ino::ROOT]) };
    assert_eq!(hex(&encoded(&stale)), "0207010101");
    assert_eq!(hex(&encoded(&samples::small_attr())), "0500a40301e807e8070c020180010000000000000000");
}

#[test]
fn a_hello_is_these_bytes() {
    let expected =
        ["01".repeat(32).as_str(), "99f9cb8fcfcca5eeee01", "00", "e807", "64", "02", "04", "1b", "02", "09"]
            .concat();
    assert_eq!(hex(&encoded(&samples::hellos()[0])), expected);
}
