//! Shards that move to another server: everything that belongs to one moves with it, and nothing is there twice.

use crate::common::Cluster;
use crate::common::client::Client;
use bivouac_layout::{Group, Ino, MapChange, Relocation, ServerId, ServerState, ShardId};
use bivouac_proto::meta::{At, LockOwner, LockRange, MetaRequest};
use bivouac_proto::peer::{IntentId, PeerReply, PeerRequest, Step};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, FileKind, Refusal, Reply};

fn lock(ino: Ino, session: u64) -> MetaRequest<'static> {
    let owner = LockOwner::Process { session, pid: 1 };
    let range = LockRange { start: 0, end: 10, exclusive: true };
    MetaRequest::Lock { ino, owner, range, wait_ms: 0 }
}

/// A shard's server, and one that does not hold it.
fn from_to(cluster: &Cluster, shard: ShardId) -> (ServerId, ServerId) {
    let map = cluster.inner.map();
    let holders = map.holders(Group::Shard(shard));
    let other = map.servers.iter().map(|server| server.id).find(|id| !holders.all().contains(id));
    (map.primary(shard), other.expect("another one"))
}

fn begin(cluster: &Cluster, shard: ShardId, to: ServerId) {
    let from = cluster.inner.primary(shard);
    cluster.inner.change(&MapChange::MoveShards { moves: vec![Relocation { shard, from, to }] });
    cluster.inner.follow();
}

/// The new server has what the primary has, and the primary waits for it.
fn catch_up(cluster: &Cluster, shard: ShardId, to: ServerId) {
    cluster.store(cluster.inner.primary(shard)).unwrap().peer(to, &PeerRequest::CatchUp).unwrap();
}

fn go_on(cluster: &Cluster, shard: ShardId, by: ServerId) {
    cluster.inner.change(&MapChange::InStep { servers: vec![(by, vec![Group::Shard(shard)])] });
}

fn moved(cluster: &Cluster, shard: ShardId, to: ServerId) {
    begin(cluster, shard, to);
    catch_up(cluster, shard, to);
    go_on(cluster, shard, to);
    cluster.inner.follow();
    go_on(cluster, shard, to);
    cluster.inner.follow();
    assert_eq!((cluster.inner.primary(shard), cluster.inner.map().moving.len()), (to, 0));
}

fn holds(cluster: &Cluster, server: ServerId, shard: ShardId) -> bool {
    cluster.store(server).unwrap().shards().contains(&shard)
}

#[test]
fn everything_that_belongs_to_a_shard_moves_with_it() {
    for copies in [1, 2] {
        let cluster = Cluster::replicated(4, copies);
        let client = Client::new(&cluster);
        let shard = Ino::ROOT.shard();
        let kept = client.put("kept", b"content").unwrap();
        let (orphan, open) = client.create("orphan", true).unwrap();
        client.unlink("orphan").unwrap();
        client.inode(kept, lock(kept, 7), &[]).unwrap();
        // A request whose answer is lost.
        let at = At { dir: Ino::ROOT, split: false, name: b"once" };
        let make = MetaRequest::MakeNode { at, kind: FileKind::File, mode: 0o644, target: &[] };
        let id = client.next_id();
        let first = client.send_as(id, shard, &make, &[]).unwrap();
        // An operation over several shards that has been prepared here. (Its coordinator, another shard, has decided nothing.)
        let intent = IntentId { shard: ShardId(77), number: 1 };
        let steps = vec![Step::PutEntry {
            dir: Ino::ROOT,
            name: b"promised".to_vec(),
            ino: kept,
            kind: FileKind::File,
            replace: None,
        }];
        let (from, to) = from_to(&cluster, shard);
        cluster.store(from).unwrap().peer(to, &PeerRequest::Prepare { intent, shard, steps }).unwrap();

        moved(&cluster, shard, to);
        assert!(!holds(&cluster, from, shard), "the former server has removed it");
        assert_eq!(client.get("kept").unwrap(), b"content");
        assert_eq!(client.inode(kept, lock(kept, 8), &[]).unwrap_err(), Errno::AGAIN, "it is locked");
        let again = client.send_as(id, shard, &make, &[]).unwrap();
        let is_same =
            matches!((&first.0, &again.0), (Reply::Changed(..), Reply::Meta(_))) || first.0 == again.0;
        assert!(is_same, "{first:?} {again:?}");
        assert_eq!(client.attr(orphan.ino).unwrap().nlink, 0, "it is open");
        client.release(orphan.ino, open, None).unwrap();
        assert_eq!(client.attr(orphan.ino), Err(Errno::NOENT));
        // Whom the coordinator tells now is the new server, and it knows what was prepared.
        let commit = PeerRequest::Commit { intents: vec![(intent, shard)] };
        cluster.store(to).unwrap().peer(from, &commit).unwrap();
        assert_eq!(client.names("").unwrap(), ["kept", "once", "promised"]);
        // New inodes get new numbers.
        let new = client.put("new", b"").unwrap();
        assert!(new != kept && new != orphan.ino);
        // What moved survives the death of its new server; the former one has nothing to say.
        cluster.kill(from);
        cluster.start(from);
        assert!(copies > 1 || !holds(&cluster, from, shard), "it is not in its log either");
        if copies == 1 {
            cluster.restart(to);
            assert_eq!(client.names("").unwrap(), ["kept", "new", "once", "promised"]);
            assert_eq!(client.get("kept").unwrap(), b"content");
        } else {
            cluster.inner.follow();
            cluster.check_copies();
        }
    }
}

#[test]
fn a_shard_moves_back_and_forth_while_it_changes() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let shard = Ino::ROOT.shard();
    for round in 0..6 {
        let (_, to) = from_to(&cluster, shard);
        client.put(&format!("before{round}"), b"1").unwrap();
        begin(&cluster, shard, to);
        client.put(&format!("begun{round}"), b"2").unwrap();
        catch_up(&cluster, shard, to);
        client.put(&format!("caught{round}"), b"3").unwrap();
        go_on(&cluster, shard, to);
        cluster.inner.follow();
        client.put(&format!("handed{round}"), b"4").unwrap();
        if round % 2 == 1 {
            cluster.restart(to);
            cluster.inner.follow();
        }
        go_on(&cluster, shard, to);
        cluster.inner.follow();
        assert_eq!(client.names("").unwrap().len(), 4 * (round + 1));
    }
    for server in [0, 1, 2].map(ServerId) {
        cluster.restart(server);
        assert_eq!(holds(&cluster, server, shard), cluster.inner.primary(shard) == server);
    }
    assert_eq!(client.names("").unwrap().len(), 24);
}

#[test]
fn a_move_whose_new_server_dies_is_undone_and_one_whose_old_server_dies_loses_nothing() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let shard = Ino::ROOT.shard();
    let (from, to) = from_to(&cluster, shard);
    client.put("a", b"1").unwrap();
    for (victim, other) in [(to, from), (from, to)] {
        begin(&cluster, shard, to);
        catch_up(&cluster, shard, to);
        client.put(&format!("while{victim}"), b"2").unwrap();
        cluster.kill(victim);
        cluster.start(victim);
        // As the controller says of one that was started again.
        cluster.inner.set_state(victim, ServerState::Joining);
        cluster.inner.set_state(victim, ServerState::Up);
        cluster.inner.follow();
        cluster.stores().iter().for_each(|store| store.recover());
        assert_eq!((cluster.inner.primary(shard), cluster.inner.map().moving.len()), (from, 0));
        assert!(holds(&cluster, from, shard) && !holds(&cluster, to, shard));
        client.put(&format!("after{victim}{other}"), b"3").unwrap();
    }
    moved(&cluster, shard, to);
    assert_eq!(client.names("").unwrap().len(), 5);
}

/// Without copies no lease keeps the former server from answering: it has to have said that it does not any more.
#[test]
fn without_copies_nobody_answers_before_the_former_server_knows_that_it_does_not() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let shard = Ino::ROOT.shard();
    client.put("a", b"1").unwrap();
    let (from, to) = from_to(&cluster, shard);
    begin(&cluster, shard, to);
    catch_up(&cluster, shard, to);
    cluster.inner.cut_off.lock().unwrap().push(from);
    go_on(&cluster, shard, to);
    cluster.inner.set_state(from, ServerState::Down);
    cluster.inner.follow();
    let at = At { dir: Ino::ROOT, split: false, name: b"a" };
    let look = || client.send_to(to, client.next_id(), shard, &MetaRequest::Lookup { at }, &[]);
    assert_eq!(look().unwrap_err(), Failure::Refused(Refusal::OldServer));
    // It is started again, and reached: it begins as no holder.
    cluster.inner.cut_off.lock().unwrap().clear();
    cluster.kill(from);
    cluster.start(from);
    cluster.inner.set_state(from, ServerState::Joining);
    cluster.inner.follow();
    assert!(look().is_ok());
    assert_eq!(
        client.send_to(from, client.next_id(), shard, &MetaRequest::Lookup { at }, &[]).unwrap_err(),
        Failure::Refused(Refusal::Busy)
    );
    // What it says of the shard is not taken for that of a primary.
    let asked = PeerRequest::Positions { shards: vec![(shard, 0)] };
    let held = cluster.store(to).unwrap().peer(from, &asked);
    assert!(matches!(held, Ok(Reply::Peer(PeerReply::Held(_)))));
    assert!(look().is_ok());
}
