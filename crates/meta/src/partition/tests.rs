use super::*;
use crate::access::Owner;
use bivouac_layout::Template;

const SHARD: ShardId = ShardId(5);

pub(crate) fn open(dir: &Path, compact_at: Option<u64>) -> Partitions {
    let grace = Arc::new(Grace::new(Duration::ZERO, Default::default()));
    let keeper = Arc::new(Keeper::new(Arc::clone(&grace)));
    let logs = Logs::replay(dir, 7).unwrap();
    Partitions::new(logs, Duration::from_millis(200), grace, compact_at, &|_| true, keeper)
}

/// Makes the directory `number` in the shard.
pub(crate) fn make(partitions: &Partitions, shard: ShardId, number: u64) -> Result<(), Failure> {
    partitions.with(shard, |locked| {
        let owner = Owner { mode: 0o755, uid: 0, gid: 0 };
        let name = format!("directory {number}");
        let inode = Inode::directory(owner, 0, Ino::ROOT, name.as_bytes(), Template::default());
        let mut draft = Draft::new(0);
        draft.put_inode(Ino::new(shard, number), inode);
        locked.commit(draft)
    })
}

fn sequence(partitions: &Partitions, shard: ShardId) -> u64 {
    partitions.with(shard, |locked| Ok(locked.shard.stream.last.sequence)).unwrap()
}

#[test]
fn each_shard_counts_its_own_records_also_over_restarts_and_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    // A shard of another partition, and one of the same.
    let others = [ShardId(6), ShardId(5 + PARTITIONS as u16)];
    let mut expected = [0, 0, 0];
    for round in 0..6 {
        // Every second time, all is written as a snapshot meanwhile.
        let partitions = open(dir.path(), (round % 2 == 1).then_some(1));
        for (shard, count) in [SHARD, others[0], others[1]].into_iter().zip(&mut expected) {
            partitions.adopt(shard, None).unwrap();
            *count += u64::from(round == 0);
            assert_eq!(sequence(&partitions, shard), *count, "after a restart");
            for number in 0..u64::from(shard.0) % 7 {
                make(&partitions, shard, 10 * round + number + 1).unwrap();
                *count += 1;
                assert_eq!(sequence(&partitions, shard), *count);
            }
        }
    }
}

#[test]
fn a_log_whose_records_do_not_follow_each_other_is_refused() {
    let batch =
        |term, sequence, mutations| Batch { shard: SHARD.0, at: Position { term, sequence }, mutations };
    // Numbers that are missing were those of volatile changes.
    for (term, second, fits) in
        [(3, 7, true), (3, 8, true), (4, 8, true), (3, 9, true), (3, 6, false), (2, 8, false), (4, 6, false)]
    {
        let mut shard = Shard::default();
        assert!(shard.replay(batch(3, 7, vec![Mutation::Adopt])));
        assert_eq!(shard.replay(batch(term, second, vec![Mutation::LastInode(4)])), fits, "{term} {second}");
        let last = Position { term: if fits { term } else { 3 }, sequence: if fits { second } else { 7 } };
        assert_eq!((shard.last, shard.stream.last), (if fits { 4 } else { 0 }, last));
    }
}

/// Its shard may have been another server's while it waited.
#[test]
fn a_request_that_was_answered_meanwhile_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let partitions = open(dir.path(), None);
    partitions.adopt(SHARD, None).unwrap();
    let answered = |sequence, last| {
        partitions.with(SHARD, |locked| {
            let mut draft = Draft::new(0);
            draft.push(Mutation::LastInode(last));
            draft.answer(
                &bivouac_proto::RequestId { session: 1, slot: 2, sequence },
                &bivouac_proto::Reply::Done,
            );
            locked.commit(draft)
        })
    };
    answered(7, 1).unwrap();
    for late in [7, 6] {
        assert_eq!(answered(late, 2), Err(Refusal::Busy.into()));
    }
    assert_eq!(partitions.with(SHARD, |locked| Ok(locked.shard.last)), Ok(1));
    answered(8, 2).unwrap();
}
