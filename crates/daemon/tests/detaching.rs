//! A process that detaches from a deployment, while it goes on: nothing of it is left.

mod common;

use bivouac_client::host::Plain;
use bivouac_client::{Client, LockKind};
use bivouac_daemon::controller::ControlLink;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_testing::{HANG, eventually};
use bivouac_transport::Endpoint;
use common::{Cluster, cluster};
use std::io::{IoSlice, IoSliceMut};

const CREATE: i32 = libc::O_CREAT | libc::O_RDWR;

/// Uses what a program would: names, small and large files, locks.
fn use_all(c: &Cluster) {
    let client = Client::attach(&c.environment, &Plain).expect("attached");
    client.mkdir(Ino::ROOT, b"d", 0o755).expect("made");
    for (name, size) in [(&b"d/small"[..], 100), (b"d/large", 300_000)] {
        let file = client.open(Ino::ROOT, name, CREATE, 0o644).expect("opened");
        assert_eq!(file.write(&[IoSlice::new(&vec![7; size])]), Ok(size));
        let mut read = vec![0; size];
        assert_eq!(file.pread(0, &mut [IoSliceMut::new(&mut read)]), Ok(size));
        assert!(read.iter().all(|byte| *byte == 7));
        file.lock(LockKind::Process, true, 0, 10).expect("locked");
        file.lock(LockKind::Description, true, 20, 30).expect("locked");
        client.closed(file.id());
        client.unlink(Ino::ROOT, name).expect("removed");
    }
    client.rmdir(Ino::ROOT, b"d").expect("removed");
    client.detach();
}

/// What this process has: descriptors, and mappings of shared memory. (Memory from malloc is looked at by the tests of the C
/// library: here it is also that of daemons.)
fn owned() -> (usize, usize) {
    let entries = |directory| std::fs::read_dir(directory).expect("listed").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("read");
    let shared = maps.lines().filter(|line| line.contains("memfd:") || line.contains("rw-s")).count();
    (entries("/proc/self/fd"), shared)
}

fn opens(c: &Cluster) -> u64 {
    let asked = c.map.servers.iter().map(|server| {
        let link = ControlLink::connect(&Endpoint::Tcp(server.address), &c.key, 99, HANG);
        link.and_then(|mut link| link.request(ControlRequest::Stats)).expect("answered")
    });
    asked.map(|reply| if let Some(ControlReply::Stats(stats)) = reply { stats.opens } else { 0 }).sum()
}

// One test: what the process has is all this one's.
#[test]
fn who_attaches_and_detaches_many_times_leaves_nothing_behind() {
    let c = cluster("detach", 2);
    for _ in 0..30 {
        use_all(&c);
    }
    eventually("what was opened is closed", || opens(&c) == 0);
    let before = owned();
    for _ in 0..200 {
        use_all(&c);
    }
    eventually("what was opened is closed", || opens(&c) == 0);
    // Workers of the daemons, which live in this process, too, end their connections a moment later.
    eventually("descriptors are closed", || owned().0 <= before.0 + 4);
    let after = owned();
    assert!(after.1 <= before.1, "mappings: {} before, {} after", before.1, after.1);

    // Locks of the process last as long as one of its clients.
    let first = Client::attach(&c.environment, &Plain).expect("attached");
    let file = first.open(Ino::ROOT, b"f", CREATE, 0o644).expect("opened");
    file.lock(LockKind::Process, true, 0, 10).expect("locked");
    let others_lock = |client: &std::sync::Arc<Client>| {
        let file = client.open(Ino::ROOT, b"f", CREATE, 0o644).expect("opened");
        let locked = file.lock(LockKind::Description, true, 0, 10);
        client.closed(file.id());
        locked
    };
    first.detach();
    assert_eq!(others_lock(&c.client), Err(Errno::AGAIN), "the other client of the process is still there");
    c.client.detach();
    let second = Client::attach(&c.environment, &Plain).expect("attached");
    eventually("the locks are released", || others_lock(&second).is_ok());
    second.detach();
}
