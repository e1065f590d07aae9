//! Servers that die at every single step of operations over several shards: afterwards all of it happened, or
//! nothing, and what was acknowledged did.

use crate::common::Cluster;
use crate::common::client::{Client, name_where};
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::meta::RenameMode;
use bivouac_proto::{Errno, FileKind};

/// Prepares a cluster, runs `operation` with a crash at the n-th call of `victim` (or of anybody) to its
/// outside, for every n, and then asks `judge` whether what is there is right: once when only that server was
/// restarted, and once as soon as clients may look after all were killed. `judge` gets whether the operation
/// was acknowledged.
fn at_every_step(
    victims: &[Option<ServerId>],
    prepare: impl Fn(&Client),
    operation: impl Fn(&Client, &Cluster) -> Result<(), Errno>,
    judge: impl Fn(&Client, bool),
) {
    let (mut crashes, mut waits) = (0, 0);
    for (victim, all) in victims.iter().flat_map(|victim| [(victim, false), (victim, true)]) {
        for n in 0.. {
            let cluster = Cluster::new(3);
            let client = Client::new(&cluster);
            prepare(&client);
            *cluster.inner.victim.lock().unwrap() = *victim;
            cluster.crash_at(n);
            let result = operation(&client, &cluster);
            let crashed = cluster.stores().len() < 3;
            match all {
                true => waits += u32::from(cluster.resume()),
                false => cluster.heal(),
            }
            judge(&client, result.is_ok());
            check_tree(&client, &cluster);
            // Nothing stays locked, and the operation can be done again, whichever way it went.
            let _ = operation(&client, &cluster);
            check_tree(&client, &cluster);
            if !crashed {
                break;
            }
            crashes += 1;
        }
    }
    assert!(crashes > 5 && waits > 0, "only {crashes} steps were broken; {waits} waits");
}

/// With one copy, with two and with three.
fn with_and_without_copies(
    victims: &[Option<ServerId>],
    prepare: impl Fn(&Client),
    operation: impl Fn(&Client, &Cluster) -> Result<(), Errno>,
    judge: impl Fn(&Client, bool),
) {
    at_every_step(victims, &prepare, &operation, &judge);
    at_every_step_with_copies((2, 5), &prepare, &operation, &judge);
    at_every_step_with_copies((3, 11), &prepare, &operation, &judge);
}

/// The same where the metadata has copies: the server that makes the n-th call dies and stays away. The client
/// sees nothing of it; the copies are equal, also with the one that comes back.
fn at_every_step_with_copies(
    (copies, stride): (u16, usize),
    prepare: impl Fn(&Client),
    operation: impl Fn(&Client, &Cluster) -> Result<(), Errno>,
    judge: impl Fn(&Client, bool),
) {
    let mut crashes = 0;
    for n in (0..).step_by(stride) {
        let cluster = Cluster::replicated(3, copies);
        let client = Client::new(&cluster);
        prepare(&client);
        cluster.crash_at(n);
        let result = operation(&client, &cluster);
        cluster.inner.crash_at.store(usize::MAX, std::sync::atomic::Ordering::SeqCst);
        cluster.inner.failover();
        let dead = (0..3).map(ServerId).find(|id| cluster.store(*id).is_none());
        cluster.stores().iter().for_each(|store| store.recover());
        assert_eq!(result, Ok(()), "crash at {n}");
        judge(&client, true);
        check_tree(&client, &cluster);
        cluster.check_copies();
        let _ = operation(&client, &cluster);
        check_tree(&client, &cluster);
        let Some(dead) = dead else { break };
        crashes += 1;
        cluster.come_back(dead);
        cluster.stores().iter().for_each(|store| store.recover());
        check_tree(&client, &cluster);
        cluster.check_copies();
    }
    assert!(crashes > 2, "only {crashes} steps were broken");
}

/// Every directory hangs where its entry says; counts agree; no inode is without a name.
fn check_tree(client: &Client, cluster: &Cluster) {
    let mut open = vec![(String::new(), Ino::ROOT, Ino::ROOT)];
    let mut inodes = std::collections::BTreeMap::new();
    inodes.insert(Ino::ROOT, 0u32);
    while let Some((path, ino, parent)) = open.pop() {
        let attr = client.attr(ino).unwrap();
        let entries = client.list(&path, 1000).unwrap();
        let directories = entries.iter().filter(|e| e.kind == FileKind::Directory).count();
        assert_eq!(attr.nlink as usize, 2 + directories, "links of {path:?}");
        assert_eq!(attr.size as usize, entries.len(), "entries of {path:?}");
        let (reply, _) = client.inode(ino, bivouac_proto::meta::MetaRequest::Parent { ino }, &[]).unwrap();
        match reply {
            bivouac_proto::Reply::Meta(bivouac_proto::meta::MetaReply::Parent { parent: found, .. }) => {
                assert_eq!(found, parent, "parent of {path:?}")
            }
            other => panic!("{other:?}"),
        }
        for entry in entries {
            let name = String::from_utf8(entry.name).unwrap();
            let below = format!("{path}/{name}");
            *inodes.entry(entry.ino).or_default() += 1;
            client.attr(entry.ino).unwrap_or_else(|e| panic!("{below} names nothing: {e:?}"));
            if entry.kind == FileKind::Directory {
                assert_eq!(inodes[&entry.ino], 1, "{below} is a second name of a directory");
                open.push((below, entry.ino, ino));
            }
        }
    }
    for (ino, names) in &inodes {
        let attr = client.attr(*ino).unwrap();
        if attr.kind != FileKind::Directory {
            assert_eq!(attr.nlink, *names, "links of {ino:?}");
        }
    }
    let held: u64 = cluster.stores().iter().map(|s| s.counts().inodes).sum();
    assert_eq!(held as usize, inodes.len(), "inodes without a name");
}

const ANYBODY: &[Option<ServerId>] = &[None];
const EACH: &[Option<ServerId>] = &[None, Some(ServerId(0)), Some(ServerId(1)), Some(ServerId(2))];

/// Names of directories below the root that lay on the given servers at first.
fn directory_on(client: &Client, prefix: &str, server: u16) -> String {
    name_where(prefix, |name| {
        let shard = bivouac_layout::namespace::directory_shard(Ino::ROOT, name.as_bytes());
        client.inner.home(shard) == ServerId(server)
    })
}

#[test]
fn mkdir_happens_wholly_or_not_at_all() {
    for server in 0..3 {
        at_every_step(
            ANYBODY,
            |_| {},
            |client, _| client.mkdir(&directory_on(client, "d", server)),
            |client, acknowledged| {
                let found = client.stat(&directory_on(client, "d", server));
                assert!(found.is_ok() || (!acknowledged && found == Err(Errno::NOENT)), "{found:?}");
            },
        );
    }
}

#[test]
fn mkdir_happens_once_whoever_dies() {
    for (server, copies) in [(0, 2), (1, 2), (2, 3)] {
        at_every_step_with_copies(
            (copies, 4),
            |_| {},
            |client, _| match client.mkdir(&directory_on(client, "d", server)) {
                // The second time.
                Err(Errno::EXIST) if client.stat("done").is_ok() => Ok(()),
                made => made.and_then(|()| client.put("done", b"").map(drop)),
            },
            |client, _| assert!(client.stat(&directory_on(client, "d", server)).is_ok()),
        );
    }
}

#[test]
fn rmdir_happens_wholly_or_not_at_all() {
    with_and_without_copies(
        ANYBODY,
        |client| client.mkdir(&directory_on(client, "d", 1)).unwrap(),
        |client, _| client.rmdir(&directory_on(client, "d", 1)),
        |client, acknowledged| {
            let found = client.stat(&directory_on(client, "d", 1));
            assert!(found == Err(Errno::NOENT) || !acknowledged, "{found:?}");
        },
    );
}

#[test]
fn link_to_another_server_happens_wholly_or_not_at_all() {
    with_and_without_copies(
        ANYBODY,
        |client| {
            client.mkdir(&directory_on(client, "x", 1)).unwrap();
            client.mkdir(&directory_on(client, "y", 2)).unwrap();
            client.put(&format!("{}/f", directory_on(client, "x", 1)), b"data").unwrap();
        },
        |client, _| {
            let (x, y) = (directory_on(client, "x", 1), directory_on(client, "y", 2));
            client.link(&format!("{x}/f"), &format!("{y}/g"))
        },
        |client, acknowledged| {
            let (x, y) = (directory_on(client, "x", 1), directory_on(client, "y", 2));
            assert_eq!(client.get(&format!("{x}/f")).unwrap(), b"data");
            let linked = client.get(&format!("{y}/g"));
            assert!(linked == Ok(b"data".to_vec()) || (!acknowledged && linked == Err(Errno::NOENT)));
        },
    );
}

#[test]
fn rename_over_a_hard_linked_target_never_loses_both_names() {
    with_and_without_copies(
        EACH,
        |client| {
            let (x, y, z) =
                (directory_on(client, "x", 0), directory_on(client, "y", 1), directory_on(client, "z", 2));
            for dir in [&x, &y, &z] {
                client.mkdir(dir).unwrap();
            }
            client.put(&format!("{x}/made"), b"source").unwrap();
            // The inodes of source and target are elsewhere than their names.
            client.put(&format!("{z}/old"), b"target").unwrap();
            client.link(&format!("{z}/old"), &format!("{y}/to")).unwrap();
            client.rename(&format!("{x}/made"), &format!("{z}/from"), RenameMode::Replace).unwrap();
        },
        |client, _| {
            let (y, z) = (directory_on(client, "y", 1), directory_on(client, "z", 2));
            client.rename(&format!("{z}/from"), &format!("{y}/to"), RenameMode::Replace)
        },
        |client, acknowledged| {
            let (y, z) = (directory_on(client, "y", 1), directory_on(client, "z", 2));
            let source = client.get(&format!("{z}/from"));
            let target = client.get(&format!("{y}/to")).unwrap();
            assert_eq!(client.get(&format!("{z}/old")).unwrap(), b"target");
            match source {
                Ok(data) => {
                    assert!(!acknowledged);
                    assert_eq!((data.as_slice(), target.as_slice()), (&b"source"[..], &b"target"[..]));
                }
                Err(errno) => {
                    assert_eq!(errno, Errno::NOENT);
                    assert_eq!(target, b"source");
                }
            }
        },
    );
}

#[test]
fn moving_a_directory_happens_wholly_or_not_at_all() {
    with_and_without_copies(
        EACH,
        |client| {
            for (prefix, server) in [("a", 1), ("b", 2)] {
                client.mkdir(&directory_on(client, prefix, server)).unwrap();
            }
            let a = directory_on(client, "a", 1);
            client.mkdir(&format!("{a}/moved")).unwrap();
            client.put(&format!("{a}/moved/file"), b"inside").unwrap();
            let c = directory_on(client, "c", 0);
            client.mkdir(&c).unwrap();
            client.mkdir(&format!("{c}/other")).unwrap();
        },
        |client, _| {
            let (a, b) = (directory_on(client, "a", 1), directory_on(client, "b", 2));
            client.rename(&format!("{a}/moved"), &format!("{b}/here"), RenameMode::Replace)
        },
        |client, acknowledged| {
            let (a, b) = (directory_on(client, "a", 1), directory_on(client, "b", 2));
            let before = client.get(&format!("{a}/moved/file"));
            let after = client.get(&format!("{b}/here/file"));
            assert!(before.is_ok() != after.is_ok(), "{before:?} {after:?}");
            assert!(after.is_ok() || !acknowledged);
            // Another directory can be moved, though nothing else is done in the first one's shard.
            let c = directory_on(client, "c", 0);
            client.rename(&format!("{c}/other"), &format!("{b}/other"), RenameMode::Replace).unwrap();
        },
    );
}

#[test]
fn exchange_happens_wholly_or_not_at_all() {
    with_and_without_copies(
        ANYBODY,
        |client| {
            let (a, b) = (directory_on(client, "a", 1), directory_on(client, "b", 2));
            client.mkdir(&a).unwrap();
            client.mkdir(&b).unwrap();
            client.put(&format!("{a}/x"), b"one").unwrap();
            client.put(&format!("{b}/y"), b"two").unwrap();
        },
        |client, _| {
            let (a, b) = (directory_on(client, "a", 1), directory_on(client, "b", 2));
            client.rename(&format!("{a}/x"), &format!("{b}/y"), RenameMode::Exchange)
        },
        |client, acknowledged| {
            let (a, b) = (directory_on(client, "a", 1), directory_on(client, "b", 2));
            let found = (client.get(&format!("{a}/x")).unwrap(), client.get(&format!("{b}/y")).unwrap());
            let (one, two) = (b"one".to_vec(), b"two".to_vec());
            assert!(
                found == (two.clone(), one.clone()) || (!acknowledged && found == (one, two)),
                "{found:?}"
            );
        },
    );
}

/// A split makes some hundreds of calls: every seventh will do, with another start for each server.
#[test]
fn a_split_that_is_interrupted_is_done_again_and_loses_nothing() {
    for victim in [None, Some(ServerId(0)), Some(ServerId(2))] {
        let mut n = victim.map_or(0, |v| usize::from(v.0) + 1);
        loop {
            let cluster = Cluster::new(3);
            let client = Client::new(&cluster);
            client.mkdir("big").unwrap();
            let dir = client.dir("big").unwrap();
            for file in 0..=bivouac_layout::namespace::SPLIT_AT {
                let name = file.to_string();
                let request = |at| bivouac_proto::meta::MetaRequest::MakeNode {
                    at,
                    kind: FileKind::File,
                    mode: 0o600,
                    target: &[],
                };
                client.entry(dir, &name, request, &[]).unwrap();
            }
            let server = cluster.inner.map().primary(dir.ino.shard());
            *cluster.inner.victim.lock().unwrap() = victim;
            cluster.crash_at(n);
            let _ = cluster.inner.serve(server, |store| {
                store.keep();
                Ok(())
            });
            let crashed = cluster.stores().len() < 3;
            cluster.heal();
            let attr = client.attr(dir.ino).unwrap();
            assert!(attr.split, "the split was done in the end");
            assert_eq!(attr.size as usize, bivouac_layout::namespace::SPLIT_AT + 1);
            let mut names: Vec<u32> =
                client.names("big").unwrap().iter().map(|n| n.parse().unwrap()).collect();
            names.sort();
            assert!(names.iter().copied().eq(0..=bivouac_layout::namespace::SPLIT_AT as u32));
            client.put("big/one more", b"").unwrap();
            client.unlink("big/17").unwrap();
            if !crashed {
                break;
            }
            n += 67;
        }
    }
}

#[test]
fn rmdir_of_a_split_directory_happens_wholly_or_not_at_all() {
    let cluster_with = || {
        let cluster = Cluster::new(3);
        let client = Client::new(&cluster);
        client.mkdir("big").unwrap();
        let dir = client.dir("big").unwrap();
        for file in 0..=bivouac_layout::namespace::SPLIT_AT {
            client
                .create(&format!("big/{file}"), true)
                .and_then(|(attr, open)| client.release(attr.ino, open, None))
                .unwrap();
        }
        cluster.stores().iter().for_each(|s| s.keep());
        assert!(client.attr(dir.ino).unwrap().split);
        assert_eq!(client.rmdir("big"), Err(Errno::NOTEMPTY));
        for file in 0..=bivouac_layout::namespace::SPLIT_AT {
            client.unlink(&format!("big/{file}")).unwrap();
        }
        cluster
    };
    let mut n = 0;
    loop {
        let cluster = cluster_with();
        let client = Client::new(&cluster);
        cluster.crash_at(n);
        let result = client.rmdir("big");
        let crashed = cluster.stores().len() < 3;
        cluster.heal();
        match client.stat("big") {
            Ok(attr) => {
                assert!(attr.split && result.is_err());
                client.put("big/again", b"").unwrap();
                client.unlink("big/again").unwrap();
                client.rmdir("big").unwrap();
            }
            Err(errno) => assert_eq!(errno, Errno::NOENT),
        }
        let held: u64 = cluster.stores().iter().map(|s| s.counts().inodes).sum();
        assert_eq!(held, 1);
        if !crashed {
            break;
        }
        n += 97;
    }
}
