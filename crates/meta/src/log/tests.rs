use super::*;

const IDENTITY: Identity = Identity { deployment: 7, partition: 3 };

/// A boot of the machine: 1 is the one in which tests begin.
fn boot(number: u128) -> Option<Boot> {
    Boot::numbered(number)
}

fn add(log: &mut Log, body: &[u8]) {
    let mut record = Vec::new();
    Log::start(&mut record);
    record.extend_from_slice(body);
    log.append(&mut record, false).unwrap();
}

fn read(path: &Path) -> Result<Vec<Vec<u8>>, OpenError> {
    read_in(1, path)
}

fn read_in(number: u128, path: &Path) -> Result<Vec<Vec<u8>>, OpenError> {
    let mut found = Vec::new();
    Log::open(path, IDENTITY, boot(number), |body| {
        found.push(body.to_vec());
        true
    })?;
    Ok(found)
}

#[test]
fn a_log_truncated_at_any_byte_keeps_every_whole_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("partition.log");
    let mut log = Log::open(&path, IDENTITY, boot(1), |_| true).unwrap();
    let bodies: Vec<Vec<u8>> = (1..20u8).map(|n| vec![n; n as usize * 3]).collect();
    let mut ends = Vec::new();
    for body in &bodies {
        add(&mut log, body);
        ends.push(log.len());
    }
    let whole = std::fs::read(&path).unwrap();
    for cut in HEADER..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let expected = ends.iter().filter(|end| **end <= cut as u64).count();
        // Each time after another loss of power: nothing was synced.
        assert_eq!(read_in(2 + cut as u128, &path).unwrap(), bodies[..expected], "cut at {cut}");
    }
}

#[test]
fn damage_before_the_end_is_refused_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("partition.log");
    let mut log = Log::open(&path, IDENTITY, boot(1), |_| true).unwrap();
    for n in 0..10u8 {
        add(&mut log, &[n; 40]);
    }
    let whole = std::fs::read(&path).unwrap();
    for at in HEADER..whole.len() - 48 {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        let record = HEADER + (at - HEADER) / 48 * 48;
        match read(&path) {
            Err(OpenError::Damaged { offset, .. }) => assert_eq!(offset, record as u64),
            other => panic!("damage at {at} gave {other:?}"),
        }
    }
}

#[test]
fn logs_of_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("partition.log");
    Log::open(&path, IDENTITY, boot(1), |_| true).unwrap();
    for other in [Identity { deployment: 8, ..IDENTITY }, Identity { partition: 4, ..IDENTITY }] {
        assert!(matches!(Log::open(&path, other, boot(1), |_| true), Err(OpenError::Foreign { .. })));
    }
    std::fs::write(&path, b"something else entirely, and long enough to be a header").unwrap();
    assert!(matches!(Log::open(&path, IDENTITY, boot(1), |_| true), Err(OpenError::Foreign { .. })));
}

#[test]
fn a_replaced_log_holds_the_snapshot_and_what_follows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("partition.log");
    let mut log = Log::open(&path, IDENTITY, boot(1), |_| true).unwrap();
    add(&mut log, b"old");
    log.replace([b"snapshot"]).unwrap();
    add(&mut log, b"new");
    drop(log);
    // Half a snapshot lies around.
    std::fs::write(temporary(&path), b"half").unwrap();
    assert_eq!(read(&path).unwrap(), [b"snapshot".to_vec(), b"new".to_vec()]);
    assert!(!temporary(&path).exists());
}

/// A log with ten records, synced after the fourth. Gives its path and where its records end.
fn ten_records(dir: &Path) -> (PathBuf, Vec<u64>) {
    let path = dir.join("partition.log");
    let mut log = Log::open(&path, IDENTITY, boot(1), |_| true).unwrap();
    let mut ends = vec![log.len()];
    for n in 0..10u8 {
        add(&mut log, &[n; 40]);
        ends.push(log.len());
        if n == 3 {
            let to_sync = log.to_sync();
            to_sync.sync().unwrap();
            log.synced(&to_sync);
        }
    }
    (path, ends)
}

#[test]
fn a_shorter_log_is_damage_in_the_same_boot_and_named_with_both_lengths() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ends) = ten_records(dir.path());
    let whole = std::fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        match read(&path) {
            Err(OpenError::Short { length, owed, .. }) => {
                assert!(length <= cut as u64, "cut at {cut}: {length}");
                assert_eq!(owed, ends[10]);
            }
            other => panic!("cut at {cut} gave {other:?}"),
        }
    }
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(read(&path).unwrap().len(), 10, "what was refused is whole again");
    // The last record is damaged: that is not what an unfinished one looks like.
    let mut bytes = whole.clone();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(read(&path), Err(OpenError::Short { .. })));
    std::fs::remove_file(path.with_extension("mark")).unwrap();
    assert_eq!(read(&path).unwrap().len(), 9, "without the mark it goes on with what is there");
}

#[test]
fn after_a_loss_of_power_only_what_was_synced_must_be_there() {
    for cut in 0..=10 {
        let dir = tempfile::tempdir().unwrap();
        let (path, ends) = ten_records(dir.path());
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..ends[cut] as usize]).unwrap();
        match read_in(2, &path) {
            Ok(found) => assert!(cut >= 4 && found.len() == cut, "cut after {cut}"),
            Err(OpenError::Short { length, owed, .. }) => {
                assert!(cut < 4 && (length, owed) == (ends[cut], ends[4]), "cut after {cut}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_missing_after_a_loss_of_power_is_not_missed_later() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ends) = ten_records(dir.path());
    std::fs::write(&path, &std::fs::read(&path).unwrap()[..ends[6] as usize]).unwrap();
    assert_eq!(read_in(2, &path).unwrap().len(), 6);
    assert_eq!(read_in(2, &path).unwrap().len(), 6);
    // From then on, these are owed.
    std::fs::write(&path, &std::fs::read(&path).unwrap()[..ends[5] as usize]).unwrap();
    assert!(matches!(read_in(2, &path), Err(OpenError::Short { .. })));
}

#[test]
fn a_missing_log_is_damage_and_a_new_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ends) = ten_records(dir.path());
    std::fs::remove_file(&path).unwrap();
    for number in [1, 2] {
        match read_in(number, &path) {
            Err(OpenError::Missing { owed, .. }) => {
                assert_eq!(owed, if number == 1 { ends[10] } else { ends[4] });
            }
            other => panic!("{other:?}"),
        }
    }
    std::fs::remove_file(path.with_extension("mark")).unwrap();
    assert!(read(&path).unwrap().is_empty());
    assert!(path.exists());
}

#[test]
fn a_log_without_a_mark_is_taken_as_it_is_and_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = ten_records(dir.path());
    let mark = path.with_extension("mark");
    // As left by an earlier version, or by somebody who decided so.
    std::fs::remove_file(&mark).unwrap();
    assert_eq!(read(&path).unwrap().len(), 10);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(matches!(read(&path), Err(OpenError::Short { .. })));
}

#[test]
fn a_mark_of_another_log_or_a_damaged_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = ten_records(dir.path());
    let mark = path.with_extension("mark");
    let good = std::fs::read(&mark).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        std::fs::write(&mark, &bytes).unwrap();
        assert!(matches!(read(&path), Err(OpenError::MarkDamaged(_))), "{at}");
        for short in [&good[..at], &vec![0; at]] {
            std::fs::write(&mark, short).unwrap();
            assert!(matches!(read(&path), Err(OpenError::MarkDamaged(_))), "{at}");
        }
    }
    // A server that was killed before its log had a name.
    std::fs::write(&mark, b"").unwrap();
    std::fs::rename(&path, dir.path().join("aside")).unwrap();
    assert_eq!(read(&path).unwrap().len(), 0);
    std::fs::rename(dir.path().join("aside"), &path).unwrap();
    let other = dir.path().join("other.log");
    Log::open(&other, Identity { deployment: 8, ..IDENTITY }, boot(1), |_| true).unwrap();
    std::fs::copy(other.with_extension("mark"), &mark).unwrap();
    assert!(matches!(read(&path), Err(OpenError::Foreign { .. })));
}

#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = ten_records(dir.path());
    for at in [path.clone(), path.with_extension("mark")] {
        let aside = dir.path().join("aside");
        std::fs::rename(&at, &aside).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &at, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(read(&path), Err(OpenError::NotAFile(_))));
        std::fs::remove_file(&at).unwrap();
        std::fs::create_dir(&at).unwrap();
        assert!(matches!(read(&path), Err(OpenError::NotAFile(_))));
        std::fs::remove_dir(&at).unwrap();
        std::fs::rename(&aside, &at).unwrap();
    }
    assert_eq!(read(&path).unwrap().len(), 10);
}

/// A process may be killed between any two steps of a replacement, and then find either log.
#[test]
fn a_replaced_log_is_never_accused_and_an_older_copy_never_excused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("partition.log");
    let mark = path.with_extension("mark");
    let mut log = Log::open(&path, IDENTITY, boot(1), |_| true).unwrap();
    for n in 0..10u8 {
        add(&mut log, &[n; 40]);
    }
    let old = std::fs::read(&path).unwrap();
    // The steps of `Log::replace`: announced, renamed, known to be renamed, first record.
    let kept = dir.path().join("kept");
    std::fs::write(&kept, &old).unwrap();
    log.mark.announce(2, 66).unwrap().sync_data().unwrap();
    let announced = std::fs::read(&mark).unwrap();
    log.replace([b"the ten in one".to_vec(), b"!".to_vec()]).unwrap();
    let new = std::fs::read(&path).unwrap();
    assert_eq!(new.len(), 66 + 1);
    let replaced = std::fs::read(&mark).unwrap();
    let set = |log: &[u8], known: &[u8]| {
        std::fs::write(&path, log).unwrap();
        std::fs::write(&mark, known).unwrap();
    };
    for number in [1, 2] {
        set(&old, &announced);
        assert_eq!(read_in(number, &path).unwrap().len(), 10, "killed before the renaming");
        set(&new, &announced);
        assert_eq!(read_in(number, &path).unwrap().len(), 2, "killed after the renaming");
        set(&new, &replaced);
        assert_eq!(read_in(number, &path).unwrap().len(), 2, "killed at the end");
        set(&old, &replaced);
        assert!(matches!(read_in(number, &path), Err(OpenError::Outdated { .. })));
        set(&new[..new.len() - 1], &replaced);
        assert!(matches!(read_in(number, &path), Err(OpenError::Short { .. })), "a snapshot is synced");
        set(&new[..60], &announced);
        assert!(matches!(read_in(number, &path), Err(OpenError::Short { .. })));
    }
}

/// The same for a revision that is written while the log is in use: a process may be killed, or the machine lose
/// its power, between any two steps.
#[test]
fn a_rewritten_log_is_never_accused_and_has_what_came_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("partition.log");
    let mark = path.with_extension("mark");
    let mut log = Log::open(&path, IDENTITY, boot(1), |_| true).unwrap();
    for n in 0..10u8 {
        add(&mut log, &[n; 40]);
    }
    let files = || (std::fs::read(&path).unwrap(), std::fs::read(&mark).unwrap());
    let aside = tempfile::tempdir().unwrap();
    let place = aside.path().join("partition.log");
    // What is found if log and mark were these, in another boot if the number is not 1.
    let found = |number: u128, log: &[u8], known: &[u8]| {
        std::fs::write(&place, log).unwrap();
        std::fs::write(place.with_extension("mark"), known).unwrap();
        read_in(number, &place)
    };
    let mut rewrite = log.rewrite().unwrap();
    rewrite.add(b"the ten in one").unwrap();
    add(&mut log, b"eleven");
    rewrite.add(b"eleven").unwrap();
    rewrite.sync().unwrap();
    let synced = rewrite.revision.end as usize;
    let to_sync = log.announce(&rewrite).unwrap();
    to_sync.sync_data().unwrap();
    add(&mut log, b"twelve");
    let (old, announced) = files();
    for number in [1, 2] {
        assert_eq!(found(number, &old, &announced).unwrap().len(), 12, "killed before the switch");
    }
    rewrite.add(b"twelve").unwrap();
    log.switch(rewrite).unwrap();
    let (new, switched) = files();
    assert!(!temporary(&path).exists());
    for number in [1, 2] {
        assert_eq!(found(number, &new, &announced).unwrap().len(), 3, "killed after the renaming");
        assert_eq!(found(number, &new, &switched).unwrap().len(), 3);
        // Either file may have the name, and either mark have reached the storage.
        assert_eq!(found(number, &old, &switched).unwrap().len(), 12);
    }
    for known in [&announced, &switched] {
        // A loss of power may take what was not synced, and nothing else.
        assert_eq!(found(2, &new[..synced], known).unwrap().len(), 2);
        assert!(matches!(found(2, &new[..synced - 1], known), Err(OpenError::Short { .. })));
    }
    assert!(matches!(found(1, &new[..synced], &switched), Err(OpenError::Short { .. })));
    add(&mut log, b"thirteen");
    let to_sync = log.to_sync();
    to_sync.sync().unwrap();
    log.synced(&to_sync);
    let (new, stable) = files();
    for number in [1, 2] {
        assert_eq!(found(number, &new, &stable).unwrap().len(), 4);
        assert!(matches!(found(number, &old, &stable), Err(OpenError::Outdated { .. })));
        assert!(matches!(found(number, &new[..new.len() - 1], &stable), Err(OpenError::Short { .. })));
    }
    // One that is given up leaves no trace.
    let mut rewrite = log.rewrite().unwrap();
    rewrite.add(b"never").unwrap();
    log.announce(&rewrite).unwrap().sync_data().unwrap();
    drop(rewrite);
    log.abandon_rewrite();
    assert_eq!(files(), (new, stable));
    assert!(!temporary(&path).exists());
}
