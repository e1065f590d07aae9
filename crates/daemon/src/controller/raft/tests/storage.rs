//! The journal and the snapshot.

use super::super::disk::Disk;
use super::super::journal::{Contents, JOURNAL, Journal, Record};
use super::super::machine::SNAPSHOT;
use super::super::voter::{Voter, VoterConfig};
use super::super::{Identity, Proposal};
use super::{QUICK, entry, identity, log_id, vote};
use crate::controller::ControllerError;
use crate::controller::tests::two_servers;
use bivouac_layout::{Epoch, MapChange, NodeId, ServerId, ServerState};
use bivouac_testing::{HANG, eventually};
use std::path::Path;

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn create(dir: &Path, records: &[Record]) -> Journal {
    let mut journal = Journal::create(dir, identity(1)).expect("made");
    for record in records {
        journal.append(std::slice::from_ref(record)).expect("written");
    }
    journal
}

fn reopened(dir: &Path) -> Result<Contents, ControllerError> {
    Journal::open(dir, identity(1)).map(|opened| opened.expect("is there").1)
}

/// What can be seen of contents.
fn seen(contents: &Contents) -> (Option<super::Vote>, Option<super::LogId>, Vec<super::LogId>) {
    let entries = contents.entries.values().map(|entry| entry.log_id).collect();
    (contents.vote, contents.purged, entries)
}

#[test]
fn what_was_written_is_there_when_it_is_opened_again() {
    let dir = scratch();
    let records = [
        Record::Vote(vote(1)),
        Record::Entry(entry(1, 0)),
        Record::Entry(entry(1, 1)),
        Record::Entry(entry(1, 2)),
        Record::Truncated(2),
        Record::Vote(vote(2)),
        Record::Entry(entry(2, 2)),
        Record::Purged(log_id(1, 0)),
    ];
    create(dir.path(), &records);
    let expected = (Some(vote(2)), Some(log_id(1, 0)), vec![log_id(1, 1), log_id(2, 2)]);
    assert_eq!(seen(&reopened(dir.path()).expect("opens")), expected);
    // What is rewritten says the same in fewer words.
    let long = std::fs::metadata(dir.path().join(JOURNAL)).expect("is there").len();
    let (mut journal, contents) = Journal::open(dir.path(), identity(1)).expect("opens").expect("is there");
    journal.rewrite(&contents).expect("written");
    journal.append(&[Record::Entry(entry(2, 3))]).expect("written");
    let contents = reopened(dir.path()).expect("opens");
    assert_eq!(contents.last(), Some(log_id(2, 3)));
    assert_eq!(contents.entries.len(), 3);
    assert!(std::fs::metadata(dir.path().join(JOURNAL)).expect("is there").len() < long);
}

#[test]
fn a_journal_torn_at_any_byte_has_what_was_acknowledged_before_and_can_be_written() {
    let dir = scratch();
    let path = dir.path().join(JOURNAL);
    let mut ends = vec![0];
    let mut journal = create(dir.path(), &[]);
    let length = || std::fs::metadata(&path).expect("is there").len() as usize;
    ends[0] = length();
    for record in [Record::Vote(vote(1)), Record::Entry(entry(1, 0)), Record::Entry(entry(1, 1))] {
        journal.append(&[record]).expect("written");
        ends.push(length());
    }
    let whole = std::fs::read(&path).expect("reads");
    for cut in ends[0]..=whole.len() {
        // Torn off, or filled up with zeros by a loss of power.
        for zeros in [0, 1, 100] {
            let mut torn = whole[..cut].to_vec();
            torn.resize(cut + zeros, 0);
            std::fs::write(&path, &torn).expect("written");
            let complete = ends.iter().filter(|end| **end <= cut).count() - 1;
            if zeros > 0 && !ends.contains(&cut) {
                // Whether a page's end was never written shows only where pages begin: it is damage, or torn.
                let _ = Journal::open(dir.path(), identity(1));
                continue;
            }
            let contents = reopened(dir.path()).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
            assert_eq!(contents.vote.is_some(), complete >= 1, "cut at {cut}");
            assert_eq!(contents.entries.len(), complete.saturating_sub(1), "cut at {cut}");
            let (mut journal, _) = Journal::open(dir.path(), identity(1)).expect("opens").expect("is there");
            journal.append(&[Record::Vote(vote(9))]).expect("written");
            assert_eq!(reopened(dir.path()).expect("opens").vote, Some(vote(9)), "cut at {cut}");
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_damage_and_the_error_says_what_to_do() {
    let dir = scratch();
    create(dir.path(), &[Record::Vote(vote(1)), Record::Entry(entry(1, 0)), Record::Entry(entry(1, 1))]);
    let path = dir.path().join(JOURNAL);
    let whole = std::fs::read(&path).expect("reads");
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            std::fs::write(&path, &damaged).expect("written");
            match Journal::open(dir.path(), identity(1)) {
                Err(error @ ControllerError::Damaged { .. }) => {
                    assert!(error.to_string().contains("restore that file"), "{error}");
                }
                Ok(_) => panic!("nobody noticed byte {at}, bit {bit}"),
                Err(error) => panic!("byte {at}, bit {bit}: {error}"),
            }
        }
    }
}

#[test]
fn another_deployments_journal_is_none_and_another_nodes_is_an_error() {
    let dir = scratch();
    create(dir.path(), &[Record::Vote(vote(1))]);
    let other = Identity { deployment: 43, ..identity(1) };
    assert!(Journal::open(dir.path(), other).expect("no error").is_none());
    assert!(matches!(Journal::open(dir.path(), identity(2)), Err(ControllerError::Damaged { .. })));
    let empty = scratch();
    assert!(Journal::open(empty.path(), identity(1)).expect("no error").is_none());
    for text in ["", "x", "BVKVOTE\n"] {
        std::fs::write(dir.path().join(JOURNAL), text).expect("written");
        assert!(
            matches!(Journal::open(dir.path(), identity(1)), Err(ControllerError::Damaged { .. })),
            "{text:?}"
        );
    }
}

#[test]
fn a_write_that_fails_is_tried_again_until_the_voter_stops() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let dir = scratch();
    let mut journal = create(dir.path(), &[Record::Entry(entry(1, 0))]);
    let contents = reopened(dir.path()).expect("opens");
    journal.fill_up();
    let (disk, writer) = Disk::start(journal, contents, dir.path().join(SNAPSHOT), None).expect("starts");
    runtime.block_on(disk.vote(vote(3))).expect("written");
    drop(disk);
    writer.join();
    assert_eq!(seen(&reopened(dir.path()).expect("opens")), (Some(vote(3)), None, vec![log_id(1, 0)]));
    // Nor can the file be replaced.
    let gone = scratch();
    let mut journal = create(gone.path(), &[]);
    journal.fill_up();
    gone.close().expect("removed");
    let path = dir.path().join(SNAPSHOT);
    let (disk, writer) = Disk::start(journal, Contents::default(), path, None).expect("starts");
    let limit = std::time::Duration::from_millis(500);
    let waited = runtime.block_on(async { tokio::time::timeout(limit, disk.vote(vote(4))).await });
    assert!(waited.is_err(), "nothing is acknowledged that is not written");
    let stopping = writer.stopping();
    stopping.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(runtime.block_on(disk.vote(vote(5))).is_err());
    drop(disk);
    writer.join();
}

fn alone(dir: &Path) -> VoterConfig {
    VoterConfig {
        identity: identity(1),
        directory: dir.join("voter"),
        carriers: Box::new(|_| unreachable!("it is alone")),
        times: QUICK,
    }
}

fn open(dir: &Path) -> Voter {
    let voter = Voter::open(alone(dir)).expect("opens").expect("is there");
    eventually("it leads", || voter.standing().leads);
    voter.confirm(HANG).expect("alone");
    voter
}

fn toggle(epoch: u64) -> Proposal {
    let state = if epoch.is_multiple_of(2) { ServerState::Up } else { ServerState::Down };
    let change = MapChange::State { server: ServerId(1), state };
    Proposal::Change { expected: Epoch(epoch), change }
}

#[test]
fn a_long_log_becomes_a_snapshot_and_leads_to_the_same_map() {
    let dir = scratch();
    let voter = Voter::create(alone(dir.path())).expect("made");
    voter.found(HANG).expect("founded");
    eventually("it leads", || voter.standing().leads);
    voter.propose(Proposal::Found(Box::new(two_servers())), HANG).expect("committed");
    for epoch in 1..=100 {
        assert_eq!(voter.propose(toggle(epoch), HANG).expect("committed").epoch, Epoch(epoch + 1));
    }
    let map = voter.map().expect("a map");
    let snapshot = dir.path().join("voter").join(SNAPSHOT);
    eventually("there is a snapshot", || snapshot.exists());
    voter.stop();
    let (_, contents) =
        Journal::open(&dir.path().join("voter"), identity(1)).expect("opens").expect("is there");
    assert!(contents.purged.is_some() && contents.entries.len() < 60, "{}", contents.entries.len());
    for _ in 0..2 {
        let voter = open(dir.path());
        assert_eq!(voter.map().expect("a map"), map);
        assert_eq!(voter.kept().expect("kept").voters, [NodeId(1)]);
        voter.stop();
    }
    // What the journal lacks, the snapshot must have.
    let whole = std::fs::read(&snapshot).expect("reads");
    for at in [0, 30, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&snapshot, damaged).expect("written");
        assert!(matches!(Voter::open(alone(dir.path())), Err(ControllerError::Damaged { .. })), "byte {at}");
    }
    std::fs::remove_file(&snapshot).expect("removed");
    let error = Voter::open(alone(dir.path())).expect_err("it is gone");
    assert!(error.to_string().contains("lacks entries"), "{error}");
}

#[test]
fn a_change_of_another_map_than_expected_changes_nothing() {
    let dir = scratch();
    let voter = Voter::create(alone(dir.path())).expect("made");
    voter.found(HANG).expect("founded");
    eventually("it leads", || voter.standing().leads);
    assert!(matches!(voter.propose(toggle(1), HANG), Err(ControllerError::Refused)), "there is no map");
    voter.propose(Proposal::Found(Box::new(two_servers())), HANG).expect("committed");
    assert!(voter.propose(Proposal::Found(Box::new(two_servers())), HANG).is_err(), "a second first map");
    for expected in [0, 2, u64::MAX] {
        assert!(matches!(voter.propose(toggle(expected), HANG), Err(ControllerError::Stale)), "{expected}");
    }
    let unknown = MapChange::State { server: ServerId(9), state: ServerState::Down };
    let unknown = Proposal::Change { expected: Epoch(1), change: unknown };
    assert!(matches!(voter.propose(unknown, HANG), Err(ControllerError::Refused)));
    assert_eq!(voter.map().expect("a map").epoch, Epoch(1));
}
