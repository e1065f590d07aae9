//! Changing the code: trampolines near a library, and jumps to them.
//!
//! All is worked out and the trampolines are ready before the first byte of the library's code is changed.
//! That code is writable only while the jumps are written, by instructions of ours. There is one thread, and
//! it is here.

use super::sites::{LONG, SHORT, Site};
use bivouac_proto::Errno;
use std::ops::Range;

/// Why it cannot be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Failed {
    /// No library of libc's family is loaded that looks as expected.
    NoLibc,
    /// The processor has no instruction that saves all vector registers (XSAVE).
    Processor,
    /// There is no free memory within reach of the library.
    NoRoom,
    /// The kernel does not let code be changed.
    Refused(Errno),
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failed::NoLibc => f.write_str("no libc was found that looks as expected"),
            Failed::Processor => f.write_str("the processor has no XSAVE"),
            Failed::NoRoom => f.write_str("there is no free memory near libc"),
            Failed::Refused(errno) => {
                write!(f, "the kernel does not let code be changed (error {})", errno.0)
            }
        }
    }
}

/// What the gate finds of a site: where to go on.
#[repr(C)]
pub struct Record {
    /// At the `syscall` instruction, if the call is the kernel's.
    pub syscall: usize,
    /// Behind it, if the call has been served.
    pub behind: usize,
}

/// Bytes of a trampoline: its record, then the moved instruction (at most 15), then [`TAIL`].
const SLOT: usize = 48;
const RECORD: usize = size_of::<Record>();
/// `lea r11, [rip + record]`, `jmp [rip + gate]`.
const TAIL: usize = 7 + 6;
/// Where the first slot begins; before it is the gate's address.
const FIRST: usize = 16;
const _: () = assert!(RECORD + 15 + TAIL <= SLOT);

const PAGE: usize = 4096;
/// What a jump reaches, less some.
const REACH: usize = (1 << 31) - (1 << 20);
/// Distances at which memory is asked for.
const STEP: usize = 64 << 20;

/// Makes these sites go by way of a gate.
pub fn apply(code: Range<usize>, sites: &[Site], gate: usize) -> Result<(), Failed> {
    if sites.is_empty() {
        return Ok(());
    }
    let len = (FIRST + sites.len() * SLOT).next_multiple_of(PAGE);
    let room = room_near(&code, len)?;
    let trampolines = trampolines(room, sites, gate);
    // SAFETY: fresh memory of this length; nobody else knows it.
    unsafe { std::ptr::copy_nonoverlapping(trampolines.as_ptr(), room as *mut u8, trampolines.len()) };
    let executable = libc::PROT_READ | libc::PROT_EXEC;
    let done = protect(room..room + len, executable)
        .and_then(|()| protect(code.clone(), executable | libc::PROT_WRITE));
    if let Err(errno) = done {
        let _ = sys!(SYS_munmap, room, len);
        return Err(Failed::Refused(errno));
    }
    for (index, site) in sites.iter().enumerate() {
        for (at, bytes) in jumps(site, room + FIRST + index * SLOT + RECORD) {
            for (offset, byte) in bytes.into_iter().enumerate() {
                // SAFETY: code of a library, now writable; whole instructions are replaced, and padding. Byte
                // by byte and volatile, as a function that copies may be part of what is being changed.
                unsafe { ((at + offset) as *mut u8).write_volatile(byte) };
            }
        }
    }
    protect(code, executable).map_err(Failed::Refused)
}

fn protect(range: Range<usize>, protection: i32) -> Result<(), Errno> {
    let start = range.start & !(PAGE - 1);
    sys!(SYS_mprotect, start, range.end.next_multiple_of(PAGE) - start, protection).map(|_| ())
}

/// Memory within reach of all of a library's code.
fn room_near(code: &Range<usize>, len: usize) -> Result<usize, Failed> {
    let reached = |at: usize| {
        let (low, high) = (at.min(code.start), (at + len).max(code.end));
        high - low < REACH
    };
    let below = (1..REACH / STEP).map(|k| code.start.saturating_sub(k * STEP));
    let above = (1..REACH / STEP).map(|k| code.end.saturating_add(k * STEP));
    // 0: where the kernel likes, which is beside what it mapped last.
    for hint in std::iter::once(0).chain(below).chain(above) {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let Ok(at) = sys!(SYS_mmap, hint & !(PAGE - 1), len, protection, flags, -1isize, 0) else { continue };
        if reached(at) {
            return Ok(at);
        }
        let _ = sys!(SYS_munmap, at, len);
    }
    Err(Failed::NoRoom)
}

/// The memory's contents.
fn trampolines(room: usize, sites: &[Site], gate: usize) -> Vec<u8> {
    let mut all = gate.to_le_bytes().to_vec();
    all.resize(FIRST, 0);
    for (index, site) in sites.iter().enumerate() {
        let record = room + FIRST + index * SLOT;
        let behind = site.syscall() + super::sites::SYSCALL.len();
        all.extend(site.syscall().to_le_bytes());
        all.extend(behind.to_le_bytes());
        all.extend(&site.bytes);
        let mut at = record + RECORD + site.bytes.len();
        for (code, target) in [(&[0x4c, 0x8d, 0x1d][..], record), (&[0xff, 0x25], room)] {
            at += code.len() + 4;
            all.extend(code);
            all.extend(distance(at, target));
        }
        all.resize(FIRST + (index + 1) * SLOT, 0xcc);
    }
    all
}

/// What is written where, so that a site goes to its trampoline.
fn jumps(site: &Site, trampoline: usize) -> Vec<(usize, Vec<u8>)> {
    let start = site.moved.start;
    let long = |at: usize| [&[0xe9][..], &distance(at + LONG, trampoline)].concat();
    let (mut jump, padding) = match site.padding {
        None => (long(start), None),
        Some(at) => {
            let near = at.wrapping_sub(start + SHORT) as u8;
            (vec![0xeb, near], Some((at, long(at))))
        }
    };
    // The rest of the instruction is never executed; this is for debuggers.
    jump.resize(site.moved.len(), 0x90);
    padding.into_iter().chain([(start, jump)]).collect()
}

/// The distance to a target from the end of an instruction.
fn distance(from: usize, target: usize) -> [u8; 4] {
    (target.wrapping_sub(from) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_to_the_trampoline_and_fill_the_instruction() {
        let mut site = Site { moved: 0x1000..0x1007, bytes: vec![1; 7], padding: None };
        assert_eq!(jumps(&site, 0x2000), [(0x1000, vec![0xe9, 0xfb, 0x0f, 0, 0, 0x90, 0x90])]);
        assert_eq!(jumps(&site, 0x0f00)[0].1[..5], [0xe9, 0xfb, 0xfe, 0xff, 0xff]);
        site.moved = 0x1000..0x1002;
        site.padding = Some(0x0ff0);
        let expected = [(0x0ff0, vec![0xe9, 0x0b, 0x10, 0, 0]), (0x1000, vec![0xeb, 0xee])];
        assert_eq!(jumps(&site, 0x2000), expected);
    }

    #[test]
    fn trampolines_do_what_was_there_and_go_to_the_gate() {
        let site = Site { moved: 0x1000..0x1005, bytes: vec![0xb8, 2, 0, 0, 0], padding: None };
        let all = trampolines(0x8000, &[site], 0x1122_3344_5566);
        assert_eq!(all[..8], 0x1122_3344_5566usize.to_le_bytes());
        assert_eq!(all[16..24], 0x1005usize.to_le_bytes());
        assert_eq!(all[24..32], 0x1007usize.to_le_bytes());
        assert_eq!(all[32..37], [0xb8, 2, 0, 0, 0]);
        // From 0x802c back to the record at 0x8010, from 0x8032 to the gate's address at 0x8000.
        assert_eq!(all[37..44], [0x4c, 0x8d, 0x1d, 0xe4, 0xff, 0xff, 0xff]);
        assert_eq!(all[44..50], [0xff, 0x25, 0xce, 0xff, 0xff, 0xff]);
        assert_eq!(all.len(), FIRST + SLOT);
    }

    #[test]
    fn room_is_found_where_jumps_reach() {
        let here = room_is_found_where_jumps_reach as *const () as usize;
        let room = room_near(&(here..here + 100), PAGE).unwrap();
        assert!(room.abs_diff(here) < REACH);
    }
}
