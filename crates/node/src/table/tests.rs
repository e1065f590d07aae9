//! What placeholders and slots promise, tried with real processes.

use super::*;
use crate::slot::NAME_ROOM;
use rustix::fd::AsFd;
use rustix::fs::OFlags;

/// Runs `body` in a forked child and returns its exit status (0 to 255). The child must not panic or take
/// locks.
pub(crate) fn in_child(body: impl FnOnce() -> i32) -> i32 {
    let child = fork_child(body);
    wait_for(child)
}

fn fork_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs `body` and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let code = body();
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        child => child,
    }
}

fn wait_for(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + libc::WTERMSIG(status) }
}

/// A child forked by one test inherits the descriptors of all: tests that fork, or that ask who holds one,
/// run one by one.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub(crate) const OF: TableOf = TableOf { deployment: 3, node: NodeId(4) };

pub(crate) struct Node {
    pub(crate) table: OpenTable,
    dir: tempfile::TempDir,
    _alone: std::sync::MutexGuard<'static, ()>,
}

pub(crate) fn node() -> Node {
    let _alone = alone();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    Node { table: OpenTable::create(dir.path().as_os_str().as_encoded_bytes(), OF, 77).unwrap(), dir, _alone }
}

#[test]
fn without_anchors_nothing_can_be_opened_and_nothing_is_said_to_be_missing() {
    let node = node();
    let id = node.table.allocate().unwrap();
    std::fs::remove_dir_all(node.dir.path().join("anchors")).unwrap();
    let Err(error) = node.table.blank(id, true) else { panic!("there is no anchor") };
    assert_eq!(error.raw_errno(), libc::EIO);
}

#[test]
fn a_placeholder_that_was_not_filled_in_holds_nothing() {
    let node = node();
    let id = node.table.allocate().unwrap();
    // As a fork's child would have it.
    let left_behind = node.table.blank(id, false).unwrap();
    assert!(node.table.identify(left_behind.as_fd()).is_none());
    assert!(node.table.retire(id));
    node.table.free(id);
    let (next, placeholder) = node.opened();
    assert_eq!(next.index, id.index);
    assert!(node.table.held(next));
    drop(placeholder);
    assert!(!node.table.held(next));
    drop(left_behind);
    let id = node.table.allocate().unwrap();
    let blank = node.table.blank(id, false).unwrap();
    assert!(!node.table.held(id));
    node.table.fill_in(id, blank.as_fd()).unwrap();
    assert!(node.table.held(id));
    assert_eq!(node.table.identify(blank.as_fd()), Some(id));
    assert!(rustix::io::fcntl_getfd(&blank).unwrap().is_empty());
}

impl Node {
    fn attach(&self) -> OpenTable {
        let descriptor = self.table.descriptor().unwrap();
        OpenTable::attach(self.dir.path().as_os_str().as_encoded_bytes(), descriptor).unwrap()
    }

    pub(crate) fn opened(&self) -> (SlotId, Fd) {
        let id = self.table.allocate().unwrap();
        let fd = self.table.placeholder(id, true).unwrap();
        (id, fd)
    }
}

#[test]
fn a_table_is_adopted_with_all_that_is_in_it_by_its_own_node_alone() {
    let node = node();
    let (id, held) = node.opened();
    let dir = node.dir.path().as_os_str().as_encoded_bytes();
    let process = node.attach();
    let kept = || Fd::from(rustix::io::fcntl_dupfd_cloexec(node.table.descriptor().unwrap(), 3).unwrap());
    for other in [TableOf { deployment: 4, ..OF }, TableOf { node: NodeId(5), ..OF }] {
        assert!(OpenTable::adopt(dir, other, kept()).is_err());
    }
    assert_eq!(process.adoptions(), 0);
    let adopted = OpenTable::adopt(dir, OF, kept()).unwrap();
    assert_eq!((process.adoptions(), adopted.agent()), (1, 77));
    assert!(adopted.descriptor().is_some() && adopted.in_use().eq([id]) && adopted.held(id));
    assert_eq!(adopted.identify(held.as_fd()), Some(id));
    drop(held);
    assert!(!adopted.held(id) && !process.held(id));
    // Anchors made anew: what the table's placeholders are of is gone.
    std::fs::rename(node.dir.path().join("anchors"), node.dir.path().join("old")).unwrap();
    assert!(OpenTable::adopt(dir, OF, kept()).is_err(), "none");
    drop(OpenTable::create(dir, OF, 78).unwrap());
    assert!(OpenTable::adopt(dir, OF, kept()).is_err(), "others");
    let noise = rustix::fs::memfd_create("bivouac-opens", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert!(OpenTable::adopt(dir, OF, Fd::from(noise)).is_err());
}

#[test]
fn a_placeholder_is_recognised_in_any_table_and_through_any_duplicate() {
    let node = node();
    let other = node.attach();
    for _ in 0..300 {
        let (id, fd) = node.opened();
        assert_eq!(other.identify(fd.as_fd()), Some(id));
        let duplicate = rustix::io::dup(&fd).unwrap();
        assert_eq!(other.identify(duplicate.as_fd()), Some(id));
        std::mem::forget(fd);
    }
}

#[test]
fn other_descriptors_are_not_taken_for_placeholders() {
    let node = node();
    let (id, fd) = node.opened();
    let magic = SeekFrom(anchor::MAGIC_BASE + u64::from(id.index));
    let file = tempfile::tempfile().unwrap();
    magic.apply(file.as_fd());
    let foreign =
        rustix::fs::open(node.dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    magic.apply(foreign.as_fd());
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    for fd in [file.as_fd(), foreign.as_fd(), reader.as_fd()] {
        assert_eq!(node.table.identify(fd), None);
    }
    // A program without Bivouac moves the offset by what it may: never another slot's.
    for distance in [-1i64, 1, 16, -512, 512, 4096, 8192, 65_536] {
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Current(distance)).ok();
        assert_eq!(node.table.identify(fd.as_fd()), None, "moved by {distance}");
        magic.apply(fd.as_fd());
    }
    assert_eq!(node.table.identify(fd.as_fd()), Some(id));
}

struct SeekFrom(u64);

impl SeekFrom {
    fn apply(&self, fd: BorrowedFd<'_>) {
        rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(self.0)).unwrap();
    }
}

#[test]
fn the_last_close_and_only_the_last_lets_go() {
    let node = node();
    let (id, fd) = node.opened();
    assert!(node.table.held(id) && !node.table.abandoned(id));
    let duplicate = rustix::io::dup(&fd).unwrap();
    drop(fd);
    assert!(node.table.held(id));
    drop(duplicate);
    assert!(!node.table.held(id) && node.table.abandoned(id));
}

#[test]
fn a_fork_child_holds_on_after_its_parent_closed() {
    let node = node();
    let (id, fd) = node.opened();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let child = fork_child(|| {
        let _ = rustix::io::read(&reader, &mut [0u8; 1][..]);
        0
    });
    drop(fd);
    assert!(node.table.held(id));
    rustix::io::write(&writer, b"x").unwrap();
    wait_for(child);
    assert!(!node.table.held(id));
}

#[test]
fn a_program_started_by_exec_holds_on_unless_close_on_exec() {
    let node = node();
    let id = node.table.allocate().unwrap();
    let kept = node.table.placeholder(id, false).unwrap();
    let (closed_id, closed) = node.opened();
    let mut child =
        std::process::Command::new("/bin/cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    drop((kept, closed));
    assert!(node.table.held(id));
    // The kernel wakes the parent just before it closes what is close-on-exec.
    bivouac_testing::eventually("it is closed", || !node.table.held(closed_id));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!node.table.held(id));
}

#[test]
fn a_killed_holder_lets_go() {
    let node = node();
    let (id, fd) = node.opened();
    let child = fork_child(|| {
        loop {
            let _ = rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 1, tv_nsec: 0 });
        }
    });
    drop(fd);
    assert!(node.table.held(id));
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert_eq!(wait_for(child), 1000 + libc::SIGKILL);
    assert!(!node.table.held(id) && node.table.sweep() == [id]);
}

#[test]
fn a_descriptor_under_way_in_a_socket_holds_on() {
    use rustix::net::*;
    let node = node();
    let (id, fd) = node.opened();
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&a, &[rustix::io::IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL).unwrap();
    drop(fd);
    assert!(node.table.held(id));
    drop((a, b));
    assert!(!node.table.held(id));
}

#[test]
fn a_slot_is_retired_by_one_and_its_old_name_is_dead() {
    let node = node();
    let (id, fd) = node.opened();
    node.table.slot(id).unwrap().ino.store(7, Ordering::Relaxed);
    drop(fd);
    let won: usize = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..4).map(|_| scope.spawn(|| usize::from(node.table.retire(id)))).collect();
        tries.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(won, 1);
    node.table.free(id);
    assert!(node.table.slot(id).is_none() && !node.table.retire(id));
    let next = node.table.allocate().unwrap();
    assert_eq!((next.index, next.incarnation), (id.index, id.incarnation + 1));
    assert!(node.table.slot(id).is_none());
    assert_eq!(node.table.slot(next).unwrap().ino.load(Ordering::Relaxed), 0);
    assert_eq!(node.table.placeholder(id, true).unwrap_err(), NodeError::Stale);
}

#[test]
fn what_a_dead_process_left_half_done_is_swept() {
    let node = node();
    let (live, fd) = node.opened();
    let mine = node.table.allocate().unwrap();
    in_child(|| {
        let _ = node.table.allocate();
        if let Ok(id) = node.table.allocate() {
            node.table.retire(id);
        }
        0
    });
    let mut swept = node.table.sweep();
    swept.sort_by_key(|id| id.index);
    assert_eq!(swept.len(), 2);
    assert!(!swept.contains(&live) && !swept.contains(&mine));
    for id in swept {
        assert!(node.table.abandoned(id) && node.table.retire(id));
        node.table.free(id);
    }
    assert_eq!(node.table.in_use().collect::<Vec<_>>(), [live, mine]);
    drop(fd);
}

#[test]
fn eight_processes_never_get_the_same_slot() {
    let node = node();
    let children: Vec<_> = (0..8)
        .map(|_| {
            fork_child(|| {
                let table = node.attach();
                for _ in 0..1000 {
                    match table.allocate().ok().and_then(|id| table.slot(id)) {
                        // `ino` counts who took this slot.
                        Some(slot) => slot.ino.fetch_add(1, Ordering::Relaxed),
                        None => return 1,
                    };
                }
                0
            })
        })
        .collect();
    assert!(children.into_iter().all(|child| wait_for(child) == 0));
    let takers: Vec<u64> =
        node.table.in_use().map(|id| node.table.slot(id).unwrap().ino.load(Ordering::Relaxed)).collect();
    assert_eq!(takers, vec![1; 8000]);
}

#[test]
fn a_slot_keeps_the_name_that_it_was_opened_by() {
    let node = node();
    let (id, fd) = node.opened();
    let slot = node.table.slot(id).unwrap();
    assert_eq!(slot.name(), None);
    for length in [1, 8, NAME_ROOM] {
        let name = vec![b'n'; length];
        slot.set_name(7, &name);
        assert_eq!(slot.name(), Some((7, name)));
    }
    slot.set_name(8, &[b'l'; NAME_ROOM + 1]);
    assert_eq!(slot.name(), Some((7, vec![b'n'; NAME_ROOM])));
    drop(fd);
    assert!(node.table.retire(id));
    slot.clear();
    assert_eq!(slot.name(), None);
}

#[test]
fn a_full_table_says_so_and_recovers() {
    let node = node();
    let ids: Vec<_> = (0..SLOTS).map(|_| node.table.allocate().unwrap()).collect();
    assert_eq!(node.table.allocate().unwrap_err(), NodeError::Full);
    assert_eq!(NodeError::Full.raw_errno(), libc::ENFILE);
    let id = ids[12_345];
    assert!(node.table.retire(id));
    node.table.free(id);
    assert_eq!(node.table.allocate().unwrap().index, id.index);
}

#[test]
fn the_offset_lock_of_a_killed_owner_is_taken_over() {
    let node = node();
    let (id, _fd) = node.opened();
    let slot = node.table.slot(id).unwrap();
    in_child(|| {
        std::mem::forget(node.table.lock_offset(slot).unwrap());
        0
    });
    let begin = std::time::Instant::now();
    drop(node.table.lock_offset(slot).unwrap());
    assert!(begin.elapsed() < bivouac_testing::HANG, "{:?}", begin.elapsed());
}

#[test]
fn the_offset_lock_excludes_processes() {
    let node = node();
    let (id, fd) = node.opened();
    let work = || {
        let table = node.attach();
        let Some(slot) = table.identify(fd.as_fd()).and_then(|id| table.slot(id)) else {
            return 1;
        };
        for _ in 0..2000 {
            let _guard = node.table.lock_offset(slot);
            let offset = slot.offset.load(Ordering::Relaxed);
            std::hint::spin_loop();
            slot.offset.store(offset + 1, Ordering::Relaxed);
        }
        0
    };
    let children: Vec<_> = (0..4).map(|_| fork_child(work)).collect();
    assert!(children.into_iter().all(|child| wait_for(child) == 0));
    assert_eq!(node.table.slot(id).unwrap().offset.load(Ordering::Relaxed), 8000);
}

#[test]
fn a_damaged_or_foreign_table_is_refused() {
    let node = node();
    let path = node.dir.path().as_os_str().as_encoded_bytes();
    let (_memory, other) = Memory::make(c"test", LENGTH, Writers::All).unwrap();
    assert_eq!(OpenTable::attach(path, other.as_fd()).err(), Some(NodeError::Format));
    let attach = || OpenTable::attach(path, node.table.descriptor().unwrap()).err();
    assert_eq!(attach(), None);
    node.table.header().version.store(VERSION - 1, Ordering::Relaxed);
    assert_eq!(attach(), Some(NodeError::Format));
}

#[test]
fn servers_that_are_down_are_known_to_all_who_have_the_table() {
    let node = node();
    let other = node.attach();
    for server in [0, 63, 64, 4095].map(ServerId) {
        assert!(!other.is_down(server));
        node.table.set_down(server, true);
        assert!(other.is_down(server) && !other.is_down(ServerId(server.0 ^ 1)));
        node.table.set_down(server, false);
        assert!(!other.is_down(server));
    }
    assert!(other.is_down(ServerId(4096)), "of whom nothing is known");
}

#[test]
fn all_who_have_the_table_know_which_map_the_agent_has_and_since_when_servers_are_away() {
    let node = node();
    let other = node.attach();
    assert_eq!(other.epoch(), Epoch(0));
    node.table.set_epoch(Epoch(5));
    assert_eq!(other.epoch(), Epoch(5));
    for server in [0, 4095].map(ServerId) {
        let lasts = || other.absence(server).unwrap().lasts(3_002);
        assert_eq!(lasts(), None);
        node.table.absence(server).unwrap().note(bivouac_layout::ServerState::Down, 1_002);
        assert_eq!(lasts().map(|lasts| lasts.as_nanos() / 100), Some(20));
    }
    assert!(other.absence(ServerId(4096)).is_none());
}

#[test]
fn an_owner_in_another_pid_namespace_is_not_taken_for_dead() {
    let node = node();
    // A number that nobody has here, which there means a process that lives.
    let most = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let last = format!("{}", most.trim().parse::<u32>().unwrap() - 10);
    let elsewhere = || {
        // SAFETY: affects only this child's children.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return 77;
        }
        // The first process of a namespace has the number 1, which is somebody here, too.
        in_child(|| {
            let _ = std::fs::write("/proc/sys/kernel/ns_last_pid", &last);
            in_child(|| node.table.allocate().is_err().into())
        })
    };
    match in_child(elsewhere) {
        77 => eprintln!("without the right to make a PID namespace there is nothing to see"),
        code => {
            assert_eq!(code, 0);
            let id = node.table.in_use().next().unwrap();
            assert!(!node.table.abandoned(id) && node.table.sweep().is_empty());
        }
    }
}

/// What a program may write over the table: anything, over all of it, its beginning, or everything else.
fn spoil(table: &OpenTable, seed: u64, from: usize, to: usize) {
    let mut state = seed | 1;
    for at in (from..to).step_by(8) {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let noise = match seed % 3 {
            0 => state,
            1 => 0x0101_0101_0101_0101,
            _ => u64::MAX,
        };
        // SAFETY: within the mapping, aligned; everything in it is an atomic number.
        unsafe { &*table.memory.base().add(at).cast::<AtomicU64>() }.store(noise, Ordering::Relaxed);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() })]

    #[test]
    fn noise_in_the_table_gives_errors_and_neither_waits_nor_signals(seed: u64, part in 0..3) {
        let node = node();
        let (id, fd) = node.opened();
        let (from, to) = [(0, LENGTH), (0, HEADER), (HEADER, LENGTH)][part as usize];
        spoil(&node.table, seed, from, to);
        let other = node.attach_unchecked();
        let begun = std::time::Instant::now();
        for table in [&node.table, &other] {
            let _ = table.identify(fd.as_fd());
            for index in (0..SLOTS).step_by(1021) {
                let Some(slot) = table.at(index) else { continue };
                let id = SlotId { index, incarnation: slot.word().incarnation };
                let _ = (table.held(id), table.abandoned(id), slot.name());
                drop(table.lock_offset(slot));
                let _ = table.enter(slot);
                let _ = (table.has_left(slot), crate::release::release(table, 1, id));
                table.retire(id);
                table.free(id);
            }
            if let Ok(id) = table.allocate() {
                let _ = table.placeholder(id, true);
            }
            for id in table.sweep().into_iter().take(100) {
                table.retire(id);
                table.free(id);
            }
            let _ = table.held(id);
        }
        proptest::prop_assert!(begun.elapsed() < bivouac_testing::HANG, "{:?}", begun.elapsed());
    }
}

impl Node {
    /// As a process that had attached before.
    fn attach_unchecked(&self) -> OpenTable {
        let memory = Memory::attach(self.table.descriptor().unwrap(), LENGTH, true).unwrap();
        OpenTable::new(memory, None, Anchors::new(self.dir.path().as_os_str().as_encoded_bytes()))
    }
}
