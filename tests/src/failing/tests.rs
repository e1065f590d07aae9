use super::*;
use crate::skipped_without_mount;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::os::unix::fs::{FileExt, MetadataExt};

#[test]
fn what_is_done_through_it_is_done_behind_it() {
    if skipped_without_mount() {
        return;
    }
    let failing = FailingDir::new("works");
    let (at, behind) = (failing.path(), failing.behind());
    std::fs::create_dir(at.join("d")).expect("made");
    let path = at.join("d/f");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("made");
    file.write_all_at(&[7; 10_000], 1 << 20).expect("written");
    rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 1 << 20, 4096)
        .expect("punched");
    file.sync_all().expect("synced");
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)).expect("data"), (1 << 20) + 4096);
    assert_eq!(std::fs::read(&path).expect("reads"), std::fs::read(behind.join("d/f")).expect("reads"));
    file.set_len(5).expect("cut");
    std::fs::rename(&path, at.join("d/g")).expect("renamed");
    assert_eq!(behind.join("d/g").metadata().expect("is there").len(), 5);
    std::fs::remove_file(at.join("d/g")).expect("removed");
    // It is open still.
    file.write_all_at(b"more", 5).expect("written");
    let mut bytes = [0; 9];
    file.read_exact_at(&mut bytes, 0).expect("reads");
    let status = file.metadata().expect("a status");
    assert_eq!((&bytes, status.len(), status.nlink()), (b"\0\0\0\0\0more", 9, 0));
    assert_eq!(std::fs::read_dir(at.join("d")).expect("a list").count(), 0);
}

#[test]
fn only_what_the_fault_names_fails_and_only_until_it_is_healed() {
    if skipped_without_mount() {
        return;
    }
    let failing = FailingDir::new("fails");
    let make = |name: &str| {
        let path = failing.path().join(name);
        std::fs::write(&path, "content").expect("written");
        std::fs::File::options().read(true).write(true).open(path).expect("opens")
    };
    let (bad, good) = (make("bad"), make("good"));
    let what = |file: &std::fs::File| {
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let read = file.read_exact_at(&mut [0; 7], 0).map_err(errno);
        let write = file.write_all_at(b"c", 0).map_err(errno);
        [read, write, file.sync_all().map_err(errno), file.set_len(7).map_err(errno)]
    };
    let fault = |on, error| Fault { paths: vec!["/bad".into()], on, error };
    let (ok, eio, erofs) = (Ok(()), Err(Errno::IO.raw_os_error()), Err(Errno::ROFS.raw_os_error()));
    for (fault, expected) in [
        (fault(On::READ, Errno::IO), [eio, ok, ok, ok]),
        (fault(On::WRITE.and(On::OPEN_TO_WRITE), Errno::ROFS), [ok, erofs, ok, erofs]),
        (fault(On::SYNC, Errno::IO), [ok, ok, eio, ok]),
        (fault(On::FILL, Errno::NOSPC), [ok, Err(Errno::NOSPC.raw_os_error()), ok, ok]),
    ] {
        failing.fail(fault);
        assert_eq!((what(&bad), what(&good)), (expected, [ok; 4]));
        assert!(failing.hits() > 0);
        failing.heal();
        assert_eq!(what(&bad), [ok; 4]);
    }
}
