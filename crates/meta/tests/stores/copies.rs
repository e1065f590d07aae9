//! Metadata with copies: what a failover must keep, and what it must not.

use crate::common::Cluster;
use crate::common::client::{Client, Dir};
use bivouac_layout::{Ino, ServerId, ServerState, ShardId};
use bivouac_meta::ShardsCompared;
use bivouac_proto::meta::{At, Create, LockOwner, LockRange, MetaReply, MetaRequest, OpenHow, RenameMode};
use bivouac_proto::peer::{IntentId, PeerRequest, Step};
use bivouac_proto::status::Failure;
use bivouac_proto::verify::Outcome;
use bivouac_proto::{Errno, FileKind, Refusal, Reply};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

fn root_shard() -> ShardId {
    Ino::ROOT.shard()
}

fn make(name: &str) -> MetaRequest<'_> {
    make_at(At { dir: Ino::ROOT, split: false, name: name.as_bytes() })
}

fn make_at(at: At<'_>) -> MetaRequest<'_> {
    MetaRequest::MakeNode { at, kind: FileKind::File, mode: 0o644, target: &[] }
}

fn lock(ino: Ino, session: u64) -> MetaRequest<'static> {
    let owner = LockOwner::Process { session, pid: 1 };
    let range = LockRange { start: 0, end: 10, exclusive: true };
    MetaRequest::Lock { ino, owner, range, wait_ms: 0 }
}

/// The answer to a change is lost with the server that gave it, and the same is asked for at the next primary.
#[test]
fn a_create_rename_unlink_or_append_that_is_repeated_at_a_new_primary_is_done_once() {
    type Again = Result<(), Errno>;
    type Change<'c> = &'c dyn for<'a> Fn(&'a Client, At<'a>) -> MetaRequest<'a>;
    let repeat = |copies: u16, path: &str, change: Change<'_>, again: Again| {
        let cluster = Cluster::replicated(4, copies);
        let client = Client::new(&cluster);
        ["a", "b"].iter().for_each(|dir| client.mkdir(dir).unwrap());
        ["file", "a/file"].iter().for_each(|file| _ = client.put(file, b"content").unwrap());
        let (dir, name) = client.place(path).unwrap();
        let at = At { dir: dir.ino, split: dir.split, name: name.as_bytes() };
        let (id, request, shard) = (client.next_id(), change(&client, at), dir.ino.shard());
        let send = |id| client.send_as(id, shard, &request, &[]);
        let first = send(id).unwrap();
        cluster.kill(cluster.inner.primary(shard));
        cluster.inner.failover();
        let second = send(id).unwrap_or_else(|failure| panic!("{request:?}: {failure:?}"));
        // What clients keep of it may go along with the first answer only.
        let is_same = matches!((&first.0, &second.0), (Reply::Done | Reply::Changed(..), Reply::Done))
            || first.0 == second.0;
        assert!(is_same, "{request:?}: {first:?} {second:?}");
        // Somebody else who asks for the same finds that it is done.
        let other = send(client.next_id()).map(drop).map_err(|failure| match failure {
            Failure::Errno(errno) => errno,
            refused => panic!("{request:?}: {refused:?}"),
        });
        assert_eq!(other, again, "{request:?}");
        cluster.check_copies();
        (client.names("").unwrap(), client.names("a").unwrap(), client.names("b").unwrap())
    };
    let how =
        OpenHow { write: true, create: Some(Create { mode: 0o644, exclusive: true }), ..OpenHow::default() };
    for copies in [2, 3] {
        let (names, ..) = repeat(copies, "new", &|_, at| make_at(at), Err(Errno::EXIST));
        assert_eq!(names, ["a", "b", "file", "new"]);
        let (names, ..) = repeat(
            copies,
            "new",
            &|client, at| MetaRequest::Open { at, how, open: client.open_id() },
            Err(Errno::EXIST),
        );
        assert_eq!(names, ["a", "b", "file", "new"]);
        let (_, names, _) =
            repeat(copies, "a/new", &|_, at| MetaRequest::Mkdir { at, mode: 0o755 }, Err(Errno::EXIST));
        assert_eq!(names, ["file", "new"]);
        let (_, names, _) = repeat(
            copies,
            "a/new",
            &|client, at| MetaRequest::Link { ino: client.stat("file").unwrap().ino, at },
            Err(Errno::EXIST),
        );
        assert_eq!(names, ["file", "new"]);
        let (names, ..) = repeat(copies, "file", &|_, at| MetaRequest::Unlink { at }, Err(Errno::NOENT));
        assert_eq!(names, ["a", "b"]);
        for target in ["new", "b/new"] {
            let (_, from, _) = repeat(
                copies,
                "a/file",
                &|client, from| {
                    let (dir, name) = client.place(target).unwrap();
                    let to = At { dir: dir.ino, split: dir.split, name: name.as_bytes() };
                    MetaRequest::Rename { from, to, mode: RenameMode::Replace }
                },
                Err(Errno::NOENT),
            );
            assert_eq!(from, [""; 0]);
        }
    }
    // Appends to files in blocks, at each step: tests/appends.rs.
    let cluster = Cluster::replicated(3, 2);
    let client = Client::new(&cluster);
    let ino = client.put("log", b"begin").unwrap();
    let (id, request) = (client.next_id(), MetaRequest::Append { ino });
    client.send_as(id, ino.shard(), &request, b", once").unwrap();
    cluster.kill(cluster.inner.primary(ino.shard()));
    cluster.inner.failover();
    client.send_as(id, ino.shard(), &request, b", once").unwrap();
    assert_eq!(client.get("log").unwrap(), b"begin, once");
}

/// Who waits for something in a shard that another server answers for by then is told so, and asks that one.
#[test]
fn operations_do_not_wait_at_a_server_whose_shard_has_moved() {
    for what in ["rename", "link", "unlink", "rmdir"] {
        let cluster = Cluster::replicated_with(3, 2, |options| options.patience = Duration::from_secs(20));
        let client = Client::new(&cluster);
        client.mkdir("dir").unwrap();
        let ino = client.put("f", b"content").unwrap();
        let (root, _) = client.place("f").unwrap();
        let at = |name| At { dir: root.ino, split: root.split, name };
        let (request, held): (MetaRequest<'_>, &[u8]) = match what {
            "rename" => {
                (MetaRequest::Rename { from: at(b"f"), to: at(b"g"), mode: RenameMode::Replace }, b"f")
            }
            "link" => (MetaRequest::Link { ino, at: at(b"g") }, b"g"),
            "unlink" => (MetaRequest::Unlink { at: at(b"f") }, b"f"),
            _ => (MetaRequest::Rmdir { at: at(b"dir") }, b"dir"),
        };
        // Somebody else holds the name.
        let shard = root_shard();
        let (primary, intent) = (cluster.inner.primary(shard), IntentId { shard: ShardId(77), number: 1 });
        let (dir, name) = (root.ino, held.to_vec());
        let step = match held {
            b"g" => Step::PutEntry { dir, name, ino, kind: FileKind::File, replace: None },
            b"f" => Step::RemoveEntry { dir, name, ino },
            _ => Step::RemoveEntry { dir, name, ino: client.stat("dir").unwrap().ino },
        };
        let other =
            cluster.inner.map().servers.iter().map(|server| server.id).find(|id| *id != primary).unwrap();
        let prepare = PeerRequest::Prepare { intent, shard, steps: vec![step] };
        cluster.store(primary).unwrap().peer(other, &prepare).unwrap();
        let begun = Instant::now();
        let took = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let answer = client.send_to(primary, client.next_id(), shard, &request, &[]);
                (answer, begun.elapsed())
            });
            std::thread::sleep(Duration::from_millis(200));
            assert!(!waits.is_finished(), "{what} does not wait for who holds the name");
            cluster.inner.set_state(primary, ServerState::Down);
            cluster.inner.follow();
            let (answer, took) = waits.join().unwrap();
            assert!(matches!(answer, Err(Failure::Refused(Refusal::Busy))), "{what}: {answer:?}");
            took
        });
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");
    }
}

/// A server takes a shard over, and another one has done so by a newer map meanwhile. A refusal would have it ask again and
/// again, and take over nothing by the newest map until it gives that up.
#[test]
fn who_takes_a_shard_over_too_late_gets_an_error_and_no_refusal() {
    let cluster = Cluster::replicated(3, 2);
    let client = Client::new(&cluster);
    client.put("f", b"content").unwrap();
    let shard = root_shard();
    let old = cluster.inner.primary(shard);
    let term = cluster.inner.map().epoch.0;
    cluster.kill(old);
    cluster.inner.failover();
    client.put("g", b"content").unwrap();
    let primary = cluster.inner.primary(shard);
    assert_ne!(primary, old);
    let supply = PeerRequest::Supply { shard, term, to: old, from: Default::default() };
    let answer = cluster.store(primary).unwrap().peer(old, &supply);
    assert_eq!(answer.unwrap_err(), Failure::Errno(Errno::STALE));
}

/// What fails because another server answers for the shard by now was not tried by that one.
#[test]
fn who_was_replaced_in_the_middle_of_a_truncation_does_not_say_that_it_failed() {
    let cluster = Cluster::replicated(3, 2);
    let client = Client::new(&cluster);
    let (attr, _) = client.create("f", true).unwrap();
    let ino = attr.ino;
    client.inode(ino, MetaRequest::Spill { ino }, &[]).unwrap();
    let old = cluster.inner.primary(ino.shard());
    let ((here, is_here), (leave, has_leave)) = (channel(), channel());
    *cluster.inner.data_pause.lock().unwrap() = Some((here, has_leave));
    let (cut, id) = (MetaRequest::Truncate { ino, size: 5 }, client.next_id());
    std::thread::scope(|scope| {
        let truncating = scope.spawn(|| client.send_to(old, id, ino.shard(), &cut, &[]));
        is_here.recv().unwrap();
        // It does not follow this map yet. Others refuse what it asks for.
        cluster.inner.set_state(old, ServerState::Down);
        *cluster.inner.data_fault.lock().unwrap() = Some((None, Errno::IO));
        leave.send(()).unwrap();
        let answer = truncating.join().unwrap();
        assert_eq!(answer.unwrap_err(), Failure::Refused(Refusal::Busy));
    });
    *cluster.inner.data_fault.lock().unwrap() = None;
    cluster.inner.follow();
    cluster.inner.set_state(old, ServerState::Up);
    cluster.inner.follow();
    client.truncate(ino, 5).unwrap();
    assert_eq!(client.attr(ino).unwrap().size, 5);
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

#[test]
fn a_server_that_stops_does_not_wait_for_a_copy_that_does_not_answer_and_the_change_is_made_once() {
    let cluster = Cluster::replicated(2, 2);
    let client = Client::new(&cluster);
    let shard = root_shard();
    let (stops, silent) = {
        let holders = cluster.inner.holders_of(shard);
        let primary = cluster.inner.primary(shard);
        (primary, *holders.iter().find(|holder| **holder != primary).unwrap())
    };
    // Nobody has said that it is down.
    cluster.inner.cut_off.lock().unwrap().push(silent);
    let (id, request) = (client.next_id(), make("new"));
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| client.send_to(stops, id, shard, &request, &[]));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!asks.is_finished(), "what only one copy has was acknowledged");
        cluster.store(stops).unwrap().stop_waiting();
        assert_eq!(asks.join().unwrap(), Err(Failure::Refused(Refusal::OldServer)));
    });
    cluster.restart(stops);
    cluster.inner.cut_off.lock().unwrap().clear();
    let answer = client.send_as(id, shard, &request, &[]).unwrap();
    assert!(matches!(answer.0, Reply::Meta(MetaReply::Entry { .. }) | Reply::Changed(..)), "{answer:?}");
    let again = client.send(shard, &request, &[]);
    assert_eq!(again.map(drop), Err(Failure::Errno(Errno::EXIST)));
    cluster.check_copies();
}
