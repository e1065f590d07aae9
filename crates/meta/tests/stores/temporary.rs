//! Files without a name (O_TMPFILE), and who may give a file another name.

use crate::common::Cluster;
use crate::common::client::Client;
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::header::OpenId;
use bivouac_proto::meta::{Create, MetaReply, MetaRequest, OpenHow, SetAttr};
use bivouac_proto::{Attr, Errno, Reply};

fn temporary(client: &Client, dir: &str, exclusive: bool) -> Result<(Attr, OpenId), Errno> {
    let dir = client.dir(dir)?.ino;
    let open = client.open_id();
    let create = Some(Create { mode: 0o600, exclusive });
    let how = OpenHow { read: true, write: true, create, ..OpenHow::default() };
    match client.inode(dir, MetaRequest::MakeTemporary { dir, how, open }, &[])?.0 {
        Reply::Meta(MetaReply::Opened { attr, created: true, .. }) => Ok((*attr, open)),
        other => panic!("{other:?}"),
    }
}

fn name(client: &Client, ino: Ino, path: &str) -> Result<(), Errno> {
    let (dir, name) = client.place(path)?;
    client.entry(dir, name, |at| MetaRequest::Link { ino, at }, &[]).map(drop)
}

fn write(client: &Client, ino: Ino, data: &[u8]) {
    client.inode(ino, MetaRequest::WriteInline { ino, offset: 0 }, data).unwrap();
}

fn inodes(cluster: &Cluster) -> u64 {
    cluster.stores().iter().map(|store| store.counts().inodes).sum()
}

#[test]
fn a_file_without_a_name_goes_with_its_last_open() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    let before = inodes(&cluster);
    let (attr, open) = temporary(&client, "d", false).unwrap();
    assert_eq!((attr.nlink, attr.mode), (0, 0o600));
    assert!(client.names("d").unwrap().is_empty());
    let attr = client.spill(attr.ino).unwrap();
    client.write_blocks(&cluster, &attr, 0, &[7; 50_000]);
    client.release(attr.ino, open, None).unwrap();
    assert_eq!(inodes(&cluster), before);
    cluster.heal();
    assert!(cluster.holders(attr.ino).is_empty());
    client.rmdir("d").unwrap();
}

#[test]
fn a_name_makes_it_an_ordinary_file() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    client.mkdir("e").unwrap();
    for (n, path) in ["d/f", "e/f", "f"].iter().enumerate() {
        let (attr, open) = temporary(&client, "d", false).unwrap();
        write(&client, attr.ino, b"no name yet");
        name(&client, attr.ino, path).unwrap();
        client.release(attr.ino, open, None).unwrap();
        for server in 0..3 {
            cluster.restart(ServerId(server));
        }
        assert_eq!(client.get(path).unwrap(), b"no name yet");
        let attr = client.stat(path).unwrap();
        assert_eq!(attr.nlink, 1);
        // And goes as one: a name that it loses does not come back.
        let held = client.open(path, OpenHow { read: true, ..OpenHow::default() }).unwrap();
        client.unlink(path).unwrap();
        assert_eq!(name(&client, attr.ino, &format!("again{n}")), Err(Errno::NOENT));
        client.release(attr.ino, held.1, None).unwrap();
        assert_eq!(client.attr(attr.ino), Err(Errno::NOENT));
    }
}

#[test]
fn an_exclusive_one_never_gets_a_name() {
    let cluster = Cluster::new(2);
    let client = Client::new(&cluster);
    let (attr, open) = temporary(&client, "", true).unwrap();
    assert_eq!(name(&client, attr.ino, "f"), Err(Errno::NOENT));
    client.release(attr.ino, open, None).unwrap();
    assert!(client.names("").unwrap().is_empty());
}

#[test]
fn it_survives_a_restart_for_its_holder() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let before = inodes(&cluster);
    let (named, _) = temporary(&client, "", false).unwrap();
    let (nameless, open) = temporary(&client, "", false).unwrap();
    write(&client, named.ino, b"still here");
    cluster.restart(ServerId(0));
    name(&client, named.ino, "f").unwrap();
    assert_eq!(client.get("f").unwrap(), b"still here");
    assert_eq!(inodes(&cluster), before + 2);
    client.release(nameless.ino, open, None).unwrap();
    assert_eq!(inodes(&cluster), before + 1);
}

#[test]
fn it_needs_a_directory_that_may_be_written() {
    let cluster = Cluster::new(2);
    let client = Client::new(&cluster);
    client.put("file", b"").unwrap();
    let stranger = Client::of(&cluster, 1000);
    assert_eq!(temporary(&stranger, "", false).map(drop), Err(Errno::ACCESS));
    let dir = client.stat("file").unwrap().ino;
    let open = client.open_id();
    let create = Some(Create { mode: 0o600, exclusive: false });
    for (how, errno) in [
        (OpenHow { write: true, create, ..OpenHow::default() }, Errno::NOTDIR),
        (OpenHow { read: true, create, ..OpenHow::default() }, Errno::INVAL),
        (OpenHow { write: true, ..OpenHow::default() }, Errno::INVAL),
    ] {
        let made = client.inode(dir, MetaRequest::MakeTemporary { dir, how, open }, &[]);
        assert_eq!(made.map(drop), Err(errno));
    }
}

#[test]
fn it_takes_its_directorys_group_and_layout_over_also_when_that_is_split() {
    let cluster = Cluster::new(3);
    let client = Client::new(&cluster);
    client.mkdir("d").unwrap();
    let ino = client.stat("d").unwrap().ino;
    let set = SetAttr { mode: Some(0o2777), gid: Some(4321), ..SetAttr::default() };
    client.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).unwrap();
    let mode = bivouac_proto::meta::XattrMode::Set;
    let layout = MetaRequest::SetXattr { ino, name: b"user.bivouac.block", mode };
    client.inode(ino, layout, b"64K").unwrap();
    for n in 0..2100 {
        client.create(&format!("d/{n}"), true).unwrap();
    }
    cluster.heal();
    assert!(client.stat("d").unwrap().split);
    let (attr, _) = temporary(&client, "d", false).unwrap();
    assert_eq!(attr.gid, 4321);
    name(&client, attr.ino, "d/named").unwrap();
    assert_eq!(client.spill(attr.ino).unwrap().layout.unwrap().block_size, 65536);
    assert_eq!(client.stat("d/named").unwrap().nlink, 1);
}

#[test]
fn a_repeated_request_makes_one_file() {
    let cluster = Cluster::new(1);
    let client = Client::new(&cluster);
    let before = inodes(&cluster);
    let create = Some(Create { mode: 0o600, exclusive: false });
    let how = OpenHow { write: true, create, ..OpenHow::default() };
    let request = MetaRequest::MakeTemporary { dir: Ino::ROOT, how, open: client.open_id() };
    let id = client.next_id();
    for _ in 0..2 {
        client.send_as(id, Ino::ROOT.shard(), &request, &[]).unwrap();
    }
    assert_eq!(inodes(&cluster), before + 1);
}

#[test]
fn others_link_only_what_they_may_read_and_write_and_what_gives_no_rights() {
    let cluster = Cluster::new(2);
    let root = Client::new(&cluster);
    let chmod = |path: &str, mode| {
        let ino = root.stat(path).unwrap().ino;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        root.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).unwrap();
    };
    chmod("", 0o1777);
    root.put("f", b"").unwrap();
    root.symlink("f", "link").unwrap();
    let other = Client::of(&cluster, 1000);
    for (mode, allowed) in
        [(0o644, false), (0o666, true), (0o4666, false), (0o2676, false), (0o2666, true), (0o622, false)]
    {
        chmod("f", mode);
        let path = format!("by-other-{mode:o}");
        assert_eq!(other.link("f", &path), if allowed { Ok(()) } else { Err(Errno::PERM) }, "{mode:o}");
        root.link("f", &format!("by-root-{mode:o}")).unwrap();
    }
    assert_eq!(other.link("link", "by-other-link"), Err(Errno::PERM));
    other.put("own", b"").unwrap();
    let ino = other.stat("own").unwrap().ino;
    let set = SetAttr { mode: Some(0o4400), ..SetAttr::default() };
    other.inode(ino, MetaRequest::SetAttr { ino, set }, &[]).unwrap();
    other.link("own", "own-again").unwrap();
}
