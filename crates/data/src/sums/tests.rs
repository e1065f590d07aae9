use super::*;
use bivouac_layout::ServerId;
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::path::Path;

const FILE: Ino = Ino(0x0123_0000_0000_0007);
/// Longest file in these tests.
const LIMIT: u64 = 6 * CHUNK;

fn store(dir: &Path) -> DataStore {
    let store = DataStore::open(&[dir.join("store")], 7, ServerId(0)).expect("opens");
    store.keep_sums().expect("sums");
    store
}

fn sub_file(dir: &Path) -> std::fs::File {
    let path = SubPath::new(FILE, place::mix(FILE));
    let path = dir.join("store/sub").join(path.as_c_str().to_str().expect("ASCII"));
    std::fs::File::options().read(true).write(true).open(path).expect("is there")
}

fn flip(dir: &Path, at: u64) {
    let file = sub_file(dir);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("reads");
    file.write_all_at(&[byte[0] ^ 0x20], at).expect("writes");
}

/// Sums of all chunks up to a little behind the longest file.
fn sums(store: &DataStore) -> Vec<Sum> {
    store.sums_in(FILE, 0..LIMIT + CHUNK).expect("reads").1
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64, u8),
    Free(u64, u64, bool),
    Truncate(u64, bool),
    WriteAndTakeBack(u64, u64),
    Reopen,
    Flip(u64),
}

/// Offsets and lengths that often are those of chunks.
fn position() -> impl Strategy<Value = u64> {
    prop_oneof![0..LIMIT, (0..LIMIT / CHUNK).prop_map(|chunk| chunk * CHUNK)]
}

fn op() -> impl Strategy<Value = Op> {
    let range = (position(), prop_oneof![1..3 * CHUNK, Just(CHUNK), Just(2 * CHUNK)]);
    let range = range.prop_map(|(start, len)| (start, len.min(LIMIT - start))).boxed();
    prop_oneof![
        4 => (range.clone(), any::<u8>()).prop_map(|((start, len), byte)| Op::Write(start, len, byte)),
        2 => (range.clone(), any::<bool>()).prop_map(|((start, len), zero)| Op::Free(start, len, zero)),
        2 => (position(), any::<bool>()).prop_map(|(size, extend)| Op::Truncate(size, extend)),
        1 => range.prop_map(|(start, len)| Op::WriteAndTakeBack(start, len)),
        1 => Just(Op::Reopen),
        1 => position().prop_map(Op::Flip),
    ]
}

/// What a file should contain, and which of its chunks were damaged and not wholly replaced since.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    damaged: Vec<u64>,
}

impl Model {
    fn put(&mut self, start: u64, bytes: &[u8]) {
        let end = start as usize + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[start as usize..end].copy_from_slice(bytes);
        let replaced = start.div_ceil(CHUNK)..end as u64 / CHUNK;
        self.damaged.retain(|chunk| !replaced.contains(chunk));
    }

    fn cut(&mut self, size: u64) {
        self.bytes.truncate(size as usize);
        self.damaged.retain(|chunk| chunk * CHUNK < size);
    }
}

fn apply(op: &Op, model: &mut Model, store: DataStore, dir: &Path) -> DataStore {
    match *op {
        Op::Write(start, len, byte) => {
            let bytes: Vec<u8> = (0..len).map(|at| byte.wrapping_add((at * 7) as u8)).collect();
            store.write_summed(FILE, start, &bytes, byte == 3).expect("writes");
            model.put(start, &bytes);
        }
        Op::Free(start, len, zero) => {
            let mode = if zero { Fallocate::Zero } else { Fallocate::PunchHole };
            store.fallocate_summed(FILE, start, len, mode).expect("frees");
            let (length, end) = (model.bytes.len() as u64, start + len);
            // Behind the end of a file are zeros anyway.
            let replaced = start.div_ceil(CHUNK)..if end < length { end / CHUNK } else { u64::MAX };
            // Zeroing makes the file longer, and a hole does not.
            let end = if zero { end } else { end.min(length) };
            model.put(start.min(end), &vec![0; end.saturating_sub(start) as usize]);
            if start < length {
                model.damaged.retain(|chunk| !replaced.contains(chunk));
            }
        }
        Op::Truncate(size, extend) => {
            store.truncate(FILE, size, extend).expect("truncates");
            if size < model.bytes.len() as u64 {
                model.cut(size);
            } else if extend {
                model.bytes.resize(size as usize, 0);
            }
        }
        Op::WriteAndTakeBack(start, len) => {
            let (before, end) = (model.bytes.len() as u64, start + len);
            let bytes = vec![9; len as usize];
            let wrote = store.write_summed(FILE, start, &bytes, false).expect("writes");
            model.put(start, &bytes);
            assert_eq!(wrote.before, before);
            let size = before.max(start);
            store.take_back(FILE, wrote.undo, end, size).expect("works");
            if size < end && end >= before {
                model.cut(size);
            }
        }
        Op::Reopen => {
            drop(store);
            return self::store(dir);
        }
        Op::Flip(at) => {
            if at < model.bytes.len() as u64 && !model.damaged.contains(&(at / CHUNK)) {
                flip(dir, at);
                model.damaged.push(at / CHUNK);
            }
        }
    }
    store
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Of a chunk that was damaged it shows, whatever is written to other parts of it; of others nothing does, and
    /// their sums are those of what was written.
    #[test]
    fn sums_are_those_of_what_was_written(ops in prop::collection::vec(op(), 1..25)) {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (mut model, mut store) = (Model::default(), store(dir.path()));
        for op in &ops {
            store = apply(op, &mut model, store, dir.path());
            for (chunk, sum) in sums(&store).into_iter().enumerate() {
                let from = (chunk as u64 * CHUNK).min(model.bytes.len() as u64) as usize;
                let to = (from as u64 + CHUNK).min(model.bytes.len() as u64) as usize;
                if model.damaged.contains(&(chunk as u64)) {
                    let mut stored = vec![0; to - from];
                    prop_assert_eq!(store.read(FILE, from as u64, &mut stored), Ok(to - from));
                    // Otherwise the damaged byte was overwritten or cut off, and the sum may be wrong or not.
                    let is_there = stored != model.bytes[from..to];
                    prop_assert!(!(is_there && sum.is_sound()), "{op:?} hides the damage of chunk {chunk}");
                } else {
                    let right = sum_of(&model.bytes[from..to]);
                    prop_assert_eq!(sum, Sum { bytes: right, stored: right }, "chunk {} after {:?}", chunk, op);
                }
            }
        }
    }

    #[test]
    fn zeros_behind_bytes_count(bytes in prop::collection::vec(any::<u8>(), 0..CHUNK as usize)) {
        let mut whole = bytes.clone();
        whole.resize(CHUNK as usize, 0);
        prop_assert_eq!(sum_of(&bytes), linear(&whole));
    }
}

#[test]
fn the_sum_is_the_linear_part_of_crc_32c() {
    let (a, zeros): (Vec<u8>, Vec<u8>) =
        ((0..CHUNK).map(|n| ((n * n) >> 3) as u8).collect(), vec![0; CHUNK as usize]);
    assert_eq!(sum_of(&a), crc32c::crc32c(&a) ^ crc32c::crc32c(&zeros));
    assert_eq!((sum_of(&zeros), sum_of(&[])), (0, 0));
}

#[test]
fn a_hole_takes_no_sums() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let store = store(dir.path());
    store.truncate(FILE, 1 << 40, true).expect("made longer");
    let far = (1 << 40) - CHUNK;
    store.write_summed(FILE, far, &[1; CHUNK as usize], false).expect("writes");
    let path =
        dir.path().join("store/crc").join(SubPath::new(FILE, place::mix(FILE)).as_c_str().to_str().unwrap());
    let allocated = || std::os::unix::fs::MetadataExt::blocks(&path.metadata().expect("is there")) * 512;
    assert!(allocated() <= 8 << 10, "{}", allocated());
    assert!(store.sums_in(FILE, far..1 << 40).expect("reads").1[0].is_sound());
    assert!(store.next_used(FILE, 0).expect("looks").is_some_and(|at| at > 1 << 38 && at <= far));
    assert_eq!(store.next_used(FILE, far + 7), Ok(Some(far + 7)));
    assert_eq!(store.next_used(Ino(99), 0), Ok(None));
    store.fallocate_summed(FILE, 0, 1 << 40, Fallocate::PunchHole).expect("freed");
    assert_eq!(allocated(), 0);
    store.remove(FILE).expect("removed");
    assert!(!path.exists());
}

/// The notes of what was under way, as a killed server leaves them.
#[test]
fn a_change_that_was_interrupted_is_no_damage_and_everything_else_still_is() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let whole = vec![5; 4 * CHUNK as usize];
    let first = store(dir.path());
    first.write_summed(FILE, 0, &whole, false).expect("writes");
    let slot = first.sums().expect("kept").changing.begin(FILE, &(1..2)).expect("noted");
    flip(dir.path(), CHUNK + 3);
    flip(dir.path(), 3 * CHUNK);
    std::mem::forget(slot);
    drop(first);
    let again = store(dir.path());
    let sound: Vec<bool> = sums(&again).into_iter().map(Sum::is_sound).take(4).collect();
    assert_eq!(sound, [true, true, true, false]);
    drop(again);
    // The note is gone: what is damaged from now on shows.
    flip(dir.path(), CHUNK + 3);
    assert!(!sums(&store(dir.path()))[1].is_sound());
}

/// Every write to the file's checksums fails from now on, or no longer does.
fn refuse_sums(store: &DataStore, is_refused: bool) {
    let sums = store.sums().expect("kept");
    let mixed = place::mix(FILE);
    sums.files.removed(mixed);
    if is_refused {
        let path = SubPath::new(FILE, mixed);
        let tree = sums.tree(mixed).expect("there");
        let file = fs::openat(tree, path.as_c_str(), OFlags::RDONLY, Mode::empty()).expect("opens");
        let Lookup::Miss(seen) = sums.files.get(mixed) else { panic!("it was taken away") };
        sums.files.insert(mixed, &Arc::new(SubFile::new(file)), seen).expect("kept");
    }
}

/// What has been changed and could not be summed, on a storage that takes no more of anything.
#[test]
fn checksums_that_could_not_be_stored_are_no_damage_and_are_stored_later() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let whole = vec![5; 4 * CHUNK as usize];
    let is_sound = |store: &DataStore| sums(store).into_iter().map(Sum::is_sound).collect::<Vec<_>>();
    let first = store(dir.path());
    first.write_summed(FILE, 0, &whole, false).expect("writes");
    refuse_sums(&first, true);
    assert!(first.fallocate_summed(FILE, CHUNK + 9, 100, Fallocate::PunchHole).is_err());
    assert!(first.write_summed(FILE, 2 * CHUNK, &[6; 10], false).is_err(), "and no byte is written");
    flip(dir.path(), 9);
    // What is owed is no damage, even while it can't be stored; other damage is.
    assert_eq!(is_sound(&first)[..4], [false, true, true, true]);
    assert!(first.truncate(FILE, 3 * CHUNK + 7, false).is_err());
    refuse_sums(&first, false);
    // Used again, the file has its checksums.
    first.write_summed(FILE, 3 * CHUNK, &[7; 1], false).expect("writes");
    assert_eq!(first.sums().expect("kept").changing.how_many_are_owed(), 0);
    assert_eq!(is_sound(&first)[..4], [false, true, true, true]);
    flip(dir.path(), CHUNK + 9);
    assert!(!is_sound(&first)[1]);
    // And so has one that is not used before the server is started again, or that is removed.
    refuse_sums(&first, true);
    assert!(first.fallocate_summed(FILE, 2 * CHUNK, 100, Fallocate::Zero).is_err());
    assert_eq!(first.sums().expect("kept").changing.how_many_are_owed(), 1);
    drop(first);
    let again = store(dir.path());
    assert_eq!(is_sound(&again)[..4], [false, false, true, true]);
    refuse_sums(&again, true);
    assert!(again.fallocate_summed(FILE, 2 * CHUNK, 200, Fallocate::PunchHole).is_err());
    again.remove(FILE).expect("removed");
    assert_eq!(again.sums().expect("kept").changing.how_many_are_owed(), 0);
}

/// A server that is started while its storage takes no checksums still has no room for them.
#[test]
fn a_store_opens_while_checksums_that_are_owed_cannot_be_stored() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let first = store(dir.path());
    first.write_summed(FILE, 0, &vec![5; 4 * CHUNK as usize], false).expect("writes");
    refuse_sums(&first, true);
    assert!(first.fallocate_summed(FILE, CHUNK, 100, Fallocate::PunchHole).is_err());
    drop(first);
    let path = SubPath::new(FILE, place::mix(FILE));
    let file = dir.path().join("store/crc").join(path.as_c_str().to_str().expect("ASCII"));
    let aside = dir.path().join("aside");
    std::fs::rename(&file, &aside).expect("moved");
    std::fs::create_dir(&file).expect("what cannot be opened");
    let again = store(dir.path());
    assert_eq!(again.sums().expect("kept").changing.how_many_are_owed(), 1);
    std::fs::remove_dir(&file).expect("removed");
    std::fs::rename(&aside, &file).expect("moved");
    assert!(sums(&again).into_iter().all(Sum::is_sound));
    assert_eq!(again.sums().expect("kept").changing.how_many_are_owed(), 0);
    drop(again);
    // And the note is gone.
    flip(dir.path(), CHUNK + 200);
    assert!(!sums(&store(dir.path()))[1].is_sound());
}

#[test]
fn writers_of_the_same_chunk_do_not_lose_each_others_sums() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let store = store(dir.path());
    std::thread::scope(|scope| {
        for writer in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..500u64 {
                    let at = writer * 600 + round % 90;
                    store.write_summed(FILE, at, &[(round + writer) as u8; 500], false).expect("writes");
                }
            });
        }
    });
    assert!(sums(&store).into_iter().all(Sum::is_sound));
}

#[test]
fn sums_of_files_that_are_gone_go_at_the_next_start_and_nothing_is_left_at_the_end() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let first = store(dir.path());
    first.write_summed(FILE, 0, &[1; 100], false).expect("writes");
    let path = SubPath::new(Ino(8), place::mix(Ino(8)));
    let stray = dir.path().join("store/crc").join(path.as_c_str().to_str().expect("ASCII"));
    std::fs::write(&stray, [1; 4]).expect("writes");
    drop(first);
    let again = store(dir.path());
    assert!(!stray.exists());
    assert!(sums(&again)[0].is_sound() && sums(&again)[0].stored != 0);
    again.destroy().expect("removed");
    assert!(!dir.path().join("store").exists());
}

#[test]
fn a_store_without_sums_has_none() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let store = DataStore::open(&[dir.path().join("store")], 7, ServerId(0)).expect("opens");
    store.write_summed(FILE, 0, &[1; 100], false).expect("writes");
    store.truncate(FILE, 10, false).expect("cut");
    assert!(store.sums_in(FILE, 0..CHUNK).is_err());
    assert!(
        !dir.path().join("store/crc").exists() && !dir.path().join("store").join(changing::NAME).exists()
    );
}

#[test]
fn a_sub_file_that_was_removed_behind_the_servers_back_is_found() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let store = store(dir.path());
    for ino in [FILE, Ino(8)] {
        store.write_summed(ino, 0, &[1; 100], false).expect("writes");
    }
    assert_eq!(store.find_missing(), Ok(vec![]));
    let path = SubPath::new(FILE, place::mix(FILE));
    std::fs::remove_file(dir.path().join("store/sub").join(path.as_c_str().to_str().unwrap()))
        .expect("removed");
    assert_eq!(store.find_missing(), Ok(vec![FILE]));
    // Who has it open reads on, until that is given up.
    assert_eq!(store.read(FILE, 0, &mut [0; 10]), Ok(10));
    store.let_go(FILE);
    assert_eq!(store.read(FILE, 0, &mut [0; 10]), Err(DataError::Missing(FILE)));
    store.remove(FILE).expect("forgotten");
    assert_eq!(store.find_missing(), Ok(vec![]));
}
