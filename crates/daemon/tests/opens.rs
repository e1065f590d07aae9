//! Descriptors that come with the answer to an open: when, and what is read through them while others change the file.

mod common;

use bivouac_client::host::Plain;
use bivouac_client::{Client, Handle};
use bivouac_layout::Ino;
use common::{cluster, pattern};
use std::io::{IoSlice, IoSliceMut};

fn read(handle: &Handle, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let count = handle.pread(offset, &mut [IoSliceMut::new(&mut bytes)]).expect("read");
    bytes.truncate(count);
    bytes
}

#[test]
fn a_file_on_one_server_of_this_node_is_opened_and_read_with_one_request() {
    const FILES: usize = 100;
    let c = cluster("opens-few", 1);
    for i in 0..=FILES {
        c.write(&format!("{i}"), &pattern(5000 + 100 * i));
    }
    let reader = Client::attach(&c.environment, &Plain).expect("attached");
    let open = |i: usize| {
        let path = i.to_string();
        reader.open(Ino::ROOT, path.as_bytes(), libc::O_RDONLY, 0).expect("opened")
    };
    // The fences are asked for once.
    let first = open(FILES);
    assert_eq!(read(&first, 0, 1 << 20), pattern(5000 + 100 * FILES));
    reader.close_alone(first.id());
    let before = c.operations();
    for i in 0..FILES {
        let handle = open(i);
        assert_eq!(read(&handle, 0, 1 << 20), pattern(5000 + 100 * i), "{i}");
        assert_eq!(read(&handle, 4990, 20), pattern(5000 + 100 * i)[4990..5010.min(5000 + 100 * i)]);
        reader.close_alone(handle.id());
    }
    let after = c.operations();
    assert_eq!(after.1 - before.1, 0, "requests about blocks");
    // An open and a close of each.
    assert!(after.0 - before.0 <= 2 * FILES as u64, "{before:?} {after:?}");
    reader.detach();
}

#[test]
fn what_was_opened_shows_what_others_do_to_the_file_afterwards() {
    let c = cluster("opens-changed", 3);
    // Over all servers of the inodes and of the blocks.
    for i in 0..30 {
        let path = format!("f{i}");
        c.write(&path, &pattern(20_000));
        let reader = Client::attach(&c.environment, &Plain).expect("attached");
        let handle = reader.open(Ino::ROOT, path.as_bytes(), libc::O_RDONLY, 0).expect("opened");
        // Overwritten, shorter, and longer, in blocks of other servers, too.
        let writer = c.open(&path, libc::O_RDWR).expect("opened");
        writer.pwrite(100, &[IoSlice::new(b"changed")]).expect("written");
        assert_eq!(read(&handle, 100, 7), b"changed", "{i}");
        c.client.truncate((Ino::ROOT, path.as_bytes(), true), 50).expect("shorter");
        assert_eq!(read(&handle, 0, 1000), pattern(50), "{i}");
        writer.pwrite(300_000, &[IoSlice::new(b"far")]).expect("written");
        assert_eq!(read(&handle, 299_990, 100), [&[0; 10][..], b"far"].concat(), "{i}");
        assert_eq!(read(&handle, 40, 20), [&pattern(50)[40..], &[0; 10]].concat(), "{i}");
        // Another file gets its name, and then it has none.
        c.write("other", b"another file");
        c.client.rename(Ino::ROOT, b"other", Ino::ROOT, path.as_bytes(), 0).expect("replaced");
        assert_eq!(read(&handle, 299_990, 100), [&[0; 10][..], b"far"].concat(), "{i}");
        c.client.close_alone(writer.id());
        assert_eq!(read(&handle, 40, 20), [&pattern(50)[40..], &[0; 10]].concat(), "{i}");
        reader.close_alone(handle.id());
        assert_eq!(c.read(&path), b"another file");
        reader.detach();
    }
}
