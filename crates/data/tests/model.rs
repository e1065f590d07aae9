//! Random operations against the simplest model of a file: a vector of bytes.

mod common;

use bivouac_data::{DataError, DataStore};
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::data::{Access, Fallocate};
use proptest::prelude::*;
use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const FILES: u64 = 3;
/// Some pages, so that holes have a chance, and odd ends.
const REACH: u64 = 70_000;

#[derive(Clone, Debug)]
enum Op {
    Write { offset: u64, len: usize, fill: u8, sync: bool },
    WriteDirectly { offset: u64, len: usize, fill: u8 },
    Read { offset: u64, len: usize },
    Truncate { size: u64, extend: bool },
    Fallocate { offset: u64, len: u64, mode: Fallocate },
    Seek { offset: u64, hole: bool },
    Extent,
    Sync,
    Remove,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let offset = || 0..REACH;
    let len = || prop_oneof![0usize..300, 4_000usize..20_000];
    let mode = prop_oneof![
        Just(Fallocate::Extend),
        Just(Fallocate::KeepSize),
        Just(Fallocate::PunchHole),
        Just(Fallocate::Zero)
    ];
    prop_oneof![
        6 => (offset(), len(), 1u8.., prop::bool::weighted(0.05))
            .prop_map(|(offset, len, fill, sync)| Op::Write { offset, len, fill, sync }),
        1 => (offset(), len(), 1u8..).prop_map(|(offset, len, fill)| Op::WriteDirectly { offset, len, fill }),
        4 => (offset(), len()).prop_map(|(offset, len)| Op::Read { offset, len }),
        2 => (offset(), any::<bool>()).prop_map(|(size, extend)| Op::Truncate { size, extend }),
        3 => (offset(), 1u64..40_000, mode)
            .prop_map(|(offset, len, mode)| Op::Fallocate { offset, len, mode }),
        2 => (offset(), any::<bool>()).prop_map(|(offset, hole)| Op::Seek { offset, hole }),
        2 => Just(Op::Extent),
        1 => Just(Op::Sync),
        1 => Just(Op::Remove),
        1 => Just(Op::Reopen),
    ]
}

/// Files that are there, with their bytes.
type Model = HashMap<u64, Vec<u8>>;

fn grow(bytes: &mut Vec<u8>, to: u64) {
    bytes.resize(bytes.len().max(to as usize), 0);
}

fn range(bytes: &[u8], offset: u64, len: usize) -> &[u8] {
    let start = (offset as usize).min(bytes.len());
    &bytes[start..(start + len).min(bytes.len())]
}

fn run(ops: &[(u64, Op)], mut dirs: Vec<PathBuf>) {
    // So few descriptors that files drive each other out.
    let open = |dirs: &[PathBuf]| DataStore::open_with(dirs, common::DEPLOYMENT, ServerId(1), 1).unwrap();
    let mut store = open(&dirs);
    let mut model = Model::new();
    for (n, op) in ops {
        let ino = Ino(*n);
        match *op {
            Op::Write { offset, len, fill, sync } => {
                let data = vec![fill; len];
                assert_eq!(store.write(ino, offset, &data, sync).map(|wrote| wrote.count), Ok(len));
                if len > 0 {
                    put(&mut model, *n, offset, &data);
                }
            }
            Op::WriteDirectly { offset, len, fill } => {
                let data = vec![fill; len];
                let file = std::fs::File::from(store.pass(ino, Access::Make).unwrap());
                file.write_all_at(&data, offset).unwrap();
                model.entry(*n).or_default();
                if len > 0 {
                    put(&mut model, *n, offset, &data);
                }
            }
            Op::Read { offset, len } => {
                let mut got = vec![0xee; len];
                let count = store.read(ino, offset, &mut got).unwrap();
                let empty = Vec::new();
                assert_eq!(&got[..count], range(model.get(n).unwrap_or(&empty), offset, len));
            }
            Op::Truncate { size, extend } => {
                store.truncate(ino, size, extend).unwrap();
                if extend && size > 0 {
                    model.entry(*n).or_default();
                }
                if let Some(bytes) = model.get_mut(n) {
                    bytes.truncate(size as usize);
                    if extend {
                        grow(bytes, size);
                    }
                }
            }
            Op::Fallocate { offset, len, mode } => {
                store.fallocate(ino, offset, len, mode).unwrap();
                if mode != Fallocate::PunchHole {
                    model.entry(*n).or_default();
                }
                if let Some(bytes) = model.get_mut(n) {
                    if matches!(mode, Fallocate::PunchHole | Fallocate::Zero) {
                        let end = ((offset + len) as usize).min(bytes.len());
                        let start = (offset as usize).min(end);
                        bytes[start..end].fill(0);
                    }
                    if matches!(mode, Fallocate::Extend | Fallocate::Zero) {
                        grow(bytes, offset + len);
                    }
                }
            }
            Op::Seek { offset, hole } => {
                check_seek(store.seek(ino, offset, hole), model.get(n).map_or(&[], |b| b), offset, hole);
            }
            Op::Extent => {}
            Op::Sync => store.sync(ino).unwrap(),
            Op::Remove => {
                store.remove(ino).unwrap();
                model.remove(n);
            }
            Op::Reopen => {
                drop(store);
                // The order in which they are named must not matter.
                dirs.rotate_left(1);
                store = open(&dirs);
            }
        }
        check_extents(&store, &model);
    }
    for n in 0..FILES {
        let mut got = vec![0xee; 2 * REACH as usize];
        let count = store.read(Ino(n), 0, &mut got).unwrap();
        assert!(got[..count] == model.get(&n).map_or(&[][..], |b| b)[..], "content of file {n}");
    }
    store.destroy().unwrap();
}

fn put(model: &mut Model, n: u64, offset: u64, data: &[u8]) {
    let bytes = model.entry(n).or_default();
    grow(bytes, offset + data.len() as u64);
    bytes[offset as usize..][..data.len()].copy_from_slice(data);
}

fn check_seek(found: Result<u64, DataError>, bytes: &[u8], offset: u64, hole: bool) {
    let end = bytes.len() as u64;
    match (found, hole) {
        (Err(error), true) => {
            assert_eq!(error, DataError::Io(Errno::NXIO));
            assert!(offset >= end, "the end is a hole");
        }
        (Ok(to), true) => assert!((offset..=end).contains(&to)),
        (Err(error), false) => {
            assert_eq!(error, DataError::Io(Errno::NXIO));
            assert!(range(bytes, offset, usize::MAX / 2).iter().all(|&b| b == 0), "data missed");
        }
        (Ok(to), false) => {
            assert!((offset..end).contains(&to));
            assert!(bytes[offset as usize..to as usize].iter().all(|&b| b == 0), "data skipped");
        }
    }
}

fn check_extents(store: &DataStore, model: &Model) {
    for n in 0..FILES {
        let extent = store.extent(Ino(n)).unwrap();
        let bytes = model.get(&n);
        assert_eq!(extent.length, bytes.map_or(0, |b| b.len() as u64), "length of file {n}");
        assert_eq!(extent.written.is_none(), bytes.is_none(), "age of file {n}");
        assert_eq!(store.read_file(Ino(n)).unwrap().is_some(), bytes.is_some(), "presence of file {n}");
    }
}

fn check(ops: &[(u64, Op)], place: &tempfile::TempDir, directories: usize) {
    run(ops, (0..directories).map(|i| place.path().join(i.to_string())).collect());
    assert!(common::listing(place.path()).is_empty(), "something was left behind");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_store_in_memory_is_what_was_written(
        ops in prop::collection::vec((0..FILES, op()), 1..100),
        directories in 1usize..4,
    ) {
        // The last place is the one in memory, if there is one.
        check(&ops, common::places().last().unwrap(), directories);
    }
}

proptest! {
    // Few and long: making directories takes long on a disk.
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn a_store_on_disk_is_what_was_written(ops in prop::collection::vec((0..FILES, op()), 1..400)) {
        check(&ops, &common::places()[0], 1);
    }
}
