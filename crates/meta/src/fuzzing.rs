//! Fuzz targets: functions of bytes that panic if something is wrong. Run as tests (below), and by `cargo
//! fuzz` (in `fuzz/`).
//!
//! Damage of a log is found by its checksums, which changed bytes hardly ever pass. So one target takes bytes
//! for a log file, and others for what stands in a record: what an older version wrote, or a mistake of ours,
//! must not bring a server down either.

use crate::grace::Grace;
use crate::log::records;
use crate::mutation::Batch;
use crate::partition::revive;
use crate::shard::Shard;
use std::collections::BTreeSet;
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
        shard.snapshot(id, i64::MIN).map(encoded).collect()
    };
    let (first, mut again) = (written(&shard), Shard::default());
    for body in &first {
        let batch = bivouac_proto::decode::<Batch>(body).expect("a snapshot can be read");
        assert!(again.replay(batch), "a snapshot's batches follow each other");
    }
    assert_eq!(written(&again), first, "a snapshot of what was read from one is the same");
    revive(&mut shard, &Arc::new(Grace::new(Duration::ZERO, BTreeSet::new())));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Owner;
    use crate::inode::{Blocks, Body, Directory, Inode, Spread};
    use crate::log::{Identity, Log};
    use crate::mutation::{Mutation, Stamp};
    use bivouac_layout::{FileLayout, GenerationId, Ino, ServerId, ShardId, Template};
    use bivouac_node::Boot;
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
            vec![Mutation::Unpack(dir), Mutation::DropOrphan(blocks), Mutation::DropDecision(4)],
        ];
        (1..).zip(all).map(|(sequence, mutations)| Batch { shard: 3, sequence, mutations }).collect()
    }

    fn bodies() -> Vec<Vec<u8>> {
        let encoded = |batch: &Batch| {
            let mut body = Vec::new();
            bivouac_proto::encode(batch, &mut body);
            body
        };
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
    fn whatever_stands_in_records_is_refused_or_a_state_that_a_snapshot_keeps() {
        let framed = |body: &Vec<u8>| [&(body.len() as u16).to_le_bytes()[..], body].concat();
        let records: Vec<_> = bodies().iter().map(framed).collect();
        let mut samples: Vec<_> = (0..=records.len()).map(|count| records[..count].concat()).collect();
        samples.extend(records);
        bivouac_testing::fuzz::run("snapshot", &samples, 64 << 20, snapshot);
    }
}
