//! Fuzz targets: functions of bytes that panic if something is wrong. Run as tests (below), and by `cargo
//! fuzz` (in `fuzz/`).
//!
//! Damage of a log is found by its checksums, which changed bytes hardly ever pass. So one target takes bytes
//! for a log file, and others for what stands in a record: what an older version wrote, or a mistake of ours,
//! must not bring a server down either.

use crate::copying::{replace, take_record};
use crate::grace::Grace;
use crate::journal::{Bodies, Journal};
use crate::log::{Identity, Log, records};
use crate::mutation::Batch;
use crate::partition::revive;
use crate::shard::Shard;
use crate::stream::Role;
use bivouac_layout::ShardId;
use bivouac_proto::peer::{Position, Shipment};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Whatever a log file has become: it is refused, or read to an end that lies in it.
pub fn log_file(bytes: &[u8]) {
    let mut total = 0;
    if let Ok(end) = records(bytes, |body| total += body.len()) {
        assert!(end <= bytes.len() as u64 && total <= bytes.len());
    }
}

/// Whatever stands in records: it is refused, or is a state of a shard that can be written as a snapshot and
/// read again. The bytes are records, each behind its length in two bytes.
pub fn snapshot(bytes: &[u8]) {
    let (mut rest, mut shard, mut id) = (bytes, Shard::default(), 0);
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = behind.len().min(usize::from(u16::from_le_bytes(*length)));
        let (body, behind) = behind.split_at(length);
        rest = behind;
        let Ok(batch) = bivouac_proto::decode::<Batch>(body) else {
            return;
        };
        id = batch.shard;
        if !shard.replay(batch) {
            return;
        }
    }
    let written = |shard: &Shard| -> Vec<Vec<u8>> {
        let encoded = |batch: Batch| {
            let mut body = Vec::new();
            bivouac_proto::encode(&batch, &mut body);
            body
        };
        shard.snapshot(id, i64::MIN).chain(shard.volatile(id)).map(encoded).collect()
    };
    let (first, mut again) = (written(&shard), Shard::default());
    for body in &first {
        let batch = bivouac_proto::decode::<Batch>(body).expect("a snapshot can be read");
        assert!(again.replay(batch), "a snapshot's batches follow each other");
    }
    assert_eq!(written(&again), first, "a snapshot of what was read from one is the same");
    revive(&mut shard, &Arc::new(Grace::new(Duration::ZERO, BTreeSet::new())));
}

/// Whatever a primary sends as records or as an image: it is refused, or the copy's shard follows it, and its log
/// can be read again. The bytes are as for [`snapshot`].
pub fn copy(bytes: &[u8]) {
    let shared = std::path::Path::new("/dev/shm");
    let base = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let place = base.join(format!("bivouac-fuzz-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place).expect("made");
    let path = place.join("partition.log");
    let identity = Identity { deployment: 7, partition: 3 };
    let open = |replay: &mut dyn FnMut(&[u8]) -> bool| Log::open(&path, identity, None, replay);
    let mut journal = Journal::new(open(&mut |_| true).expect("made"), u64::MAX);
    let (mut rest, mut shard, mut bodies) = (bytes, Shard::default(), Bodies::default());
    shard.stream.role = Role::Copy;
    let shipment = Shipment {
        shard: ShardId(3),
        term: u64::MAX,
        after: Position::default(),
        everywhere: 0,
        records: Vec::new(),
    };
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = behind.len().min(usize::from(u16::from_le_bytes(*length)));
        let (body, behind) = behind.split_at(length);
        rest = behind;
        bodies.push(body);
        let before = shard.stream.last;
        if take_record(&mut shard, &mut journal, &shipment, body, 0) != Ok(true) {
            assert_eq!(shard.stream.last, before, "what is refused changes nothing");
        }
    }
    let replaced = replace(ShardId(3), &bodies, &mut journal);
    drop(journal);
    let (mut shards, mut staged) = (BTreeMap::new(), BTreeMap::new());
    let read = open(&mut |body| {
        bivouac_proto::decode::<Batch>(body)
            .is_ok_and(|batch| crate::copying::replay(&mut shards, &mut staged, batch))
    });
    read.expect("what a copy has logged can be read");
    let _ = std::fs::remove_dir_all(&place);
    let expected = if let Ok(replaced) = replaced { replaced } else { shard };
    let durable = |shard: &Shard| {
        let mut bodies = Bodies::default();
        shard.snapshot(3, i64::MIN).for_each(|batch| bodies.add(&batch));
        bodies.iter().skip(1).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    if let Some(read) = shards.get(&3) {
        assert_eq!(read.entries.iter().count(), expected.entries.iter().count());
        assert_eq!(durable(read).len(), durable(&expected).len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Owner;
    use crate::inode::{Blocks, Body, Directory, Inode, Spread};
    use crate::mutation::{Mutation, Stamp};
    use crate::shard::Opened;
    use bivouac_layout::{FileLayout, GenerationId, Ino, ServerId, Template};
    use bivouac_node::Boot;
    use bivouac_proto::meta::{LockOwner, LockRange};
    use bivouac_proto::{FileKind, OpenId};

    #[global_allocator]
    static ALLOCATOR: bivouac_testing::fuzz::Counting = bivouac_testing::fuzz::Counting;

    /// Batches with a bit of everything that is written every day.
    fn batches() -> Vec<Batch> {
        let inode = |body| {
            let mut inode = Inode::new(Owner { uid: 1, gid: 2, mode: 0o644 }, 5, body);
            inode.nlink = 1;
            Box::new(inode)
        };
        let name = || b"a name".to_vec().into_boxed_slice();
        let (dir, file, blocks) = (Ino(3 << 52 | 1), Ino(3 << 52 | 2), Ino(3 << 52 | 3));
        let directory = Directory {
            parent: Ino::ROOT,
            name: name(),
            state: Spread::Packed,
            mtime_set: 0,
            layout: Template::default(),
        };
        let layout = FileLayout::spread(blocks, 1 << 20, GenerationId(0));
        let in_blocks =
            Blocks { layout, settled: false, reach: 9, truncating: Some(3), mtime_set: 0, allocated: None };
        let stamp = Stamp { size: 77, nlink: 1, mtime: 3, ctime: 4, settled: true, allocated: Some(4096) };
        let open = OpenId { agent: 1, slot: 2, incarnation: 3 };
        let all = [
            vec![Mutation::Adopt, Mutation::PutInode(dir, inode(Body::Directory(Box::new(directory))))],
            vec![
                Mutation::PutInode(file, inode(Body::Inline(vec![7; 100].into()))),
                Mutation::PutEntry { dir, name: name(), ino: file, kind: FileKind::File },
            ],
            vec![
                Mutation::PutInode(blocks, inode(Body::Blocks(Box::new(in_blocks)))),
                Mutation::PutOrphan(blocks, vec![open]),
                Mutation::Stamp(blocks, stamp),
                Mutation::PutPurge(blocks, vec![ServerId(0), ServerId(1)]),
            ],
            vec![
                Mutation::DropEntry { dir, name: name() },
                Mutation::DropInode(file),
                Mutation::Decide(4, vec![ShardId(2)]),
                Mutation::PutAnnouncement(dir, 9),
                Mutation::LastInode(10),
                Mutation::IntentLimit(100),
            ],
            vec![Mutation::PutOpen(file, Opened { id: open, write: true, append: false })],
            vec![
                Mutation::PutLock(
                    file,
                    LockOwner::Flock(open),
                    LockRange { start: 0, end: 9, exclusive: true },
                ),
                Mutation::PutLock(
                    file,
                    LockOwner::Process { session: 4, pid: 5 },
                    LockRange { start: 3, end: u64::MAX, exclusive: false },
                ),
                Mutation::DropLock(file, LockOwner::Flock(open), 4, 5),
            ],
            vec![Mutation::DropOpen(file, open), Mutation::DropLocks(file, 4), Mutation::GiveUp(open)],
            vec![Mutation::Terms(vec![(1, 3), (2, 6)])],
            vec![Mutation::Unpack(dir), Mutation::DropOrphan(blocks), Mutation::DropDecision(4)],
        ];
        let batch = |(sequence, mutations)| Batch {
            shard: 3,
            at: Position { term: sequence / 3, sequence },
            mutations,
        };
        (1..).zip(all).map(batch).collect()
    }

    fn encoded(batch: &Batch) -> Vec<u8> {
        let mut body = Vec::new();
        bivouac_proto::encode(batch, &mut body);
        body
    }

    fn bodies() -> Vec<Vec<u8>> {
        batches().iter().map(encoded).collect()
    }

    #[test]
    fn whatever_a_log_file_has_become_is_refused_or_read() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("partition.log");
        let identity = Identity { deployment: 7, partition: 3 };
        let mut log = Log::open(&path, identity, Boot::numbered(1), |_| true).expect("made");
        let mut samples = vec![std::fs::read(&path).expect("read")];
        for body in bodies() {
            let mut record = Vec::new();
            Log::start(&mut record);
            record.extend_from_slice(&body);
            log.append(&mut record, false).expect("appended");
            samples.push(std::fs::read(&path).expect("read"));
        }
        bivouac_testing::fuzz::run("log_file", &samples, 16 << 20, log_file);
    }

    #[test]
    fn whatever_a_primary_sends_is_refused_or_followed() {
        let framed = |body: &Vec<u8>| [&(body.len() as u16).to_le_bytes()[..], body].concat();
        let records: Vec<_> = bodies().iter().map(framed).collect();
        let mut samples: Vec<_> = (0..=records.len()).map(|count| records[..count].concat()).collect();
        samples.extend(records);
        bivouac_testing::fuzz::run("copy", &samples, 64 << 20, copy);
    }

    #[test]
    fn whatever_stands_in_records_is_refused_or_a_state_that_a_snapshot_keeps() {
        let framed = |body: &Vec<u8>| [&(body.len() as u16).to_le_bytes()[..], body].concat();
        let records: Vec<_> = bodies().iter().map(framed).collect();
        let mut samples: Vec<_> = (0..=records.len()).map(|count| records[..count].concat()).collect();
        samples.extend(records);
        // Terms that do not belong to the place of their record.
        samples.push(vec![10, 0, 3, 2, 8, 1, 24, 0]);
        // A term that begins at the place of the one before.
        let at = |term| Position { term, sequence: 1 };
        let record = |term| Batch { shard: 3, at: at(term), mutations: Vec::new() };
        samples.push([1, 2].map(record).iter().flat_map(|record| framed(&encoded(record))).collect());
        bivouac_testing::fuzz::run("snapshot", &samples, 64 << 20, snapshot);
    }
}
