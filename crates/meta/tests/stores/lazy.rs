//! Lazy files: whatever crashes or fails while one is fetched, it is lazy afterwards, or has all of its contents.

use crate::common::client::{Client, ROOT};
use crate::common::{BLOCK, Cluster};
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::attr::Store;
use bivouac_proto::lazy::{LazyFile, Source};
use bivouac_proto::meta::{MetaReply, MetaRequest, OpenHow};
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, Errno, Refusal, Reply};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + 1) as u8 | 1).collect()
}

fn source(path: &Path) -> Source {
    let meta = std::fs::metadata(path).unwrap();
    let mtime = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
    Source { path: path.as_os_str().as_bytes().to_vec(), ino: meta.ino(), size: meta.size(), mtime }
}

/// A file of the backend.
fn backend(directory: &Path, len: usize) -> PathBuf {
    let path = directory.join(len.to_string());
    std::fs::write(&path, bytes(len)).unwrap();
    path
}

fn make(client: &Client, name: &str, path: &Path) -> Result<Attr, Errno> {
    let file = Box::new(LazyFile { source: source(path), mode: 0o640, owner: Some((7, 8)), atime: 99 });
    match client.entry(ROOT, name, |at| MetaRequest::MakeLazy { at, file: file.clone() }, &[])?.0 {
        Reply::Meta(MetaReply::Entry { attr, .. }) | Reply::Changed(_, MetaReply::Entry { attr, .. }) => {
            Ok(*attr)
        }
        other => panic!("{other:?}"),
    }
}

fn fetch(client: &Client, ino: Ino) -> Result<(), String> {
    match client.send(ino.shard(), &MetaRequest::Fetch { ino }, &[]) {
        Ok((Reply::Done, _)) => Ok(()),
        Ok((Reply::Meta(MetaReply::Unfetchable(failed)), _)) => Err(failed.why),
        other => Err(format!("{other:?}")),
    }
}

/// What a file contains that is not lazy.
fn content(cluster: &Cluster, client: &Client, attr: &Attr) -> Vec<u8> {
    let Some(layout) = &attr.layout else {
        return client
            .inode(attr.ino, MetaRequest::ReadInline { ino: attr.ino, offset: 0, len: 4096 }, &[])
            .unwrap()
            .1;
    };
    let map = cluster.inner.map();
    let mut found = vec![0; attr.size as usize];
    for piece in layout.pieces(&map, 0..attr.size) {
        let files = cluster.inner.data[piece.server.0 as usize].lock().unwrap();
        let theirs = files.get(&attr.ino).map_or(&[][..], |file| &file.bytes[..]);
        let end = (piece.offset + piece.len).min(theirs.len() as u64).max(piece.offset);
        found[piece.offset as usize..end as usize]
            .copy_from_slice(theirs.get(piece.offset as usize..end as usize).unwrap_or_default());
    }
    found
}

fn nothing_is_stored(cluster: &Cluster) -> bool {
    cluster.inner.data.iter().all(|files| files.lock().unwrap().is_empty())
}

const LENGTHS: [usize; 4] = [1, 4096, 4097, 7 * BLOCK as usize + 5];

#[test]
fn a_fetched_file_has_its_contents_and_the_attributes_that_it_had() {
    let directory = tempfile::tempdir().unwrap();
    for len in LENGTHS {
        let cluster = Cluster::new(3);
        let client = Client::new(&cluster);
        let path = backend(directory.path(), len);
        let before = make(&client, "f", &path).unwrap();
        let is = |attr: &Attr| (attr.size, attr.mode, attr.uid, attr.gid, attr.atime, attr.mtime, attr.ctime);
        assert_eq!(is(&before), (len as u64, 0o640, 7, 8, 99, source(&path).mtime, before.ctime));
        assert_eq!((before.store, client.stat("f").unwrap()), (Store::Lazy, before.clone()));
        assert_eq!(make(&client, "f", &path), Err(Errno::EXIST));
        let counts = |cluster: &Cluster| {
            let all = cluster.stores().into_iter().map(|store| store.counts().lazy);
            all.fold((0, 0), |sum, lazy| (sum.0 + lazy.0, sum.1 + lazy.1))
        };
        assert_eq!(counts(&cluster), (1, len as u64));
        // Nobody opens, cuts or appends to it before.
        let open = MetaRequest::OpenInode {
            ino: before.ino,
            how: OpenHow { read: true, ..OpenHow::default() },
            open: client.open_id(),
        };
        for request in [
            open,
            MetaRequest::Truncate { ino: before.ino, size: 1 },
            MetaRequest::Append { ino: before.ino },
            MetaRequest::Spill { ino: before.ino },
            MetaRequest::WriteInline { ino: before.ino, offset: 0 },
            MetaRequest::ReadInline { ino: before.ino, offset: 0, len: 1 },
        ] {
            let refused = Err(Failure::Refused(Refusal::Unfetched { ino: before.ino }));
            assert_eq!(client.send(before.ino.shard(), &request, b"x"), refused, "{request:?}");
        }
        assert!(nothing_is_stored(&cluster));
        // Also after a restart.
        (0..3).for_each(|server| cluster.restart(ServerId(server)));
        assert_eq!((client.stat("f").unwrap(), counts(&cluster)), (before.clone(), (1, len as u64)));
        fetch(&client, before.ino).unwrap();
        let after = client.stat("f").unwrap();
        assert_eq!((is(&after), counts(&cluster)), (is(&before), (0, 0)));
        assert_eq!(content(&cluster, &client, &after), bytes(len));
        fetch(&client, before.ino).unwrap();
        (0..3).for_each(|server| cluster.restart(ServerId(server)));
        let attr = client.stat("f").unwrap();
        assert_eq!((attr.size, content(&cluster, &client, &attr)), (len as u64, bytes(len)));
    }
}

#[test]
fn whenever_a_server_dies_the_file_is_lazy_or_complete() {
    let directory = tempfile::tempdir().unwrap();
    for len in [4000, 7 * BLOCK as usize + 5] {
        let path = backend(directory.path(), len);
        let (mut crashes, mut lazy_after) = (0, 0);
        for n in 0.. {
            let cluster = Cluster::new(3);
            let client = Client::new(&cluster);
            let ino = make(&client, "f", &path).unwrap().ino;
            cluster.crash_at(n);
            let fetched = fetch(&client, ino);
            let crashed = cluster.stores().len() < 3;
            cluster.heal();
            let attr = client.stat("f").unwrap();
            match attr.store {
                Store::Lazy => {
                    assert!(fetched.is_err() && nothing_is_stored(&cluster), "crash at {n}");
                    lazy_after += 1;
                    fetch(&client, ino).unwrap();
                }
                _ => assert_eq!(content(&cluster, &client, &attr), bytes(len), "crash at {n}"),
            }
            let attr = client.stat("f").unwrap();
            assert_eq!((attr.size, attr.mtime), (len as u64, source(&path).mtime));
            assert_eq!(content(&cluster, &client, &attr), bytes(len));
            client.unlink("f").unwrap();
            cluster.heal();
            assert!(nothing_is_stored(&cluster), "crash at {n}");
            if !crashed {
                break;
            }
            crashes += 1;
        }
        assert!(crashes > 2 && lazy_after > 2, "{crashes} {lazy_after}");
    }
}

#[test]
fn copies_take_over_lazy_files_and_what_was_begun() {
    let directory = tempfile::tempdir().unwrap();
    let path = backend(directory.path(), 7 * BLOCK as usize + 5);
    let mut crashes = 0;
    for n in (0..).step_by(3) {
        let cluster = Cluster::replicated_with_blocks(4, 2);
        let client = Client::new(&cluster);
        let ino = make(&client, "f", &path).unwrap().ino;
        cluster.crash_at(n);
        let fetched = fetch(&client, ino);
        let crashed = cluster.stores().len() < 4;
        if fetched.is_err() {
            cluster.inner.failover();
            cluster.inner.keep();
        }
        // Another one may have done it.
        for _ in 0..5 {
            if fetch(&client, ino).is_ok() {
                break;
            }
            cluster.inner.keep();
        }
        let attr = client.stat("f").unwrap();
        assert_ne!(attr.store, Store::Lazy, "crash at {n}");
        assert_eq!(content(&cluster, &client, &attr), bytes(7 * BLOCK as usize + 5), "crash at {n}");
        if !crashed {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 4, "{crashes}");
}

#[test]
fn a_failure_leaves_the_file_lazy_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let path = backend(directory.path(), 7 * BLOCK as usize + 5);
    let ino = make(&client, "f", &path).unwrap().ino;
    for failing in 0..3 {
        *cluster.inner.data_fault.lock().unwrap() = Some((Some(ServerId(failing)), Errno::NOSPC));
        assert!(fetch(&client, ino).is_err(), "server {failing}");
        *cluster.inner.data_fault.lock().unwrap() = None;
        cluster.heal();
        assert_eq!(client.stat("f").unwrap().store, Store::Lazy);
        assert!(nothing_is_stored(&cluster));
    }
    // Another file of the same length takes its place.
    let other = directory.path().join("other");
    std::fs::write(&other, vec![9; 7 * BLOCK as usize + 5]).unwrap();
    std::fs::rename(&path, directory.path().join("away")).unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert!(fetch(&client, ino).unwrap_err().contains("changed or replaced"));
    std::fs::remove_file(&path).unwrap();
    cluster.heal();
    assert!(fetch(&client, ino).unwrap_err().contains("No such file"));
    cluster.heal();
    assert!(nothing_is_stored(&cluster) && client.stat("f").unwrap().store == Store::Lazy);
    std::fs::rename(directory.path().join("away"), &path).unwrap();
    fetch(&client, ino).unwrap();
    assert_eq!(content(&cluster, &client, &client.stat("f").unwrap()), bytes(7 * BLOCK as usize + 5));
}

#[test]
fn what_servers_do_not_see_one_that_sees_it_reads_for_them() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let path = backend(directory.path(), 7 * BLOCK as usize + 5);
    let ino = make(&client, "f", &path).unwrap().ino;
    *cluster.inner.blind.lock().unwrap() = vec![ServerId(0), ServerId(2)];
    fetch(&client, ino).unwrap();
    assert_eq!(content(&cluster, &client, &client.stat("f").unwrap()), bytes(7 * BLOCK as usize + 5));
}

#[test]
fn a_lazy_file_that_is_emptied_or_removed_needs_no_contents() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let path = backend(directory.path(), 7 * BLOCK as usize + 5);
    for name in ["opened", "cut", "removed"] {
        make(&client, name, &path).unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    client.put("opened", b"new").unwrap();
    assert_eq!(client.get("opened").unwrap(), b"new");
    let ino = client.stat("cut").unwrap().ino;
    assert_eq!(client.truncate(ino, 0).unwrap().size, 0);
    assert_eq!(client.truncate(ino, 10_000).unwrap().size, 10_000);
    client.unlink("removed").unwrap();
    let lazy: u64 = cluster.stores().into_iter().map(|store| store.counts().lazy.0).sum();
    assert_eq!(lazy, 0);
}

#[test]
fn only_the_deployments_user_makes_lazy_files() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(1);
    let own = rustix::process::geteuid().as_raw();
    let stranger = Client::of(&cluster, own + 1);
    let path = backend(directory.path(), 10);
    assert_eq!(make(&stranger, "f", &path), Err(Errno::PERM));
    let root = Client::new(&cluster);
    let make = |path: &[u8]| {
        let source = Source { path: path.to_vec(), ..source(&directory.path().join("10")) };
        let file = Box::new(LazyFile { source, mode: 0, owner: None, atime: 0 });
        root.entry(ROOT, "g", |at| MetaRequest::MakeLazy { at, file: file.clone() }, &[]).map(drop)
    };
    for path in [&b"relative"[..], b"", b"/with\0nul", &[b'/'; 5000]] {
        assert_eq!(make(path), Err(Errno::INVAL));
    }
}
