//! Opens, locks, repeated requests, and what a store makes of its logs.

use crate::common::client::Client;
use crate::common::{Cluster, DEPLOYMENT, Port};
use bivouac_layout::namespace::entry_shard;
use bivouac_layout::{Ino, NodeId, ServerId};
use bivouac_meta::{MetaStore, OpenError, Options};
use bivouac_proto::header::{OpenId, RequestId};
use bivouac_proto::meta::{
    At, Create, LockOwner, LockRange, MetaReply, MetaRequest, OpenHow, RenameMode, Reopened, XattrMode,
};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, FileKind, Reply};
use bivouac_testing::{HANG, eventually, is_quick};
use std::time::{Duration, Instant};

const EXCLUSIVE: LockRange = LockRange { start: 0, end: u64::MAX, exclusive: true };

fn process(session: u64) -> LockOwner {
    LockOwner::Process { session, pid: 100 + session as u32 }
}

fn lock(client: &Client, ino: Ino, owner: LockOwner, range: LockRange, wait_ms: u32) -> Result<(), Errno> {
    client.inode(ino, MetaRequest::Lock { ino, owner, range, wait_ms }, &[]).map(drop)
}

/// The longest turn of a wait for a lock, in milliseconds.
const TURN: u32 = 1000;

/// Waits for a lock turn after turn, as clients do. (A deadlock is [`wait_until_waiting`]'s doing.)
fn wait_for_lock(cluster: &Cluster, ino: Ino, owner: LockOwner) -> Result<(), Errno> {
    let (client, begun) = (Client::new(cluster), Instant::now());
    loop {
        let result = lock(&client, ino, owner, EXCLUSIVE, TURN);
        if !matches!(result, Err(Errno::AGAIN | Errno::DEADLK)) || begun.elapsed() > HANG {
            return result;
        }
    }
}

/// Waits until a process waits for another, the holder: that one would close a circle if it waited for the
/// waiter.
fn wait_until_waiting(client: &Client, holder: u64, waiter: u64) {
    let probe = client.put("probe", b"").unwrap();
    lock(client, probe, process(waiter), EXCLUSIVE, 0).unwrap();
    eventually("it waits", || lock(client, probe, process(holder), EXCLUSIVE, 1) == Err(Errno::DEADLK));
    let unlock = MetaRequest::Unlock { ino: probe, owner: process(waiter), start: 0, end: u64::MAX };
    client.inode(probe, unlock, &[]).unwrap();
    client.unlink("probe").unwrap();
}

fn inodes(cluster: &Cluster) -> u64 {
    cluster.stores().iter().map(|s| s.counts().inodes).sum()
}

#[test]
fn an_unlinked_open_file_can_be_used_until_its_last_close_also_over_a_restart() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let (attr, first) = client.create("f", true).unwrap();
    let (_, second, _) = client.open("f", OpenHow { read: true, ..OpenHow::default() }).unwrap();
    let ino = attr.ino;
    client.inode(ino, MetaRequest::WriteInline { ino, offset: 0 }, b"still here").unwrap();
    client.unlink("f").unwrap();
    assert_eq!(client.attr(ino).unwrap().nlink, 0);
    client.release(ino, first, None).unwrap();
    cluster.restart(ServerId(0));
    let (_, data) = client.inode(ino, MetaRequest::ReadInline { ino, offset: 0, len: 100 }, &[]).unwrap();
    assert_eq!(data, b"still here");
    client.release(ino, second, None).unwrap();
    assert_eq!(client.attr(ino), Err(Errno::NOENT));
    assert_eq!(inodes(&cluster), 1);
    cluster.restart(ServerId(0));
    assert_eq!(inodes(&cluster), 1);
}

#[test]
fn rename_over_an_open_file_keeps_its_reader() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    client.put("new", b"new").unwrap();
    let old = client.put("d/old", b"old").unwrap();
    let (_, open, _) = client.open("d/old", OpenHow { read: true, ..OpenHow::default() }).unwrap();
    client.rename("new", "d/old", RenameMode::Replace).unwrap();
    assert_eq!(client.get("d/old").unwrap(), b"new");
    let (_, data) = client.inode(old, MetaRequest::ReadInline { ino: old, offset: 0, len: 9 }, &[]).unwrap();
    assert_eq!(data, b"old");
    client.release(old, open, None).unwrap();
    assert_eq!(client.attr(old), Err(Errno::NOENT));
}

#[test]
fn opens_can_be_registered_again_within_the_grace_time_and_what_nobody_claims_goes() {
    let grace = Duration::from_secs(3);
    let cluster = Cluster::with(1, |options| options.grace = grace);
    let client = Client::new(&cluster);
    let (claimed, open) = client.create("claimed", true).unwrap();
    let (lost, _) = client.create("lost", true).unwrap();
    let restarted = Instant::now();
    cluster.restart(ServerId(0));
    // Unlinked before the agents have said what is open.
    client.unlink("claimed").unwrap();
    client.unlink("lost").unwrap();
    let ino = claimed.ino;
    client.inode(ino, MetaRequest::Reopen { ino, open, write: true }, &[]).unwrap();
    cluster.store(ServerId(0)).unwrap().keep();
    assert_eq!(client.attr(lost.ino).unwrap().nlink, 0);
    eventually("what nobody claims goes", || {
        cluster.store(ServerId(0)).unwrap().keep();
        client.attr(lost.ino) == Err(Errno::NOENT)
    });
    assert!(restarted.elapsed() >= grace);
    assert_eq!(client.attr(ino).unwrap().nlink, 0);
    client.release(ino, open, None).unwrap();
    assert_eq!(client.attr(ino), Err(Errno::NOENT));
}

#[test]
fn what_nodes_report_stays_and_what_no_node_does_goes_at_once() {
    // Longer than any test: only reports end it.
    let cluster = Cluster::with(1, |options| options.grace = Duration::from_secs(3600));
    let client = Client::new(&cluster);
    let server = ServerId(0);
    let report = |opens: Vec<Reopened>, more| {
        let request = MetaRequest::Report {
            node: NodeId(0),
            start: client.start(Ino::ROOT.shard()),
            epoch: bivouac_layout::Epoch(0),
            opens,
            more,
        };
        client.send(Ino::ROOT.shard(), &request, &[]).unwrap();
    };
    let orphan = |name: &str| {
        let (attr, open) = client.create(name, true).unwrap();
        client.unlink(name).unwrap();
        Reopened { ino: attr.ino, open, write: true, append: false }
    };
    let (held, dropped) = (orphan("held"), orphan("dropped"));
    let (linked, open) = client.create("linked", true).unwrap();
    cluster.restart(server);
    report(vec![held], true);
    cluster.store(server).unwrap().keep();
    assert_eq!(client.attr(dropped.ino).unwrap().nlink, 0, "there may be more to come");
    // An inode that is gone, and one of another server's shard, are nobody's mistake.
    let gone = Reopened { ino: Ino::new(Ino::ROOT.shard(), 1 << 30), ..held };
    report(vec![gone, Reopened { ino: linked.ino, open, write: true, append: false }], false);
    cluster.store(server).unwrap().keep();
    assert_eq!(client.attr(dropped.ino), Err(Errno::NOENT));
    assert_eq!(client.attr(held.ino).unwrap().nlink, 0);
    client.unlink("linked").unwrap();
    assert_eq!(client.attr(linked.ino).unwrap().nlink, 0);
    client.release(linked.ino, open, None).unwrap();
    assert_eq!(client.attr(linked.ino), Err(Errno::NOENT));
    client.release(held.ino, held.open, None).unwrap();
    assert_eq!(client.attr(held.ino), Err(Errno::NOENT));
}

#[test]
fn who_does_not_report_in_time_keeps_what_the_log_says_until_he_does() {
    let cluster = Cluster::with(1, |options| options.grace = Duration::from_millis(1));
    let client = Client::new(&cluster);
    let (attr, _) = client.create("f", true).unwrap();
    client.unlink("f").unwrap();
    cluster.restart(ServerId(0));
    std::thread::sleep(Duration::from_millis(2));
    cluster.store(ServerId(0)).unwrap().keep();
    assert_eq!(client.attr(attr.ino).unwrap().nlink, 0, "its node may only be slow");
    let request = MetaRequest::Report {
        node: NodeId(0),
        start: client.start(Ino::ROOT.shard()),
        epoch: bivouac_layout::Epoch(0),
        opens: Vec::new(),
        more: false,
    };
    client.send(Ino::ROOT.shard(), &request, &[]).unwrap();
    cluster.store(ServerId(0)).unwrap().keep();
    assert_eq!(client.attr(attr.ino), Err(Errno::NOENT));
}

#[test]
fn a_removed_directory_that_is_open_is_empty_and_takes_no_entries() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    let dir = client.dir("d").unwrap();
    let (attr, open, _) = client.open("d", OpenHow { read: true, ..OpenHow::default() }).unwrap();
    client.rmdir("d").unwrap();
    assert_eq!(client.attr(attr.ino).unwrap().nlink, 0);
    assert_eq!(client.list_dir(dir, 10).unwrap(), []);
    let make = |at| MetaRequest::MakeNode { at, kind: FileKind::File, mode: 0o600, target: &[] };
    assert_eq!(client.entry(dir, "x", make, &[]).map(drop), Err(Errno::NOENT));
    client.release(attr.ino, open, None).unwrap();
    assert_eq!(client.attr(attr.ino), Err(Errno::NOENT));
}

#[test]
fn a_repeated_request_is_answered_and_not_done_again_also_after_a_restart() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let root = Ino::ROOT.shard();
    let at = |name| At { dir: Ino::ROOT, split: false, name };
    let open = client.open_id();
    let how =
        OpenHow { create: Some(Create { mode: 0o600, exclusive: true }), write: true, ..OpenHow::default() };
    let requests = [
        MetaRequest::Open { at: at(b"f"), how, open },
        MetaRequest::Mkdir { at: at(b"d"), mode: 0o700 },
        MetaRequest::MakeNode { at: at(b"s"), kind: FileKind::Symlink, mode: 0, target: b"x" },
        MetaRequest::Rename { from: at(b"f"), to: at(b"g"), mode: RenameMode::NoReplace },
        MetaRequest::Rename { from: at(b"d"), to: at(b"e"), mode: RenameMode::NoReplace },
        MetaRequest::Rmdir { at: at(b"e") },
        MetaRequest::Unlink { at: at(b"s") },
    ];
    for request in &requests {
        let id = client.next_id();
        let first = client.send_as(id, root, request, &[]).unwrap();
        assert_eq!(client.send_as(id, root, request, &[]).unwrap(), first);
        cluster.restart(cluster.inner.map().primary(root));
        assert_eq!(client.send_as(id, root, request, &[]).unwrap(), first, "{request:?}");
        // Nobody awaits an answer to an older one, and it is not done.
        let stale = RequestId { sequence: id.sequence - 1, ..id };
        assert!(client.send_as(stale, root, request, &[]).is_err());
    }
    assert_eq!(client.names("").unwrap(), ["g"]);
}

#[test]
fn a_request_repeated_while_it_is_under_way_is_done_once() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    for round in 0..30 {
        let name = format!("d{round}");
        let at = At { dir: Ino::ROOT, split: false, name: name.as_bytes() };
        let request = MetaRequest::Mkdir { at, mode: 0o700 };
        let id = client.next_id();
        std::thread::scope(|scope| {
            let send = || client.send_as(id, Ino::ROOT.shard(), &request, &[]);
            let (one, two) = (scope.spawn(send), scope.spawn(send));
            let (one, two) = (one.join().unwrap().unwrap(), two.join().unwrap().unwrap());
            assert_eq!(one, two);
        });
    }
    assert_eq!(inodes(&cluster), 31);
}

#[test]
fn a_closing_description_and_an_ending_process_give_their_locks_up() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let (attr, open) = client.create("f", true).unwrap();
    let ino = attr.ino;
    lock(&client, ino, LockOwner::Description(open), EXCLUSIVE, 0).unwrap();
    assert_eq!(lock(&client, ino, process(1), EXCLUSIVE, 0), Err(Errno::AGAIN));
    let test = MetaRequest::TestLock { ino, owner: process(1), range: EXCLUSIVE };
    let (reply, _) = client.inode(ino, test, &[]).unwrap();
    assert_eq!(reply, Reply::Meta(MetaReply::Conflict(Some((LockOwner::Description(open), EXCLUSIVE)))));
    client.release(ino, open, None).unwrap();
    lock(&client, ino, process(1), EXCLUSIVE, 0).unwrap();
    assert_eq!(lock(&client, ino, process(2), EXCLUSIVE, 0), Err(Errno::AGAIN));
    client.inode(ino, MetaRequest::EndSession { session: 1 }, &[]).unwrap();
    lock(&client, ino, process(2), EXCLUSIVE, 0).unwrap();
}

#[test]
fn who_waits_for_a_lock_gets_it_when_it_is_free_and_eagain_when_it_never_is() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let ino = client.put("f", b"").unwrap();
    lock(&client, ino, process(1), EXCLUSIVE, 0).unwrap();
    let started = Instant::now();
    assert_eq!(lock(&client, ino, process(2), EXCLUSIVE, 50), Err(Errno::AGAIN));
    assert!(started.elapsed() >= Duration::from_millis(50));
    let unlock = |session| MetaRequest::Unlock { ino, owner: process(session), start: 0, end: u64::MAX };
    // Woken, and not at the end of its turn.
    assert!(is_quick(Duration::from_millis(700), || {
        let took = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait_for_lock(&cluster, ino, process(2)));
            wait_until_waiting(&client, 1, 2);
            let free = Instant::now();
            client.inode(ino, unlock(1), &[]).unwrap();
            waiter.join().unwrap().unwrap();
            free.elapsed()
        });
        client.inode(ino, unlock(2), &[]).unwrap();
        lock(&client, ino, process(1), EXCLUSIVE, 0).unwrap();
        took
    }));
    client.inode(ino, unlock(1), &[]).unwrap();
    lock(&client, ino, process(2), EXCLUSIVE, 0).unwrap();
    // A process that ended while it waited does not get one.
    let result = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_lock(&cluster, ino, process(3)));
        wait_until_waiting(&client, 2, 3);
        client.inode(ino, MetaRequest::EndSession { session: 3 }, &[]).unwrap();
        client.inode(ino, MetaRequest::EndSession { session: 2 }, &[]).unwrap();
        waiter.join().unwrap()
    });
    assert!(result.is_err());
    lock(&client, ino, process(4), EXCLUSIVE, 0).unwrap();
}

#[test]
fn nothing_waits_at_a_server_that_stops() {
    assert!(is_quick(Duration::from_millis(700), || {
        let cluster = Cluster::new(1);
        let client = Client::new(&cluster);
        let ino = client.put("f", b"").unwrap();
        lock(&client, ino, process(1), EXCLUSIVE, 0).unwrap();
        // A deadlock is `wait_until_waiting`'s doing.
        let turn = || lock(&Client::new(&cluster), ino, process(2), EXCLUSIVE, TURN);
        let wait = || std::iter::repeat_with(turn).find(|result| *result != Err(Errno::DEADLK));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(wait);
            wait_until_waiting(&client, 1, 2);
            let stopped = Instant::now();
            cluster.stores().iter().for_each(|store| store.stop_waiting());
            assert_eq!(waiter.join().unwrap(), Some(Err(Errno::AGAIN)));
            assert_eq!(wait(), Some(Err(Errno::AGAIN)));
            stopped.elapsed()
        })
    }));
}

#[test]
fn a_cancelled_wait_ends_at_once_and_leaves_nothing_behind() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let ino = client.put("f", b"").unwrap();
    let cancel = || {
        let cancel = MetaRequest::CancelLock { ino, owner: process(2), range: EXCLUSIVE };
        client.inode(ino, cancel, &[]).unwrap();
    };
    lock(&client, ino, process(1), EXCLUSIVE, 0).unwrap();
    assert!(is_quick(Duration::from_millis(500), || {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait_for_lock(&cluster, ino, process(2)));
            wait_until_waiting(&client, 1, 2);
            let started = Instant::now();
            cancel();
            assert_eq!(waiter.join().unwrap(), Err(Errno::INTR));
            started.elapsed()
        })
    }));
    // The request may come after its cancellation; a later one waits again.
    cancel();
    assert_eq!(lock(&client, ino, process(2), EXCLUSIVE, 1000), Err(Errno::INTR));
    assert_eq!(lock(&client, ino, process(2), EXCLUSIVE, 20), Err(Errno::AGAIN));
    // One that gets its lock has used its cancellation up.
    cancel();
    let unlock = |session| MetaRequest::Unlock { ino, owner: process(session), start: 0, end: u64::MAX };
    client.inode(ino, unlock(1), &[]).unwrap();
    lock(&client, ino, process(2), EXCLUSIVE, 1000).unwrap();
    client.inode(ino, unlock(2), &[]).unwrap();
    lock(&client, ino, process(1), EXCLUSIVE, 0).unwrap();
    assert_eq!(lock(&client, ino, process(2), EXCLUSIVE, 20), Err(Errno::AGAIN));
}

#[test]
fn a_circle_of_waiting_processes_is_a_deadlock() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let (a, b) = (client.put("a", b"").unwrap(), client.put("b", b"").unwrap());
    lock(&client, a, process(1), EXCLUSIVE, 0).unwrap();
    lock(&client, b, process(2), EXCLUSIVE, 0).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_lock(&cluster, b, process(1)));
        // Before it waits, there is no circle yet.
        eventually("a deadlock", || match lock(&client, a, process(2), EXCLUSIVE, 1) {
            Err(Errno::AGAIN) => false,
            result => {
                assert_eq!(result, Err(Errno::DEADLK));
                true
            }
        });
        client.inode(b, MetaRequest::EndSession { session: 2 }, &[]).unwrap();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn of_two_who_share_a_flock_and_want_it_alone_both_get_it_in_turns() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let (_, first, _) =
        client.open("f", OpenHow { create: Some(Create::default()), ..OpenHow::default() }).unwrap();
    let (attr, second, _) = client.open("f", OpenHow { read: true, ..OpenHow::default() }).unwrap();
    let (ino, owners) = (attr.ino, [first, second].map(LockOwner::Flock));
    let shared = LockRange { exclusive: false, ..EXCLUSIVE };
    owners.iter().for_each(|owner| lock(&client, ino, *owner, shared, 0).unwrap());
    std::thread::scope(|scope| {
        for owner in owners {
            let cluster = &cluster;
            scope.spawn(move || {
                let client = Client::new(cluster);
                if lock(&client, ino, owner, EXCLUSIVE, 0) == Err(Errno::AGAIN) {
                    lock(&client, ino, owner, EXCLUSIVE, 1000).unwrap();
                }
                let unlock = MetaRequest::Unlock { ino, owner, start: 0, end: u64::MAX };
                client.inode(ino, unlock, &[]).unwrap();
            });
        }
    });
}

#[test]
fn processes_that_take_turns_are_no_deadlock() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let ino = client.put("f", b"").unwrap();
    std::thread::scope(|scope| {
        for session in 1..=4 {
            let cluster = &cluster;
            scope.spawn(move || {
                let client = Client::new(cluster);
                for turn in 0..500 {
                    let result = lock(&client, ino, process(session), EXCLUSIVE, 1000);
                    assert_eq!(result, Ok(()), "process {session}, turn {turn}");
                    let unlock =
                        MetaRequest::Unlock { ino, owner: process(session), start: 0, end: u64::MAX };
                    client.inode(ino, unlock, &[]).unwrap();
                }
            });
        }
    });
}

#[test]
fn extended_attributes_keep_their_values_modes_and_limits() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let ino = client.put("f", b"").unwrap();
    let set = |name: &[u8], mode, value: &[u8]| {
        client.inode(ino, MetaRequest::SetXattr { ino, name, mode }, value).map(drop)
    };
    let get =
        |name: &[u8]| client.inode(ino, MetaRequest::GetXattr { ino, name }, &[]).map(|(_, value)| value);
    set(b"user.b", XattrMode::Create, b"two").unwrap();
    set(b"user.a", XattrMode::Set, b"one").unwrap();
    assert_eq!(set(b"user.a", XattrMode::Create, b""), Err(Errno::EXIST));
    assert_eq!(set(b"user.c", XattrMode::Replace, b""), Err(Errno::NODATA));
    set(b"user.a", XattrMode::Replace, b"").unwrap();
    assert_eq!(set(b"user.big", XattrMode::Set, &vec![0; 65_537]), Err(Errno::TOOBIG));
    set(b"user.big", XattrMode::Set, &vec![1; 65_000]).unwrap();
    assert_eq!(set(b"user.more", XattrMode::Set, &vec![1; 2000]), Err(Errno::NOSPC));
    assert_eq!(set(b"system.posix_acl_access", XattrMode::Set, b""), Err(Errno::OPNOTSUPP));
    cluster.restart(ServerId(0));
    assert_eq!((get(b"user.a").unwrap(), get(b"user.b").unwrap()), (vec![], b"two".to_vec()));
    let (_, names) = client.inode(ino, MetaRequest::ListXattr { ino }, &[]).unwrap();
    assert_eq!(names, b"user.a\0user.b\0user.big\0");
    client.inode(ino, MetaRequest::RemoveXattr { ino, name: b"user.a" }, &[]).unwrap();
    assert_eq!(get(b"user.a"), Err(Errno::NODATA));
}

/// A log is cut at every byte of its last records: what is left is the state after some operation, never a
/// mixture.
#[test]
fn a_log_torn_at_any_byte_gives_the_state_after_a_whole_operation() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    client.put("kept", b"kept").unwrap();
    let log = cluster.dir(ServerId(0)).join("partition-00.log");
    let size = || std::fs::metadata(&log).unwrap().len();
    let root = |name| At { dir: Ino::ROOT, split: false, name };
    let start = size();
    let mut states = vec![(start, client.names("").unwrap())];
    let requests = [
        MetaRequest::MakeNode { at: root(b"a"), kind: FileKind::File, mode: 0o600, target: &[] },
        MetaRequest::Rename { from: root(b"a"), to: root(b"b"), mode: RenameMode::Replace },
        MetaRequest::Rename { from: root(b"kept"), to: root(b"b"), mode: RenameMode::Exchange },
    ];
    for request in requests.iter().chain([&MetaRequest::Unlink { at: root(b"b") }]) {
        let result = client.send(Ino::ROOT.shard(), request, &[]);
        assert!(result.is_ok(), "{request:?}: {result:?}");
        states.push((size(), client.names("").unwrap()));
    }
    let end = size();
    cluster.kill(ServerId(0));
    let whole = std::fs::read(&log).unwrap();
    for cut in (start..=end).rev() {
        std::fs::write(&log, &whole[..cut as usize]).unwrap();
        // As if power had been lost: within one boot, a shorter log is damage.
        std::fs::remove_file(log.with_extension("mark")).unwrap();
        cluster.restart(ServerId(0));
        let expected = &states.iter().rev().find(|(size, _)| *size <= cut).unwrap().1;
        assert_eq!(&client.names("").unwrap(), expected, "cut at {cut}");
        for name in expected {
            client.stat(name).unwrap();
        }
        cluster.kill(ServerId(0));
    }
}

#[test]
fn a_damaged_log_is_refused_with_file_offset_and_remedy() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    for n in 0..50 {
        client.put(&n.to_string(), b"data").unwrap();
    }
    cluster.kill(ServerId(0));
    let log = cluster.dir(ServerId(0)).join("partition-00.log");
    let mut bytes = std::fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let open = |deployment| {
        let options = Options { background: false, ..Options::new(deployment) };
        MetaStore::open(&cluster.dir(ServerId(0)), options, Port::nowhere())
    };
    let error = open(DEPLOYMENT).err().unwrap();
    assert!(matches!(error, OpenError::Damaged { .. }));
    let text = error.to_string();
    assert!(text.contains("partition-00.log") && text.contains("truncate -s"), "{text}");
    bytes[middle] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    assert!(matches!(open(DEPLOYMENT + 1), Err(OpenError::Foreign { .. })));
    cluster.start(ServerId(0));
    assert!(matches!(open(DEPLOYMENT), Err(OpenError::InUse(_))));
    assert_eq!(client.names("").unwrap().len(), 50);
}

/// What is missing is never silently taken for what never was.
#[test]
fn a_shorter_or_missing_log_is_refused_with_lengths_and_remedy_and_a_missing_directory_too() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    for n in 0..200 {
        client.put(&n.to_string(), b"data").unwrap();
    }
    cluster.kill(ServerId(0));
    let dir = cluster.dir(ServerId(0));
    let log = dir.join("partition-00.log");
    let open = || {
        let options = Options { background: false, ..Options::new(DEPLOYMENT) };
        MetaStore::open(&dir, options, Port::nowhere())
    };
    let refused = || open().err().unwrap().to_string();
    let whole = std::fs::read(&log).unwrap();
    let tenth = whole.len() / 10;
    std::fs::write(&log, &whole[..tenth]).unwrap();
    let text = refused();
    for part in ["partition-00.log", "partition-00.mark", &whole.len().to_string(), &tenth.to_string()] {
        assert!(text.contains(part), "no {part} in: {text}");
    }
    std::fs::remove_file(&log).unwrap();
    let text = refused();
    assert!(text.contains("missing") && text.contains(&whole.len().to_string()), "{text}");
    std::fs::write(&log, &whole).unwrap();
    cluster.start(ServerId(0));
    assert_eq!(client.names("").unwrap().len(), 200, "restored, it is all there");
    cluster.kill(ServerId(0));
    // Somebody decides to go on with what is there.
    std::fs::write(&log, &whole[..tenth]).unwrap();
    std::fs::remove_file(dir.join("partition-00.mark")).unwrap();
    cluster.start(ServerId(0));
    let left = client.names("").unwrap().len();
    assert!(left < 200, "{left}");
    cluster.kill(ServerId(0));
    std::fs::rename(&dir, dir.with_extension("away")).unwrap();
    assert!(matches!(open(), Err(OpenError::NoDirectory(_))));
    assert!(!dir.exists());
}

#[test]
fn the_log_stays_bounded_while_the_same_files_change_for_ever() {
    let cluster = Cluster::with(1, |options| options.compact_at = Some(20_000));
    let client = Client::new(&cluster);
    let before = cluster.stores()[0].counts().log_bytes;
    for n in 0..3000u32 {
        client.put("f", &n.to_le_bytes()).unwrap();
        client.put("g", &[0; 100]).unwrap();
        client.unlink("g").unwrap();
    }
    let after = cluster.stores()[0].counts().log_bytes;
    assert!(after - before < 60_000, "{before} {after}");
    cluster.restart(ServerId(0));
    assert_eq!(client.get("f").unwrap(), 2999u32.to_le_bytes());
    assert_eq!(client.names("").unwrap(), ["f"]);
}

#[test]
fn hostile_requests_are_refused_and_harm_nobody() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let file = client.put("f", b"x").unwrap();
    let open = OpenId::default();
    for ino in [Ino(0), Ino(u64::MAX), Ino(1 << 52), file, Ino::ROOT] {
        let requests = [
            MetaRequest::GetAttr { ino },
            MetaRequest::ReadInline { ino, offset: u64::MAX, len: u32::MAX },
            MetaRequest::WriteInline { ino, offset: u64::MAX },
            MetaRequest::Truncate { ino, size: u64::MAX },
            MetaRequest::Release { ino, open, wrote: None },
            MetaRequest::Lock {
                ino,
                owner: process(1),
                range: LockRange { start: 9, end: 3, exclusive: true },
                wait_ms: 9,
            },
            MetaRequest::ReadDir { dir: ino, split: true, after: u64::MAX, limit: u32::MAX, attrs: true },
            MetaRequest::ReadDir { dir: ino, split: false, after: u64::MAX, limit: 0, attrs: true },
            MetaRequest::Parent { ino },
            MetaRequest::ReadLink { ino },
            MetaRequest::Rmdir { at: At { dir: ino, split: false, name: b"nothing" } },
        ];
        // What is the backend's has no shard: it arrives at one all the same.
        let shard = if ino.is_forwarded() { Ino::ROOT.shard() } else { ino.shard() };
        for request in requests {
            let _: Result<_, Failure> = client.send(shard, &request, b"payload");
        }
    }
    assert_eq!(client.get("f").unwrap(), b"x");
    assert_eq!(client.names("").unwrap(), ["f"]);
}

#[test]
fn a_repeated_open_with_truncation_does_not_truncate_again() {
    let cluster = Cluster::new(2);
    let client = Client::new(&cluster);
    let (attr, first) = client.create("f", true).unwrap();
    let attr = client.spill(attr.ino).unwrap();
    client.write_blocks(&cluster, &attr, 0, &[1; 50_000]);
    client.release(attr.ino, first, None).unwrap();
    let (dir, name) = client.place("f").unwrap();
    let (id, open) = (client.next_id(), client.open_id());
    let how = OpenHow { write: true, truncate: true, ..OpenHow::default() };
    let at = At { dir: dir.ino, split: false, name: name.as_bytes() };
    let shard = entry_shard(dir.ino, false, name.as_bytes());
    let request = MetaRequest::Open { at, how, open };
    let answer = client.send_as(id, shard, &request, &[]).unwrap();
    client.write_blocks(&cluster, &attr, 0, &[2; 9000]);
    assert_eq!(client.send_as(id, shard, &request, &[]).unwrap(), answer);
    let longest =
        cluster.inner.data.iter().filter_map(|d| Some(d.lock().unwrap().get(&attr.ino)?.bytes.len()));
    assert_eq!(longest.max(), Some(9000), "what was written after the open stays");
}

#[test]
fn what_comes_late_from_the_dead_is_not_carried_out() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let ino = client.put("f", b"x").unwrap();
    let opens = || cluster.stores().iter().map(|s| s.counts().opens).sum::<u64>();
    let read = OpenHow { read: true, ..OpenHow::default() };
    // Registered, and its process died before it knew of what.
    let open = client.open_id();
    client.inode(ino, MetaRequest::OpenInode { ino, how: read, open }, &[]).unwrap();
    let abandon = |ino: Option<Ino>, open| MetaRequest::Abandon { ino, open, wrote: None };
    client.send(ino.shard(), &abandon(None, open), &[]).unwrap();
    assert_eq!(opens(), 0);
    // The other way round: its request comes when the agent has spoken already.
    let late = client.open_id();
    client.send(ino.shard(), &abandon(None, late), &[]).unwrap();
    assert!(client.inode(ino, MetaRequest::OpenInode { ino, how: read, open: late }, &[]).is_err());
    let make = OpenHow { write: true, create: Some(Create { mode: 0o600, exclusive: true }), ..read };
    let request = MetaRequest::MakeTemporary { dir: Ino::ROOT, how: make, open: late };
    // Abandoning is of one shard: the directory's is another.
    client.send(Ino::ROOT.shard(), &abandon(None, late), &[]).unwrap();
    assert!(client.inode(Ino::ROOT, request, &[]).is_err());
    assert_eq!((opens(), inodes(&cluster)), (0, 2));
    // Locks.
    let flock = LockOwner::Flock(late);
    assert!(lock(&client, ino, flock, EXCLUSIVE, 0).is_err());
    client.send(ino.shard(), &MetaRequest::EndSession { session: 77 }, &[]).unwrap();
    assert_eq!(lock(&client, ino, process(77), EXCLUSIVE, 0), Err(Errno::INTR));
    lock(&client, ino, process(78), EXCLUSIVE, 0).unwrap();
}
