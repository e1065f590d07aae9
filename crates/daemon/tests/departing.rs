//! Servers are to leave: their shards move to those that stay, while a program works, and back when they stay after all.

mod common;

use bivouac_daemon::controller::ControlLink;
use bivouac_layout::{Ino, Map, ServerId};
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_testing::{HANG, eventually};
use bivouac_transport::Endpoint;
use common::{Cluster, cluster_of_copies};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn controller(cluster: &Cluster) -> ControlLink {
    let first = Endpoint::Tcp(cluster.map.servers[0].address);
    ControlLink::connect(&first, &cluster.key, 99, HANG).expect("connected")
}

fn map(cluster: &Cluster) -> Map {
    match controller(cluster).request(ControlRequest::Overview) {
        Ok(Some(ControlReply::Overview { map, .. })) => *map,
        other => panic!("no overview: {other:?}"),
    }
}

fn ids(numbers: &[u16]) -> Vec<ServerId> {
    numbers.iter().copied().map(ServerId).collect()
}

/// Waits until nothing moves; which servers hold shards then.
fn settled(cluster: &Cluster) -> Vec<ServerId> {
    eventually("nothing moves any more", || !map(cluster).balancing);
    let map = map(cluster);
    let holding = map.servers.iter().map(|server| server.id).filter(|id| map.held_by(*id) > 0);
    holding.collect()
}

/// Works until it is told to stop: how many rounds, and how long the longest operation took.
fn work(cluster: &Cluster, stop: &AtomicBool) -> (u32, Duration) {
    let (mut rounds, mut worst) = (0, Duration::ZERO);
    let client = &cluster.client;
    let mut timed = |what: &mut dyn FnMut()| {
        let begun = Instant::now();
        what();
        worst = worst.max(begun.elapsed());
    };
    while !stop.load(Ordering::Relaxed) {
        let (dir, other) = (format!("d{}", rounds % 50), format!("d{}", (rounds + 7) % 50));
        let (old, new) = (format!("{dir}/f{rounds}"), format!("{other}/g{rounds}"));
        if rounds < 50 {
            timed(&mut || drop(client.mkdir(Ino::ROOT, dir.as_bytes(), 0o755).expect("made")));
        }
        let has_other = rounds >= 50;
        timed(&mut || cluster.write(&old, old.as_bytes()));
        if has_other {
            timed(&mut || {
                client.rename(Ino::ROOT, old.as_bytes(), Ino::ROOT, new.as_bytes(), 0).expect("renamed");
            });
            timed(&mut || assert_eq!(cluster.read(&new), old.as_bytes(), "{new}"));
            if rounds % 3 == 0 {
                timed(&mut || client.unlink(Ino::ROOT, new.as_bytes()).expect("removed"));
            }
        }
        rounds += 1;
    }
    (rounds, worst)
}

fn shards_leave(copies: u8) {
    let cluster = cluster_of_copies(&format!("departing{copies}"), 4, copies);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&cluster, &stop));
        let ask = |request| controller(&cluster).request(request).map(drop);
        let all_but_two = ids(&[1, 3]);
        ask(ControlRequest::Depart { servers: all_but_two.clone() }).expect("they are to leave");
        assert_eq!(settled(&cluster), ids(&[0, 2]));
        let too_many = ask(ControlRequest::Depart { servers: ids(&[0, 2]) });
        assert!(too_many.is_err(), "none would be left");
        ask(ControlRequest::Stay { servers: ids(&[3]) }).expect("it stays after all");
        assert_eq!(settled(&cluster), ids(&[0, 2, 3]));
        // Also the first one, which the controller is on.
        ask(ControlRequest::Depart { servers: ids(&[0]) }).expect("it is to leave");
        assert_eq!(settled(&cluster), ids(&[2, 3]));
        // Nobody has looked yet whether files have blocks there.
        assert!(ask(ControlRequest::Remove { servers: ids(&[1]), nodes: Vec::new() }).is_err());
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        let (rounds, worst) = worker.join().expect("nothing failed");
        eprintln!("{copies} copies: {rounds} rounds, the longest operation took {worst:?}");
        assert!(rounds > 30);
    });
    let map = map(&cluster);
    assert_eq!(map.servers.len(), 4);
    assert_eq!(map.departing, ids(&[0, 1]));
}

#[test]
fn shards_without_copies_leave_servers_that_depart() {
    shards_leave(1);
}

#[test]
fn shards_with_two_copies_leave_servers_that_depart() {
    shards_leave(2);
}
