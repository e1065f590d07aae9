//! Many threads at once.

mod common;

use bivouac_data::DataStore;
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::data::Access;
use bivouac_proto::data::Fallocate;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

const THREADS: u64 = 8;

/// A sequence of numbers that differs for each thread and round.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 8) % below
    }
}

/// What the store reads through its descriptors is what is in the directory: no descriptor of a removed
/// sub-file is left.
fn check_agreement(store: &DataStore, files: u64) {
    for n in 0..files {
        let mut through = [0; 4096];
        let count = store.read(Ino(n), 0, &mut through).unwrap();
        match store.pass(Ino(n), Access::Write) {
            Ok(descriptor) => {
                let mut there = [0; 4096];
                let file = std::fs::File::from(descriptor);
                assert_eq!(file.read_at(&mut there, 0).unwrap(), count, "length of file {n}");
                assert!(there == through, "content of file {n}");
            }
            Err(_) => assert!(store.read_file(Ino(n)).unwrap().is_none(), "file {n} was removed"),
        }
    }
}

#[test]
fn creating_writing_and_removing_at_once_leaves_no_stale_descriptor() {
    const FILES: u64 = 12;
    for place in common::places() {
        // One descriptor a shard of the cache.
        let dirs = [place.path().to_owned()];
        let store = DataStore::open_with(&dirs, common::DEPLOYMENT, ServerId(1), 1).unwrap();
        for round in 0..30 {
            let barrier = Barrier::new(THREADS as usize);
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (store, barrier) = (&store, &barrier);
                    scope.spawn(move || {
                        let mut random = random(round * THREADS + thread + 1);
                        barrier.wait();
                        for _ in 0..100 {
                            let ino = Ino(random(FILES));
                            let offset = random(3000);
                            match random(8) {
                                0..3 => {
                                    let data = [thread as u8 + 1; 500];
                                    assert_eq!(
                                        store.write(ino, offset, &data, false).map(|wrote| wrote.count),
                                        Ok(500)
                                    );
                                }
                                3..6 => store.remove(ino).unwrap(),
                                6 => {
                                    store.read(ino, offset, &mut [0; 500]).unwrap();
                                }
                                _ => store.fallocate(ino, offset, 500, Fallocate::Zero).unwrap(),
                            }
                        }
                    });
                }
            });
            check_agreement(&store, FILES);
        }
        store.destroy().unwrap();
        assert!(common::listing(place.path()).is_empty());
    }
}

#[test]
fn of_many_creators_none_loses_its_bytes() {
    for place in common::places() {
        let store = common::store(place.path());
        let barrier = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, barrier) = (&store, &barrier);
                scope.spawn(move || {
                    for n in 0..200 {
                        barrier.wait();
                        store.write(Ino(n), thread, &[thread as u8 + 1], false).unwrap();
                    }
                });
            }
        });
        for n in 0..200 {
            let mut got = [0; 20];
            assert_eq!(store.read(Ino(n), 0, &mut got), Ok(8));
            assert_eq!(got[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        }
    }
}

#[test]
fn truncations_at_once_never_lengthen() {
    const ROUNDS: u64 = 100_000;
    let place = common::places().pop().unwrap();
    let store = &common::store(place.path());
    // Rounds as numbers that both wait for: threads would meet too seldom if they were woken up for each.
    let (begun, ended) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let wait = |for_what: &AtomicU64, round| {
        while for_what.load(Ordering::Acquire) < round {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 1..=ROUNDS {
                wait(begun, round);
                store.truncate(Ino(1), 1000, false).unwrap();
                ended.store(round, Ordering::Release);
            }
        });
        for round in 1..=ROUNDS {
            store.truncate(Ino(1), 8192, true).unwrap();
            begun.store(round, Ordering::Release);
            store.truncate(Ino(1), 0, false).unwrap();
            wait(ended, round);
            // The other thread must end, too.
            if store.extent(Ino(1)).unwrap().length != 0 {
                begun.store(u64::MAX, Ordering::Release);
                panic!("a truncation lengthened the file in round {round}");
            }
        }
    });
}

#[test]
fn a_file_in_use_survives_eviction_and_removal() {
    let place = &common::places()[0];
    let store = DataStore::open_with(&[place.path().to_owned()], 1, ServerId(1), 1).unwrap();
    store.write(Ino(0), 0, b"abc", false).unwrap();
    let held = store.read_file(Ino(0)).unwrap().unwrap();
    for n in 1..500 {
        store.write(Ino(n), 0, b"x", false).unwrap();
    }
    // Written through a descriptor of its own by now; the same file.
    store.write(Ino(0), 3, b"def", false).unwrap();
    let mut got = [0; 10];
    assert_eq!(held.read_at(0, &mut got), Ok(6));
    store.remove(Ino(0)).unwrap();
    assert_eq!(held.read_at(0, &mut got), Ok(6));
    assert_eq!(&got[..6], b"abcdef");
    assert_eq!(store.read(Ino(0), 0, &mut got), Ok(0));
}
