//! Opening, refusing, reopening and destroying stores.

mod common;

use bivouac_data::{DataError, DataStore};
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::data::Access;
use common::{DEPLOYMENT, listing, store};
use std::fs;
use std::path::{Path, PathBuf};

fn open(dirs: &[&Path]) -> Result<DataStore, DataError> {
    let dirs: Vec<PathBuf> = dirs.iter().map(|dir| dir.to_path_buf()).collect();
    DataStore::open(&dirs, DEPLOYMENT, ServerId(1))
}

fn refusal(dirs: &[&Path]) -> DataError {
    open(dirs).err().expect("to be refused")
}

#[test]
fn all_is_found_again_whatever_the_order() {
    let place = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| place.path().join(name));
    let first = open(&[&a, &b, &c]).unwrap();
    for n in 0..200 {
        first.write(Ino(n), n, &n.to_le_bytes(), false).unwrap();
    }
    drop(first);
    let again = open(&[&c, &a, &b]).unwrap();
    assert_eq!(again.directories().collect::<Vec<_>>(), [&a, &b, &c]);
    for n in 0..200 {
        let mut got = [0xee; 16];
        assert_eq!(again.read(Ino(n), n, &mut got), Ok(8));
        assert_eq!(got[..8], n.to_le_bytes());
    }
}

#[test]
fn a_sub_file_that_somebody_removed_is_an_error_and_no_hole() {
    for memory in common::places() {
        let place = memory.path().join("store");
        let data = store(&place);
        for n in 1..=3 {
            data.write(Ino(n), 0, b"content", n == 1).unwrap();
        }
        let file = |n: u64| {
            let name = format!("{n:016x}");
            let found = listing(&place).into_iter().find(|path| path.ends_with(&name));
            found.expect("a sub-file")
        };
        drop(data);
        for n in [1, 2] {
            fs::remove_file(file(n)).unwrap();
        }
        let data = store(&place);
        assert_eq!(data.missing(), 2);
        for n in [1, 2] {
            let gone = DataError::Missing(Ino(n));
            assert_eq!(data.read(Ino(n), 0, &mut [0; 7]), Err(gone.clone()));
            assert_eq!(data.read_file(Ino(n)).err(), Some(gone.clone()));
            assert_eq!(data.extent(Ino(n)).err(), Some(gone.clone()));
            assert_eq!(data.write(Ino(n), 0, b"x", false), Err(gone.clone()), "it is not made anew");
            assert_eq!(data.truncate(Ino(n), 3, true), Ok(true), "it stays missing");
            assert_eq!(data.sync(Ino(n)), Err(gone.clone()));
            assert_eq!(data.pass(Ino(n), Access::Make).err(), Some(gone.clone()));
            assert_eq!(gone.errno(), bivouac_proto::Errno::IO);
        }
        assert_eq!(data.read(Ino(4), 0, &mut [0; 7]), Ok(0), "what never was is a hole");
        assert_eq!(data.read(Ino(3), 0, &mut [0; 7]), Ok(7));
        // What nobody needs any more is not missed.
        data.remove(Ino(1)).unwrap();
        data.truncate(Ino(2), 0, false).unwrap();
        assert_eq!(data.missing(), 0);
        data.write(Ino(2), 0, b"new", false).unwrap();
        data.destroy().unwrap();
        assert!(!place.exists(), "{:?}", listing(&place));
    }
}

#[test]
fn sub_files_of_a_missing_subdirectory_are_missing_and_the_others_are_served() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("store");
    let data = store(&path);
    (1..=600)
        .for_each(|n| assert_eq!(data.write(Ino(n), 0, b"content", false).map(|wrote| wrote.count), Ok(7)));
    drop(data);
    fs::remove_dir_all(path.join("sub/c1")).unwrap();
    let data = store(&path);
    let lost: Vec<u64> = (1..=600).filter(|n| data.read(Ino(*n), 0, &mut [0; 7]).is_err()).collect();
    assert!(lost.contains(&1) && lost.len() < 20, "{lost:?}");
    assert_eq!(data.missing(), lost.len() as u64);
    assert!(data.stored() > 0);
}

#[test]
fn another_deployments_or_servers_storage_is_refused() {
    let place = tempfile::tempdir().unwrap();
    drop(store(place.path()));
    let before = listing(place.path());
    for (deployment, server) in [(DEPLOYMENT + 1, 1), (DEPLOYMENT, 2)] {
        let error = DataStore::open(&[place.path().to_owned()], deployment, ServerId(server)).err();
        let path = place.path().to_owned();
        assert_eq!(error, Some(DataError::Foreign { path, deployment: DEPLOYMENT, server: ServerId(1) }));
    }
    // Also when it is only one of several; the others are left as they were.
    let new = place.path().join("new");
    let mixed = [new.clone(), place.path().to_owned()];
    assert!(matches!(DataStore::open(&mixed, 1, ServerId(1)), Err(DataError::Foreign { .. })));
    assert!(!new.exists());
    assert_eq!(listing(place.path()), before);
}

#[test]
fn what_is_no_usable_directory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "mine").unwrap();
    assert_eq!(refusal(&[&file]), DataError::NotADirectory(file.clone()));
    let deep = place.path().join("not/there");
    assert_eq!(refusal(&[&deep]), DataError::NoParent(deep.clone()));
    assert_eq!(refusal(&[]), DataError::NoDirectory);
    assert!(matches!(refusal(&[&file.join("below")]), DataError::NotADirectory(_) | DataError::Setup { .. }));
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn somebody_elses_directory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    if let Err(error) = std::os::unix::fs::chown(place.path(), Some(12_345), None) {
        bivouac_testing::skip(&format!("a directory cannot be given away: {error}"));
        return;
    }
    assert!(matches!(refusal(&[place.path()]), DataError::NotOurs { owner: 12_345, .. }));
    assert!(listing(place.path()).is_empty());
}

#[test]
fn a_directory_without_permission_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("locked");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o500)).unwrap();
    if !bivouac_testing::is_root() {
        assert_eq!(refusal(&[&dir]), DataError::NoPermission(dir.clone()));
        return;
    }
    // Permissions do not bind root: a thread of this process becomes somebody else, which ends with the
    // thread.
    for path in [place.path(), &dir] {
        std::os::unix::fs::chown(path, Some(12_345), None).unwrap();
    }
    let refused = std::thread::scope(|scope| {
        let as_somebody = || {
            let user = rustix::process::Uid::from_raw(12_345);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            refusal(&[&dir])
        };
        scope.spawn(as_somebody).join().unwrap()
    });
    assert_eq!(refused, DataError::NoPermission(dir));
}

#[test]
fn a_tree_that_is_not_ours_is_refused_and_untouched() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir_all(place.path().join("sub/00")).unwrap();
    fs::write(place.path().join("sub/00/0000000000000001"), "mine").unwrap();
    let before = listing(place.path());
    assert_eq!(refusal(&[place.path()]), DataError::Occupied(place.path().to_owned()));
    assert_eq!(listing(place.path()), before);
}

#[test]
fn a_store_in_use_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let first = store(place.path());
    assert_eq!(refusal(&[place.path()]), DataError::InUse(place.path().to_owned()));
    drop(first);
    store(place.path());
}

#[test]
fn of_two_that_make_the_same_store_one_wins() {
    for _ in 0..20 {
        let place = common::places().pop().unwrap();
        let dir = place.path().join("new");
        let barrier = std::sync::Barrier::new(4);
        let attempt = |n: u16| {
            barrier.wait();
            DataStore::open(std::slice::from_ref(&dir), DEPLOYMENT, ServerId(n))
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || attempt(n))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners: Vec<_> = results.iter().flatten().collect();
        assert!(winners.len() <= 1, "{} winners", winners.len());
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            // A loser that looks while the winner (or another loser) is half way sees one of these.
            let expected = matches!(
                error,
                DataError::InUse(_)
                    | DataError::Foreign { .. }
                    | DataError::Occupied(_)
                    | DataError::Setup { .. }
            );
            assert!(expected, "{error}");
        }
        if let Some(winner) = winners.first() {
            winner.write(Ino(1), 0, b"abc", false).unwrap();
            winner.destroy().unwrap();
        }
    }
}

#[test]
fn an_incomplete_or_repeated_list_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let [a, b, empty] = ["a", "b", "empty"].map(|name| place.path().join(name));
    drop(open(&[&a, &b]).unwrap());
    let wrong = |given| DataError::WrongCount { path: a.clone(), expected: 2, given };
    assert_eq!(refusal(&[&a]), wrong(1));
    assert_eq!(refusal(&[&a, &b, &empty]), wrong(3));
    assert_eq!(refusal(&[&a, &empty]), DataError::Lost { path: empty.clone(), other: a.clone() });
    assert_eq!(refusal(&[&empty, &a]), DataError::Lost { path: empty.clone(), other: a.clone() });
    assert!(!empty.exists());
    assert_eq!(refusal(&[&a, &a]), DataError::Twice(a.clone(), a.clone()));
    let copy = place.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fs::copy(a.join("bivouac-data"), copy.join("bivouac-data")).unwrap();
    assert_eq!(refusal(&[&a, &copy]), DataError::Twice(a.clone(), copy.clone()));
    drop(open(&[&b, &a]).unwrap());
}

#[test]
fn a_damaged_identity_is_refused_and_kept() {
    let place = tempfile::tempdir().unwrap();
    drop(store(place.path()));
    let identity = place.path().join("bivouac-data");
    let whole = fs::read(&identity).unwrap();
    for damaged in [&whole[..40], b"", &[b'x'; 5000], b"\xff\xfe"] {
        fs::write(&identity, damaged).unwrap();
        assert!(matches!(refusal(&[place.path()]), DataError::Damaged { .. }));
        assert_eq!(fs::read(&identity).unwrap(), damaged);
    }
    fs::write(&identity, whole).unwrap();
    store(place.path());
}

#[test]
fn a_making_that_was_interrupted_is_taken_up() {
    let place = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| place.path().join(name));
    let rename = |dir: &Path| fs::rename(dir.join("bivouac-data"), dir.join("bivouac-data.new")).unwrap();
    drop(open(&[&a, &b]).unwrap());
    // Between the two renames.
    rename(&b);
    drop(open(&[&b, &a]).unwrap());
    // Before the first rename, with a part of the tree.
    rename(&a);
    rename(&b);
    fs::remove_dir(b.join("sub/ff")).unwrap();
    drop(open(&[&a, &b]).unwrap());
    // Before the second directory was begun; and with another list now.
    rename(&a);
    fs::remove_dir_all(&b).unwrap();
    let store = open(&[&a]).unwrap();
    store.write(Ino(1), 0, b"abc", false).unwrap();
    store.destroy().unwrap();
    assert!(listing(place.path()).is_empty(), "made by the interrupted attempt, removed by this one");
    // Within the writing of the draft.
    fs::create_dir(&a).unwrap();
    fs::write(a.join("bivouac-data.new"), "bivouac sub-f").unwrap();
    open(&[&a]).unwrap().destroy().unwrap();
    assert!(listing(&a).is_empty());
}

#[test]
fn destroy_leaves_what_is_not_the_stores() {
    let place = tempfile::tempdir().unwrap();
    let [made, given] = ["made", "given"].map(|name| place.path().join(name));
    fs::create_dir(&given).unwrap();
    let store = open(&[&made, &given]).unwrap();
    for n in 0..100 {
        store.write(Ino(n), 0, b"abc", false).unwrap();
    }
    let mut foreign = vec![given.join("log"), given.join("sub/notes"), given.join("sub/00/notes.txt")];
    // The name of a sub-file, but one that would lie elsewhere; and a directory with such a name where it
    // would lie.
    foreign.push(given.join("sub/00/0000000000000001"));
    for path in &foreign {
        fs::write(path, "mine").unwrap();
    }
    std::os::unix::fs::symlink("/", given.join("link")).unwrap();
    store.destroy().unwrap();
    assert!(!made.exists(), "made by the store");
    let parents = ["sub", "sub/00", "link"].map(|name| given.join(name));
    let mut expected: Vec<_> = foreign.iter().cloned().chain(parents).collect();
    expected.sort();
    assert_eq!(listing(&given), expected);
    assert!(foreign.iter().all(|path| fs::read(path).unwrap() == b"mine"));
}

#[test]
fn destroy_keeps_a_directory_that_it_was_given() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    store.write(Ino(1), 0, b"abc", false).unwrap();
    store.destroy().unwrap();
    assert!(place.path().exists() && listing(place.path()).is_empty());
    // And after a restart it still knows that it was given, or that it made it.
    let made = place.path().join("made");
    for dir in [place.path(), &made] {
        drop(open(&[dir]).unwrap());
        open(&[dir]).unwrap().destroy().unwrap();
    }
    assert!(place.path().exists() && !made.exists());
}

#[test]
fn destroy_follows_no_links() {
    let place = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let store = store(place.path());
    let sub = place.path().join("sub");
    for name in ["c1", "00"] {
        fs::remove_dir(sub.join(name)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), sub.join(name)).unwrap();
    }
    // Where the sub-file of inode 1 would be, by its path.
    fs::write(elsewhere.path().join("0000000000000001"), "mine").unwrap();
    store.destroy().unwrap();
    assert_eq!(fs::read(elsewhere.path().join("0000000000000001")).unwrap(), b"mine");
}
