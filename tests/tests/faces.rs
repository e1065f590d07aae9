//! The cross-check: written through one face, read, renamed, truncated, appended to, locked and removed
//! through another one, for every pair of the preload library, a kernel mount, both together, and the client
//! core.

use bivouac_node::Environment;
use bivouac_tests::model::{Answer, Call, Domain, Face, Hold, Library, Order, Target, pattern};
use bivouac_tests::{HANG, Site, accesses};
use std::time::{Duration, Instant};

const CLIENT: &str = env!("CARGO_BIN_EXE_model_client");

/// Two faces, of which one begins.
struct Pair<'f> {
    one: &'f mut Face,
    other: &'f mut Face,
}

impl Pair<'_> {
    #[track_caller]
    fn check(face: &mut Face, call: &Call, expected: &Answer, pair: &str) {
        let begin = Instant::now();
        loop {
            let answer = face.obey(&Order::Do(call.clone()));
            // The kernel does not wait for the release of a lock whose description is closed.
            let late = matches!(call, Call::Lock { .. }) && answer == Answer::Failed(libc::EAGAIN);
            if late && *expected == Answer::Done && begin.elapsed() < HANG {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            assert!(answer == *expected, "{pair}: {call:?}: {}", short(&answer));
            return;
        }
    }

    #[track_caller]
    fn one(&mut self, call: Call, expected: Answer) {
        let pair = format!("{} of {} and {}", self.one.name, self.one.name, self.other.name);
        Self::check(self.one, &call, &expected, &pair);
    }

    #[track_caller]
    fn other(&mut self, call: Call, expected: Answer) {
        let pair = format!("{} of {} and {}", self.other.name, self.one.name, self.other.name);
        Self::check(self.other, &call, &expected, &pair);
    }

    /// Size and link count of what a face sees.
    fn seen(face: &mut Face, target: Target) -> (u64, u64, u64) {
        match face.obey(&Order::Do(Call::Stat { target })) {
            Answer::Seen(seen) => (seen.ino, seen.size, seen.links),
            other => panic!("{}: {other:?}", face.name),
        }
    }

    fn data(&mut self, size: u64) {
        let (path, content) = ("f".to_owned(), pattern(3, size));
        let flags = libc::O_RDWR | libc::O_CREAT;
        self.one(Call::Open { slot: 0, path: path.clone(), flags, mode: 0o644 }, Answer::Done);
        self.one(Call::Write { slot: 0, len: size, seed: 3 }, Answer::Count(size));
        self.other(Call::Open { slot: 0, path: path.clone(), flags: libc::O_RDWR, mode: 0 }, Answer::Done);
        self.other(Call::Read { slot: 0, len: size + 10 }, Answer::Bytes(content.clone()));
        // Changed through the other face, in the middle and behind the end.
        self.other(Call::Pwrite { slot: 0, offset: size / 2, len: size, seed: 9 }, Answer::Count(size));
        let mut changed = content[..(size / 2) as usize].to_vec();
        changed.extend(pattern(9, size));
        let whole = Call::Pread { slot: 0, offset: 0, len: 2 * size };
        self.one(whole.clone(), Answer::Bytes(changed.clone()));
        assert_eq!(Self::seen(self.one, Target::Slot(0)), Self::seen(self.other, Target::Path(path)));

        // Renamed through the other face, and back through this one, into another directory.
        let (ino, length, _) = Self::seen(self.one, Target::Slot(0));
        self.other(Call::Rename { from: "f".into(), to: "g".into(), flags: 0 }, Answer::Done);
        self.one(Call::Stat { target: Target::Path("f".into()) }, Answer::Failed(libc::ENOENT));
        assert_eq!(Self::seen(self.one, Target::Path("g".into())), (ino, length, 1));
        self.one(Call::Mkdir { path: "d".into(), mode: 0o755 }, Answer::Done);
        self.one(Call::Rename { from: "g".into(), to: "d/f".into(), flags: 0 }, Answer::Done);
        self.other(Call::Stat { target: Target::Path("g".into()) }, Answer::Failed(libc::ENOENT));
        assert_eq!(Self::seen(self.other, Target::Path("d/f".into())), (ino, length, 1));
        self.other(whole.clone(), Answer::Bytes(changed.clone()));

        // Truncated by name through the other face, and made longer by descriptor through this one.
        let cut = Target::Path("d/f".into());
        self.other(Call::Truncate { target: cut, size: 7 }, Answer::Done);
        assert_eq!(Self::seen(self.one, Target::Slot(0)), (ino, 7, 1));
        self.one(whole, Answer::Bytes(changed[..7].to_vec()));
        self.one(Call::Truncate { target: Target::Slot(0), size: 20_000 }, Answer::Done);
        let mut longer = changed[..7].to_vec();
        longer.resize(20_000, 0);
        self.other(Call::Pread { slot: 0, offset: 0, len: 30_000 }, Answer::Bytes(longer));

        // Appended to by turns.
        let (path, flags) = ("d/log".to_owned(), libc::O_RDWR | libc::O_APPEND | libc::O_CREAT);
        let open = Call::Open { slot: 1, path, flags, mode: 0o644 };
        self.one(open.clone(), Answer::Done);
        self.other(open, Answer::Done);
        let mut log = Vec::new();
        for turn in 0..6u8 {
            let call = Call::Write { slot: 1, len: size, seed: turn };
            if turn % 2 == 0 {
                self.one(call, Answer::Count(size));
            } else {
                self.other(call, Answer::Count(size));
            }
            log.extend(pattern(turn, size));
        }
        let read = Call::Pread { slot: 1, offset: 0, len: 7 * size };
        self.one(read.clone(), Answer::Bytes(log.clone()));
        self.other(read, Answer::Bytes(log));

        // Removed through the other face while it is open through this one.
        self.other(Call::Unlink { path: "d/f".into() }, Answer::Done);
        self.one(Call::Pwrite { slot: 0, offset: 5, len: 10, seed: 1 }, Answer::Count(10));
        self.other(Call::Pread { slot: 0, offset: 5, len: 10 }, Answer::Bytes(pattern(1, 10)));
        assert_eq!(Self::seen(self.one, Target::Slot(0)), (ino, 20_000, 0));
        self.one(Call::List { target: Target::Path("d".into()) }, names(&["log"]));
        self.close(&[0, 1]);
        self.one(Call::Unlink { path: "d/log".into() }, Answer::Done);
        self.other(Call::Rmdir { path: "d".into() }, Answer::Done);
    }

    fn locks(&mut self) {
        let flags = libc::O_RDWR | libc::O_CREAT;
        let open = Call::Open { slot: 0, path: "l".into(), flags, mode: 0o644 };
        for domain in [Domain::Process, Domain::Description, Domain::Whole] {
            let lock = |hold, start| Call::Lock { slot: 0, domain, hold, start, len: 10, wait: false };
            let (busy, done) = (Answer::Failed(libc::EAGAIN), Answer::Done);
            self.one(open.clone(), Answer::Done);
            self.other(open.clone(), Answer::Done);
            self.one(lock(Hold::Exclusive, 0), done.clone());
            self.other(lock(Hold::Shared, 5), busy.clone());
            if domain != Domain::Whole {
                let test = Call::TestLock { slot: 0, domain, exclusive: false, start: 5, len: 10 };
                self.other(test, Answer::Held(Some((true, 0, 10))));
                self.other(lock(Hold::Exclusive, 10), done.clone());
                self.one(lock(Hold::Shared, 15), busy.clone());
                self.other(lock(Hold::Nothing, 10), done.clone());
            }
            self.one(lock(Hold::Shared, 0), done.clone());
            self.other(lock(Hold::Shared, 5), done.clone());
            self.one(lock(Hold::Exclusive, 0), busy.clone());
            self.other(lock(Hold::Nothing, 5), done.clone());
            self.one(lock(Hold::Nothing, 0), done.clone());
            self.other(lock(Hold::Exclusive, 0), done.clone());
            self.one(lock(Hold::Shared, 0), busy);
            // Closing releases the lock.
            self.other(Call::Close { slot: 0 }, done.clone());
            self.one(lock(Hold::Exclusive, 0), done);
            self.one(Call::Close { slot: 0 }, Answer::Done);
        }
        self.other(Call::Unlink { path: "l".into() }, Answer::Done);
    }

    fn close(&mut self, slots: &[u8]) {
        for slot in slots {
            self.one(Call::Close { slot: *slot }, Answer::Done);
            self.other(Call::Close { slot: *slot }, Answer::Done);
        }
    }
}

fn names(names: &[&str]) -> Answer {
    Answer::Names(names.iter().map(|name| (name.as_bytes().to_vec(), libc::DT_REG)).collect())
}

/// An answer that fits on a screen.
fn short(answer: &Answer) -> String {
    match answer {
        Answer::Bytes(bytes) => format!("{} bytes", bytes.len()),
        other => format!("{other:?}"),
    }
}

#[test]
fn what_one_face_does_every_other_one_sees_exactly() {
    let site = Site::new("faces");
    // Small blocks, so that files lie on all servers.
    let name = site.up_with(4, &["--block-size", "16K"]);
    let said = site.sh(&name, "echo $BIVOUAC_MOUNT; echo $BIVOUAC_KEY").ok();
    let mut lines = said.lines().map(str::to_owned);
    let (mount, key_path) = (lines.next().expect("a mount"), lines.next().expect("a key"));
    let start = || {
        let processes = accesses().iter().map(|access| {
            let command = site.command(["exec", &name, "--access", access, "--", CLIENT]);
            Face::process(access, *access != "preload", command)
        });
        processes.collect::<Vec<_>>()
    };
    // Two processes of each kind, so that each face is also paired with itself.
    let (mut ones, mut others) = (start(), start());
    let environment = Environment {
        name: name.clone(),
        mount: mount.clone(),
        key_path,
        mounted: None,
        forwarded: None,
        job: None,
    };
    others.push(Face::library(Library::attach(&environment)));
    for face in ones.iter_mut().chain(&mut others) {
        assert_eq!(face.obey(&Order::Enter(mount.clone())), Answer::Done, "{}", face.name);
    }
    for one in &mut ones {
        for other in &mut others {
            for turned in [false, true] {
                let (one, other) = if turned { (&mut *other, &mut *one) } else { (&mut *one, &mut *other) };
                let mut pair = Pair { one, other };
                for size in [10, 5000, 70_000] {
                    pair.data(size);
                }
                pair.locks();
            }
        }
    }
}
