//! Reading many files at once, beside reading each alone, and while others change the paths to them.

mod common;

use bivouac_client::host::Plain;
use bivouac_client::{Client, Wanted};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use common::{Cluster, cluster, pattern};
use std::io::IoSlice;
use std::sync::Arc;

#[test]
fn files_are_those_that_the_paths_lead_to_now() {
    let c = cluster("many-moved", 3);
    for (dir, what) in [("d", "old"), ("new", "new")] {
        c.client.mkdir(Ino::ROOT, dir.as_bytes(), 0o755).expect("made");
        for i in 0..20 {
            c.write(&format!("{dir}/{i}"), format!("{what} {i}").as_bytes());
        }
    }
    let reader = Client::attach(&c.environment, &Plain).expect("attached");
    let paths: Vec<String> = (0..20).map(|i| format!("d/{i}")).collect();
    let paths: Vec<&[u8]> = paths.iter().map(String::as_bytes).collect();
    let read = || -> Vec<String> {
        let files = reader.read_files(Ino::ROOT, &paths).into_iter();
        files.map(|file| String::from_utf8(file.expect("read")).expect("text")).collect()
    };
    assert_eq!(read(), (0..20).map(|i| format!("old {i}")).collect::<Vec<_>>());
    for (from, to) in [("d", "gone"), ("new", "d")] {
        c.client.rename(Ino::ROOT, from.as_bytes(), Ino::ROOT, to.as_bytes(), 0).expect("renamed");
    }
    assert_eq!(read(), (0..20).map(|i| format!("new {i}")).collect::<Vec<_>>());
    c.client.rename(Ino::ROOT, b"d", Ino::ROOT, b"away", 0).expect("renamed");
    assert!(reader.read_files(Ino::ROOT, &paths).iter().all(Result::is_err));
    reader.detach();
}

/// What is read by many at once, beside what is read of each file alone.
fn is_read_as_alone(c: &Cluster, reader: &Arc<Client>, paths: &[&str]) {
    let names: Vec<&[u8]> = paths.iter().map(|path| path.as_bytes()).collect();
    for (path, read) in paths.iter().zip(reader.read_files(Ino::ROOT, &names)) {
        assert_eq!(read.expect(path), c.read(path), "{path}");
    }
    // Pieces from every place, also from behind the end.
    for (offset, len) in [(0, 10), (1, 5000), (4090, 100), (65_000, 2000), (300_000, 1)] {
        let mut rooms = vec![vec![0xee; len]; paths.len()];
        let mut wanted: Vec<Wanted<'_>> = names
            .iter()
            .zip(&mut rooms)
            .map(|(path, into)| Wanted { path, offset, into, result: Err(Errno::IO) })
            .collect();
        reader.read_many(Ino::ROOT, &mut wanted);
        for (path, one) in paths.iter().zip(wanted) {
            let all = c.read(path);
            let start = all.len().min(offset as usize);
            let end = all.len().min(start + len);
            assert_eq!(one.result, Ok(end - start), "{path} from {offset}");
            assert_eq!(one.into[..end - start], all[start..end], "{path} from {offset}");
        }
    }
}

#[test]
fn files_of_every_size_and_kind_are_read_as_each_of_them_alone() {
    let c = cluster("many-kinds", 3);
    c.client.mkdir(Ino::ROOT, b"d", 0o755).expect("made");
    let sizes = [0, 1, 4095, 4096, 4097, 10_000, 65_535, 65_536, 65_537, 200_000];
    let mut paths: Vec<String> = sizes.iter().map(|size| format!("d/{size}")).collect();
    for (path, size) in paths.iter().zip(sizes) {
        c.write(path, &pattern(size));
    }
    c.client.truncate((Ino::ROOT, b"d/10000", true), 150_000).expect("longer, by a hole");
    c.client.symlink(b"65536", Ino::ROOT, b"d/link").expect("made");
    c.client.symlink(b"d", Ino::ROOT, b"way").expect("made");
    let open = c.open("d/written", libc::O_CREAT | libc::O_RDWR).expect("made");
    open.pwrite(70_000, &[IoSlice::new(b"still open")]).expect("written");
    paths.extend(["d/link", "way/4097", "way/link", "./d//1", "d/written"].map(String::from));
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let reader = Client::attach(&c.environment, &Plain).expect("attached");
    is_read_as_alone(&c, &reader, &paths);
    let failed = reader.read_files(Ino::ROOT, &[b"d/none", b"d", b"d/4097/x", b"d/1"]);
    assert_eq!(failed, [Err(Errno::NOENT), Err(Errno::ISDIR), Err(Errno::NOTDIR), Ok(pattern(1))]);
    reader.detach();
}

#[test]
fn thousands_of_files_take_few_requests_also_in_a_directory_that_was_split_meanwhile() {
    let c = cluster("many-few", 3);
    c.client.mkdir(Ino::ROOT, b"d", 0o755).expect("made");
    let reader = Client::attach(&c.environment, &Plain).expect("attached");
    c.write("d/first", b"small");
    assert_eq!(reader.read_files(Ino::ROOT, &[b"d/first"]), [Ok(b"small".to_vec())]);
    // Small ones and some in blocks. The directory is split on the way.
    let paths: Vec<String> = (0..2600).map(|i| format!("d/{i}")).collect();
    for (i, path) in paths.iter().enumerate() {
        c.write(path, &pattern(if i % 10 == 0 { 6000 + i } else { i }));
    }
    let names: Vec<&[u8]> = paths.iter().map(|path| path.as_bytes()).collect();
    let before = c.operations();
    let read = reader.read_files(Ino::ROOT, &names);
    let total = |(meta, data): (u64, u64)| meta + data;
    let requests = total(c.operations()) - total(before);
    for (i, bytes) in read.into_iter().enumerate() {
        assert_eq!(bytes, Ok(pattern(if i % 10 == 0 { 6000 + i } else { i })), "{i}");
    }
    assert!(requests < 200, "{requests} requests for {} files", names.len());
    reader.detach();
}
