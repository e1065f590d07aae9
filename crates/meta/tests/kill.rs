//! A real process that is killed with SIGKILL at random moments, again and again: whatever it acknowledged is
//! there.
//!
//! The test runs itself as the child. The child works on one directory of stores and writes each operation's
//! number to its output before it begins and after it was acknowledged; the parent kills it, and replays the
//! numbers on a model.

mod alone;

use bivouac_layout::{Ino, NodeId};
use bivouac_meta::{Caller, MetaStore, Options};
use bivouac_proto::auth::Credentials;
use bivouac_proto::header::{OpenId, RequestId};
use bivouac_proto::meta::{At, Create, MetaReply, MetaRequest, OpenHow, RenameMode};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CYCLES: u64 = 220;
const CHILD: &str = "BIVOUAC_KILL_TEST_DIR";
const SLOTS: u64 = 40;

fn open(dir: &Path) -> MetaStore {
    let options = Options {
        grace: Duration::ZERO,
        intent_age: Duration::ZERO,
        background: false,
        compact_at: Some(6000),
        ..Options::new(5)
    };
    let store = alone::open(dir, options).unwrap();
    store.recover();
    store
}

fn send(
    store: &MetaStore,
    sequence: u64,
    request: MetaRequest<'_>,
    data: &[u8],
) -> Result<(Reply, Vec<u8>), Errno> {
    let shard = bivouac_layout::ShardId(0);
    let shard = match request {
        MetaRequest::Open { at, .. } | MetaRequest::Unlink { at } | MetaRequest::Lookup { at } => {
            at.dir.shard()
        }
        MetaRequest::Rename { from, .. } => from.dir.shard(),
        _ => shard,
    };
    // Preparations have no identity.
    let id = RequestId { session: if sequence == 0 { 0 } else { 9 }, slot: 1, sequence };
    let caller = Caller {
        credentials: Credentials::default(),
        node: NodeId::NONE,
        id,
        shard,
        change: Default::default(),
    };
    let mut out = Vec::new();
    match store.meta(&caller, &request, data, &mut out) {
        Ok(reply) => Ok((reply, out)),
        Err(Failure::Errno(errno)) => Err(errno),
        Err(other) => panic!("{other:?}"),
    }
}

fn at(dir: Ino, name: &str) -> At<'_> {
    At { dir, split: false, name: name.as_bytes() }
}

/// The two directories, which are in different shards.
fn directories(store: &MetaStore) -> [Ino; 2] {
    ["left", "right"].map(|name| {
        let place = at(Ino::ROOT, name);
        let made = send(store, 0, MetaRequest::Mkdir { at: place, mode: 0o755 }, &[]);
        assert!(matches!(made, Ok(_) | Err(Errno::EXIST)), "{made:?}");
        match send(store, 0, MetaRequest::Lookup { at: place }, &[]).unwrap().0 {
            Reply::Meta(MetaReply::Entry { attr, .. }) => attr.ino,
            other => panic!("{other:?}"),
        }
    })
}

/// What the files of both directories hold, by place.
type State = BTreeMap<(usize, String), u64>;

#[derive(Clone, Copy)]
enum Act {
    /// Makes the file, or writes it anew; the content is the operation's number.
    Write,
    Unlink,
    /// To the other directory, over what is there.
    Move,
}

/// The `number`-th operation: everybody computes the same.
fn operation(number: u64) -> (Act, usize, String) {
    let random =
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let act = match (random >> 40) % 6 {
        0..=2 => Act::Write,
        3 => Act::Unlink,
        _ => Act::Move,
    };
    (act, (random >> 32) as usize % 2, format!("file-{}", (random >> 20) % SLOTS))
}

fn on_model(state: &mut State, number: u64) {
    let (act, dir, name) = operation(number);
    match act {
        Act::Write => drop(state.insert((dir, name), number)),
        Act::Unlink => drop(state.remove(&(dir, name))),
        Act::Move => {
            if let Some(content) = state.remove(&(dir, name.clone())) {
                state.insert((1 - dir, name), content);
            }
        }
    }
}

fn on_store(store: &MetaStore, dirs: [Ino; 2], number: u64) {
    let (act, dir, name) = operation(number);
    let place = at(dirs[dir], &name);
    let result = match act {
        Act::Write => {
            let how = OpenHow {
                write: true,
                create: Some(Create { mode: 0o644, exclusive: false }),
                ..OpenHow::default()
            };
            let open = OpenId { agent: 1, slot: number as u32, incarnation: 0 };
            send(store, 4 * number, MetaRequest::Open { at: place, how, open }, &[]).and_then(|(reply, _)| {
                let (ino, far) = match reply {
                    Reply::Meta(MetaReply::Opened { attr, .. }) => (attr.ino, false),
                    Reply::Meta(MetaReply::Elsewhere { ino, .. }) => (ino, true),
                    other => panic!("{other:?}"),
                };
                let data = number.to_le_bytes();
                send(store, 4 * number + 1, MetaRequest::WriteInline { ino, offset: 0 }, &data)?;
                if !far {
                    send(store, 4 * number + 2, MetaRequest::Release { ino, open, wrote: None }, &[])?;
                }
                Ok((Reply::Done, Vec::new()))
            })
        }
        Act::Unlink => send(store, 4 * number, MetaRequest::Unlink { at: place }, &[]),
        Act::Move => {
            let to = at(dirs[1 - dir], &name);
            send(store, 4 * number, MetaRequest::Rename { from: place, to, mode: RenameMode::Replace }, &[])
        }
    };
    assert!(matches!(result, Ok(_) | Err(Errno::NOENT)), "{result:?}");
}

fn child(dir: &Path) -> ! {
    let first: u64 = std::env::var("BIVOUAC_KILL_TEST_FIRST").unwrap().parse().unwrap();
    let store = open(dir);
    let dirs = directories(&store);
    let mut out = std::fs::File::from(rustix::io::dup(rustix::stdio::stdout()).unwrap());
    for number in first.. {
        out.write_all(format!("@begin {number}\n").as_bytes()).unwrap();
        on_store(&store, dirs, number);
        out.write_all(format!("@done {number}\n").as_bytes()).unwrap();
    }
    unreachable!()
}

/// What is in the stores.
fn look(dir: &Path) -> State {
    let store = open(dir);
    let mut state = State::new();
    for (which, ino) in directories(&store).into_iter().enumerate() {
        let request = MetaRequest::ReadDir { dir: ino, split: false, after: 0, limit: 1000, attrs: false };
        let entries = match send(&store, 0, request, &[]).unwrap().0 {
            Reply::Meta(MetaReply::Listing { entries, .. }) => entries,
            other => panic!("{other:?}"),
        };
        for entry in entries {
            let request = MetaRequest::ReadInline { ino: entry.ino, offset: 0, len: 100 };
            let (_, data) =
                send(&store, 0, request, &[]).unwrap_or_else(|e| panic!("an entry names nothing: {e:?}"));
            let content = data.try_into().map_or(0, u64::from_le_bytes);
            state.insert((which, String::from_utf8(entry.name).unwrap()), content);
        }
    }
    state
}

#[test]
fn nothing_acknowledged_is_lost_by_sigkill() {
    if let Some(dir) = std::env::var_os(CHILD) {
        child(Path::new(&dir));
    }
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let dir = tempfile::tempdir_in(base).unwrap();
    let mut state = State::new();
    let (mut next, mut total) = (1u64, 0u64);
    let started = Instant::now();
    for cycle in 0..CYCLES {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "nothing_acknowledged_is_lost_by_sigkill", "--nocapture"])
            .env(CHILD, dir.path())
            .env("BIVOUAC_KILL_TEST_FIRST", next.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        // From the first operation on, a time that differs from cycle to cycle.
        let mut line = String::new();
        while !line.starts_with("@") {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the child died by itself");
        }
        std::thread::sleep(Duration::from_micros(cycle.wrapping_mul(7919) % 9000));
        process.kill().unwrap();
        process.wait().unwrap();
        let mut reported = vec![line];
        reported.extend(lines.lines().map_while(Result::ok));
        let mut unsure = None;
        for line in reported {
            match line.trim().split_once(' ') {
                Some(("@begin", number)) => unsure = number.parse::<u64>().ok(),
                Some(("@done", number)) => {
                    let number = number.parse().unwrap();
                    on_model(&mut state, number);
                    (next, unsure) = (number + 1, None);
                    total += 1;
                }
                _ => {}
            }
        }
        let found = look(dir.path());
        let before = state.clone();
        if let Some(number) = unsure {
            on_model(&mut state, number);
            next = number + 1;
            let (_, which, name) = operation(number);
            let made_only = {
                // Open and write are two operations: the file may be there, empty or with its old content.
                let mut made = before.clone();
                made.entry((which, name)).or_insert(0);
                made
            };
            assert!(
                found == before || found == state || found == made_only,
                "cycle {cycle}, operation {number}"
            );
        } else {
            assert_eq!(found, before, "cycle {cycle}");
        }
        state = found;
    }
    println!("{CYCLES} kills, {total} operations acknowledged, {:?}", started.elapsed());
    assert!(total > CYCLES * 5, "the children hardly worked: {total}");
}
