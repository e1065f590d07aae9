//! Four daemons in one process, and the client core against them: the way of every operation through all
//! layers.

mod common;

use bivouac_client::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use common::{cluster, pattern};
use std::io::{IoSlice, IoSliceMut};

#[test]
fn small_and_large_files_read_back() {
    let c = cluster("files", 4);
    c.client.mkdir(Ino::ROOT, b"a", 0o755).expect("made");
    c.client.mkdir(Ino::ROOT, b"a/b", 0o755).expect("made");
    for len in [0, 1, 4095, 4096, 4097, 65_536, 1_000_000, 5_000_000] {
        let data = pattern(len);
        let path = format!("a/b/file-{len}");
        c.write(&path, &data);
        assert_eq!(
            c.client.stat((Ino::ROOT, path.as_bytes(), true)).expect("there").size,
            len as u64,
            "{path}"
        );
        assert!(c.read(&path) == data, "{path} differs");
    }
    assert_eq!(c.names("a/b").len(), 8 + 2);
    assert_eq!(c.client.unlink(Ino::ROOT, b"a/b/nothing"), Err(Fail::Errno(Errno::NOENT)));
    assert_eq!(c.client.rmdir(Ino::ROOT, b"a/b"), Err(Fail::Errno(Errno::NOTEMPTY)));
}

#[test]
fn holes_truncation_and_append() {
    let c = cluster("sizes", 3);
    let handle = c.open("f", libc::O_CREAT | libc::O_RDWR).expect("created");
    assert_eq!(handle.pwrite(500_000, &[IoSlice::new(b"end")]), Ok(3));
    assert_eq!(handle.attr().expect("attributes").size, 500_003);
    let mut buffer = vec![1; 600_000];
    assert_eq!(handle.pread(0, &mut [IoSliceMut::new(&mut buffer)]), Ok(500_003));
    assert!(buffer[..500_000].iter().all(|&b| b == 0));
    assert_eq!(&buffer[500_000..500_003], b"end");
    handle.truncate(100_000).expect("truncated");
    assert_eq!(handle.pread(0, &mut [IoSliceMut::new(&mut buffer)]), Ok(100_000));
    handle.truncate(200_000).expect("extended");
    assert_eq!(handle.pread(150_000, &mut [IoSliceMut::new(&mut buffer)]), Ok(50_000));
    let appender = c.open("f", libc::O_WRONLY | libc::O_APPEND).expect("opened");
    assert_eq!(appender.write(&[IoSlice::new(b"tail")]), Ok(4));
    assert_eq!(handle.attr().expect("attributes").size, 200_004);
    c.client.closed(appender.id());
    c.client.closed(handle.id());
    assert_eq!(c.client.stat((Ino::ROOT, b"f", true)).expect("there").size, 200_004);
}

#[test]
fn names_move_and_links_count() {
    let c = cluster("names", 4);
    for dir in ["x", "y", "x/deep", "x/deep/er"] {
        c.client.mkdir(Ino::ROOT, dir.as_bytes(), 0o755).expect("made");
    }
    c.write("x/deep/er/f", b"hello");
    c.client.rename(Ino::ROOT, b"x/deep", Ino::ROOT, b"y/moved", 0).expect("moved");
    assert_eq!(c.read("y/moved/er/f"), b"hello");
    assert_eq!(c.client.stat((Ino::ROOT, b"x/deep/er/f", true)).map(|_| ()), Err(Fail::Errno(Errno::NOENT)));
    c.client.link((Ino::ROOT, b"y/moved/er/f", false), Ino::ROOT, b"x/g").expect("linked");
    assert_eq!(c.client.stat((Ino::ROOT, b"x/g", true)).expect("there").nlink, 2);
    c.client.unlink(Ino::ROOT, b"y/moved/er/f").expect("removed");
    assert_eq!(c.client.stat((Ino::ROOT, b"x/g", true)).expect("there").nlink, 1);
    c.client.symlink(b"../x/g", Ino::ROOT, b"y/link").expect("linked");
    assert_eq!(c.read("y/link"), b"hello");
    assert_eq!(c.client.real_path(Ino::ROOT, b"y/moved/../link").expect("resolved"), b"/bivouac/x/g");
    c.client.symlink(b"/etc/passwd", Ino::ROOT, b"out").expect("linked");
    assert_eq!(c.open("out", 0).err(), Some(Fail::Outside(b"/etc/passwd".to_vec())));
    assert_eq!(
        c.client.rename(Ino::ROOT, b"y", Ino::ROOT, b"y/moved/er/y", 0),
        Err(Fail::Errno(Errno::INVAL)),
        "no directory into itself"
    );
}

#[test]
fn a_directory_splits_and_lists_everything_once() {
    let c = cluster("split", 4);
    c.client.mkdir(Ino::ROOT, b"d", 0o755).expect("made");
    let names: Vec<String> = (0..5000).map(|i| format!("f{i:05}")).collect();
    for name in &names {
        c.write(&format!("d/{name}"), name.as_bytes());
    }
    let listed = c.names("d");
    assert_eq!(listed.len(), names.len() + 2);
    assert_eq!(listed[2..], names[..]);
    assert_eq!(c.read("d/f04321"), b"f04321");
    for name in &names {
        c.client.unlink(Ino::ROOT, format!("d/{name}").as_bytes()).expect("removed");
    }
    c.client.rmdir(Ino::ROOT, b"d").expect("removed");
}

#[test]
fn an_unlinked_file_stays_for_who_has_it_open() {
    let c = cluster("orphan", 2);
    let data = pattern(300_000);
    c.write("f", &data);
    let handle = c.open("f", libc::O_RDONLY).expect("opened");
    c.client.unlink(Ino::ROOT, b"f").expect("removed");
    c.write("f", b"another");
    let mut buffer = vec![0; data.len()];
    assert_eq!(handle.pread(0, &mut [IoSliceMut::new(&mut buffer)]), Ok(data.len()));
    assert!(buffer == data);
    assert_eq!(handle.attr().expect("attributes").nlink, 0);
    c.client.closed(handle.id());
    assert_eq!(c.read("f"), b"another");
}
