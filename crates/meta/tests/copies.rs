//! Metadata with copies: what a failover must keep, and what it must not.

mod common;

use bivouac_layout::{Ino, ServerId, ServerState, ShardId};
use bivouac_meta::ShardsCompared;
use bivouac_proto::meta::{LockOwner, LockRange, MetaReply, MetaRequest};
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::verify::Outcome;
use bivouac_proto::{Errno, FileKind, Refusal, Reply};
use common::Cluster;
use common::client::{Client, Dir};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn root_shard() -> ShardId {
    Ino::ROOT.shard()
}

fn make(name: &str) -> MetaRequest<'_> {
    let at = bivouac_proto::meta::At { dir: Ino::ROOT, split: false, name: name.as_bytes() };
    MetaRequest::MakeNode { at, kind: FileKind::File, mode: 0o644, target: &[] }
}

fn lock(ino: Ino, session: u64) -> MetaRequest<'static> {
    let owner = LockOwner::Process { session, pid: 1 };
    let range = LockRange { start: 0, end: 10, exclusive: true };
    MetaRequest::Lock { ino, owner, range, wait_ms: 0 }
}

#[test]
fn a_request_that_is_repeated_at_the_next_primary_is_done_once() {
    for copies in [2, 3] {
        let cluster = Cluster::replicated(3, copies);
        let client = Client::new(&cluster);
        client.put("file", b"content").unwrap();
        let at = bivouac_proto::meta::At { dir: Ino::ROOT, split: false, name: b"file" };
        let id = client.next_id();
        let request = MetaRequest::Unlink { at };
        let first = client.send_as(id, root_shard(), &request, &[]).unwrap();
        // The answer is lost, with the server that gave it.
        cluster.kill(cluster.inner.primary(root_shard()));
        cluster.inner.failover();
        let again = client.send_as(id, root_shard(), &request, &[]).unwrap();
        assert!(matches!((first.0, again.0), (Reply::Done | Reply::Changed(..), Reply::Done)));
        assert_eq!(client.send(root_shard(), &request, &[]).unwrap_err(), Errno::NOENT.into());
    }
}

#[test]
fn opens_and_locks_are_known_to_the_next_primary() {
    let cluster = Cluster::replicated(3, 2);
    let client = Client::new(&cluster);
    let (attr, open) = client.create("file", true).unwrap();
    let ino = attr.ino;
    client.inode(ino, lock(ino, 7), &[]).unwrap();
    cluster.kill(cluster.inner.primary(ino.shard()));
    cluster.inner.failover();
    assert_eq!(client.inode(ino, lock(ino, 8), &[]).unwrap_err(), Errno::AGAIN);
    // It is open: it stays when it loses its name.
    client.unlink("file").unwrap();
    assert_eq!(client.attr(ino).unwrap().nlink, 0);
    client.release(ino, open, None).unwrap();
    assert_eq!(client.attr(ino), Err(Errno::NOENT));
}

/// A copy or a primary that is restarted before anybody declares it down has lost what is volatile, and gets it
/// again from the others.
#[test]
fn who_is_restarted_quickly_knows_opens_and_locks_again() {
    let cluster = Cluster::replicated(3, 2);
    let client = Client::new(&cluster);
    let (attr, open) = client.create("file", true).unwrap();
    let ino = attr.ino;
    client.inode(ino, lock(ino, 7), &[]).unwrap();
    let [primary, copy] = cluster.inner.holders_of(ino.shard())[..] else { panic!("two copies") };
    for restarted in [copy, copy, primary, copy, primary] {
        cluster.kill(restarted);
        cluster.start(restarted);
        cluster.inner.follow();
        client.put("another", b"").unwrap();
        cluster.check_copies();
        assert_eq!(client.inode(ino, lock(ino, 8), &[]).unwrap_err(), Errno::AGAIN);
    }
    cluster.kill(primary);
    cluster.inner.failover();
    assert_eq!(client.inode(ino, lock(ino, 8), &[]).unwrap_err(), Errno::AGAIN);
    client.unlink("file").unwrap();
    assert_eq!(client.attr(ino).unwrap().nlink, 0);
    client.release(ino, open, None).unwrap();
}

/// A process ends while the server dies that knows of its locks: the next one must not keep them for ever.
#[test]
fn locks_of_a_process_that_ended_meanwhile_are_gone() {
    let cluster = Cluster::replicated(3, 2);
    let client = Client::new(&cluster);
    let ino = client.put("file", b"").unwrap();
    client.inode(ino, lock(ino, 7), &[]).unwrap();
    let dead = cluster.inner.primary(ino.shard());
    cluster.kill(dead);
    for server in (0..3).map(ServerId).filter(|server| *server != dead) {
        let request = MetaRequest::EndSession { session: 7 };
        client.send_to(server, client.next_id(), root_shard(), &request, &[]).unwrap();
    }
    cluster.inner.failover();
    client.inode(ino, lock(ino, 8), &[]).unwrap();
    cluster.check_copies();
}

/// The primary is cut off and has not heard of the newest map: what it does then is acknowledged to nobody, and does
/// not survive.
#[test]
fn a_deposed_primary_acknowledges_nothing_and_its_tail_is_dropped() {
    for copies in [2, 3] {
        let cluster = Cluster::replicated(3, copies);
        let client = Client::new(&cluster);
        client.put("before", b"").unwrap();
        let old = cluster.inner.primary(root_shard());
        cluster.inner.stale.lock().unwrap().insert(old, cluster.inner.map());
        cluster.inner.cut_off.lock().unwrap().push(old);
        cluster.inner.set_state(old, ServerState::Down);
        // A client that is cut off with it makes a file: nobody answers before the others can be reached again.
        let inner = cluster.inner.clone();
        std::thread::scope(|scope| {
            let lonely = Client::new(&cluster);
            let request =
                scope.spawn(move || lonely.send_to(old, lonely.next_id(), root_shard(), &make("tail"), &[]));
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(200) {
                std::thread::sleep(Duration::from_millis(10));
                assert!(!request.is_finished(), "it was acknowledged by a server that is alone");
            }
            inner.follow();
            client.put("after", b"").unwrap();
            cluster.inner.cut_off.lock().unwrap().clear();
            assert_eq!(request.join().unwrap().unwrap_err(), Failure::Refused(Refusal::OldServer));
        });
        // Nor does it serve reads any more.
        let look = MetaRequest::GetAttr { ino: Ino::ROOT };
        let read = client.send_to(old, client.next_id(), root_shard(), &look, &[]);
        assert_eq!(read.unwrap_err(), Failure::Refused(Refusal::OldServer));
        assert_eq!(client.names("").unwrap(), ["after", "before"]);
        cluster.inner.stale.lock().unwrap().clear();
        let images = cluster.inner.images.load(Ordering::SeqCst);
        cluster.kill(old);
        cluster.come_back(old);
        assert!(
            cluster.inner.images.load(Ordering::SeqCst) > images,
            "its tail can only be replaced by an image"
        );
        assert_eq!(cluster.inner.primary(root_shard()), old, "it is the first in the list");
        assert_eq!(client.names("").unwrap(), ["after", "before"]);
        cluster.check_copies();
    }
}

/// A copy that misses few records gets those, one that misses many an image.
#[test]
fn a_copy_that_was_away_is_caught_up_by_records_or_by_an_image() {
    for (missed, by_image) in [(3, false), (400, true)] {
        let cluster = Cluster::replicated(3, 2);
        let client = Client::new(&cluster);
        client.put("first", b"").unwrap();
        let copy = cluster.inner.holders_of(root_shard())[1];
        cluster.check_copies();
        cluster.kill(copy);
        cluster.inner.failover();
        for n in 0..missed {
            client.send(root_shard(), &make(&format!("file {n}")), &[]).unwrap();
        }
        let before = cluster.inner.images.load(Ordering::SeqCst);
        cluster.start(copy);
        cluster.inner.set_state(copy, ServerState::Up);
        cluster.inner.follow();
        cluster.stores().iter().for_each(|store| drop(store.peer(copy, &PeerRequest::CatchUp).unwrap()));
        let images = cluster.inner.images.load(Ordering::SeqCst) - before;
        assert_eq!(images > 0, by_image, "{images} parts of images after {missed} records");
        // From now on it is waited for, although the map does not call it a holder yet.
        client.send(root_shard(), &make("one more"), &[]).unwrap();
        let primary = cluster.inner.primary(root_shard());
        let image = |id| cluster.store(id).unwrap().image(root_shard());
        assert_eq!(image(copy), image(primary));
        cluster.is_in_step(copy);
        cluster.kill(primary);
        cluster.inner.failover();
        assert_eq!(client.names("").unwrap().len(), missed + 2);
        cluster.check_copies();
    }
}

/// A copy that cannot be reached holds changes up until the map says that it is down, and then no longer.
#[test]
fn a_copy_that_does_not_answer_is_waited_for_until_it_is_declared_down() {
    let cluster = Cluster::replicated(3, 3);
    let client = Client::new(&cluster);
    let copy = cluster.inner.holders_of(root_shard())[2];
    cluster.inner.cut_off.lock().unwrap().push(copy);
    std::thread::scope(|scope| {
        let making = scope.spawn(|| client.send(root_shard(), &make("file"), &[]));
        std::thread::sleep(Duration::from_millis(200));
        // Nobody sees what is not everywhere.
        let other = Client::new(&cluster);
        let looking = scope.spawn(move || other.lookup(Dir { ino: Ino::ROOT, split: false }, "file"));
        std::thread::sleep(Duration::from_millis(200));
        let too_early = making.is_finished() || looking.is_finished();
        // Before anything is judged: a thread that waits would never end.
        cluster.inner.set_state(copy, ServerState::Down);
        assert!(!too_early);
        making.join().unwrap().unwrap();
        assert!(looking.join().unwrap().is_ok());
    });
    cluster.inner.cut_off.lock().unwrap().clear();
    cluster.kill(copy);
    cluster.come_back(copy);
    cluster.check_copies();
}

/// All are killed and started again on their logs.
#[test]
fn all_copies_come_back_from_their_logs() {
    let cluster = Cluster::replicated(3, 2);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    for n in 0..200 {
        client.put(&format!("d/{n}"), b"content").unwrap();
    }
    (0..3).for_each(|id| cluster.kill(ServerId(id)));
    (0..3).for_each(|id| cluster.start(ServerId(id)));
    cluster.inner.follow();
    assert_eq!(client.names("d").unwrap().len(), 200);
    assert_eq!(client.get("d/7").unwrap(), b"content");
    cluster.check_copies();
}

/// Many clients at once: each change is on all copies when it is answered.
#[test]
fn changes_of_many_clients_go_to_the_copies_together() {
    let cluster = Cluster::replicated(3, 3);
    std::thread::scope(|scope| {
        for who in 0..8 {
            let client = Client::new(&cluster);
            scope.spawn(move || {
                for n in 0..100 {
                    client.put(&format!("file {who} {n}"), b"x").unwrap();
                }
            });
        }
    });
    let client = Client::new(&cluster);
    assert_eq!(client.names("").unwrap().len(), 800);
    let asked = |reply| matches!(reply, Reply::Meta(MetaReply::Attr(_)));
    assert!(asked(client.inode(Ino::ROOT, MetaRequest::GetAttr { ino: Ino::ROOT }, &[]).unwrap().0));
    cluster.kill(ServerId(0));
    cluster.inner.failover();
    assert_eq!(client.names("").unwrap().len(), 800);
    cluster.check_copies();
}

/// What only this can find: a copy that has taken in something else than its primary has sent.
#[test]
fn a_copy_that_differs_is_found_and_replaced() {
    let cluster = Cluster::replicated(3, 2);
    let client = Client::new(&cluster);
    for n in 0..20 {
        client.put(&format!("file{n}"), b"text").unwrap();
    }
    let all: Vec<ShardId> = (0..bivouac_layout::SHARDS).map(ShardId).collect();
    let compare = |repairs| {
        let stores = cluster.stores();
        let mut sum = ShardsCompared::default();
        for compared in stores.iter().map(|store| store.compare_copies(&all, repairs)) {
            sum.compared += compared.compared;
            sum.skipped += compared.skipped;
            sum.differ.extend(compared.differ);
        }
        sum
    };
    let same = ShardsCompared { compared: u64::from(bivouac_layout::SHARDS), ..ShardsCompared::default() };
    assert_eq!(compare(true), same);
    cluster.inner.spoils.store(true, Ordering::SeqCst);
    let ino = client.put("spoilme", b"").unwrap();
    cluster.inner.spoils.store(false, Ordering::SeqCst);
    let [_, copy] = cluster.inner.holders_of(ino.shard())[..] else { panic!("two copies") };
    let differ = |outcome| vec![(ino.shard(), copy, outcome)];
    assert_eq!(compare(false).differ, differ(Outcome::Seen));
    assert_eq!(compare(true).differ, differ(Outcome::Repaired));
    assert_eq!(compare(true), same);
    cluster.check_copies();
}

#[test]
fn a_log_that_changed_behind_the_servers_back_is_written_anew() {
    let cluster = Cluster::replicated(2, 2);
    let client = Client::new(&cluster);
    for n in 0..20 {
        client.put(&format!("file{n}"), b"text").unwrap();
    }
    let store = cluster.store(ServerId(0)).unwrap();
    let check = |repairs| {
        let all = (0..store.logs()).map(|number| store.check_log(number, repairs).1);
        all.enumerate().filter_map(|(number, found)| Some((number, found?))).collect::<Vec<_>>()
    };
    assert_eq!(check(true), []);
    let path = cluster.dir(ServerId(0)).join("partition-07.log");
    for at in (0..path.metadata().unwrap().len()).step_by(41) {
        let mut bytes = std::fs::read(&path).unwrap();
        let Some(byte) = bytes.get_mut(at as usize) else { break };
        *byte ^= 1;
        // In place: the server has the file open.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&bytes, 0).unwrap();
        assert_eq!(check(false), [(7, Outcome::Seen)], "byte {at}");
        assert_eq!(check(true), [(7, Outcome::Repaired)], "byte {at}");
    }
    assert_eq!(check(true), []);
    drop(store);
    cluster.restart(ServerId(0));
}
