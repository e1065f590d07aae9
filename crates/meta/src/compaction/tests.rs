use super::*;
use crate::partition::COMPACT_AT;
use crate::partition::PARTITIONS;
use crate::partition::tests::{make, open};
use bivouac_layout::{Ino, ShardId};
use std::path::Path;

const SHARDS: [ShardId; 3] = [ShardId(5), ShardId(5 + PARTITIONS as u16), ShardId(5 + 2 * PARTITIONS as u16)];

/// What a store's files would be for one that is started after a crash at this moment.
fn copied(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// A store with these shards, in which `count` directories were made.
struct Busy {
    partitions: Partitions,
    made: u64,
}

impl Busy {
    fn new(dir: &Path) -> Busy {
        let partitions = open(dir, None);
        SHARDS.iter().for_each(|shard| partitions.adopt(*shard, None).unwrap());
        let mut busy = Busy { partitions, made: 0 };
        (0..20).for_each(|_| busy.make());
        busy
    }

    fn make(&mut self) {
        make_one(&self.partitions, &mut self.made);
    }

    fn is_all_in(&self, dir: &Path, when: &str) {
        is_all_in(self.made, dir, when);
    }
}

/// Makes one more directory in each of the shards.
fn make_one(partitions: &Partitions, made: &mut u64) {
    *made += 1;
    SHARDS.iter().for_each(|shard| make(partitions, *shard, *made).unwrap());
}

/// A store that is started in `dir` has what was made.
fn is_all_in(made: u64, dir: &Path, when: &str) {
    let opened = open(dir, None);
    for shard in SHARDS {
        let found = opened.with(shard, |locked| {
            let missing = (1..=made).find(|n| locked.shard.inodes.get(Ino::new(shard, *n)).is_none());
            Ok((locked.shard.stream.last.sequence, locked.shard.inodes.len() as u64, missing))
        });
        assert_eq!(found.unwrap(), (1 + made, made, None), "{shard:?} {when}");
    }
}

/// At each step of a compaction: what was acknowledged until then is found after a crash, and after one when the
/// compaction was given up.
#[test]
fn a_crash_at_any_step_loses_nothing() {
    for sync in [true, false] {
        let mut stages = Vec::new();
        for steps in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let mut busy = Busy::new(dir.path());
            let Busy { partitions, made } = &mut busy;
            let partitions = &*partitions;
            let mut compaction = Compaction::begin(partitions, 5).unwrap();
            for _ in 0..steps {
                make_one(partitions, made);
                let switching = matches!(compaction.stage, Stage::SyncRest | Stage::Announce)
                    || matches!(compaction.stage, Stage::SyncMark(_) | Stage::Switch);
                if sync && !switching {
                    partitions.sync(SHARDS[0]).unwrap();
                }
                compaction.step().unwrap();
            }
            make_one(partitions, made);
            let when = format!("after {steps} steps, before {:?}", compaction.stage);
            is_all_in(*made, copied(dir.path()).path(), &when);
            stages.push(std::mem::discriminant(&compaction.stage));
            let done = matches!(compaction.stage, Stage::Done);
            drop(compaction);
            busy.make();
            busy.is_all_in(copied(dir.path()).path(), &format!("{when}, given up"));
            assert!(!dir.path().join("partition-05.tmp").exists());
            if done {
                break;
            }
        }
        stages.dedup();
        assert_eq!(stages.len(), 10, "every step was tried");
    }
}

#[test]
fn a_compacted_log_is_short_and_counts_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut busy = Busy::new(dir.path());
    for _ in 0..50 {
        // Again and again the same.
        busy.made = 0;
        (0..20).for_each(|_| busy.make());
    }
    let long = busy.partitions.lock(5).journal.log.len();
    busy.partitions.compact(5);
    let guard = busy.partitions.lock(5);
    assert!(guard.journal.log.len() < long / 20, "{} of {long}", guard.journal.log.len());
    assert_eq!(guard.journal.compacted, guard.journal.log.len());
    assert_eq!(guard.journal.compact_at, COMPACT_AT);
}

/// Who syncs while the new file is made stable waits for it, because what it makes stable may be in the old one.
#[test]
fn who_wants_to_sync_waits_for_the_switch() {
    let dir = tempfile::tempdir().unwrap();
    let mut busy = Busy::new(dir.path());
    let partitions = &busy.partitions;
    let mut compaction = Compaction::begin(partitions, 5).unwrap();
    while !matches!(compaction.stage, Stage::SyncRest) {
        partitions.sync(SHARDS[0]).unwrap();
        compaction.step().unwrap();
    }
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| partitions.sync(SHARDS[0]).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!sync.is_finished());
        while !matches!(compaction.stage, Stage::SyncName(_)) {
            compaction.step().unwrap();
        }
        sync.join().unwrap();
        // One that is given up lets them go, too.
        drop(compaction);
        let mut compaction = Compaction::begin(partitions, 5).unwrap();
        while !matches!(compaction.stage, Stage::Announce) {
            compaction.step().unwrap();
        }
        let sync = scope.spawn(|| partitions.sync(SHARDS[0]).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(compaction);
        sync.join().unwrap();
    });
    busy.make();
    busy.is_all_in(copied(dir.path()).path(), "in the end");
}

/// On a full storage a request makes room by itself, and ends the compaction that is under way at any step.
#[test]
fn a_request_that_needs_room_does_not_wait_for_a_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let mut busy = Busy::new(dir.path());
    for steps in 0.. {
        busy.make();
        let mut compaction = Compaction::begin(&busy.partitions, 5).unwrap();
        (0..steps).for_each(|_| compaction.step().unwrap());
        let done = matches!(compaction.stage, Stage::SyncName(_) | Stage::Done);
        {
            let mut guard = busy.partitions.lock(5);
            guard.journal.compacted = 0;
            let worthwhile = guard.journal.log.len() >= WORTHWHILE;
            assert_eq!(guard.compact_for_room(COMPACT_AT), worthwhile);
        }
        let mut goes_on = 0;
        while !matches!(compaction.stage, Stage::Done) {
            compaction.step().unwrap();
            goes_on += 1;
            assert!(goes_on < 100);
        }
        drop(compaction);
        busy.make();
        busy.is_all_in(copied(dir.path()).path(), &format!("after {steps} steps"));
        if done {
            break;
        }
    }
}
