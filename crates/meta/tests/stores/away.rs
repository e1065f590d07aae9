//! Nodes that nobody reaches: what their programs had locked and open ends, also where another server answers by then.

use crate::common::Cluster;
use crate::common::client::Client;
use bivouac_layout::{Ino, MapChange, NodeId};
use bivouac_proto::header::OpenId;
use bivouac_proto::meta::{LockOwner, LockRange, MetaReply, MetaRequest, Relocked};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply};

const THEIR_NODE: NodeId = NodeId(1);

fn range(start: u64) -> LockRange {
    LockRange { start, end: start + 10, exclusive: true }
}

fn process(node: NodeId, session: u64) -> LockOwner {
    LockOwner::Process { session: node.number(session), pid: 100 }
}

/// A file without a name that a program of the other node has open, with locks of each kind, and one whose locks others want.
struct Scene {
    cluster: Cluster,
    client: Client,
    ino: Ino,
    nameless: Ino,
    theirs: OpenId,
}

impl Scene {
    fn new(cluster: Cluster) -> Scene {
        let client = Client::new(&cluster);
        let theirs = OpenId { agent: THEIR_NODE.number(9), slot: 1, incarnation: 1 };
        let open = |path: &str| {
            let (attr, own) = client.create(path, true).unwrap();
            client
                .inode(attr.ino, MetaRequest::Reopen { ino: attr.ino, open: theirs, write: true }, &[])
                .unwrap();
            client.release(attr.ino, own, None).unwrap();
            attr.ino
        };
        let (ino, nameless) = (open("f"), open("g"));
        client.unlink("g").unwrap();
        client.attr(nameless).expect("it is open");
        let scene = Scene { cluster, client, ino, nameless, theirs };
        for (owner, start) in scene.their_locks() {
            scene.lock(owner, range(start)).unwrap();
        }
        scene
    }

    fn their_locks(&self) -> [(LockOwner, u64); 3] {
        let theirs = self.theirs;
        [(process(THEIR_NODE, 7), 0), (LockOwner::Description(theirs), 20), (LockOwner::Flock(theirs), 0)]
    }

    fn lock(&self, owner: LockOwner, range: LockRange) -> Result<(), Failure> {
        self.once(&MetaRequest::Lock { ino: self.ino, owner, range, wait_ms: 0 })
    }

    /// At the server that answers for the file now; refusals are not repeated.
    fn once(&self, request: &MetaRequest<'_>) -> Result<(), Failure> {
        let (shard, id) = (self.ino.shard(), self.client.next_id());
        self.client.send_to(self.cluster.inner.primary(shard), id, shard, request, &[]).map(drop)
    }

    fn others(&self) -> [(LockOwner, u64); 3] {
        let own = self.client.open_id();
        [(process(NodeId(0), 7), 0), (LockOwner::Description(own), 20), (LockOwner::Flock(own), 0)]
    }

    fn set_away(&self, away: bool) {
        self.cluster.inner.change(&MapChange::Node { node: THEIR_NODE, away });
    }

    fn relock(&self) -> Vec<u32> {
        let told = |(owner, start)| Relocked { ino: self.ino, owner, range: range(start) };
        let start = self.client.start(self.ino.shard());
        let locks = self.their_locks().into_iter().map(told).collect();
        self.client.relock(self.ino.shard(), start, locks).1
    }

    /// What has ended, and what the node is told when it is back.
    fn check(&self) {
        for (owner, start) in self.others() {
            self.lock(owner, range(start)).expect("it is free");
        }
        let refused = self.lock(process(THEIR_NODE, 8), range(100));
        assert_eq!(refused, Err(Refusal::OldServer.into()), "nobody would end it");
        assert_eq!(self.relock(), [0, 1, 2]);
        self.cluster.inner.keep();
        assert_eq!(self.client.attr(self.nameless).unwrap_err(), Errno::NOENT);
        self.set_away(false);
        self.cluster.inner.follow();
        self.lock(process(THEIR_NODE, 8), range(100)).unwrap();
        let again = MetaRequest::Reopen { ino: self.ino, open: self.theirs, write: true };
        self.client.inode(self.ino, again, &[]).expect("it was not given up");
    }
}

#[test]
fn what_its_programs_had_locked_and_open_ends() {
    for cluster in [Cluster::new(2), Cluster::replicated(3, 2)] {
        let scene = Scene::new(cluster);
        for (owner, start) in scene.others() {
            assert_eq!(scene.lock(owner, range(start)), Err(Errno::AGAIN.into()));
        }
        scene.set_away(true);
        // Before that has ended, the node is not told that it still has it.
        let told = MetaRequest::Relock { start: 0, locks: Vec::new() };
        assert_eq!(scene.once(&told), Err(Refusal::OldServer.into()));
        scene.cluster.inner.follow();
        scene.check();
    }
}

#[test]
fn it_ends_also_where_the_server_dies_at_the_same_time() {
    let scene = Scene::new(Cluster::replicated(3, 2));
    let primary = scene.cluster.inner.primary(scene.ino.shard());
    scene.cluster.kill(primary);
    scene.set_away(true);
    scene.cluster.inner.failover();
    scene.check();
}

#[test]
fn other_nodes_keep_what_they_have() {
    let scene = Scene::new(Cluster::new(2));
    let mine = process(NodeId(0), 5);
    scene.lock(mine, range(200)).unwrap();
    scene.set_away(true);
    scene.cluster.inner.follow();
    assert_eq!(scene.lock(process(NodeId(0), 6), range(200)), Err(Errno::AGAIN.into()));
    let unknown = MetaRequest::TestLock { ino: scene.ino, owner: process(NodeId(0), 6), range: range(200) };
    let (reply, _) = scene.client.inode(scene.ino, unknown, &[]).unwrap();
    assert_eq!(reply, Reply::Meta(MetaReply::Conflict(Some((mine, range(200))))));
}
