//! What a server has to be told when an open description is gone.
//!
//! When no process holds a description any more, the process that closed it, or the agent if a process
//! died, retires its slot, sends this request to the inode's server, and frees the slot.

use crate::slot::Slot;
use crate::table::{OpenTable, SlotId};
use bivouac_layout::{Ino, ShardId};
use bivouac_proto::OpenId;
use bivouac_proto::meta::{MetaRequest, Reopened, Wrote};
use std::sync::atomic::Ordering;

/// `Slot::kind` of a regular file, which its server has registered.
pub const KIND_FILE: u32 = 0;
/// `Slot::kind` of a directory.
pub const KIND_DIRECTORY: u32 = 1;
/// `Slot::kind` of a description that no server has registered (O_PATH).
pub const KIND_PATH: u32 = 2;
/// `Slot::kind` while a server is being asked to open something: the server may have registered the
/// description, but the client does not know the inode yet. `Slot::ino` names only the shard that was asked.
pub const KIND_OPENING: u32 = 3;

/// Mask of the access mode in a slot's flags, and the mode that cannot write.
const ACCESS_MODE: u32 = libc::O_ACCMODE as u32;

/// What to tell a server about a retired slot.
#[derive(Clone, PartialEq, Debug)]
pub struct Release {
    /// The shard whose server it concerns.
    pub shard: ShardId,
    /// The request.
    pub request: MetaRequest<'static>,
    /// The description held locks. Another process may ask for them as soon as it learns of the close, so the
    /// client waits for the server's answer.
    pub wait: bool,
    /// The request may be sent a little later without anybody noticing, because nothing was written into
    /// blocks.
    pub may_be_late: bool,
}

/// What a process tells a server about a slot whose last descriptor it has closed; `None` for a description
/// that no server knows.
pub fn release(table: &OpenTable, agent: u64, id: SlotId) -> Option<Release> {
    let (ino, open, wrote, slot) = known(table, agent, id)?;
    let ino = ino?;
    let wait = slot.locks.load(Ordering::Acquire) != 0;
    let may_be_late =
        wrote.is_none_or(|w| w.end == 0 && !w.unsure) && slot.in_blocks.load(Ordering::Relaxed) == 0;
    let request = MetaRequest::Release { ino, open, wrote };
    Some(Release { shard: ino.shard(), request, wait, may_be_late })
}

/// What the agent tells a server about a slot that no process holds any more, also if a process died while it
/// was opening it.
pub fn abandon(table: &OpenTable, agent: u64, id: SlotId) -> Option<Release> {
    let (ino, open, wrote, slot) = known(table, agent, id)?;
    let shard = Ino(slot.ino.load(Ordering::Relaxed)).shard();
    let request = MetaRequest::Abandon { ino, open, wrote };
    Some(Release { shard, request, wait: true, may_be_late: false })
}

/// What a slot says about itself: the inode, unless it was still being opened. `None`: no server knows it.
fn known(table: &OpenTable, agent: u64, id: SlotId) -> Option<(Option<Ino>, OpenId, Option<Wrote>, &Slot)> {
    let slot = table.slot(id)?;
    let open = OpenId { agent, slot: id.index, incarnation: id.incarnation };
    let kind = slot.kind.load(Ordering::Acquire);
    if kind == KIND_OPENING {
        return Some((None, open, None, slot));
    }
    let ino = Ino(slot.ino.load(Ordering::Relaxed));
    let locked = slot.locks.load(Ordering::Acquire) != 0;
    if (kind != KIND_FILE && !locked) || ino.0 == 0 {
        return None;
    }
    let writes = slot.flags.load(Ordering::Relaxed) & ACCESS_MODE != libc::O_RDONLY as u32;
    let wrote = writes.then(|| {
        let wrote_at = slot.wrote_at.load(Ordering::Relaxed);
        Wrote {
            end: slot.end.load(Ordering::Acquire),
            size_version: slot.size_version.load(Ordering::Relaxed),
            age: if wrote_at == 0 { u64::MAX } else { monotonic().saturating_sub(wrote_at) },
            unsure: slot.writing.load(Ordering::Acquire) != 0,
        }
    });
    Some((Some(ino), open, wrote, slot))
}

/// What the agent tells a server that was restarted about a slot: `None` if its server need not know it, or
/// nobody holds it.
pub fn reopened(table: &OpenTable, agent: u64, id: SlotId) -> Option<Reopened> {
    let (ino, open, wrote, slot) = known(table, agent, id)?;
    if !table.is_open(id) || table.abandoned(id) {
        return None;
    }
    let append = slot.flags.load(Ordering::Relaxed) & libc::O_APPEND as u32 != 0;
    Some(Reopened { ino: ino?, open, write: wrote.is_some(), append })
}

/// Notes in a slot that a server is about to be asked to open it.
pub fn begin_opening(slot: &Slot, shard: ShardId) {
    let nameless = if shard == ShardId::FORWARDED { Ino::FORWARDED } else { Ino::new(shard, 0) };
    slot.ino.store(nameless.0, Ordering::Relaxed);
    slot.kind.store(KIND_OPENING, Ordering::Release);
}

/// Nanoseconds of a clock that all processes of a node share, and that only goes forward: the clock of leases, and of
/// [`crate::Slot::wrote_at`]. It is CLOCK_BOOTTIME, because it goes on while the machine is suspended: what a lease
/// has allowed before is not allowed any more when the machine wakes up.
pub fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
