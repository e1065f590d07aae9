//! The table of open file descriptions of one node.
//!
//! Memory of a fixed size (the module `memory`), mapped by the agent, which makes it, and by every client,
//! which gets its descriptor from the agent. Every program that uses the file system can write to it, also by
//! mistake. So this code checks everything that it reads there: indices must be in range, slots in impossible
//! states count as free, and no wait for a change of it is unbounded.
//!
//! A table outlives its agent for as long as any process that uses it lives: each keeps the descriptor, and a
//! restarted agent of the node finds it there and goes on with the table ([`OpenTable::adopt`]). What
//! processes have open thus stays known.
//!
//! A slot goes free → allocated → live → retiring → free. Each step is one compare-and-swap on a word that
//! holds state, owner and incarnation (the module `slot::steps`), so of several processes that want the same
//! step one wins, and an old [`SlotId`] never reaches a slot's next user. A process that dies between two
//! steps leaves a slot that [`OpenTable::abandoned`] recognises: the agent retires it.

use crate::absence::Absence;
use crate::anchor::{self, ANCHORS, Anchors, Probe};
use crate::error::{NodeError, doing};
use crate::fd::Fd;
use crate::locks::{RECORDS, Record};
use crate::memory::{Memory, Writers};
use crate::offset::OffsetGuard;
use crate::owner::{Fate, Here, NAMESPACES, NOBODY, Since};
use crate::process;
use crate::slot::{Slot, State, Word, steps, ticks};
use bivouac_layout::{Epoch, NodeId, SERVERS_MAX, ServerId};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::Mode;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many descriptions a node can have open.
pub const SLOTS: u32 = 65_536;

/// If a slot has been retiring for longer than this (in ticks; 2 s), others may release it.
const RETIRED_LONG: u32 = 2_000;

const MAGIC: u64 = u64::from_le_bytes(*b"BVWKOPEN");
const VERSION: u32 = 7;
pub(crate) const HEADER: usize = 10 * 4096;
/// Servers whose state is noted have numbers below 64 times this.
const DOWN_WORDS: usize = 64;
/// Where the records of locks begin.
const LOCKS: usize = HEADER + SLOTS as usize * size_of::<Slot>();
pub(crate) const LENGTH: usize = LOCKS + RECORDS as usize * size_of::<Record>();

/// Names a slot during one use of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId {
    /// Its position in the table.
    pub index: u32,
    /// How often it had been used before.
    pub incarnation: u32,
}

/// Whose a table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableOf {
    /// The deployment.
    pub deployment: u64,
    /// The node whose processes use it.
    pub node: NodeId,
}

/// All numbers are atomic: somebody's program may write anything here at any time.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    slots: AtomicU32,
    device: AtomicU64,
    deployment: AtomicU64,
    node: AtomicU64,
    agent: AtomicU64,
    /// How often another agent has taken the table over.
    adoptions: AtomicU64,
    anchors: [AtomicU64; ANCHORS],
    /// PID namespaces of the processes that have used the table: see the module `owner`.
    namespaces: [AtomicU64; NAMESPACES],
    /// No slot from here on was ever used.
    used: AtomicU32,
    /// Servers of this node that are down as far as the agent knows, a bit for each.
    down: [AtomicU64; DOWN_WORDS],
    /// When the agent last heard of the controller, nanoseconds of the monotonic clock; 0: never.
    heard: AtomicU64,
    /// The epoch of the agent's map; 0: not known.
    epoch: AtomicU64,
    /// Since when servers are not up.
    absences: [Absence; SERVERS_MAX as usize],
    /// How often the agent has begun to report what is open and locked: see the module `locks`.
    reports: AtomicU64,
    /// Whether any lock was ever noted.
    has_records: AtomicU32,
}

/// The mapped table.
pub struct OpenTable {
    /// A `Header`, then from [`HEADER`] the slots, and from [`LOCKS`] the records of locks.
    pub(crate) memory: Memory,
    /// What others map it by.
    descriptor: Option<Fd>,
    anchors: Anchors,
    /// Where this process looks for a free slot first.
    hint: AtomicU32,
    here: Here,
    /// Slots whose owners are in other PID namespaces, as the last sweep found them.
    doubtful: Mutex<HashMap<SlotId, Since>>,
}

const _: () = assert!(size_of::<Header>() <= HEADER && LOCKS.is_multiple_of(64));

impl OpenTable {
    /// Makes a table, with its anchors in `node_dir`, which is made too if it is missing (its parent has to
    /// exist). `agent` names its agent in [`bivouac_proto::OpenId`]s.
    pub fn create(node_dir: &[u8], of: TableOf, agent: u64) -> Result<OpenTable, NodeError> {
        match rustix::fs::mkdir(node_dir, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(doing("making the node's directory")(errno)),
        }
        let anchors = Anchors::new(node_dir);
        let (inodes, device) = anchors.create()?;
        let (memory, descriptor) = Memory::make(c"bivouac-opens", LENGTH, Writers::All)?;
        let table = OpenTable::new(memory, Some(descriptor), anchors);
        let header = table.header();
        for (known, inode) in header.anchors.iter().zip(inodes) {
            known.store(inode, Ordering::Relaxed);
        }
        header.device.store(device, Ordering::Relaxed);
        header.deployment.store(of.deployment, Ordering::Relaxed);
        header.node.store(of.node.0.into(), Ordering::Relaxed);
        header.agent.store(agent, Ordering::Relaxed);
        header.slots.store(SLOTS, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(table)
    }

    /// Maps the table that the agent made, by the descriptor that it handed over. Whoever keeps that
    /// descriptor keeps the table for the agent's successor.
    pub fn attach(node_dir: &[u8], descriptor: BorrowedFd<'_>) -> Result<OpenTable, NodeError> {
        let memory = Memory::attach(descriptor, LENGTH, true)?;
        let table = OpenTable::new(memory, None, Anchors::new(node_dir));
        if table.is_sound() { Ok(table) } else { Err(NodeError::Format) }
    }

    /// For a restarted agent: takes over the table that the agent before it made, by a descriptor that a
    /// process of the node has kept. Fails for a table that is not this deployment's and node's, or whose
    /// anchors are gone: its placeholders hold nothing that could be asked about.
    pub fn adopt(node_dir: &[u8], of: TableOf, descriptor: Fd) -> Result<OpenTable, NodeError> {
        let mut table = OpenTable::attach(node_dir, descriptor.as_fd())?;
        let (inodes, device) = table.anchors.look()?;
        let header = table.header();
        let same = header.deployment.load(Ordering::Relaxed) == of.deployment
            && header.node.load(Ordering::Relaxed) == u64::from(of.node.0)
            && header.device.load(Ordering::Relaxed) == device
            && header.anchors.iter().zip(inodes).all(|(known, inode)| known.load(Ordering::Relaxed) == inode);
        if !same {
            return Err(NodeError::Format);
        }
        header.heard.store(0, Ordering::Relaxed);
        header.epoch.store(0, Ordering::Relaxed);
        header.adoptions.fetch_add(1, Ordering::Release);
        table.descriptor = Some(descriptor);
        Ok(table)
    }

    /// How often an agent has taken the table over: when this changes, the node's agent has been restarted,
    /// and knows nothing of what the one before was told.
    pub fn adoptions(&self) -> u64 {
        self.header().adoptions.load(Ordering::Acquire)
    }

    /// The number of the table's agent.
    pub fn agent(&self) -> u64 {
        self.header().agent.load(Ordering::Relaxed)
    }

    /// Whether what a descriptor's entry in `/proc` says may be a table.
    pub fn is_named(link: &[u8]) -> bool {
        link.starts_with(b"/memfd:bivouac-opens")
    }

    fn new(memory: Memory, descriptor: Option<Fd>, anchors: Anchors) -> OpenTable {
        OpenTable {
            memory,
            descriptor,
            anchors,
            hint: AtomicU32::new(0),
            here: Here::default(),
            doubtful: Mutex::default(),
        }
    }

    /// For an agent: what others map it by.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// Whether the header is intact; if not, a program has written over the table.
    fn is_sound(&self) -> bool {
        let header = self.header();
        header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION
            && header.slots.load(Ordering::Relaxed) == SLOTS
    }

    /// Notes whether a server of this node is down. By the agent.
    pub fn set_down(&self, server: ServerId, down: bool) {
        let Some((word, bit)) = self.down(server) else { return };
        if down {
            word.fetch_or(bit, Ordering::SeqCst);
        } else {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Whether a server of this node is down, as far as the agent knows.
    pub fn is_down(&self, server: ServerId) -> bool {
        self.down(server).is_none_or(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Notes when the controller was heard of, by [`crate::release::monotonic`]. By the agent.
    pub fn set_heard(&self, at: u64) {
        self.header().heard.store(at, Ordering::Relaxed);
    }

    /// When the agent last heard of the controller; 0 if it never has.
    pub fn heard(&self) -> u64 {
        self.header().heard.load(Ordering::Relaxed)
    }

    /// Notes which map the agent has. By the agent.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.header().epoch.store(epoch.0, Ordering::Release);
    }

    /// Which map the agent has; 0 if that is not known.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.header().epoch.load(Ordering::Acquire))
    }

    /// Since when a server is not up, as far as the agent knows. `None` for a number that no server has.
    pub fn absence(&self, server: ServerId) -> Option<&Absence> {
        self.header().absences.get(usize::from(server.0))
    }

    fn down(&self, server: ServerId) -> Option<(&AtomicU64, u64)> {
        let number = usize::from(server.0);
        Some((self.header().down.get(number / 64)?, 1 << (number % 64)))
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory is page-aligned and at least as long as a header, of which any bytes are a valid
        // one.
        unsafe { &*self.memory.base().cast::<Header>() }
    }

    fn at(&self, index: u32) -> Option<&Slot> {
        if index >= SLOTS {
            return None;
        }
        // SAFETY: the index is within the table, which begins at HEADER and is aligned for slots (the mapping
        // is page-aligned and HEADER a multiple of 128); any bytes are a valid Slot.
        Some(unsafe { &*self.memory.base().add(HEADER).cast::<Slot>().add(index as usize) })
    }

    pub(crate) fn record(&self, index: u32) -> Option<&Record> {
        if index >= RECORDS {
            return None;
        }
        // SAFETY: the index is within the records, which begin at LOCKS and are aligned (the mapping is page-aligned
        // and LOCKS a multiple of 64); any bytes are a valid Record.
        Some(unsafe { &*self.memory.base().add(LOCKS).cast::<Record>().add(index as usize) })
    }

    pub(crate) fn report_count(&self) -> &AtomicU64 {
        &self.header().reports
    }

    pub(crate) fn has_records(&self) -> &AtomicU32 {
        &self.header().has_records
    }

    /// The slot's word, if `id` is its current use and it is not free.
    fn current(&self, id: SlotId) -> Option<(&Slot, Word)> {
        let slot = self.at(id.index)?;
        let word = slot.word();
        (word.incarnation == id.incarnation && word.state != State::Free).then_some((slot, word))
    }

    /// A process or thread of this process, as an owner.
    pub(crate) fn owner(&self, number: u32) -> u32 {
        self.here.owner(&self.header().namespaces, number)
    }

    pub(crate) fn fate(&self, owner: u32) -> Fate {
        self.here.fate(&self.header().namespaces, owner)
    }

    /// Takes the lock on a slot's offset, across processes: reads and writes at the shared offset hold it, as
    /// the kernel's do with theirs. Waits as long as the owner lives, but not for ever
    /// ([`NodeError::Stuck`]); when the owner is dead, the lock is taken over.
    pub fn lock_offset<'s>(&self, slot: &'s Slot) -> Result<OffsetGuard<'s>, NodeError> {
        // Where something was written over the table, no owner in it means anything.
        let fate = |owner| if self.is_sound() { self.fate(owner) } else { Fate::Dead };
        slot.offset_lock.lock(self.owner(process::tid()), fate)
    }

    /// Takes a free slot for a description about to be opened. Fails with [`NodeError::Full`].
    pub fn allocate(&self) -> Result<SlotId, NodeError> {
        let owner = self.owner(process::pid());
        let start = self.hint.load(Ordering::Relaxed) % SLOTS;
        for index in (start..SLOTS).chain(0..start) {
            let Some(slot) = self.at(index) else { break };
            let Some(incarnation) = steps::take(&slot.word, owner, || slot.clear()) else {
                continue;
            };
            self.header().used.fetch_max(index + 1, Ordering::AcqRel);
            self.hint.store(index + 1, Ordering::Relaxed);
            return Ok(SlotId { index, incarnation });
        }
        Err(NodeError::Full)
    }

    /// The slot. `None`: this use of it is over, or there is no such slot.
    pub fn slot(&self, id: SlotId) -> Option<&Slot> {
        self.current(id).map(|(slot, _)| slot)
    }

    /// Makes the kernel descriptor that stands for the slot, and marks the slot live: from here on it lasts
    /// as long as any process holds this descriptor or a duplicate.
    pub fn placeholder(&self, id: SlotId, cloexec: bool) -> Result<Fd, NodeError> {
        let fd = self.blank(id, cloexec)?;
        self.fill_in(id, fd.as_fd())?;
        Ok(fd)
    }

    /// The first half of [`OpenTable::placeholder`]: a descriptor that does not keep the slot in use yet. Nor
    /// does a copy that a forked child gets before [`OpenTable::fill_in`].
    pub fn blank(&self, id: SlotId, cloexec: bool) -> Result<Fd, NodeError> {
        self.current(id).ok_or(NodeError::Stale)?;
        self.anchors.blank(id.index, cloexec)
    }

    /// The second half: makes such a descriptor the slot's placeholder, and marks the slot live.
    pub fn fill_in(&self, id: SlotId, blank: BorrowedFd<'_>) -> Result<(), NodeError> {
        anchor::mark(blank, id.index)?;
        let slot = self.slot(id).ok_or(NodeError::Stale)?;
        if steps::make_live(&slot.word, id.incarnation) { Ok(()) } else { Err(NodeError::Stale) }
    }

    /// Whether a descriptor is a placeholder, and of which slot. Costs one system call for most others.
    pub fn identify(&self, fd: BorrowedFd<'_>) -> Option<SlotId> {
        let index = anchor::marked_index(fd, SLOTS)?;
        let stat = rustix::fs::fstat(fd).ok()?;
        let header = self.header();
        let inode = header.anchors.get(anchor::of(index))?;
        let device = header.device.load(Ordering::Relaxed);
        if stat.st_dev != device || stat.st_ino != inode.load(Ordering::Relaxed) {
            return None;
        }
        // While the descriptor is open its slot is not freed, so the current incarnation is the descriptor's.
        let word = self.at(index)?.word();
        matches!(word.state, State::Live | State::Allocated)
            .then_some(SlotId { index, incarnation: word.incarnation })
    }

    /// Whether a slot is in its use for a description that is open or about to be.
    pub fn is_open(&self, id: SlotId) -> bool {
        self.current(id).is_some_and(|(_, word)| word.state != State::Retiring)
    }

    /// Whether any process holds a descriptor of the slot. When the kernel cannot be asked (the process is
    /// out of descriptors) the answer is yes: the agent finds out later.
    pub fn held(&self, id: SlotId) -> bool {
        if self.current(id).is_none() {
            return false;
        }
        match self.anchors.probe(id.index) {
            Ok(probe) => self.locked(&probe, id.index),
            Err(_) => true,
        }
    }

    fn locked(&self, probe: &Probe, index: u32) -> bool {
        anchor::is_locked(probe.as_fd(), index).unwrap_or(true)
    }

    /// A descriptor through which [`OpenTable::held_through`] can ask about this slot and others of its
    /// anchor, to be kept by those who ask often.
    pub fn asker(&self, id: SlotId) -> Option<Fd> {
        self.anchors.probe(id.index).ok().map(Probe::into_fd)
    }

    /// Like [`OpenTable::held`]; `None` when the descriptor is not of the slot's anchor.
    pub fn held_through(&self, asker: BorrowedFd<'_>, id: SlotId) -> Option<bool> {
        let stat = rustix::fs::fstat(asker).ok()?;
        let header = self.header();
        let inode = header.anchors.get(anchor::of(id.index))?.load(Ordering::Relaxed);
        if stat.st_dev != header.device.load(Ordering::Relaxed) || stat.st_ino != inode {
            return None;
        }
        Some(self.current(id).is_some() && anchor::is_locked(asker, id.index).unwrap_or(true))
    }

    /// Begins to free a slot. Returns true for exactly one caller, which then releases the description at its
    /// server and calls [`OpenTable::free`]. If that caller dies before, the slot counts as abandoned and can
    /// be retired again.
    pub fn retire(&self, id: SlotId) -> bool {
        let Some(slot) = self.slot(id) else {
            return false;
        };
        let is_lost = |word: Word| overdue(slot) || self.fate(word.owner) == Fate::Dead;
        let changed = steps::retire(&slot.word, id.incarnation, self.owner(process::pid()), is_lost);
        if changed {
            slot.retired_at.store(ticks(), Ordering::Relaxed);
        }
        changed
    }

    /// Makes a retiring slot free.
    pub fn free(&self, id: SlotId) {
        if self.at(id.index).is_some_and(|slot| steps::free(&slot.word, id.incarnation)) {
            self.hint.fetch_min(id.index, Ordering::Relaxed);
        }
    }

    /// All slots that are not free, for the agent's sweep.
    pub fn in_use(&self) -> impl Iterator<Item = SlotId> + '_ {
        let used = self.header().used.load(Ordering::Acquire).min(SLOTS);
        (0..used).filter_map(|index| {
            let word = self.at(index)?.word();
            (word.state != State::Free).then_some(SlotId { index, incarnation: word.incarnation })
        })
    }

    /// Whether no process uses a slot any more: it is live and held by no process, or allocated or retiring
    /// by a dead process.
    pub fn abandoned(&self, id: SlotId) -> bool {
        match self.current(id) {
            Some((_, word)) if word.state == State::Live => !self.held(id),
            // A placeholder may have been made, and inherited, just before the owner died.
            Some((_, word)) if word.state == State::Allocated => {
                self.fate(word.owner) == Fate::Dead && !self.held(id)
            }
            Some((slot, word)) => overdue(slot) || self.fate(word.owner) == Fate::Dead,
            None => false,
        }
    }

    /// All slots that are [`abandoned`](Self::abandoned), with one descriptor for each anchor rather than for
    /// each slot: what the agent calls when a process has died, and now and then.
    pub fn sweep(&self) -> Vec<SlotId> {
        let waits = |id: &SlotId| self.current(*id).is_some_and(|(_, word)| word.state != State::Live);
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| waits(id));
        let mut probes: Vec<Option<Probe>> = Vec::new();
        probes.resize_with(ANCHORS, || None);
        let mut found = Vec::new();
        // A kernel mount owns a slot for each of its open files: ask only once whether the mount's process is
        // alive.
        let mut living = None;
        for id in self.in_use() {
            let Some((slot, word)) = self.current(id) else {
                continue;
            };
            let late = word.state == State::Retiring && overdue(slot);
            if word.state != State::Live && !late {
                let lives = living == Some(word.owner);
                let fate = if lives { Fate::Alive } else { self.fate(word.owner) };
                if fate == Fate::Alive {
                    living = Some(word.owner);
                }
                if !self.is_ownerless(id, slot, word, fate) {
                    continue;
                }
            }
            if word.state == State::Retiring {
                found.push(id);
                continue;
            }
            let Some(probe) = probes.get_mut(anchor::of(id.index)) else {
                continue;
            };
            if probe.is_none() {
                *probe = self.anchors.probe(id.index).ok();
            }
            if probe.as_ref().is_some_and(|probe| !self.locked(probe, id.index)) {
                found.push(id);
            }
        }
        found
    }
}

/// Whether a retiring slot's owner has not released it for so long that the agent may do it. (The server may
/// then get the release twice, which does no harm.)
fn overdue(slot: &Slot) -> bool {
    let since = slot.retired_at.load(Ordering::Relaxed);
    since != 0 && ticks().wrapping_sub(since) > RETIRED_LONG
}

impl OpenTable {
    /// For a sweep: whether a slot's owner is dead, or its fate has been unknown for so long that the slot is
    /// taken from it.
    fn is_ownerless(&self, id: SlotId, slot: &Slot, word: Word, fate: Fate) -> bool {
        let mut doubtful = self.doubtful.lock().unwrap_or_else(PoisonError::into_inner);
        match fate {
            Fate::Unknown if doubtful.entry(id).or_default().too_long(word.bits()) => {
                doubtful.remove(&id);
                slot.change(word, Word { owner: NOBODY, ..word })
            }
            Fate::Unknown => false,
            fate => {
                doubtful.remove(&id);
                fate == Fate::Dead
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
