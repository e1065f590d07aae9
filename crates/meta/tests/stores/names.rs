//! Names: races between operations on them, listings while others work, permissions, and odd names.

use crate::common::Cluster;
use crate::common::client::{Client, Dir, directory_server, name_where};
use bivouac_layout::namespace::{SPLIT_AT, entry_shard};
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::attr::LINK_MAX;
use bivouac_proto::meta::{At, Create, MetaRequest, OpenHow, RenameMode, SetAttr};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, FileKind, Refusal};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

fn chmod(client: &Client, path: &str, mode: u16) {
    let ino = client.stat(path).unwrap().ino;
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    client.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).unwrap();
}

fn make(client: &Client, dir: Dir, name: &str) -> Result<(), Errno> {
    let request = |at| MetaRequest::MakeNode { at, kind: FileKind::File, mode: 0o600, target: &[] };
    client.entry(dir, name, request, &[]).map(drop)
}

#[test]
fn two_directories_moved_into_each_other_at_once_never_make_a_circle() {
    let cluster = Cluster::new(3);
    for round in 0..30 {
        let client = Client::new(&cluster);
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        client.mkdir(&a).unwrap();
        client.mkdir(&b).unwrap();
        let (left, right) = std::thread::scope(|scope| {
            let left =
                scope.spawn(|| Client::new(&cluster).rename(&a, &format!("{b}/x"), RenameMode::Replace));
            let right =
                scope.spawn(|| Client::new(&cluster).rename(&b, &format!("{a}/y"), RenameMode::Replace));
            (left.join().unwrap(), right.join().unwrap())
        });
        assert!(left.is_ok() != right.is_ok(), "{left:?} {right:?}");
        let (top, below) = if left.is_ok() { (&b, "x") } else { (&a, "y") };
        assert_eq!(client.names(top).unwrap(), [below]);
        assert!(client.names(&format!("{top}/{below}")).unwrap().is_empty());
    }
}

#[test]
fn create_in_a_directory_that_is_being_removed_fails_or_keeps_it() {
    let cluster = Cluster::new(3);
    for round in 0..60 {
        let client = Client::new(&cluster);
        let path = format!("d{round}");
        client.mkdir(&path).unwrap();
        let (made, removed) = std::thread::scope(|scope| {
            let made = scope.spawn(|| Client::new(&cluster).put(&format!("{path}/f"), b"x"));
            let removed = scope.spawn(|| Client::new(&cluster).rmdir(&path));
            (made.join().unwrap(), removed.join().unwrap())
        });
        match (made, removed) {
            (Ok(_), Err(Errno::NOTEMPTY)) => assert_eq!(client.get(&format!("{path}/f")).unwrap(), b"x"),
            (Err(Errno::NOENT), Ok(())) => assert_eq!(client.stat(&path), Err(Errno::NOENT)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn renames_of_one_file_by_many_leave_it_under_exactly_one_name() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    for dir in ["p", "q", "r"] {
        client.mkdir(dir).unwrap();
    }
    client.put("p/0", b"one and only").unwrap();
    std::thread::scope(|scope| {
        for who in 0..3u64 {
            let cluster = &cluster;
            scope.spawn(move || {
                let client = Client::new(cluster);
                let places = ["p/0", "q/1", "r/2", "p/3"];
                let mut random = who + 1;
                for _ in 0..150 {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let (from, to) =
                        (places[(random >> 33) as usize % 4], places[(random >> 40) as usize % 4]);
                    let result = client.rename(from, to, RenameMode::Replace);
                    assert!(matches!(result, Ok(()) | Err(Errno::NOENT)), "{result:?}");
                }
            });
        }
    });
    let found: Vec<_> = ["p/0", "q/1", "r/2", "p/3"].iter().filter_map(|p| client.get(p).ok()).collect();
    assert_eq!(found, [b"one and only".to_vec()]);
    assert_eq!(cluster.stores().iter().map(|s| s.counts().inodes).sum::<u64>(), 5);
}

#[test]
fn renaming_a_directory_raises_the_namespace_version_everywhere_before_it_returns() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("a").unwrap();
    client.mkdir("b").unwrap();
    client.put("f", b"").unwrap();
    let versions = || cluster.stores().iter().map(|s| s.namespace()).collect::<Vec<_>>();
    let before = versions();
    client.rename("f", "a/g", RenameMode::Replace).unwrap();
    assert_eq!(versions(), before, "files are not cached");
    client.rename("a", "c", RenameMode::Replace).unwrap();
    let after_one = versions();
    assert!(after_one.iter().zip(&before).all(|(after, before)| after > before));
    client.rename("c", "b/c", RenameMode::Replace).unwrap();
    let after_two = versions();
    assert!(after_two.iter().zip(&after_one).all(|(after, before)| after > before));
    chmod(&client, "b", 0o744);
    assert!(versions().iter().zip(&after_two).all(|(after, before)| after > before));
    let last = versions();
    cluster.restart(ServerId(1));
    assert!(versions()[1] > last[1], "who comes with a version from before a start has to forget");
    // A server that cannot be told keeps the move from happening.
    cluster.kill(ServerId(2));
    let moved = client.rename("b", "e", RenameMode::Replace);
    cluster.heal();
    if moved.is_err() {
        assert!(client.stat("b/c").is_ok());
    }
}

#[test]
fn a_listing_shows_each_entry_that_stays_exactly_once_while_others_work_and_the_directory_splits() {
    const FILES: usize = 50_000;
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("big").unwrap();
    let dir = client.dir("big").unwrap();
    for n in 0..SPLIT_AT - 1 {
        make(&client, dir, &format!("stays{n}")).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        // Makes and removes others, which makes the directory split in the middle of listings.
        scope.spawn(move || {
            let client = Client::new(cluster);
            let mut n = 0;
            let mut dir = dir;
            while !stop.load(Ordering::Relaxed) {
                make(&client, dir, &format!("comes{n}")).unwrap();
                if n >= 50 {
                    client
                        .entry(dir, &format!("comes{}", n - 50), |at| MetaRequest::Unlink { at }, &[])
                        .unwrap();
                }
                n += 1;
                if n == 200 {
                    cluster.stores().iter().for_each(|s| s.keep());
                    dir.split = client.attr(dir.ino).unwrap().split;
                    assert!(dir.split);
                }
            }
        });
        scope.spawn(move || {
            let client = Client::new(cluster);
            let mut dir = dir;
            for n in SPLIT_AT - 1..FILES {
                if !dir.split && n % 512 == 0 {
                    dir.split = client.attr(dir.ino).unwrap().split;
                }
                make(&client, dir, &format!("stays{n}")).unwrap();
            }
        });
        let client = Client::new(cluster);
        for round in 0..15 {
            let listed = client.list("big", 300 + round).unwrap();
            let names: Vec<_> =
                listed.iter().filter(|e| e.name.starts_with(b"stays")).map(|e| &e.name).collect();
            let different: BTreeSet<_> = names.iter().collect();
            assert_eq!(different.len(), names.len(), "an entry came twice");
            for n in 0..SPLIT_AT - 1 {
                assert!(different.contains(&&format!("stays{n}").into_bytes()), "stays{n} is missing");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let attr = client.attr(dir.ino).unwrap();
    let all = client.list("big", 5000).unwrap();
    assert_eq!(attr.size as usize, all.len());
    let stays = all.iter().filter(|e| e.name.starts_with(b"stays")).count();
    assert_eq!(stays, FILES);
    // Both servers and all parts took their share.
    assert!(cluster.stores().iter().all(|s| s.counts().inodes > FILES as u64 / 5));
    for server in 0..3 {
        cluster.restart(ServerId(server));
    }
    assert_eq!(client.list("big", 5000).unwrap().len(), all.len());
}

#[test]
fn directories_in_a_split_directory_count_and_can_be_moved_and_removed() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("big").unwrap();
    let dir = client.dir("big").unwrap();
    for n in 0..SPLIT_AT {
        make(&client, dir, &n.to_string()).unwrap();
    }
    client.mkdir("big/sub").unwrap();
    cluster.stores().iter().for_each(|s| s.keep());
    let attr = client.stat("big").unwrap();
    assert!(attr.split);
    assert_eq!((attr.nlink, attr.size as usize), (3, SPLIT_AT + 1));
    client.put("big/sub/file", b"below").unwrap();
    client.rename("big/sub", "big/moved", RenameMode::NoReplace).unwrap();
    client.rename("big", "large", RenameMode::Replace).unwrap();
    assert_eq!(client.get("large/moved/file").unwrap(), b"below");
    client.rename("large/moved/file", "large/7", RenameMode::Replace).unwrap();
    client.rmdir("large/moved").unwrap();
    let attr = client.stat("large").unwrap();
    assert_eq!((attr.nlink, attr.size as usize), (2, SPLIT_AT));
    assert_eq!(client.get("large/7").unwrap(), b"below");
    assert_eq!(client.rename("big", "x", RenameMode::Replace), Err(Errno::NOENT));
    // An explicit time of a directory shows although its parts are younger.
    let set = SetAttr { mtime: Some(bivouac_proto::meta::SetTime::To(77)), ..SetAttr::default() };
    client.inode(attr.ino, MetaRequest::SetAttr { ino: attr.ino, set }, &[]).unwrap();
    assert_eq!(client.stat("large").unwrap().mtime, 77);
    client.unlink("large/8").unwrap();
    assert!(client.stat("large").unwrap().mtime > 77);
}

#[test]
fn a_removal_over_two_servers_is_seen_on_both_as_soon_as_it_is_answered() {
    // With the teller: the second server hears of the decision after the answer.
    let cluster = Cluster::with(3, |options| options.background = true);
    let client = Client::new(&cluster);
    let elsewhere = |name: &str| directory_server(&cluster.inner, Ino::ROOT, name) != ServerId(0);
    let dir = name_where("d", elsewhere);
    client.mkdir(&dir).unwrap();
    for round in 0..100 {
        // The file's inode is with the root directory's entries, its second name on another server.
        let file = client.put(&format!("f{round}"), b"").unwrap();
        let second = format!("{dir}/f{round}");
        client.link(&format!("f{round}"), &second).unwrap();
        client.unlink(&second).unwrap();
        assert_eq!(client.attr(file).unwrap().nlink, 1, "round {round}");

        let old = client.dir(&dir).unwrap();
        let how = OpenHow { read: true, ..OpenHow::default() };
        let (_, open, _) = client.open(&dir, how).unwrap();
        client.rmdir(&dir).unwrap();
        assert_eq!(client.attr(old.ino).unwrap().nlink, 0, "round {round}");
        // Who knows the old number is told to walk again, and finds the new directory.
        client.mkdir(&dir).unwrap();
        let at = At { dir: old.ino, split: false, name: b"name" };
        let found = client.send(entry_shard(old.ino, false, b"name"), &MetaRequest::Lookup { at }, &[]);
        assert_eq!(found, Err(Failure::Errno(Errno::NOENT)), "round {round}");
        client.release(old.ino, open, None).unwrap();
        let found = client.send(entry_shard(old.ino, false, b"name"), &MetaRequest::Lookup { at }, &[]);
        assert_eq!(found, Err(Failure::Refused(Refusal::UnknownDirectory)), "round {round}");
    }
}

#[test]
fn a_participant_that_was_away_when_a_decision_was_told_hears_of_it_when_it_is_back() {
    let cluster = Cluster::with(3, |options| options.background = true);
    let client = Client::new(&cluster);
    let second = ServerId(1);
    let dir = name_where("d", |name| directory_server(&cluster.inner, Ino::ROOT, name) == second);
    client.mkdir(&dir).unwrap();
    for round in 0..3 {
        // The name is on the server that goes on, the inode on the one that is killed.
        let (far, near) = (format!("{dir}/f{round}"), format!("f{round}"));
        let file = client.put(&far, b"").unwrap();
        client.link(&far, &near).unwrap();
        let gone = client
            .mkdir(&format!("{dir}/gone{round}"))
            .and_then(|()| client.dir(&format!("{dir}/gone{round}")));
        client.unlink(&near).unwrap();
        cluster.kill(second);
        std::thread::sleep(std::time::Duration::from_millis(20));
        cluster.start(second);
        assert_eq!(client.attr(file).unwrap().nlink, 1, "round {round}");
        assert!(client.attr(gone.unwrap().ino).is_ok(), "round {round}");
    }
}

#[test]
fn requests_that_take_a_directory_for_what_it_is_not_are_refused() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    let dir = client.dir("d").unwrap();
    let lookup = |ino: Ino, split: bool| {
        let at = At { dir: ino, split, name: b"name" };
        client.send(entry_shard(ino, split, b"name"), &MetaRequest::Lookup { at }, &[])
    };
    assert_eq!(lookup(dir.ino, true), Err(Failure::Refused(Refusal::UnknownDirectory)));
    assert_eq!(lookup(dir.ino, false), Err(Failure::Errno(Errno::NOENT)));
    client.rmdir("d").unwrap();
    assert_eq!(lookup(dir.ino, false), Err(Failure::Refused(Refusal::UnknownDirectory)));
    for n in 0..=SPLIT_AT {
        make(&client, client.dir("").unwrap(), &n.to_string()).unwrap();
    }
    cluster.stores().iter().for_each(|s| s.keep());
    assert_eq!(lookup(Ino::ROOT, false), Err(Failure::Refused(Refusal::DirectorySplit)));
    let file = client.put("file", b"").unwrap();
    assert_eq!(lookup(file, false), Err(Failure::Errno(Errno::NOTDIR)));
}

#[test]
fn permissions_are_checked_with_the_callers_credentials() {
    let cluster = Cluster::new(3);
    let root = Client::new(&cluster);
    let (alice, bob) = (Client::of(&cluster, 1000), Client::of(&cluster, 1001));
    assert_eq!(alice.mkdir("d"), Err(Errno::ACCESS));
    root.mkdir("tmp").unwrap();
    chmod(&root, "tmp", 0o1777);
    alice.put("tmp/hers", b"secret").unwrap();
    chmod(&alice, "tmp/hers", 0o600);
    assert_eq!(bob.get("tmp/hers"), Err(Errno::ACCESS));
    assert_eq!(bob.unlink("tmp/hers"), Err(Errno::PERM));
    assert_eq!(bob.rename("tmp/hers", "tmp/his", RenameMode::Replace), Err(Errno::PERM));
    bob.put("tmp/his", b"").unwrap();
    assert_eq!(bob.rename("tmp/his", "tmp/hers", RenameMode::Replace), Err(Errno::PERM));
    let ino = alice.stat("tmp/hers").unwrap().ino;
    let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    assert_eq!(bob.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).map(drop), Err(Errno::PERM));
    let set = SetAttr { uid: Some(1001), ..SetAttr::default() };
    assert_eq!(alice.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).map(drop), Err(Errno::PERM));
    root.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).unwrap();
    assert_eq!(bob.get("tmp/hers").unwrap(), b"secret");
    // A set-gid directory passes its group on, and to directories itself.
    root.mkdir("shared").unwrap();
    let shared = root.stat("shared").unwrap().ino;
    let set = SetAttr { gid: Some(77), ..SetAttr::default() };
    root.inode(shared, MetaRequest::SetAttr { ino: shared, set }, &[]).unwrap();
    chmod(&root, "shared", 0o2777);
    alice.mkdir("shared/sub").unwrap();
    alice.put("shared/sub/f", b"").unwrap();
    assert_eq!(alice.stat("shared/sub").unwrap().mode, 0o2755);
    assert_eq!(alice.stat("shared/sub/f").unwrap().gid, 77);
    // Writing by others takes the set-user bit off, a new owner does, too.
    alice.put("shared/x", b"").unwrap();
    chmod(&alice, "shared/x", 0o4755);
    let ino = alice.stat("shared/x").unwrap().ino;
    alice.inode(ino, MetaRequest::WriteInline { ino, offset: 0 }, b"x").unwrap();
    assert_eq!(alice.attr(ino).unwrap().mode, 0o755);
}

#[test]
fn a_split_directory_checks_the_permissions_of_its_inode() {
    let cluster = Cluster::new(3);
    let (root, alice) = (Client::new(&cluster), Client::of(&cluster, 1000));
    root.mkdir("big").unwrap();
    let dir = root.dir("big").unwrap();
    for n in 0..=SPLIT_AT {
        make(&root, dir, &n.to_string()).unwrap();
    }
    cluster.stores().iter().for_each(|s| s.keep());
    assert_eq!(alice.put("big/x", b"").map(drop), Err(Errno::ACCESS));
    chmod(&root, "big", 0o777);
    alice.put("big/x", b"").unwrap();
    chmod(&root, "big", 0o700);
    assert_eq!(alice.stat("big/x"), Err(Errno::ACCESS));
    // She may have it open.
    alice.list_dir(Dir { split: true, ..dir }, 10).unwrap();
}

#[test]
fn all_names_that_posix_allows_work_and_no_others() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let shard = Ino::ROOT.shard();
    let create = |name: &[u8]| {
        let at = At { dir: Ino::ROOT, split: false, name };
        let how = OpenHow { create: Some(Create { mode: 0o600, exclusive: true }), ..OpenHow::default() };
        client.send(shard, &MetaRequest::Open { at, how, open: client.open_id() }, &[]).map(drop)
    };
    let longest = [b'n'; 255];
    let odd: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
    for name in [&longest[..], &odd, b"\xff\xfe", b"...", b" ", b"-", b"\n"] {
        create(name).unwrap();
        assert_eq!(create(name), Err(Failure::Errno(Errno::EXIST)));
    }
    assert_eq!(create(&[b'n'; 256]), Err(Failure::Errno(Errno::NAMETOOLONG)));
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert_eq!(create(name), Err(Failure::Errno(Errno::INVAL)), "{name:?}");
    }
    let listed: BTreeSet<Vec<u8>> = client.list("", 3).unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(listed.len(), 7);
    assert!(listed.contains(&odd));
}

#[test]
fn a_link_count_ends_at_its_limit() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let ino = client.put("f", b"").unwrap();
    let mut made = 1;
    let mut dir = Dir { ino: Ino::ROOT, split: false };
    let error = loop {
        let name = format!("l{made}");
        match client.entry(dir, &name, |at| MetaRequest::Link { ino, at }, &[]) {
            Ok(_) => made += 1,
            Err(errno) => break errno,
        }
        if made == SPLIT_AT as u32 + 10 {
            cluster.stores().iter().for_each(|s| s.keep());
            dir.split = true;
        }
    };
    assert_eq!((error, made), (Errno::MLINK, bivouac_proto::attr::LINK_MAX));
    assert_eq!(client.attr(ino).unwrap().nlink, made);
}

#[test]
fn a_file_has_so_many_names_and_no_more() {
    let cluster = Cluster::new(2);
    let client = Client::new(&cluster);
    // Over several directories, so that names lie in other shards than the inode, too.
    let dirs: Vec<Dir> = (0..40)
        .map(|n| {
            client.mkdir(&format!("d{n}")).unwrap();
            client.dir(&format!("d{n}")).unwrap()
        })
        .collect();
    let ino = client.put("f", b"").unwrap();
    let link = |n: u32| {
        let name = n.to_string();
        client.entry(dirs[n as usize % 40], &name, |at| MetaRequest::Link { ino, at }, &[]).map(drop)
    };
    (1..LINK_MAX).for_each(|n| link(n).unwrap());
    assert_eq!(link(LINK_MAX), Err(Errno::MLINK));
    assert_eq!(client.stat("f").unwrap().nlink, LINK_MAX);
    client.unlink("d1/1").unwrap();
    link(LINK_MAX).unwrap();
    assert_eq!(link(LINK_MAX + 1), Err(Errno::MLINK));
}

#[test]
fn a_lost_permission_that_not_all_were_told_of_is_told_when_it_is_asked_for_again() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("a").unwrap();
    let ino = client.stat("a").unwrap().ino;
    let deaf = cluster.inner.map().servers.iter().map(|s| s.id).find(|id| {
        ![ino.shard(), Ino::ROOT.shard()].iter().any(|shard| cluster.inner.map().primary(*shard) == *id)
    });
    let deaf = deaf.unwrap();
    cluster.kill(deaf);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let chmod = || client.inode(ino, MetaRequest::SetAttr { ino, set }, &[]);
    assert!(chmod().is_err());
    assert!(chmod().is_err(), "there is nothing left to change, but somebody to be told");
    cluster.start(deaf);
    let versions = || cluster.stores().iter().map(|s| s.namespace()).collect::<Vec<_>>();
    let before = versions();
    chmod().unwrap();
    assert!(versions().iter().zip(&before).all(|(after, before)| after > before));
    let before = versions();
    chmod().unwrap();
    assert_eq!(versions(), before, "it is told once");
}
