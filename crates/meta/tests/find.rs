//! Many files by their names in one request.

mod common;

use bivouac_layout::namespace::entry_shard;
use bivouac_proto::meta::{At, FIND_MAX, FoundFile, MetaReply, MetaRequest, SetAttr};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply};
use common::Cluster;
use common::client::{Client, Dir};

/// The answers, and all data that came with them.
fn find(client: &Client, dir: Dir, names: &[&str]) -> (Vec<Option<FoundFile>>, Vec<u8>) {
    let names: Vec<At<'_>> =
        names.iter().map(|name| At { dir: dir.ino, split: dir.split, name: name.as_bytes() }).collect();
    let shard = names.first().map_or(dir.ino.shard(), |at| entry_shard(at.dir, at.split, at.name));
    match client.send(shard, &MetaRequest::Find { names }, &[]) {
        Ok((Reply::Meta(MetaReply::Found(found)), data)) => (found, data),
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_are_found_with_the_data_of_small_ones_and_everything_else_is_left_out() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    client.mkdir("d/directory").unwrap();
    client.symlink("small", "d/link").unwrap();
    for (name, data) in [("small", &b"abc"[..]), ("empty", b""), ("other", b"de"), ("secret", b"hidden")] {
        client.put(&format!("d/{name}"), data).unwrap();
    }
    let blocks = client.put("d/blocks", b"spilt").unwrap();
    client.spill(blocks).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let ino = client.stat("d/secret").unwrap().ino;
    client.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).unwrap();

    let somebody = Client::of(&cluster, 1000);
    let names = ["small", "none", "directory", "empty", "link", "blocks", "secret", "..", "a/b", "", "other"];
    let (found, data) = find(&somebody, client.dir("d").unwrap(), &names);
    assert_eq!(data, b"abcde");
    for (name, file) in names.iter().zip(&found) {
        let shown = file.as_ref().map(|file| (file.attr.ino, file.with_data));
        let path = format!("d/{name}");
        let expected = match *name {
            "small" | "empty" | "other" => Some((client.stat(&path).unwrap().ino, true)),
            // Without what may not be read, or is not here.
            "blocks" | "secret" => Some((client.stat(&path).unwrap().ino, false)),
            _ => None,
        };
        assert_eq!(shown, expected, "{name}");
    }

    // Nobody may pass through the directory any more.
    let ino = client.stat("d").unwrap().ino;
    client.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).unwrap();
    let (found, data) = find(&somebody, client.dir("d").unwrap(), &["small", "blocks"]);
    assert_eq!((found, data), (vec![None, None], Vec::new()));
}

#[test]
fn a_moved_file_is_found_although_its_inode_is_in_another_shard_and_what_is_elsewhere_is_left_out() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    for dir in ["a", "b"] {
        client.mkdir(dir).unwrap();
    }
    client.put("a/file", b"moved").unwrap();
    client.rename("a/file", "b/file", bivouac_proto::meta::RenameMode::Replace).unwrap();
    let dir = client.dir("b").unwrap();
    assert_ne!(client.stat("b/file").unwrap().ino.shard(), entry_shard(dir.ino, dir.split, b"file"));
    let (found, data) = find(&client, dir, &["file"]);
    assert!(matches!(&found[..], [Some(FoundFile { with_data: true, .. })]));
    assert_eq!(data, b"moved");

    // Of several servers, each shows what it answers for.
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let mut shown = 0;
    for i in 0..30 {
        let dir = format!("d{i}");
        client.mkdir(&dir).unwrap();
        client.put(&format!("{dir}/f"), b"x").unwrap();
        let dir = client.dir(&dir).unwrap();
        // By the shard of the root, whoever has that.
        let names = vec![At { dir: dir.ino, split: dir.split, name: b"f" }];
        match client.send(bivouac_layout::Ino::ROOT.shard(), &MetaRequest::Find { names }, &[]) {
            Ok((Reply::Meta(MetaReply::Found(found)), data)) => {
                assert_eq!(found.iter().flatten().count(), data.len());
                shown += data.len();
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((1..30).contains(&shown), "{shown}");
}

#[test]
fn more_names_than_allowed_are_refused() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let dir = client.dir("").unwrap();
    let names = vec![At { dir: dir.ino, split: dir.split, name: b"n" }; FIND_MAX + 1];
    let sent = client.send(dir.ino.shard(), &MetaRequest::Find { names }, &[]);
    assert!(matches!(sent, Err(Failure::Errno(Errno::INVAL))), "{sent:?}");
}
