use super::*;
use crate::access::Owner;
use crate::append::Placed;
use crate::inode::{Blocks, Body};
use bivouac_layout::{FileLayout, GenerationId, ServerId, ShardId, Template};
use bivouac_proto::RequestId;
use proptest::prelude::*;

const SHARD: ShardId = ShardId(9);

/// A shard's complete image, as another server gets it.
pub(crate) fn image(shard: &Shard) -> Vec<Vec<u8>> {
    let encoded = |batch: Batch| {
        let mut body = Vec::new();
        bivouac_proto::encode(&batch, &mut body);
        body
    };
    shard.snapshot(SHARD.0, Time::MIN).chain(shard.volatile(SHARD.0)).map(encoded).collect()
}

fn ino() -> impl Strategy<Value = Ino> {
    (1u64..6).prop_map(|counter| Ino::new(SHARD, counter))
}

fn open() -> impl Strategy<Value = OpenId> {
    (1u64..3, 0u32..3).prop_map(|(agent, slot)| OpenId { agent, slot, incarnation: 1 })
}

fn owner() -> impl Strategy<Value = LockOwner> {
    prop_oneof![
        (1u64..4).prop_map(|session| LockOwner::Process { session, pid: session as u32 }),
        open().prop_map(LockOwner::Description),
        open().prop_map(LockOwner::Flock),
    ]
}

fn name() -> impl Strategy<Value = Box<[u8]>> {
    (0u8..8).prop_map(|n| vec![b'a' + n].into())
}

fn inode() -> impl Strategy<Value = Box<Inode>> {
    (0u8..4, 0usize..300, any::<bool>()).prop_map(|(kind, len, settled)| {
        let owner = Owner { mode: 0o644, uid: 3, gid: 4 };
        let mut inode = match kind {
            0 => Inode::directory(owner, 5, Ino::ROOT, b"name", Template::default()),
            1 => {
                let layout = FileLayout::spread(Ino::new(SHARD, 1), 4096, GenerationId(0));
                let (truncating, allocated, mtime_set) = (None, None, 0);
                let blocks = Blocks { layout, settled, reach: len as u64, truncating, mtime_set, allocated };
                Inode::new(owner, 5, Body::Blocks(Box::new(blocks)))
            }
            2 => Inode::new(owner, 5, Body::Symlink(vec![b't'; len].into())),
            _ => Inode::new(owner, 5, Body::Inline(vec![b'd'; len].into())),
        };
        if kind > 1 {
            inode.size = len as u64;
        }
        Box::new(inode)
    })
}

fn intent() -> impl Strategy<Value = IntentId> {
    (0u16..2, 0u64..3).prop_map(|(shard, number)| IntentId { shard: ShardId(shard), number })
}

/// Any change, of few things, so that changes meet.
pub(crate) fn mutation() -> impl Strategy<Value = Mutation> {
    use Mutation as M;
    let named = || (ino(), name());
    let part = || {
        any::<u32>().prop_map(|entries| Part {
            mode: 0o755,
            uid: 1,
            gid: 2,
            entries,
            subdirectories: 0,
            mtime: 3,
            layout: Template::default(),
        })
    };
    let stamp = (0u64..99, 0u32..3, any::<bool>()).prop_map(|(size, nlink, settled)| Stamp {
        size,
        nlink,
        mtime: 7,
        ctime: 8,
        settled,
        allocated: settled.then_some(4096),
    });
    let prepared = || Prepared { steps: Vec::new(), made: Vec::new(), since: None, own: false };
    let answer = (0u64..9).prop_map(|sequence| Answer { sequence, time: 5, reply: Box::default() });
    let durable = prop_oneof![
        6 => (ino(), inode()).prop_map(|(ino, inode)| M::PutInode(ino, inode)),
        2 => ino().prop_map(M::DropInode),
        2 => (ino(), stamp).prop_map(|(ino, stamp)| M::Stamp(ino, stamp)),
        4 => named().prop_map(|(dir, name)| M::PutEntry { dir, name, ino: dir, kind: FileKind::File }),
        2 => named().prop_map(|(dir, name)| M::DropEntry { dir, name }),
        1 => ino().prop_map(M::Unpack),
        1 => (ino(), 0u16..256, part()).prop_map(|(dir, number, part)| M::PutPart(dir, number, part)),
        1 => (ino(), 0u16..256).prop_map(|(dir, number)| M::DropPart(dir, number)),
        1 => any::<u32>().prop_map(|last| M::LastInode(u64::from(last))),
        1 => any::<u32>().prop_map(|limit| M::IntentLimit(u64::from(limit))),
        1 => intent().prop_map(move |id| M::PutIntent(id, Box::new(prepared()))),
        1 => intent().prop_map(M::DropIntent),
        1 => (0u64..4).prop_map(|number| M::Decide(number, vec![ShardId(7), SHARD])),
        1 => (0u64..4).prop_map(M::DropDecision),
        2 => (0u64..3, 0u32..2, answer).prop_map(|(session, slot, a)| M::PutAnswer(session, slot, Box::new(a))),
        2 => (ino(), open()).prop_map(|(ino, open)| M::PutOrphan(ino, vec![open])),
        1 => ino().prop_map(M::DropOrphan),
        1 => ino().prop_map(|ino| M::PutPurge(ino, vec![ServerId(1)])),
        1 => ino().prop_map(M::DropPurge),
        1 => proptest::option::of(intent()).prop_map(M::PutMover),
        1 => (ino(), 0u64..9).prop_map(|(ino, number)| M::PutAnnouncement(ino, number)),
        1 => ino().prop_map(M::DropAnnouncement),
        2 => (ino(), 0u64..9).prop_map(|(ino, offset)| {
            let id = RequestId { session: 1, slot: 2, sequence: offset };
            M::PutAppend(ino, Placed { id, offset, length: 10, since: None })
        }),
        1 => ino().prop_map(M::DropAppend),
    ];
    let lock = (0u64..20, 1u64..20, any::<bool>()).prop_map(|(start, len, exclusive)| LockRange {
        start,
        end: start + len,
        exclusive,
    });
    let volatile = prop_oneof![
        4 => (ino(), open(), any::<bool>())
            .prop_map(|(ino, id, write)| M::PutOpen(ino, Opened { id, write, append: false })),
        2 => (ino(), open()).prop_map(|(ino, open)| M::DropOpen(ino, open)),
        4 => (ino(), owner(), lock).prop_map(|(ino, owner, range)| M::PutLock(ino, owner, range)),
        2 => (ino(), owner(), 0u64..20).prop_map(|(ino, owner, at)| M::DropLock(ino, owner, at, at + 9)),
        1 => (ino(), 1u64..4).prop_map(|(ino, session)| M::DropLocks(ino, session)),
        1 => open().prop_map(M::GiveUp),
        1 => Just(()).prop_map(|()| M::AllTold),
        1 => any::<bool>().prop_map(M::LocksForgotten),
    ];
    prop_oneof![3 => durable, 1 => volatile]
}

/// What an operation can see of a shard, taken from the shard itself and not from its image.
fn seen(shard: &Shard) -> String {
    let entries: Vec<_> = shard.entries.iter().map(|e| (e.dir, e.name.to_vec(), e.named)).collect();
    let mut inodes: Vec<_> = shard.inodes.iter().collect();
    inodes.sort_by_key(|(ino, _)| *ino);
    let mut answers: Vec<_> = shard.answers.iter().collect();
    answers.sort_by_key(|(slot, _)| **slot);
    let mut live: Vec<_> = shard.live.iter().filter(|(_, live)| !live.is_idle()).collect();
    live.sort_by_key(|(ino, _)| **ino);
    let used = live.into_iter().map(|(ino, live)| {
        let mut opens = live.opens.clone();
        opens.sort_by_key(|open| open.id);
        let mut locks: Vec<_> = live.locks.iter().collect();
        locks.sort_by_key(|(owner, range)| (range.start, range.end, order(owner)));
        format!("{ino:?} {opens:?} {locks:?}")
    });
    let mut given_up: Vec<_> = shard.abandoned.keys().collect();
    given_up.sort();
    let sequence = (shard.stream.last, &shard.stream.terms);
    let Shard { parts, last, intent_limit, intents, decisions, .. } = shard;
    let Shard { orphans, purges, mover, announcements, appends, .. } = shard;
    format!(
        "{entries:?} {inodes:?} {answers:?} {:?} {given_up:?} {sequence:?} {parts:?} {last} {intent_limit} {intents:?} \
         {decisions:?} {orphans:?} {purges:?} {mover:?} {announcements:?} {appends:?}",
        used.collect::<Vec<_>>()
    )
}

proptest! {
    #[test]
    fn an_image_of_a_shard_makes_an_equal_shard(changes in prop::collection::vec(mutation(), 0..300)) {
        let mut shard = Shard::default();
        for (number, change) in (1..).zip(changes) {
            shard.stream.advance(Position { term: number / 20, sequence: number });
            shard.apply(change);
        }
        let mut copy = Shard::default();
        for body in image(&shard) {
            let batch = bivouac_proto::decode::<Batch>(&body).expect("an image can be read");
            let volatile = batch.mutations.iter().filter(|change| change.is_volatile()).count();
            prop_assert!(volatile == 0 || volatile == batch.mutations.len());
            prop_assert!(copy.replay(batch));
        }
        prop_assert_eq!(seen(&copy), seen(&shard));
        prop_assert_eq!(image(&copy), image(&shard));
        // What is on disk has nothing volatile.
        let lasting = |batch: Batch| batch.mutations.into_iter().all(|change| !change.is_volatile());
        prop_assert!(shard.snapshot(SHARD.0, Time::MIN).all(lasting));
    }
}
