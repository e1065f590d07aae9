//! Locks over a restart of their server: who had them gets them again, and nobody else before that.

use crate::common::Cluster;
use crate::common::client::Client;
use bivouac_layout::{Ino, NodeId, ServerId};
use bivouac_proto::header::OpenId;
use bivouac_proto::meta::{LockOwner, LockRange, MetaReply, MetaRequest, Relocked};
use bivouac_proto::{Errno, Reply};
use bivouac_testing::{HANG, eventually};
use proptest::prelude::*;
use std::time::{Duration, Instant};

const SERVER: ServerId = ServerId(0);
/// Longer than any test: only reports end it.
const LONG: Duration = Duration::from_secs(3600);

fn process(session: u64) -> LockOwner {
    LockOwner::Process { session, pid: 100 + session as u32 }
}

fn range(start: u64, end: u64, exclusive: bool) -> LockRange {
    LockRange { start, end, exclusive }
}

/// A server with a file, and its clients.
struct Scene {
    cluster: Cluster,
    client: Client,
    ino: Ino,
    open: OpenId,
}

impl Scene {
    fn new(grace: Duration) -> Scene {
        Scene::of(Cluster::with(1, |options| options.grace = grace))
    }

    /// On one of three servers, and a copy of its metadata on another one.
    fn with_copies() -> Scene {
        Scene::of(Cluster::replicated_with(3, 2, |options| options.grace = LONG))
    }

    fn of(cluster: Cluster) -> Scene {
        let client = Client::new(&cluster);
        let (attr, open) = client.create("f", true).unwrap();
        Scene { cluster, client, ino: attr.ino, open }
    }

    fn restart(&self) {
        self.cluster.restart(SERVER);
    }

    /// BUSY: it is not known yet.
    fn lock(&self, owner: LockOwner, range: LockRange) -> Result<(), Errno> {
        self.client
            .inode(self.ino, MetaRequest::Lock { ino: self.ino, owner, range, wait_ms: 0 }, &[])
            .map(drop)
    }

    fn unlock(&self, owner: LockOwner, start: u64, end: u64) {
        let request = MetaRequest::Unlock { ino: self.ino, owner, start, end };
        self.client.inode(self.ino, request, &[]).unwrap();
    }

    fn is_free(&self, owner: LockOwner, range: LockRange) -> bool {
        let test = MetaRequest::TestLock { ino: self.ino, owner, range };
        self.client.inode(self.ino, test, &[]).unwrap().0 == Reply::Meta(MetaReply::Conflict(None))
    }

    fn relock(&self, locks: &[(LockOwner, LockRange)]) -> Vec<u32> {
        let told = |(owner, range): &(LockOwner, LockRange)| Relocked {
            ino: self.ino,
            owner: *owner,
            range: *range,
        };
        let start = self.client.start(self.ino.shard());
        self.client.relock(self.ino.shard(), start, locks.iter().map(told).collect()).1
    }

    /// All nodes have told everything.
    fn reported(&self) {
        let (start, map) = (self.client.start(self.ino.shard()), self.cluster.inner.map());
        for node in &map.nodes {
            let (epoch, opens) = (map.epoch, Vec::new());
            let end = MetaRequest::Report { node: node.id, start, epoch, opens, more: false };
            self.client.inode(self.ino, end, &[]).unwrap();
        }
    }

    /// All servers die and are started again before anybody declares one down.
    fn restart_all(&self) {
        let servers = || (0..3).map(ServerId);
        servers().for_each(|server| self.cluster.kill(server));
        servers().for_each(|server| self.cluster.start(server));
        self.cluster.inner.follow();
    }

    /// Another server answers for the file.
    fn fail_over(&self) {
        self.cluster.kill(self.cluster.inner.primary(self.ino.shard()));
        self.cluster.inner.failover();
    }
}

#[test]
fn nobody_gets_a_lock_before_all_have_told_theirs_and_then_all_that_is_free() {
    let scene = Scene::new(LONG);
    let locks = [
        (process(1), range(100, 200, true)),
        (LockOwner::Description(scene.open), range(300, 400, false)),
        (LockOwner::Flock(scene.open), range(0, u64::MAX, true)),
    ];
    locks.iter().for_each(|(owner, range)| scene.lock(*owner, *range).unwrap());
    scene.restart();
    assert_eq!(scene.lock(process(2), range(100, 200, true)), Err(Errno::BUSY));
    assert_eq!(scene.lock(process(2), range(500, 600, true)), Err(Errno::BUSY));
    let wait = MetaRequest::Lock { ino: scene.ino, owner: process(2), range: range(1, 2, true), wait_ms: 20 };
    assert_eq!(scene.client.inode(scene.ino, wait, &[]), Err(Errno::AGAIN));
    assert_eq!(scene.relock(&locks), []);
    assert_eq!(
        scene.lock(process(1), range(500, 600, true)),
        Err(Errno::BUSY),
        "others may not have told theirs"
    );
    // Who waits is woken when the last node has told everything.
    let waited = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let (client, ino) = (Client::new(&scene.cluster), scene.ino);
            let lock =
                MetaRequest::Lock { ino, owner: process(2), range: range(500, 600, true), wait_ms: 1000 };
            let begun = Instant::now();
            while client.inode(ino, lock.clone(), &[]) == Err(Errno::AGAIN) && begun.elapsed() < HANG {}
        });
        scene.reported();
        waiter.join()
    });
    waited.unwrap();
    assert!(!scene.is_free(process(3), range(500, 600, true)));
    assert_eq!(scene.lock(process(2), range(199, 210, false)), Err(Errno::AGAIN));
    assert_eq!(scene.lock(process(2), range(390, 400, true)), Err(Errno::AGAIN));
    scene.lock(process(2), range(390, 400, false)).unwrap();
    scene.lock(process(2), range(200, 300, true)).unwrap();
    let other = LockOwner::Flock(OpenId { incarnation: 99, ..scene.open });
    assert_eq!(scene.lock(other, range(0, u64::MAX, false)), Err(Errno::AGAIN));
    scene.unlock(process(1), 100, 200);
    scene.lock(process(2), range(100, 200, true)).unwrap();
    scene.client.release(scene.ino, scene.open, None).unwrap();
    scene.lock(other, range(0, u64::MAX, false)).unwrap();
}

#[test]
fn what_was_given_up_meanwhile_does_not_come_back() {
    let scene = Scene::new(LONG);
    let (_, second) = scene.client.create("f", false).unwrap();
    let locks = [
        (process(1), range(0, 100, true)),
        (process(2), range(100, 200, true)),
        (LockOwner::Flock(scene.open), range(0, u64::MAX, false)),
        (LockOwner::Flock(second), range(0, u64::MAX, false)),
    ];
    locks.iter().for_each(|(owner, range)| scene.lock(*owner, *range).unwrap());
    scene.restart();
    // The agent has gathered all of it, and tells it late, and again.
    scene.unlock(process(1), 30, 60);
    scene.client.inode(scene.ino, MetaRequest::EndSession { session: 2 }, &[]).unwrap();
    scene.client.release(scene.ino, scene.open, None).unwrap();
    scene.unlock(LockOwner::Flock(second), 0, u64::MAX);
    assert_eq!(scene.relock(&locks), []);
    assert_eq!(scene.relock(&locks), []);
    scene.reported();
    let other = LockOwner::Flock(OpenId { incarnation: 99, ..scene.open });
    assert!(scene.is_free(other, range(0, u64::MAX, true)));
    assert!(scene.is_free(process(3), range(100, 200, true)));
    assert!(scene.is_free(process(3), range(30, 60, true)));
    assert!(
        !scene.is_free(process(3), range(29, 30, true)) && !scene.is_free(process(3), range(60, 61, true))
    );
}

#[test]
fn what_is_told_too_late_or_conflicts_is_refused_and_what_is_there_stays() {
    let scene = Scene::new(LONG);
    scene.restart();
    let first = (process(1), range(0, 100, true));
    assert_eq!(
        scene.relock(&[first, (process(2), range(50, 150, false)), (process(2), range(100, 150, true))]),
        [1]
    );
    // Told to another start of the server, and nonsense.
    let told = |owner, range| Relocked { ino: scene.ino, owner, range };
    let shard = scene.ino.shard();
    let now = scene.client.start(shard);
    assert_eq!(
        scene.client.relock(shard, now + 1, vec![told(process(5), range(900, 901, true))]),
        (now, Vec::new())
    );
    let gone = Relocked { ino: Ino::new(shard, 1 << 30), ..told(process(5), range(900, 901, true)) };
    assert_eq!(
        scene.client.relock(shard, now, vec![gone, told(process(5), range(9, 9, true))]),
        (now, Vec::new())
    );
    let early = MetaRequest::Report {
        node: NodeId(0),
        start: now - 1,
        epoch: bivouac_layout::Epoch(0),
        opens: Vec::new(),
        more: false,
    };
    assert_eq!(scene.client.inode(scene.ino, early, &[]), Err(Errno::AGAIN));
    assert_eq!(scene.lock(process(3), range(900, 901, true)), Err(Errno::BUSY));
    scene.reported();
    scene.lock(process(3), range(900, 901, true)).unwrap();
    // Who has it is not refused, however often he says so.
    assert_eq!(scene.relock(&[first, (process(4), range(700, 800, true))]), [1]);
    assert!(
        !scene.is_free(process(3), range(0, 100, true)) && scene.is_free(process(3), range(700, 800, true))
    );
    // A server that was not restarted since has forgotten nothing: what it has not granted nobody has.
    let fresh = Scene::new(LONG);
    assert_eq!(fresh.relock(&[first]), [0]);
    assert!(fresh.is_free(process(3), range(0, 100, true)));
    // What was exclusive is shared from the moment when the server says so, and noted a little later.
    fresh.lock(process(1), range(0, 100, false)).unwrap();
    assert_eq!(fresh.relock(&[first]), []);
}

#[test]
fn a_node_that_never_tells_is_not_waited_for_longer_than_the_grace_time() {
    let scene = Scene::new(Duration::from_millis(300));
    scene.restart();
    eventually("it is granted", || scene.lock(process(1), range(0, 10, true)).is_ok());
    assert_eq!(scene.relock(&[(process(2), range(0, 10, true)), (process(2), range(20, 30, true))]), [0, 1]);
}

#[test]
fn a_primary_that_dies_while_locks_are_told_leaves_that_to_the_next_one() {
    let scene = Scene::with_copies();
    let (first, second) = ((process(1), range(0, 100, true)), (process(2), range(200, 300, true)));
    [first, second].iter().for_each(|(owner, range)| scene.lock(*owner, *range).unwrap());
    scene.restart_all();
    assert_eq!(scene.relock(&[first]), []);
    assert_eq!(scene.lock(process(3), second.1), Err(Errno::BUSY), "its owner's node has not told");
    scene.fail_over();
    assert_eq!(scene.lock(process(3), second.1), Err(Errno::BUSY), "nor has it told the next primary");
    assert_eq!(scene.lock(process(3), first.1), Err(Errno::BUSY));
    assert_eq!(scene.relock(&[first, second]), []);
    scene.reported();
    assert_eq!(scene.lock(process(3), second.1), Err(Errno::AGAIN));
    assert_eq!(scene.lock(process(3), first.1), Err(Errno::AGAIN));
    scene.lock(process(3), range(100, 200, true)).unwrap();
}

#[test]
fn what_is_told_too_late_is_refused_by_the_next_primary_too() {
    let scene = Scene::with_copies();
    let (first, late) = ((process(1), range(0, 100, true)), (process(2), range(200, 300, true)));
    [first, late].iter().for_each(|(owner, range)| scene.lock(*owner, *range).unwrap());
    scene.restart_all();
    assert_eq!(scene.relock(&[first]), []);
    scene.reported();
    // Somebody else has it for a moment.
    scene.lock(process(3), late.1).unwrap();
    scene.unlock(process(3), 200, 300);
    assert_eq!(scene.relock(&[first, late]), [1]);
    scene.fail_over();
    assert_eq!(scene.relock(&[first, late]), [1]);
    // The next one has nothing to learn.
    assert_eq!(scene.lock(process(3), first.1), Err(Errno::AGAIN));
    scene.lock(process(3), late.1).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..Default::default() })]

    /// Whatever is locked and unlocked, also between an agent's look and its report: byte by byte, the server agrees
    /// with an array.
    #[test]
    fn agrees_with_one_lock_for_each_byte_over_restarts(
        ops in prop::collection::vec((0u64..3, 0u64..20, 1u64..20, 0u8..6), 1..60),
    ) {
        let scene = Scene::new(LONG);
        let mut bytes = [[None::<bool>; 3]; 40];
        let noted = |bytes: &[[Option<bool>; 3]; 40]| {
            let one = |(at, who): (usize, usize)| {
                let lock = bytes[at][who]?;
                Some((process(who as u64 + 1), range(at as u64, at as u64 + 1, lock)))
            };
            (0..40).flat_map(|at| (0..3).map(move |who| (at, who))).filter_map(one).collect::<Vec<_>>()
        };
        for (who, start, length, what) in ops {
            let (owner, end) = (process(who + 1), start + length);
            let unlock = |bytes: &mut [[Option<bool>; 3]; 40]| {
                scene.unlock(owner, start, end);
                bytes[start as usize..end as usize].iter_mut().for_each(|byte| byte[who as usize] = None);
            };
            match what {
                0 | 1 => {
                    let exclusive = what == 1;
                    let is_taken = |lock: &Option<bool>| lock.is_some_and(|other| other || exclusive);
                    let others = |byte: &[Option<bool>; 3]| (0..3).any(|o| o != who as usize && is_taken(&byte[o]));
                    let taken = bytes[start as usize..end as usize].iter().any(others);
                    let expected = if taken { Err(Errno::AGAIN) } else { Ok(()) };
                    prop_assert_eq!(scene.lock(owner, range(start, end, exclusive)), expected);
                    if !taken {
                        let locked = bytes[start as usize..end as usize].iter_mut();
                        locked.for_each(|byte| byte[who as usize] = Some(exclusive));
                    }
                }
                2 => unlock(&mut bytes),
                _ => {
                    let told = noted(&bytes);
                    scene.restart();
                    if what == 3 {
                        unlock(&mut bytes);
                    }
                    prop_assert_eq!(scene.relock(&told), Vec::<u32>::new());
                    if what == 4 {
                        unlock(&mut bytes);
                    }
                    scene.reported();
                }
            }
        }
        for (at, byte) in bytes.iter().enumerate() {
            for exclusive in [false, true] {
                let free = !byte.iter().any(|lock| lock.is_some_and(|other| other || exclusive));
                prop_assert_eq!(scene.is_free(process(9), range(at as u64, at as u64 + 1, exclusive)), free, "{}", at);
            }
        }
    }
}
