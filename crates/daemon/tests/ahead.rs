//! Looking ahead: a client that goes through a tree asks for more than it was asked for, and nobody can tell.

mod common;

use bivouac_client::host::Plain;
use bivouac_client::{Client, Fail};
use bivouac_daemon::controller::ControlLink;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::FileKind;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_proto::meta::SetAttr;
use bivouac_testing::HANG;
use bivouac_transport::Endpoint;
use common::{Cluster, cluster};
use std::sync::Arc;

/// Another client.
fn second(c: &Cluster) -> Arc<Client> {
    Client::attach(&c.environment, &Plain).expect("attached")
}

/// Requests to the metadata that all servers have served.
fn requests(c: &Cluster) -> u64 {
    let served = c.map.servers.iter().map(|server| {
        let reply = ControlLink::connect(&Endpoint::Tcp(server.address), &c.key, 99, HANG)
            .and_then(|mut link| link.request(ControlRequest::Stats));
        match reply {
            Ok(Some(ControlReply::Stats(stats))) => stats.meta_operations,
            _ => 0,
        }
    });
    served.sum()
}

/// `t` with `count` directories, each with a file `f`.
fn tree(c: &Cluster, count: usize) {
    c.client.mkdir(Ino::ROOT, b"t", 0o755).expect("made");
    for i in 0..count {
        c.client.mkdir(Ino::ROOT, format!("t/{i}").as_bytes(), 0o755).expect("made");
        c.client.mknod(Ino::ROOT, format!("t/{i}/f").as_bytes(), 0o100_644).expect("made");
    }
}

#[test]
fn what_changes_after_it_was_looked_at_ahead_is_seen() {
    let mut mine = cluster("ahead", 4);
    tree(&mine, 60);
    let me = second(&mine);
    let other = std::mem::replace(&mut mine.client, me.clone());
    for round in 0..5 {
        // All are asked about and listed, and so known.
        let children = mine.names("t");
        assert_eq!(children.len(), 62);
        for name in children.iter().filter(|name| !name.starts_with('.')) {
            let path = format!("t/{name}");
            assert_eq!(me.stat((Ino::ROOT, path.as_bytes(), false)).expect("there").nlink, 2);
            assert_eq!(mine.names(&path), [".", "..", "f"], "{path} in round {round}");
        }
        // Most by now; the others are known to have been, so each change must show at once.
        let path = |n: usize, below: &str| format!("t/{}{below}", 10 * round + n).into_bytes();
        other.unlink(Ino::ROOT, &path(0, "/f")).expect("removed");
        assert_eq!(mine.names(&String::from_utf8(path(0, "")).unwrap()), [".", ".."]);
        other.rmdir(Ino::ROOT, &path(0, "")).expect("removed");
        assert!(me.stat((Ino::ROOT, &path(0, ""), false)).is_err());
        assert!(mine.open(&String::from_utf8(path(0, "")).unwrap(), libc::O_RDONLY).is_err());
        other.mknod(Ino::ROOT, &path(0, ""), 0o100_600).expect("made");
        assert_eq!(me.stat((Ino::ROOT, &path(0, ""), false)).expect("there").kind, FileKind::File);
        other.unlink(Ino::ROOT, &path(0, "")).expect("removed");
        other.rename(Ino::ROOT, &path(1, ""), Ino::ROOT, &path(0, ""), 0).expect("moved");
        assert!(me.stat((Ino::ROOT, &path(1, ""), false)).is_err());
        assert!(me.stat((Ino::ROOT, &path(0, "/f"), false)).is_ok());
        other.mkdir(Ino::ROOT, &path(1, ""), 0o700).expect("made");
        other.mknod(Ino::ROOT, &path(1, "/f"), 0o100_644).expect("made");
        assert_eq!(me.stat((Ino::ROOT, &path(1, ""), false)).expect("there").mode, 0o700);
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        other.set_attr((Ino::ROOT, &path(2, "/f"), false), set).expect("set");
        assert_eq!(me.stat((Ino::ROOT, &path(2, "/f"), false)).expect("there").mode, 0o640);
        other.mkdir(Ino::ROOT, &path(3, "/d"), 0o755).expect("made");
        assert_eq!(me.stat((Ino::ROOT, &path(3, ""), false)).expect("there").nlink, 3);
        assert_eq!(mine.names(&String::from_utf8(path(3, "")).unwrap()), [".", "..", "d", "f"]);
        other.rmdir(Ino::ROOT, &path(3, "/d")).expect("removed");
    }
}

#[test]
fn going_through_a_tree_takes_far_fewer_requests_than_it_has_directories() {
    let mut mine = cluster("ahead-few", 4);
    tree(&mine, 400);
    mine.client = second(&mine);
    let before = requests(&mine);
    let mut found = 0;
    for name in mine.names("t").iter().filter(|name| !name.starts_with('.')) {
        let handle = mine.open(&format!("t/{name}"), libc::O_RDONLY | libc::O_DIRECTORY).expect("opened");
        let listed = handle.list(1000).expect("listed");
        assert!(listed.end);
        found += listed.entries.iter().filter(|entry| entry.name == b"f").count();
        mine.client.closed(handle.id());
    }
    assert_eq!(found, 400);
    let requests = requests(&mine) - before;
    assert!(requests < 200, "{requests} requests for 400 directories");
}

#[test]
fn a_listing_of_a_directory_that_may_not_be_read_does_not_come_ahead() {
    let mut mine = cluster("ahead-denied", 4);
    tree(&mine, 30);
    let set = SetAttr { mode: Some(0), ..SetAttr::default() };
    mine.client.set_attr((Ino::ROOT, b"t/7", false), set).expect("set");
    mine.client = second(&mine);
    for name in mine.names("t").iter().filter(|name| !name.starts_with('.')) {
        let listed = mine.open(&format!("t/{name}"), libc::O_RDONLY | libc::O_DIRECTORY);
        // User 0 may.
        let denied = name == "7" && !rustix::process::geteuid().is_root();
        match listed {
            Ok(_) => assert!(!denied),
            Err(fail) => assert!(denied && matches!(fail, Fail::Errno(Errno::ACCESS))),
        }
    }
}
