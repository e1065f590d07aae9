//! Storage that fills up, and storage that cannot be written.

mod common;

use bivouac_data::{DataError, DataStore};
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::{Errno, data::Fallocate};
use common::Mount;

const NO_SPACE: DataError = DataError::Io(Errno::NOSPC);

/// Bytes that tell where they belong.
fn pattern(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| (at / 511 + at) as u8).collect()
}

/// Writes pieces until the storage is full; returns the end of what was acknowledged.
fn fill(store: &DataStore, ino: Ino, sync: bool) -> u64 {
    let mut end = 0;
    loop {
        // Not a multiple of anything.
        match store.write(ino, end, &pattern(end, 70_001), sync) {
            Ok(wrote) => {
                assert!(wrote.count > 0);
                end += wrote.count as u64;
            }
            Err(error) => {
                assert_eq!(error, NO_SPACE);
                return end;
            }
        }
    }
}

fn check(store: &DataStore, ino: Ino, end: u64) {
    assert_eq!(store.extent(ino).unwrap().length, end, "the length is what was acknowledged");
    let mut got = vec![0; end as usize + 10];
    assert_eq!(store.read(ino, 0, &mut got), Ok(end as usize));
    assert!(got[..end as usize] == pattern(0, end as usize), "the content is what was acknowledged");
}

fn full_store(mount: &Mount, sync: bool) {
    let store = common::store(mount.path());
    store.write(Ino(1), 0, &pattern(0, 10_000), sync).unwrap();
    let end = fill(&store, Ino(2), sync);
    assert!(end > 100_000, "{end}");
    check(&store, Ino(1), 10_000);
    check(&store, Ino(2), end);

    // Whatever else is tried, nothing is damaged.
    let reached = |result: Result<(), DataError>| assert_eq!(result, Err(NO_SPACE));
    reached(store.fallocate(Ino(1), 0, 64 << 20, Fallocate::Extend));
    reached(store.fallocate(Ino(1), 0, 64 << 20, Fallocate::KeepSize));
    reached(store.write(Ino(1), 20_000, &[1; 1 << 20], sync).and_then(|wrote| match wrote.count {
        // A page may have been left.
        0..200_000 => store.write(Ino(1), 1 << 20, &[1; 1 << 20], sync).map(drop),
        _ => Ok(()),
    }));
    store.truncate(Ino(1), 10_000, false).unwrap();
    check(&store, Ino(1), 10_000);

    // A full store can be opened, read and emptied.
    drop(store);
    let store = common::store(mount.path());
    check(&store, Ino(2), end);
    store.remove(Ino(2)).unwrap();
    // A child of another test, before its exec, may hold the removed file for a moment.
    let mut again = fill(&store, Ino(3), sync);
    bivouac_testing::eventually("the space comes back", || {
        let all = again > end / 2;
        if !all {
            store.remove(Ino(3)).unwrap();
            again = fill(&store, Ino(3), sync);
        }
        all
    });
    check(&store, Ino(3), again);
    check(&store, Ino(1), 10_000);
    store.destroy().unwrap();
}

#[test]
fn count_and_content_agree_when_memory_is_full() {
    for sync in [false, true] {
        let Some(mount) = Mount::memory("size=1m") else {
            return;
        };
        full_store(&mount, sync);
    }
}

#[test]
fn count_and_content_agree_when_a_disk_is_full() {
    for sync in [false, true] {
        let Some(mount) = Mount::ext4(8) else { return };
        full_store(&mount, sync);
    }
}

#[test]
fn without_inodes_nothing_is_half_made() {
    let Some(mount) = Mount::memory("size=1m,nr_inodes=100") else {
        return;
    };
    let dir = mount.path().join("new");
    let error = DataStore::open(std::slice::from_ref(&dir), 1, ServerId(1)).err();
    assert_eq!(error, Some(DataError::NoSpace(dir)));
    assert!(common::listing(mount.path()).is_empty());
}

#[test]
fn the_second_directory_being_full_leaves_nothing_in_the_first() {
    let Some(mount) = Mount::memory("size=1m,nr_inodes=100") else {
        return;
    };
    let good = tempfile::tempdir().unwrap();
    let dirs = [good.path().join("a"), mount.path().to_owned()];
    let error = DataStore::open(&dirs, 1, ServerId(1)).err();
    assert_eq!(error, Some(DataError::NoSpace(mount.path().to_owned())));
    assert!(common::listing(good.path()).is_empty() && common::listing(mount.path()).is_empty());
}

#[test]
fn read_only_storage_is_refused() {
    let Some(mount) = Mount::memory("ro") else { return };
    let error = DataStore::open(&[mount.path().to_owned()], 1, ServerId(1)).err();
    assert_eq!(error, Some(DataError::ReadOnly(mount.path().to_owned())));
    let below = mount.path().join("new");
    let error = DataStore::open(std::slice::from_ref(&below), 1, ServerId(1)).err();
    assert_eq!(error, Some(DataError::ReadOnly(below)));
}

#[test]
fn storage_that_turns_read_only_fails_writes_and_serves_reads() {
    let Some(mount) = Mount::ext4(8) else { return };
    let store = common::store(mount.path());
    store.write(Ino(1), 0, b"abc", false).unwrap();
    drop(store.read_file(Ino(1)));
    // Descriptors open for writing would keep it from being remounted: forget them by opening again and only
    // looking.
    drop(store);
    let store = common::store(mount.path());
    let remount = ["-o", "remount,ro"];
    let done = std::process::Command::new("mount").args(remount).arg(mount.path()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(store.write(Ino(2), 0, b"abc", false), Err(DataError::Io(Errno::ROFS)));
    assert_eq!(store.remove(Ino(1)), Err(DataError::Io(Errno::ROFS)));
    assert_eq!(store.extent(Ino(1)).unwrap().length, 3);
}
