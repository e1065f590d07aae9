//! The edges: largest offsets, empty ranges, allocation beyond the end, ages, sums.

mod common;

use bivouac_data::{DataError, DataStore};
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::data::{Access, Fallocate};
use bivouac_proto::{Errno, attr::FILE_MAX};
use common::{places, store};
use std::time::Duration;

const INO: Ino = Ino(7);

/// Nanoseconds since the last write.
fn age(store: &DataStore) -> u64 {
    store.extent(INO).unwrap().written.expect("written").age
}

#[test]
fn the_last_byte_of_the_largest_file_can_be_written() {
    // Only memory file systems go that far.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        bivouac_testing::skip("there is no /dev/shm that can be written");
        return;
    };
    let store = store(dir.path());
    assert_eq!(store.write(INO, FILE_MAX - 1, b"x", false).map(|wrote| wrote.count), Ok(1));
    assert_eq!(store.extent(INO).unwrap().length, FILE_MAX);
    assert_eq!(
        store.write(INO, FILE_MAX - 2, b"abcd", false).map(|wrote| wrote.count),
        Ok(2),
        "as far as it goes"
    );
    let mut got = [0; 10];
    assert_eq!(store.read(INO, FILE_MAX - 3, &mut got), Ok(3));
    assert_eq!(&got[..3], b"\0ab");
}

#[test]
fn beyond_the_largest_file_is_refused() {
    for place in places() {
        let store = store(place.path());
        store.write(INO, 0, b"abc", false).unwrap();
        for offset in [FILE_MAX, FILE_MAX + 1, u64::MAX] {
            assert_eq!(store.write(INO, offset, b"x", false), Err(DataError::TooFar));
            assert_eq!(store.write(INO, offset, b"", false).map(|wrote| wrote.count), Ok(0));
            assert_eq!(store.read(INO, offset, &mut [0; 8]), Ok(0));
            assert_eq!(store.seek(INO, offset, false), Err(DataError::Io(Errno::NXIO)));
            let modes = [Fallocate::Extend, Fallocate::KeepSize, Fallocate::PunchHole, Fallocate::Zero];
            for mode in modes {
                assert_eq!(store.fallocate(INO, offset, 1, mode), Err(DataError::TooFar));
                assert_eq!(store.fallocate(INO, 1, offset, mode), Err(DataError::TooFar));
            }
        }
        assert_eq!(store.truncate(INO, FILE_MAX + 1, true), Err(DataError::TooFar));
        assert_eq!(store.truncate(INO, u64::MAX, false), Err(DataError::TooFar));
        assert_eq!(DataError::TooFar.errno(), Errno::FBIG);
        assert_eq!(store.extent(INO).unwrap().length, 3);
    }
}

#[test]
fn nothing_is_made_by_what_writes_nothing() {
    for place in places() {
        let store = store(place.path());
        assert_eq!(store.write(INO, 5, b"", true).map(|wrote| wrote.count), Ok(0));
        assert_eq!(store.read(INO, 5, &mut []), Ok(0));
        store.truncate(INO, 100, false).unwrap();
        store.truncate(INO, 0, true).unwrap();
        store.fallocate(INO, 0, 100, Fallocate::PunchHole).unwrap();
        store.sync(INO).unwrap();
        store.remove(INO).unwrap();
        assert_eq!(store.seek(INO, 0, true), Err(DataError::Io(Errno::NXIO)));
        assert_eq!(store.pass(INO, Access::Write).unwrap_err(), DataError::Io(Errno::NOENT));
        assert_eq!(store.fallocate(INO, 0, 0, Fallocate::Extend), Err(DataError::Io(Errno::INVAL)));
        assert!(store.read_file(INO).unwrap().is_none());
        assert_eq!(store.extent(INO).unwrap().written, None);
    }
}

#[test]
fn allocation_past_the_end_is_not_the_size() {
    for place in places() {
        let store = store(place.path());
        store.write(INO, 0, b"abc", false).unwrap();
        store.fallocate(INO, 0, 1 << 20, Fallocate::KeepSize).unwrap();
        let extent = store.extent(INO).unwrap();
        assert_eq!(extent.length, 3);
        assert!(extent.allocated >= 1 << 20);
    }
}

#[test]
fn a_hole_gives_its_space_back() {
    for place in places() {
        let store = store(place.path());
        store.write(INO, 0, &vec![1; 1 << 20], true).unwrap();
        assert!(store.extent(INO).unwrap().allocated >= 1 << 20);
        store.fallocate(INO, 0, 1 << 20, Fallocate::PunchHole).unwrap();
        let extent = store.extent(INO).unwrap();
        assert!(extent.allocated < 1 << 19, "{extent:?}");
        assert_eq!(extent.length, 1 << 20);
    }
}

#[test]
fn age_counts_from_the_last_write() {
    for place in places() {
        let store = store(place.path());
        store.write(INO, 0, b"abc", false).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        let first = age(&store);
        assert!(first >= 50_000_000, "{first}");
        store.read(INO, 0, &mut [0; 3]).unwrap();
        assert!(age(&store) >= first, "reading is not writing");
        let begun = std::time::Instant::now();
        store.write(INO, 0, b"d", false).unwrap();
        let age = u128::from(age(&store));
        // The clock of files ticks up to a hundred times a second.
        let most = begun.elapsed() + Duration::from_millis(20);
        assert!(age <= most.as_nanos(), "{age} of {most:?}");
    }
}

#[test]
fn a_clock_that_was_set_back_makes_no_old_files() {
    let place = &places()[0];
    let store = store(place.path());
    let file = std::fs::File::from(store.pass(INO, Access::Make).unwrap());
    file.set_modified(std::time::SystemTime::now() + Duration::from_secs(3600)).unwrap();
    assert_eq!(age(&store), 0);
}

#[test]
fn a_passed_descriptor_shares_no_offset_with_the_store() {
    for place in places() {
        let store = store(place.path());
        store.write(INO, 0, &[1; 10_000], false).unwrap();
        let mine = store.pass(INO, Access::Write).unwrap();
        rustix::fs::seek(&mine, rustix::fs::SeekFrom::Start(77)).unwrap();
        store.seek(INO, 5_000, false).unwrap();
        assert_eq!(rustix::fs::tell(&mine).unwrap(), 77);
        let flags = rustix::io::fcntl_getfd(&mine).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn two_directories_on_one_disk_are_not_twice_the_space() {
    for place in places() {
        let one = store(place.path().join("one")).space().unwrap();
        let dirs = ["a", "b", "c"].map(|name| place.path().join(name));
        let three = DataStore::open(&dirs, 1, ServerId(1)).unwrap().space().unwrap();
        assert_eq!(three.total, one.total);
        assert!(one.total > 0 && one.available > 0 && one.available <= one.total);
    }
}

#[test]
fn stored_is_the_sum_over_all_directories() {
    let place = &places()[0];
    let dirs = ["a", "b"].map(|name| place.path().join(name));
    let store = DataStore::open(&dirs, 1, ServerId(1)).unwrap();
    assert_eq!(store.stored(), 0);
    for n in 0..20 {
        store.write(Ino(n), 1 << 30, &[1; 100_000], true).unwrap();
    }
    let sum: u64 = (0..20).map(|n| store.extent(Ino(n)).unwrap().allocated).sum();
    assert!(sum >= 2_000_000);
    // It may be remembered for a moment.
    bivouac_testing::eventually(&format!("it is {sum}"), || store.stored() == sum);
    for dir in &dirs {
        let files = common::listing(dir).into_iter().filter(|path| path.is_file()).count();
        assert!(files > 2, "some of the 20 files are in each directory");
    }
}
