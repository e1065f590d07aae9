use super::journal::{HEADER, NOTE};
use super::*;
use rustix::fs::{self, Mode, OFlags};
use std::path::Path;

fn root(dir: &Path) -> OwnedFd {
    fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

fn open_in(number: u128, dir: &Path, found: &[u64]) -> Inventory {
    let found: Vec<Ino> = found.iter().map(|n| Ino(*n)).collect();
    Inventory::open(&root(dir), Boot::numbered(number), &found).unwrap()
}

fn make(inventory: &Inventory, n: u64) {
    inventory.open_or_make(Ino(n), |_| Ok(std::fs::File::open("/dev/null").unwrap().into())).unwrap();
}

fn missing(inventory: &Inventory, n: u64) -> bool {
    match inventory.look_again(Ino(n), || Err::<(), _>(Errno::NOENT)) {
        Ok(found) => found.is_some(),
        Err(error) => error == DataError::Missing(Ino(n)),
    }
}

#[test]
fn what_was_made_is_missed_and_what_was_removed_or_never_made_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let inventory = open_in(1, dir.path(), &[]);
    (1..=3).for_each(|n| make(&inventory, n));
    inventory.remove(Ino(2), || Ok(())).unwrap();
    for inventory in [inventory, open_in(1, dir.path(), &[1]), open_in(1, dir.path(), &[1])] {
        assert!(missing(&inventory, 3) && !missing(&inventory, 2) && !missing(&inventory, 4));
        assert_eq!(inventory.missing(), 1);
        assert!(missing(&inventory, 3));
        assert_eq!(inventory.missing(), 1, "each counts once");
    }
    let inventory = open_in(1, dir.path(), &[1]);
    let again = inventory.open_or_make(Ino(3), |make| if make { panic!("made") } else { Err(Errno::NOENT) });
    assert_eq!(again.unwrap_err(), DataError::Missing(Ino(3)), "it is not made anew, empty");
    inventory.remove(Ino(3), || Err(Errno::NOENT)).unwrap();
    assert_eq!(inventory.missing(), 0);
    assert!(!missing(&open_in(1, dir.path(), &[1]), 3));
}

#[test]
fn after_a_loss_of_power_only_what_was_synced_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let inventory = open_in(1, dir.path(), &[]);
    (1..=4).for_each(|n| make(&inventory, n));
    inventory.synced(Ino(2));
    inventory.synced(Ino(3));
    drop(inventory);
    // In the same boot the note of the syncing is kept.
    drop(open_in(1, dir.path(), &[1, 2, 3, 4]));
    let inventory = open_in(2, dir.path(), &[3, 4]);
    assert!(!missing(&inventory, 1) && missing(&inventory, 2));
    assert_eq!(inventory.missing(), 1);
    drop(inventory);
    let inventory = open_in(3, dir.path(), &[3]);
    assert!(missing(&inventory, 4), "it was on the storage when the machine was started before");
    assert!(missing(&inventory, 2), "and what was missing still is");
}

#[test]
fn a_directory_without_a_journal_is_taken_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    drop(open_in(1, dir.path(), &[5]));
    assert!(missing(&open_in(1, dir.path(), &[]), 5));
    std::fs::remove_file(dir.path().join(NAME)).unwrap();
    assert!(!missing(&open_in(1, dir.path(), &[]), 5));
}

#[test]
fn notes_that_a_loss_of_power_left_empty_or_torn_say_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let inventory = open_in(1, dir.path(), &[]);
    (1..=3).for_each(|n| make(&inventory, n));
    drop(inventory);
    let path = dir.path().join(NAME);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[HEADER + NOTE..HEADER + 2 * NOTE].fill(0);
    bytes.truncate(bytes.len() - 1);
    std::fs::write(&path, &bytes).unwrap();
    let inventory = open_in(1, dir.path(), &[]);
    assert!(missing(&inventory, 1) && !missing(&inventory, 2) && !missing(&inventory, 3));
}

#[test]
fn what_is_no_journal_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    drop(open_in(1, dir.path(), &[]));
    let path = dir.path().join(NAME);
    let good = std::fs::read(&path).unwrap();
    let refused = || {
        Inventory::open(&root(dir.path()), Boot::numbered(1), &[]).err() == Some(DataError::JournalUnknown)
    };
    for length in 0..HEADER {
        std::fs::write(&path, &good[..length]).unwrap();
        assert!(refused(), "{length}");
    }
    std::fs::write(&path, vec![7; 100]).unwrap();
    assert!(refused());
    std::fs::remove_file(&path).unwrap();
    fs::mknodat(fs::CWD, &path, fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(refused());
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(refused());
    std::fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert!(refused());
}

#[test]
fn the_journal_stays_bounded_while_sub_files_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let inventory = open_in(1, dir.path(), &[]);
    (0..100).for_each(|n| make(&inventory, n));
    for n in 100..200_000 {
        make(&inventory, n);
        inventory.remove(Ino(n), || Ok(())).unwrap();
    }
    let length = std::fs::metadata(dir.path().join(NAME)).unwrap().len();
    assert!(length < (SLACK + 1000) * NOTE as u64, "{length}");
    drop(inventory);
    let inventory = open_in(1, dir.path(), &[]);
    assert_eq!(inventory.missing(), 100);
}

#[test]
fn what_is_made_while_somebody_looks_for_it_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let inventory = open_in(1, dir.path(), &[]);
    // He found nothing, and then somebody else made it.
    make(&inventory, 1);
    assert_eq!(inventory.look_again(Ino(1), || Ok("it")), Ok(Some("it")));
    assert_eq!(inventory.missing(), 0);
}
