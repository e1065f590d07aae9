//! Random programs: a few names, sizes around those where something changes (the 4 KiB of inline data, a
//! block's 16 KiB), and everything that can be done with them.

use super::call::{Call, Domain, Hold, SLOTS, SOMEBODY, Stamp, Target};
use proptest::prelude::*;
use proptest::sample::select;

/// A client's number and what it does, one after the other.
pub type Program = Vec<(usize, Call)>;

/// Programs of so many clients, of up to `longest` calls.
pub fn programs(clients: usize, longest: usize) -> impl Strategy<Value = Program> {
    // Some begin in a directory where everybody makes names and only owners remove them.
    let sticky = (0, Call::Chmod { target: Target::Path(".".to_owned()), mode: 0o1777 });
    let calls = prop_oneof![
        7 => prop::collection::vec((0..clients, call()), 1..=longest),
        1 => quarrels(clients, longest),
        1 => moves(clients, longest),
        1 => lengths(clients, longest),
        1 => privileges(clients, longest),
    ];
    (0..4u8, calls).prop_map(move |(begin, calls)| {
        let first = (begin == 0).then(|| sticky.clone());
        first.into_iter().chain(calls).collect()
    })
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        60 => select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned),
        2 => select(vec![".", ".."]).prop_map(str::to_owned),
        1 => select(vec![255, 256]).prop_map(|length| "n".repeat(length)),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let depth = prop_oneof![6 => Just(1usize), 4 => Just(2), 1 => Just(3)];
    let names = depth.prop_flat_map(|depth| prop::collection::vec(name(), depth));
    (names, 0..40u8).prop_map(|(names, odd)| {
        let path = names.join("/");
        match odd {
            0 | 1 => path + "/",
            2 => format!("./{path}"),
            3 => path.replace('/', "//"),
            _ => path,
        }
    })
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        3 => path().prop_map(Target::Path),
        1 => path().prop_map(Target::Link),
        3 => slot().prop_map(Target::Slot),
    ]
}

fn slot() -> impl Strategy<Value = u8> {
    0..SLOTS
}

fn size() -> impl Strategy<Value = u64> {
    let edges = vec![0u64, 1, 10, 4095, 4096, 4097, 8192, 16383, 16384, 16385, 32768, 65536, 81920];
    prop_oneof![3 => select(edges), 2 => 0..100_000u64]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![select(vec![0u64, 1, 7, 100, 4096, 5000, 16384, 20000]), 0..40_000u64]
}

fn mode() -> impl Strategy<Value = u32> {
    select(vec![0o600, 0o644, 0o755, 0o700, 0o777, 0o777, 0o1777, 0o400, 0o070, 0o660, 0o733])
}

fn flags() -> impl Strategy<Value = i32> {
    let access = prop_oneof![5 => Just(libc::O_RDWR), 2 => Just(libc::O_RDONLY), 1 => Just(libc::O_WRONLY)];
    let rare = |flag: i32, one_in: u8| (0..one_in).prop_map(move |drawn| if drawn == 0 { flag } else { 0 });
    let more = (
        rare(libc::O_TRUNC, 6),
        rare(libc::O_APPEND, 5),
        rare(libc::O_NOFOLLOW, 12),
        rare(libc::O_DIRECT, 20),
        rare(libc::O_SYNC, 20),
        rare(libc::O_DSYNC, 20),
        rare(libc::O_PATH, 7),
    );
    let what = prop_oneof![
        10 => Just(libc::O_CREAT),
        2 => Just(libc::O_CREAT | libc::O_EXCL),
        6 => Just(0),
        3 => Just(libc::O_DIRECTORY),
        1 => Just(libc::O_TMPFILE),
        1 => Just(libc::O_TMPFILE | libc::O_EXCL),
    ];
    (access, more, what).prop_map(|(access, (a, b, c, direct, e, f, path), what)| {
        // Local file systems do not agree on directories.
        let direct =
            if what & (libc::O_CREAT | libc::O_TMPFILE) & !libc::O_DIRECTORY == 0 { 0 } else { direct };
        access | a | b | c | direct | e | f | path | what
    })
}

/// Flags to open with what is open already.
fn reopening() -> impl Strategy<Value = i32> {
    let access = select(vec![libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY]);
    let more = select(vec![0, 0, libc::O_APPEND, libc::O_TRUNC, libc::O_DIRECTORY, libc::O_PATH]);
    (access, more).prop_map(|(access, more)| access | more)
}

fn opening() -> impl Strategy<Value = Call> {
    (slot(), path(), flags(), mode()).prop_map(|(slot, path, flags, mode)| Call::Open {
        slot,
        path,
        flags,
        mode,
    })
}

fn renaming() -> impl Strategy<Value = Call> {
    let how = select(vec![0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE]);
    (path(), path(), how).prop_map(|(from, to, flags)| Call::Rename { from, to, flags })
}

/// Calls with paths, from a directory that is open.
fn relative() -> impl Strategy<Value = Call> {
    let call = prop_oneof![
        6 => opening(),
        3 => renaming(),
        2 => (path(), path(), any::<bool>()).prop_map(|(from, to, follow)| Call::Link { from, to, follow }),
        1 => path().prop_map(|path| Call::Symlink { target: "a".to_owned(), path }),
        1 => path().prop_map(|path| Call::Readlink { path }),
        2 => path().prop_map(|path| Call::Unlink { path }),
        3 => (path(), mode()).prop_map(|(path, mode)| Call::Mkdir { path, mode }),
        1 => path().prop_map(|path| Call::Rmdir { path }),
        2 => path().prop_map(|path| Call::List { target: Target::Path(path) }),
        3 => path().prop_map(|path| Call::Stat { target: Target::Path(path) }),
        1 => path().prop_map(|path| Call::Stat { target: Target::Link(path) }),
        1 => (path(), mode()).prop_map(|(path, mode)| Call::Chmod { target: Target::Path(path), mode }),
        1 => (path(), stamp(), stamp())
            .prop_map(|(path, atime, mtime)| Call::Times { target: Target::Path(path), atime, mtime }),
    ];
    (slot(), 0..4u8, call).prop_map(|(slot, enter, call)| Call::At {
        slot,
        enter: enter == 0,
        call: Box::new(call),
    })
}

fn somebody() -> impl Strategy<Value = u32> {
    let [root, one, other] = SOMEBODY;
    select(vec![root, one, other, one, other, u32::MAX])
}

fn stamp() -> impl Strategy<Value = Stamp> {
    prop_oneof![
        Just(Stamp::Now),
        Just(Stamp::Omit),
        // Some are before 1970.
        (-1_000_000_000_000_000i64..1_000_000_000_000_000_000).prop_map(Stamp::To),
    ]
}

fn domain() -> impl Strategy<Value = Domain> {
    select(vec![Domain::Process, Domain::Description, Domain::Whole])
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    (select(vec![0u64, 5, 10, 15, 20]), select(vec![0u64, 1, 5, 10, 30]))
}

fn locking() -> impl Strategy<Value = Call> {
    let hold = select(vec![Hold::Shared, Hold::Exclusive, Hold::Nothing]);
    (slot(), domain(), hold, range(), any::<bool>()).prop_map(|(slot, domain, hold, (start, len), wait)| {
        Call::Lock { slot, domain, hold, start, len, wait: wait && hold != Hold::Nothing }
    })
}

/// Programs of so many clients, of up to `longest` calls, that are in each other's way: with locks on one
/// file.
fn quarrels(clients: usize, longest: usize) -> impl Strategy<Value = Program> {
    let open = |path: &str| Call::Open {
        slot: 0,
        path: path.to_owned(),
        flags: libc::O_RDWR | libc::O_CREAT,
        mode: 0o666,
    };
    let call = prop_oneof![
        2 => Just(open("a")),
        1 => Just(open("b")),
        3 => slot().prop_map(|slot| Call::Close { slot }),
        1 => (slot(), slot()).prop_map(|(from, to)| Call::Dup { from, to }),
        12 => locking(),
        6 => (slot(), domain()).prop_map(|(slot, domain)| {
            Call::Lock { slot, domain, hold: Hold::Nothing, start: 0, len: 0, wait: false }
        }),
        2 => Just(Call::Interrupt),
    ];
    prop::collection::vec((0..clients, call), 1..=longest)
        .prop_map(move |calls| (0..clients).map(|client| (client, open("a"))).chain(calls).collect())
}

/// Directories that all clients look at and move from one to the other.
fn moves(clients: usize, longest: usize) -> impl Strategy<Value = Program> {
    let place = || select(vec!["a", "b", "a/c", "a/d", "b/c", "b/d"]).prop_map(str::to_owned);
    let how = select(vec![0, 0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE]);
    let call = prop_oneof![
        3 => place().prop_map(|path| Call::Mkdir { path, mode: 0o777 }),
        8 => (place(), place(), how).prop_map(|(from, to, flags)| Call::Rename { from, to, flags }),
        // With a name below it, a kernel looks at the directory, too; a `stat` of its own the library may
        // answer.
        6 => place().prop_map(|path| Call::Stat { target: Target::Path(path + "/x") }),
        2 => place().prop_map(|path| Call::Stat { target: Target::Path(path) }),
        2 => place().prop_map(|path| Call::List { target: Target::Path(path) }),
        1 => place().prop_map(|path| Call::Rmdir { path }),
    ];
    let begin = ["a", "b", "a/c"].map(|path| (0, Call::Mkdir { path: path.to_owned(), mode: 0o777 }));
    let open = (0, Call::Chmod { target: Target::Path(".".to_owned()), mode: 0o777 });
    prop::collection::vec((0..clients, call), 1..=longest)
        .prop_map(move |calls| std::iter::once(open.clone()).chain(begin.clone()).chain(calls).collect())
}

/// One file that all clients open, truncate by path and by descriptor, write to and close, in every order.
fn lengths(clients: usize, longest: usize) -> impl Strategy<Value = Program> {
    let path = || "a".to_owned();
    let access = select(vec![
        libc::O_RDWR,
        libc::O_RDWR,
        libc::O_WRONLY,
        libc::O_RDONLY,
        libc::O_RDWR | libc::O_TRUNC,
        libc::O_WRONLY | libc::O_APPEND,
    ]);
    let open =
        |flags: i32| Call::Open { slot: 0, path: "a".to_owned(), flags: flags | libc::O_CREAT, mode: 0o666 };
    let slots = || 0..2u8;
    let call = prop_oneof![
        6 => access.prop_map(open),
        6 => slots().prop_map(|slot| Call::Close { slot }),
        4 => size().prop_map(move |size| Call::Truncate { target: Target::Path(path()), size: size as i64 }),
        4 => (slots(), size()).prop_map(|(slot, size)| Call::Truncate { target: Target::Slot(slot), size: size as i64 }),
        3 => (slots(), size(), length(), any::<u8>())
            .prop_map(|(slot, offset, len, seed)| Call::Pwrite { slot, offset, len, seed }),
        2 => (slots(), length(), any::<u8>()).prop_map(|(slot, len, seed)| Call::Write { slot, len, seed }),
        3 => Just(Call::Stat { target: Target::Path("a".to_owned()) }),
        4 => slots().prop_map(|slot| Call::Stat { target: Target::Slot(slot) }),
        2 => (slots(), size(), length()).prop_map(|(slot, offset, len)| Call::Pread { slot, offset, len }),
        1 => slots().prop_map(|slot| Call::Seek { slot, offset: 0, whence: libc::SEEK_END }),
        1 => slots().prop_map(|slot| Call::Sync { slot }),
    ];
    let all = (0, Call::Chmod { target: Target::Path(".".to_owned()), mode: 0o777 });
    let may = (0, Call::Chmod { target: Target::Path("a".to_owned()), mode: 0o666 });
    let begin = [all, (0, open(libc::O_RDWR)), may];
    prop::collection::vec((0..clients, call), 1..=longest)
        .prop_map(move |calls| begin.iter().cloned().chain(calls).collect())
}

/// Files, pipes and sockets that get set-user-ID and set-group-ID bits, and lose them.
fn privileges(clients: usize, longest: usize) -> impl Strategy<Value = Program> {
    let file = || select(vec!["a", "b"]).prop_map(str::to_owned);
    let any_path = || select(vec!["a", "b", "p", "s"]).prop_map(str::to_owned);
    let mode = select(vec![0o6777, 0o6666, 0o4755, 0o2755, 0o2745, 0o2666, 0o6770, 0o666, 0o777]);
    let special = |path: &str, kind: u32| Call::Mknod { path: path.to_owned(), mode: kind | 0o666 };
    let open =
        |path: String, flags: i32| Call::Open { slot: 0, path, flags: flags | libc::O_CREAT, mode: 0o666 };
    let allocate = select(vec![
        0,
        libc::FALLOC_FL_KEEP_SIZE,
        libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
        libc::FALLOC_FL_ZERO_RANGE,
    ]);
    let call = prop_oneof![
        4 => (file(), select(vec![libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY | libc::O_APPEND, libc::O_RDWR | libc::O_TRUNC]))
            .prop_map(move |(path, flags)| open(path, flags)),
        3 => slot().prop_map(|slot| Call::Close { slot }),
        8 => (any_path(), mode).prop_map(|(path, mode)| Call::Chmod { target: Target::Path(path), mode }),
        4 => (any_path(), somebody(), somebody(), any::<bool>()).prop_map(|(path, uid, gid, follow)| {
            let target = if follow { Target::Path(path) } else { Target::Link(path) };
            Call::Chown { target, uid, gid }
        }),
        1 => (slot(), somebody(), somebody())
            .prop_map(|(slot, uid, gid)| Call::Chown { target: Target::Slot(slot), uid, gid }),
        2 => (any_path(), size()).prop_map(|(path, size)| Call::Truncate { target: Target::Path(path), size: size as i64 }),
        2 => (slot(), size()).prop_map(|(slot, size)| Call::Truncate { target: Target::Slot(slot), size: size as i64 }),
        4 => (slot(), size(), length(), any::<u8>())
            .prop_map(|(slot, offset, len, seed)| Call::Pwrite { slot, offset, len, seed }),
        2 => (slot(), length(), any::<u8>()).prop_map(|(slot, len, seed)| Call::Write { slot, len, seed }),
        3 => (slot(), allocate, 0..40_000i64, 1..40_000i64)
            .prop_map(|(slot, mode, offset, len)| Call::Allocate { slot, mode, offset, len }),
        8 => any_path().prop_map(|path| Call::Stat { target: Target::Path(path) }),
        3 => slot().prop_map(|slot| Call::Stat { target: Target::Slot(slot) }),
        1 => Just(special("p", libc::S_IFIFO)),
        1 => Just(special("s", libc::S_IFSOCK)),
        1 => any_path().prop_map(|path| Call::Unlink { path }),
        1 => Just(Call::List { target: Target::Path(".".to_owned()) }),
    ];
    let all = (0, Call::Chmod { target: Target::Path(".".to_owned()), mode: 0o777 });
    let begin = [all, (0, special("p", libc::S_IFIFO)), (0, special("s", libc::S_IFSOCK))];
    prop::collection::vec((0..clients, call), 1..=longest)
        .prop_map(move |calls| begin.iter().cloned().chain(calls).collect())
}

fn xattr() -> impl Strategy<Value = String> {
    select(vec!["user.a", "user.b", "user.c"]).prop_map(str::to_owned)
}

fn call() -> impl Strategy<Value = Call> {
    let allocate = select(vec![
        0,
        libc::FALLOC_FL_KEEP_SIZE,
        libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
        libc::FALLOC_FL_ZERO_RANGE,
        libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
    ]);
    let whence =
        select(vec![libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, libc::SEEK_DATA, libc::SEEK_HOLE]);
    let links = prop_oneof![4 => path(), 1 => Just("a/.".to_owned()), 1 => Just("../a".to_owned())];
    let setting = select(vec![0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE]);
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        // All three names' together stay within what an inode may have.
        select(vec![100usize, 5000, 20_000]).prop_map(|len| vec![7; len]),
    ];
    let files = prop_oneof![
        12 => opening(),
        2 => (slot(), slot(), reopening()).prop_map(|(slot, from, flags)| Call::Reopen { slot, from, flags }),
        4 => slot().prop_map(|slot| Call::Close { slot }),
        2 => (slot(), slot()).prop_map(|(from, to)| Call::Dup { from, to }),
        1 => (slot(), any::<bool>()).prop_map(|(slot, on)| Call::Append { slot, on }),
        4 => (slot(), length()).prop_map(|(slot, len)| Call::Read { slot, len }),
        4 => (slot(), size(), length()).prop_map(|(slot, offset, len)| Call::Pread { slot, offset, len }),
        6 => (slot(), length(), any::<u8>()).prop_map(|(slot, len, seed)| Call::Write { slot, len, seed }),
        6 => (slot(), size(), length(), any::<u8>())
            .prop_map(|(slot, offset, len, seed)| Call::Pwrite { slot, offset, len, seed }),
        4 => (slot(), -5000..100_000i64, whence)
            .prop_map(|(slot, offset, whence)| Call::Seek { slot, offset, whence }),
        2 => (slot(), size(), slot(), size(), length())
            .prop_map(|(from, at, to, to_at, len)| Call::Copy { from, at, to, to_at, len }),
        4 => (target(), prop_oneof![20 => size().prop_map(|s| s as i64), 1 => Just(-1)])
            .prop_map(|(target, size)| match target {
                Target::Link(path) => Call::Truncate { target: Target::Path(path), size },
                target => Call::Truncate { target, size },
            }),
        3 => (slot(), allocate, size(), length()).prop_map(|(slot, mode, offset, len)| Call::Allocate {
            slot,
            mode,
            offset: offset as i64,
            len: len as i64
        }),
        1 => slot().prop_map(|slot| Call::Sync { slot }),
        1 => (slot(), size(), length()).prop_map(|(slot, offset, len)| Call::MapRead { slot, offset, len }),
        2 => (slot(), size(), length(), any::<u8>())
            .prop_map(|(slot, offset, len, seed)| Call::MapWrite { slot, offset, len, seed }),
    ];
    let names = prop_oneof![
        6 => renaming(),
        3 => (path(), path(), any::<bool>()).prop_map(|(from, to, follow)| Call::Link { from, to, follow }),
        2 => (slot(), path(), any::<bool>()).prop_map(|(slot, to, empty)| Call::LinkSlot { slot, to, empty }),
        3 => (links, path()).prop_map(|(target, path)| Call::Symlink { target, path }),
        1 => path().prop_map(|path| Call::Readlink { path }),
        1 => slot().prop_map(|slot| Call::ReadlinkSlot { slot }),
        4 => path().prop_map(|path| Call::Unlink { path }),
        6 => (path(), mode()).prop_map(|(path, mode)| Call::Mkdir { path, mode }),
        3 => path().prop_map(|path| Call::Rmdir { path }),
        4 => target().prop_map(|target| match target {
            Target::Link(path) => Call::List { target: Target::Path(path) },
            target => Call::List { target },
        }),
    ];
    let attributes = prop_oneof![
        7 => target().prop_map(|target| Call::Stat { target }),
        2 => slot().prop_map(|slot| Call::StatEmpty { slot }),
        1 => (target(), somebody(), somebody()).prop_map(|(target, uid, gid)| Call::Chown { target, uid, gid }),
        1 => (slot(), stamp(), stamp())
            .prop_map(|(slot, atime, mtime)| Call::TimesEmpty { slot, atime, mtime }),
        2 => (target(), mode()).prop_map(|(target, mode)| match target {
            Target::Link(path) => Call::Chmod { target: Target::Path(path), mode },
            target => Call::Chmod { target, mode },
        }),
        3 => (target(), stamp(), stamp()).prop_map(|(target, atime, mtime)| Call::Times { target, atime, mtime }),
        2 => (target(), xattr(), value, setting)
            .prop_map(|(target, name, value, flags)| Call::SetXattr { target, name, value, flags }),
        2 => (target(), xattr()).prop_map(|(target, name)| Call::GetXattr { target, name }),
        1 => target().prop_map(|target| Call::ListXattr { target }),
        1 => (target(), xattr()).prop_map(|(target, name)| Call::RemoveXattr { target, name }),
    ];
    let locks = prop_oneof![
        3 => locking(),
        1 => (slot(), select(vec![Domain::Process, Domain::Description]), any::<bool>(), range())
            .prop_map(|(slot, domain, exclusive, (start, len))| Call::TestLock { slot, domain, exclusive, start, len }),
    ];
    prop_oneof![10 => files, 6 => names, 4 => attributes, 2 => locks, 3 => relative()]
}
