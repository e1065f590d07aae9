//! How new files are spread: what directories say, what is taken over, what the attributes show and take.

use crate::common::client::{Client, directory_server, name_where};
use crate::common::{BLOCK, Cluster};
use bivouac_layout::{First, Ino, NodeId, ServerId, Template};
use bivouac_proto::meta::{MetaRequest, RenameMode, XattrMode};
use bivouac_proto::{Attr, Errno};

const WHOLE: &str = "user.bivouac.layout";

fn set(client: &Client, path: &str, name: &str, value: &str) -> Result<(), Errno> {
    let ino = client.stat(path)?.ino;
    let request = MetaRequest::SetXattr { ino, name: name.as_bytes(), mode: XattrMode::Set };
    client.inode(ino, request, value.as_bytes()).map(drop)
}

fn get(client: &Client, path: &str, name: &str) -> Result<String, Errno> {
    let ino = client.stat(path)?.ino;
    let (_, value) = client.inode(ino, MetaRequest::GetXattr { ino, name: name.as_bytes() }, &[])?;
    Ok(String::from_utf8(value).unwrap())
}

fn remove(client: &Client, path: &str, name: &str) -> Result<(), Errno> {
    let ino = client.stat(path)?.ino;
    client.inode(ino, MetaRequest::RemoveXattr { ino, name: name.as_bytes() }, &[]).map(drop)
}

fn listed(client: &Client, path: &str) -> String {
    let ino = client.stat(path).unwrap().ino;
    String::from_utf8(client.inode(ino, MetaRequest::ListXattr { ino }, &[]).unwrap().1).unwrap()
}

/// A new file, moved to blocks.
fn made(client: &Client, path: &str) -> Attr {
    let (attr, open) = client.create(path, true).unwrap();
    let attr = client.spill(attr.ino).unwrap();
    client.release(attr.ino, open, None).unwrap();
    attr
}

fn holder(cluster: &Cluster, attr: &Attr) -> ServerId {
    attr.layout.as_ref().unwrap().server_at(&cluster.inner.map(), 0).unwrap()
}

#[test]
fn files_and_directories_take_their_directorys_layout_over() {
    let cluster = Cluster::new(4);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    set(&client, "d", WHOLE, "block=64K width=2 first=3").unwrap();
    client.mkdir("d/deep").unwrap();
    client.mkdir("d/deep/er").unwrap();
    for path in ["d/f", "d/deep/f", "d/deep/er/f"] {
        let layout = made(&client, path).layout.unwrap();
        assert_eq!((layout.block_size, layout.width, layout.ranges[0].first), (65536, 2, 3), "{path}");
    }
    // What was made keeps what it has; elsewhere the deployment's defaults hold.
    set(&client, "d", WHOLE, "block=4K").unwrap();
    assert_eq!(get(&client, "d/deep", WHOLE).unwrap(), "block=64K width=2 first=3");
    assert_eq!(made(&client, "f").layout.unwrap().block_size, BLOCK);
    let layout = made(&client, "d/g").layout.unwrap();
    assert_eq!((layout.block_size, layout.width), (4096, 0));
}

#[test]
fn a_file_keeps_the_layout_it_was_made_with_until_it_needs_blocks() {
    let cluster = Cluster::new(4);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    client.mkdir("e").unwrap();
    set(&client, "d", WHOLE, "block=64K first=2").unwrap();
    client.put("d/f", b"small").unwrap();
    set(&client, "d", WHOLE, "block=4K first=1").unwrap();
    client.rename("d/f", "e/f", RenameMode::Replace).unwrap();
    for server in 0..4 {
        cluster.restart(ServerId(server));
    }
    let ino = client.stat("e/f").unwrap().ino;
    assert_eq!(get(&client, "e/f", WHOLE).unwrap(), "block=64K width=4 first=2");
    let attr = client.spill(ino).unwrap();
    assert_eq!(attr.layout.as_ref().unwrap().block_size, 65536);
    assert_eq!(cluster.holders(ino), [ServerId(2)]);
    assert_eq!(get(&client, "e/f", WHOLE).unwrap(), "block=64K width=4 first=2");
}

#[test]
fn local_files_begin_on_the_node_of_who_makes_them() {
    let cluster = Cluster::new(4);
    let mut client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    set(&client, "d", WHOLE, "first=local width=1").unwrap();
    for node in 0..4 {
        client.node = NodeId(node);
        let path = format!("d/f{node}");
        client.create(&path, true).unwrap();
        // Who writes it makes no difference.
        client.node = NodeId((node + 1) % 4);
        let attr = client.spill(client.stat(&path).unwrap().ino).unwrap();
        assert_eq!(holder(&cluster, &attr), ServerId(node));
        assert_eq!(get(&client, &path, "user.bivouac.first").unwrap(), node.to_string());
    }
    // A node without a server: somewhere, as if nothing had been said.
    client.node = NodeId(77);
    let attr = made(&client, "d/far");
    let spread = Template::default().layout(attr.ino, &cluster.inner.map());
    assert_eq!(attr.layout.unwrap().ranges, spread.ranges);
}

#[test]
fn the_deployments_defaults_fill_in_what_a_directory_leaves_open() {
    let cluster = Cluster::with_map(3, |_| {}, |map| (map.width, map.first) = (2, First::Local));
    let mut client = Client::new(&cluster);
    client.node = NodeId(2);
    let layout = made(&client, "f").layout.unwrap();
    assert_eq!((layout.width, layout.ranges[0].first), (2, 2));
    client.mkdir("d").unwrap();
    set(&client, "d", "user.bivouac.width", "all").unwrap();
    let layout = made(&client, "d/f").layout.unwrap();
    assert_eq!((layout.width, layout.ranges[0].first), (0, 2));
    set(&client, "d", "user.bivouac.first", "hashed").unwrap();
    let attr = made(&client, "d/g");
    let spread = Template { first: Some(First::Hashed), ..Template::default() };
    assert_eq!(attr.layout.unwrap().ranges, spread.layout(attr.ino, &cluster.inner.map()).ranges);
}

#[test]
fn a_split_directory_says_the_same_on_all_servers() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    set(&client, "d", WHOLE, "block=64K").unwrap();
    for n in 0..2100 {
        client.create(&format!("d/{n}"), true).unwrap();
    }
    cluster.heal();
    assert!(client.stat("d").unwrap().split);
    for n in 0..20 {
        assert_eq!(made(&client, &format!("d/after{n}")).layout.unwrap().block_size, 65536);
    }
    set(&client, "d", WHOLE, "block=128K").unwrap();
    for n in 0..20 {
        assert_eq!(made(&client, &format!("d/later{n}")).layout.unwrap().block_size, 131_072);
        client.mkdir(&format!("d/dir{n}")).unwrap();
        assert_eq!(get(&client, &format!("d/dir{n}"), WHOLE).unwrap(), "block=128K");
    }
    // Changing the mode leaves it as it is.
    let ino = client.stat("d").unwrap().ino;
    let chmod = bivouac_proto::meta::SetAttr { mode: Some(0o700), ..Default::default() };
    client.inode(ino, MetaRequest::SetAttr { ino, set: chmod }, &[]).unwrap();
    for n in 0..20 {
        assert_eq!(made(&client, &format!("d/last{n}")).layout.unwrap().block_size, 131_072);
    }
}

#[test]
fn a_directory_made_on_another_server_takes_the_layout_over_after_a_restart_too() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    set(&client, "", WHOLE, "width=2").unwrap();
    let root = cluster.inner.map().primary(Ino::ROOT.shard());
    let name = name_where("d", |name| directory_server(&cluster.inner, Ino::ROOT, name) != root);
    client.mkdir(&name).unwrap();
    for server in 0..3 {
        cluster.restart(ServerId(server));
    }
    assert_eq!(get(&client, &name, WHOLE).unwrap(), "width=2");
    assert_eq!(made(&client, &format!("{name}/f")).layout.unwrap().width, 2);
}

#[test]
fn attributes_show_set_and_clear_the_layout() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    assert_eq!(get(&client, "d", WHOLE), Err(Errno::NODATA));
    assert_eq!(remove(&client, "d", WHOLE), Err(Errno::NODATA));
    assert_eq!(listed(&client, "d"), "");
    set(&client, "d", "user.bivouac.block", "1M").unwrap();
    set(&client, "d", "user.bivouac.width", "2").unwrap();
    assert_eq!(get(&client, "d", WHOLE).unwrap(), "block=1M width=2");
    assert_eq!(get(&client, "d", "user.bivouac.block").unwrap(), "1M");
    assert_eq!(get(&client, "d", "user.bivouac.first"), Err(Errno::NODATA));
    assert_eq!(listed(&client, "d"), "user.bivouac.layout\0");
    remove(&client, "d", "user.bivouac.block").unwrap();
    assert_eq!(get(&client, "d", WHOLE).unwrap(), "width=2");
    remove(&client, "d", WHOLE).unwrap();
    assert_eq!(listed(&client, "d"), "");
    // Of a file they show what it comes to, and are not listed: copies are not to carry a place along.
    set(&client, "d", WHOLE, "first=1").unwrap();
    client.put("d/f", b"x").unwrap();
    assert_eq!(get(&client, "d/f", WHOLE).unwrap(), "block=8K width=3 first=1");
    assert_eq!(listed(&client, "d/f"), "");
    let ino = client.stat("d").unwrap().ino;
    for (mode, value, expected) in [
        (XattrMode::Create, "width=2", Err(Errno::EXIST)),
        (XattrMode::Replace, "width=2", Ok(())),
        (XattrMode::Set, "", Ok(())),
        (XattrMode::Replace, "width=2", Err(Errno::NODATA)),
    ] {
        let request = MetaRequest::SetXattr { ino, name: WHOLE.as_bytes(), mode };
        assert_eq!(client.inode(ino, request, value.as_bytes()).map(drop), expected, "{mode:?}");
    }
}

#[test]
fn a_file_takes_a_layout_as_long_as_it_never_had_data() {
    let cluster = Cluster::new(3);
    let mut client = Client::new(&cluster);
    let (attr, open) = client.create("f", true).unwrap();
    client.node = NodeId(1);
    set(&client, "f", WHOLE, "block=64K width=1 first=local").unwrap();
    assert_eq!(get(&client, "f", WHOLE).unwrap(), "block=64K width=1 first=1");
    client.inode(attr.ino, MetaRequest::WriteInline { ino: attr.ino, offset: 0 }, b"x").unwrap();
    assert_eq!(set(&client, "f", WHOLE, "width=2"), Err(Errno::NOTEMPTY));
    assert_eq!(remove(&client, "f", WHOLE), Err(Errno::NOTEMPTY));
    client.spill(attr.ino).unwrap();
    assert_eq!(set(&client, "f", WHOLE, "width=2"), Err(Errno::NOTEMPTY));
    client.release(attr.ino, open, None).unwrap();
    assert_eq!(cluster.holders(attr.ino), [ServerId(1)]);
}

#[test]
fn layouts_that_make_no_sense_are_refused() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    client.symlink("d", "link").unwrap();
    for value in ["block=5K", "width=0", "first=3", "first=far", "replicas=2", "speed=high", "\u{fc}=1"] {
        assert_eq!(set(&client, "d", WHOLE, value), Err(Errno::INVAL), "{value}");
    }
    assert_eq!(set(&client, "d", "user.bivouac.speed", "high"), Err(Errno::INVAL));
    assert_eq!(get(&client, "d", "user.bivouac.speed"), Err(Errno::NODATA));
    assert_eq!(set(&client, "link", WHOLE, "width=1"), Err(Errno::PERM));
    assert_eq!(get(&client, "d", WHOLE), Err(Errno::NODATA));
    // Who may not write a directory does not set its layout.
    assert_eq!(set(&Client::of(&cluster, 1000), "d", WHOLE, "width=1"), Err(Errno::ACCESS));
}

#[test]
fn a_layout_set_twice_by_a_repeated_request_is_set_once() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    let ino = client.stat("d").unwrap().ino;
    let request = MetaRequest::SetXattr { ino, name: WHOLE.as_bytes(), mode: XattrMode::Create };
    let id = client.next_id();
    client.send_as(id, ino.shard(), &request, b"width=1").unwrap();
    client.send_as(id, ino.shard(), &request, b"width=1").unwrap();
}
