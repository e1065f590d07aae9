//! Many files by their names in one request.

use crate::common::Cluster;
use crate::common::client::{Client, Dir};
use bivouac_layout::namespace::entry_shard;
use bivouac_layout::{Ino, ShardId};
use bivouac_proto::meta::{At, FIND_MAX, MetaReply, MetaRequest, RenameMode, SetAttr, Sighted, Sought};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply};

/// The answers, and all data that came with them.
fn find(client: &Client, shard: ShardId, files: Vec<Sought<'_>>) -> (Vec<Sighted>, Vec<u8>) {
    match client.send(shard, &MetaRequest::Find { files }, &[]) {
        Ok((Reply::Meta(MetaReply::Found(found)), data)) => (found, data),
        other => panic!("{other:?}"),
    }
}

fn find_names(client: &Client, dir: Dir, names: &[&str]) -> (Vec<Sighted>, Vec<u8>) {
    let at = |name: &str| entry_shard(dir.ino, dir.split, name.as_bytes());
    let sought =
        names.iter().map(|name| Sought::Name(At { dir: dir.ino, split: dir.split, name: name.as_bytes() }));
    find(client, at(names[0]), sought.collect())
}

/// Of a file that was shown, its number, and whether its data came along.
fn shown(file: &Sighted) -> Option<(Ino, bool)> {
    match file {
        Sighted::File { attr, with_data } => Some((attr.ino, *with_data)),
        _ => None,
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
    let (found, data) = find_names(&somebody, client.dir("d").unwrap(), &names);
    assert_eq!(data, b"abcde");
    for (name, file) in names.iter().zip(&found) {
        let path = format!("d/{name}");
        let expected = match *name {
            "small" | "empty" | "other" => Some((client.stat(&path).unwrap().ino, true)),
            // Without what may not be read, or is not here.
            "blocks" | "secret" => Some((client.stat(&path).unwrap().ino, false)),
            _ => None,
        };
        assert_eq!(shown(file), expected, "{name}");
    }
    let directory = client.stat("d/directory").unwrap().ino;
    for ino in [directory, Ino(directory.0 + 1000)] {
        let found = find(&somebody, ino.shard(), vec![Sought::Inode(ino)]);
        assert_eq!(found, (vec![Sighted::Untold], Vec::new()));
    }

    // Nobody may pass through the directory any more.
    let ino = client.stat("d").unwrap().ino;
    client.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).unwrap();
    let (found, data) = find_names(&somebody, client.dir("d").unwrap(), &["small", "blocks"]);
    assert_eq!((found, data), (vec![Sighted::Untold, Sighted::Untold], Vec::new()));
}

#[test]
fn a_file_whose_inode_is_elsewhere_is_found_by_its_number() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    let (mut at_once, mut elsewhere) = (0, 0);
    for i in 0..30 {
        let (from, to) = (format!("a{i}"), format!("b{i}"));
        for dir in [&from, &to] {
            client.mkdir(dir).unwrap();
        }
        client.put(&format!("{from}/file"), b"moved").unwrap();
        client.rename(&format!("{from}/file"), &format!("{to}/file"), RenameMode::Replace).unwrap();
        let ino = client.stat(&format!("{to}/file")).unwrap().ino;
        let (found, data) = match find_names(&client, client.dir(&to).unwrap(), &["file"]) {
            (found, _) if found == [Sighted::Elsewhere(ino)] => {
                elsewhere += 1;
                find(&client, ino.shard(), vec![Sought::Inode(ino)])
            }
            found => {
                at_once += 1;
                found
            }
        };
        assert_eq!(found.iter().map(shown).collect::<Vec<_>>(), [Some((ino, true))]);
        assert_eq!(data, b"moved");
    }
    assert!(at_once > 0 && elsewhere > 0, "{at_once} and {elsewhere}");
}

#[test]
fn more_files_than_allowed_are_refused() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let dir = client.dir("").unwrap();
    let files = vec![Sought::Inode(dir.ino); FIND_MAX + 1];
    let sent = client.send(dir.ino.shard(), &MetaRequest::Find { files }, &[]);
    assert!(matches!(sent, Err(Failure::Errno(Errno::INVAL))), "{sent:?}");
}
