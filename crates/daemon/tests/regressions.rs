//! Scenarios that once went wrong between the client core and the servers.

mod common;

use bivouac_client::host::{Claim, Host, Plain};
use bivouac_client::{Client, Fail};
use bivouac_daemon::controller::ControlLink;
use bivouac_layout::map::{Server, ServerState};
use bivouac_layout::{Epoch, Ino, News, NodeId, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::control::{ControlReply, ControlRequest, Stats};
use bivouac_proto::meta::{SetAttr, SetTime};
use bivouac_testing::{HANG, eventually};
use bivouac_transport::Endpoint;
use common::{Cluster, cluster, pattern};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CREATE: i32 = libc::O_CREAT | libc::O_RDWR;

/// A program that takes every number that a client has, and closes it.
#[derive(Default)]
struct Disturbed(Mutex<Vec<(i32, &'static AtomicU32)>>);

impl Host for Disturbed {
    fn claim(&self, fd: i32) -> Option<Claim> {
        let owner: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(1)));
        self.0.lock().expect("claims").push((fd, owner));
        Some(Claim { owner, token: 1, given_up: |_| () })
    }
}

impl Disturbed {
    /// How many there were.
    fn take_all(&self) -> usize {
        let claims = std::mem::take(&mut *self.0.lock().expect("claims"));
        let held = claims.iter().filter(|(_, owner)| owner.swap(0, Ordering::AcqRel) != 0);
        held.map(|(fd, _)| {
            // SAFETY: the number was the client's, which sees that it is gone.
            unsafe { libc::close(*fd) };
            1
        })
        .sum()
    }
}

fn ask(c: &Cluster, request: &ControlRequest) -> Vec<Option<ControlReply>> {
    let servers = c.map.servers.iter();
    servers
        .map(|server| {
            ControlLink::connect(&Endpoint::Tcp(server.address), &c.key, 99, HANG)
                .and_then(|mut link| link.request(request.clone()))
                .expect("answered")
        })
        .collect()
}

fn sum(c: &Cluster, what: impl Fn(&Stats) -> u64) -> u64 {
    let stats = ask(c, &ControlRequest::Stats).into_iter();
    stats.map(|reply| if let Some(ControlReply::Stats(stats)) = reply { what(&stats) } else { 0 }).sum()
}

fn stop_server(c: &mut Cluster, index: usize) {
    let daemon = c.daemons.remove(index);
    daemon.stop(true);
    daemon.wait();
    let link = |server: &Server| {
        ControlLink::connect(&Endpoint::Tcp(server.address), &c.key, 99, HANG).expect("connected")
    };
    let mut controller = link(&c.map.servers[0]);
    let mut down = Epoch(0);
    eventually("the server is down", || match controller.request(ControlRequest::Overview) {
        Ok(Some(ControlReply::Overview { map, .. })) => {
            down = map.epoch;
            map.servers[index].state == ServerState::Down
        }
        other => panic!("{other:?}"),
    });
    for server in c.map.servers.iter().filter(|server| server.id != ServerId(index as u16)) {
        let mut link = link(server);
        eventually("the others know", || {
            link.ping(down, NodeId::NONE, None).expect("answered").epoch >= down
        });
    }
}

#[test]
fn an_appender_after_a_foreign_truncate_leaves_the_right_size() {
    let c = cluster("r-append", 2);
    let log = c.open("f", libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND).expect("opened");
    log.write(&[IoSlice::new(&pattern(1_000_000))]).expect("written");
    c.client.truncate((Ino::ROOT, b"f", true), 0).expect("truncated");
    log.write(&[IoSlice::new(b"x")]).expect("written");
    c.client.closed(log.id());
    eventually("released", || sum(&c, |s| s.opens) == 0);
    assert_eq!(c.client.stat((Ino::ROOT, b"f", true)).expect("there").size, 1);
}

#[test]
fn a_reader_at_the_end_of_a_growing_file_sees_no_zeros() {
    let c = cluster("r-tail", 2);
    let writer = c.open("f", CREATE).expect("opened");
    writer.write(&[IoSlice::new(&[1; 5000])]).expect("written");
    let reader = c.open("f", libc::O_RDONLY).expect("opened");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                writer.write(&[IoSlice::new(&[1; 1000])]).expect("written");
            }
            stop.store(true, Ordering::SeqCst);
        });
        let mut buffer = [0; 4096];
        while !stop.load(Ordering::SeqCst) {
            let count = reader.read(&mut [IoSliceMut::new(&mut buffer)]).expect("read");
            assert!(!buffer[..count].contains(&0), "zeros that nobody wrote");
        }
    });
}

#[test]
fn ftruncate_beside_a_write_leaves_the_size_that_is_there() {
    let c = cluster("r-cut", 2);
    for i in 0..100 {
        let name = format!("f{i}");
        let handle = c.open(&name, CREATE).expect("opened");
        handle.pwrite(0, &[IoSlice::new(&[1; 200_000])]).expect("written");
        std::thread::scope(|scope| {
            scope.spawn(|| handle.truncate(10).expect("truncated"));
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(i * 9 % 400));
                handle.pwrite(0, &[IoSlice::new(&[2; 200_000])]).expect("written");
            });
        });
        let open = handle.attr().expect("attributes").size;
        c.client.closed(handle.id());
        eventually("released", || sum(&c, |s| s.opens) == 0);
        assert_eq!(c.client.stat((Ino::ROOT, name.as_bytes(), true)).expect("there").size, open, "{name}");
    }
}

#[test]
fn a_descriptor_number_that_comes_back_is_not_the_old_file() {
    let mut c = cluster("r-number", 1);
    let host: &'static Disturbed = Box::leak(Box::default());
    c.client = Client::attach(&c.environment, host).expect("attached");
    let a = c.open("a", CREATE).expect("opened");
    a.write(&[IoSlice::new(&[b'A'; 70_000])]).expect("written");
    assert!(host.take_all() >= 3, "of the table, of a connection, and of a sub-file");
    let b = c.open("b", CREATE).expect("opened");
    b.write(&[IoSlice::new(&[b'B'; 70_000])]).expect("written");
    a.pwrite(0, &[IoSlice::new(b"written to a")]).expect("written");
    assert!(c.read("b") == [b'B'; 70_000]);
    assert_eq!(&c.read("a")[..12], b"written to a");
}

#[test]
fn an_append_comes_after_what_a_former_appender_wrote_elsewhere() {
    let c = cluster("r-setfl", 2);
    let a = c.open("f", CREATE | libc::O_APPEND).expect("opened");
    let b = c.open("f", libc::O_WRONLY | libc::O_APPEND).expect("opened");
    a.write(&[IoSlice::new(&[1; 10_000])]).expect("written");
    a.set_flags(0);
    a.pwrite(10_000, &[IoSlice::new(b"precious")]).expect("written");
    b.write(&[IoSlice::new(b"XXXX")]).expect("written");
    assert_eq!(&c.read("f")[10_000..], b"preciousXXXX");
    let g = c.open("g", CREATE | libc::O_APPEND).expect("opened");
    g.write(&[IoSlice::new(&[1; 10_000])]).expect("written");
    g.fallocate(0, 0, 50_000).expect("allocated");
    g.write(&[IoSlice::new(b"tail")]).expect("written");
    assert_eq!(g.attr().expect("attributes").size, 50_004);
}

#[test]
fn a_close_under_an_old_map_is_heard() {
    let c = cluster("r-epoch", 2);
    let handles: Vec<_> = (0..10).map(|i| c.open(&format!("f{i}"), CREATE).expect("opened")).collect();
    assert_eq!(sum(&c, |s| s.opens), 10);
    let map = bivouac_layout::Map { epoch: Epoch(7), ..c.map.clone() };
    ask(&c, &ControlRequest::Install { news: News::Whole(Box::new(map)) });
    for handle in handles {
        c.client.closed(handle.id());
    }
    eventually("all opens are gone", || sum(&c, |s| s.opens) == 0);
}

#[test]
fn a_time_that_was_set_survives_the_close() {
    let c = cluster("r-mtime", 2);
    let old = 1_000_000_000_000_000_000;
    for i in 0..300 {
        let name = format!("f{i}");
        let handle = c.open(&name, CREATE).expect("opened");
        handle.write(&[IoSlice::new(&[1; 8000])]).expect("written");
        let set = SetAttr { mtime: Some(SetTime::To(old)), ..SetAttr::default() };
        handle.set_attr(set).expect("set");
        c.client.closed(handle.id());
    }
    eventually("released", || sum(&c, |s| s.opens) == 0);
    for i in 0..300 {
        let attr = c.client.stat((Ino::ROOT, format!("f{i}").as_bytes(), true)).expect("there");
        assert_eq!(attr.mtime, old, "f{i}");
    }
}

#[test]
fn nobody_reaches_a_file_by_the_old_path_once_its_directory_was_renamed() {
    let c = cluster("r-rename", 3);
    c.client.mkdir(Ino::ROOT, b"a", 0o755).expect("made");
    c.write("a/f", b"x");
    let other = Client::attach(&c.environment, &Plain).expect("attached");
    // 4n: `a` is there; 4n + 2: it was renamed; odd: under way.
    let phase = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let before = phase.load(Ordering::SeqCst);
                    let found = other.stat((Ino::ROOT, b"a/f", true));
                    if phase.load(Ordering::SeqCst) == before && before % 4 != 1 && before % 4 != 3 {
                        assert_eq!(found.is_ok(), before.is_multiple_of(4), "phase {before}");
                    }
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            for (from, to) in [(b"a", b"b"), (b"b", b"a")] {
                phase.fetch_add(1, Ordering::SeqCst);
                c.client.rename(Ino::ROOT, from, Ino::ROOT, to, 0).expect("renamed");
                phase.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_rename_that_is_refused_for_one_path_knows_when_the_other_is_out_of_date() {
    let c = cluster("r-rename-stale", 3);
    let other = Client::attach(&c.environment, &Plain).expect("attached");
    let long = "n".repeat(256);
    for (from, to) in [(".", "gone/x"), ("gone/x", "."), (&long[..], "gone/x")] {
        c.client.mkdir(Ino::ROOT, b"gone", 0o755).expect("made");
        c.write("gone/x", b"x");
        other.stat((Ino::ROOT, b"gone/x", true)).expect("there, and known from now on");
        c.client.unlink(Ino::ROOT, b"gone/x").expect("removed");
        c.client.rmdir(Ino::ROOT, b"gone").expect("removed");
        let refused = other.rename(Ino::ROOT, from.as_bytes(), Ino::ROOT, to.as_bytes(), 0);
        assert_eq!(refused, Err(Fail::Errno(Errno::NOENT)), "{from} to {to}");
    }
}

#[test]
fn fsync_of_an_appender_syncs_the_blocks() {
    let c = cluster("r-fsync", 2);
    let log = c.open("log", libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND).expect("opened");
    for _ in 0..20 {
        log.write(&[IoSlice::new(&[1; 1000])]).expect("written");
    }
    let before = sum(&c, |s| s.data_operations);
    log.sync().expect("synced");
    assert!(sum(&c, |s| s.data_operations) > before);
}

#[test]
fn a_write_that_fails_in_the_middle_leaves_what_was_there() {
    let mut c = cluster("r-middle", 4);
    const BLOCK: u64 = 64 << 10;
    let data = pattern(11 * BLOCK as usize);
    for i in 0..12 {
        c.write(&format!("big{i}"), &data);
    }
    eventually("released", || sum(&c, |s| s.opens) == 0);
    stop_server(&mut c, 3);
    let mut tried = 0;
    for i in 0..12 {
        let Ok(handle) = c.open(&format!("big{i}"), libc::O_RDWR) else { continue };
        let read = |block: u64| {
            let mut buffer = vec![0; BLOCK as usize];
            handle
                .pread(block * BLOCK, &mut [IoSliceMut::new(&mut buffer)])
                .map(|count| buffer[..count].to_vec())
        };
        let dead = (1..10).rev().find(|&block| read(block).is_err());
        let (Some(dead), Ok(last)) = (dead, read(10)) else { continue };
        let from = (dead - 1) * BLOCK;
        // All the way to the end, over the block that cannot be written.
        assert_eq!(handle.pwrite(from, &[IoSlice::new(&data[from as usize..])]), Ok(BLOCK as usize));
        assert!(read(10).as_ref() == Ok(&last), "the last block of big{i} is gone");
        tried += 1;
    }
    assert!(tried > 0, "no file was as the test needs it");
}

#[test]
fn a_dead_server_is_an_error_for_what_it_held_only() {
    let mut c = cluster("r-dead", 4);
    c.client.mkdir(Ino::ROOT, b"d", 0o755).expect("made");
    for i in 0..2500 {
        c.client.mknod(Ino::ROOT, format!("d/f{i}").as_bytes(), 0o100_644).expect("made");
    }
    for i in 0..12 {
        c.write(&format!("s{i}"), &pattern(60_000));
    }
    eventually("the directory split", || c.client.stat((Ino::ROOT, b"d", true)).is_ok_and(|a| a.split));
    assert_eq!(c.names("d").len(), 2502);
    let listing = c.open("d", libc::O_RDONLY | libc::O_DIRECTORY).expect("opened");
    eventually("released", || sum(&c, |s| s.opens) == 0);
    stop_server(&mut c, 3);
    let mut listed = 0;
    let ended = loop {
        match listing.list(1000).map(|listed| listed.entries) {
            Ok(entries) if entries.is_empty() => break Ok(()),
            Ok(entries) => listed += entries.len(),
            Err(errno) => break Err(errno),
        }
    };
    assert!(ended.is_err() || listed == 2502, "{listed} of 2502 entries, and no error");
    // Files of one block that lies elsewhere can be read to their end.
    let mut whole = 0;
    for i in 0..12 {
        let Ok(handle) = c.open(&format!("s{i}"), libc::O_RDONLY) else { continue };
        let mut buffer = vec![0; 100_000];
        if handle.pread(0, &mut [IoSliceMut::new(&mut buffer[..60_000])]) == Ok(60_000) {
            assert_eq!(handle.pread(0, &mut [IoSliceMut::new(&mut buffer)]), Ok(60_000), "s{i}");
            whole += 1;
        }
    }
    assert!(whole > 0, "all files are gone with one of four servers");
}

#[test]
fn a_name_that_was_missing_is_found_after_its_directory_has_split() {
    let c = cluster("r-missing", 4);
    // What was not there yet is known by the count of the directory's shard; after the split, of another
    // shard, whose count comes by every value that the first one had.
    for round in 0..2 {
        let dir = format!("d{round}");
        c.client.mkdir(Ino::ROOT, dir.as_bytes(), 0o755).expect("made");
        let path = |name: &str| format!("{dir}/{name}");
        for i in 0..3000 {
            let path = path(&format!("entry-{i:04}"));
            assert!(c.client.stat((Ino::ROOT, path.as_bytes(), false)).is_err(), "{path} is there already");
            c.client.mknod(Ino::ROOT, path.as_bytes(), 0o100_644).expect("made");
        }
        let split = || c.client.stat((Ino::ROOT, dir.as_bytes(), true)).is_ok_and(|a| a.split);
        eventually("the directory split", split);
        let ino = c.client.stat((Ino::ROOT, dir.as_bytes(), true)).expect("there").ino;
        // In the order of listings (without attributes, which would teach the client the names), so that one
        // shard after the other goes through its counts.
        let listed = c.client.list_after(ino, 0, 4000, false).expect("listed").entries;
        assert_eq!(listed.len(), 3000);
        for entry in listed {
            let path = path(&String::from_utf8(entry.name).expect("as made"));
            assert!(c.client.stat((Ino::ROOT, path.as_bytes(), false)).is_ok(), "{path} is not found");
            c.client.unlink(Ino::ROOT, path.as_bytes()).expect("removed");
        }
        c.client.rmdir(Ino::ROOT, dir.as_bytes()).expect("nothing is left in it");
    }
}
