//! The gate: where all trampolines lead.
//!
//! It is entered with all registers as they are to be at the `syscall` instruction, and the site's record in
//! r11; rcx is free. Calls that are plainly none of ours go back at once: by their number ([`KINDS`]), and
//! calls on a descriptor by its word in [`fds`]. That changes nothing but rcx and r11, and takes no stack.
//! For all others everything is saved, and the [`door`] asked. The unwinding directives make the gate a frame
//! that was called from the site: a debugger sees through it, and a thread that is cancelled here is unwound.

use super::patch::{Failed, Record};
use super::{LOOKED_AT_BIT, door};
use crate::boundary;
use crate::vfs::fds;
use std::arch::global_asm;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// What the gate does with a call's number.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The kernel's.
    Pass = 0,
    /// The kernel's if the descriptor in the first argument is.
    Descriptor = 1,
    /// `close`: a face that closes a descriptor has marked it as changing already, so such a call passes.
    Close = 2,
    /// The kernel's without a file.
    Map = 3,
    /// The kernel's if a face has checked the path; the flags are the second argument.
    Open = 4,
    /// The same, with the flags in the third argument.
    OpenAt = 5,
    /// For the door.
    Ask = 6,
}

/// Calls with greater numbers are the kernel's.
pub const NUMBERS: usize = 512;

static KINDS: [Kind; NUMBERS] = door::kinds();
/// The address of the table of descriptors' words.
static WORDS: &[AtomicU32; fds::NUMBERS] = &fds::WORDS;

/// Bytes that saved vector registers take.
static VECTORS: AtomicUsize = AtomicUsize::new(0);
/// Which of the processor's state components are saved: x87, SSE, AVX and AVX-512, as far as there are. What
/// else there is (protection keys, tiles) nothing of ours touches.
static COMPONENTS: AtomicUsize = AtomicUsize::new(0);
const SAVED: u64 = 0b1110_0111;
/// Bytes of the first two of them and of the header, and where the header is.
const BASE: usize = 576;
const HEADER: usize = 512;

/// A call at the gate. The order is that in which the gate pushes, last first.
#[repr(C)]
pub struct Frame {
    rbx: usize,
    r9: usize,
    r8: usize,
    r10: usize,
    rdx: usize,
    rsi: usize,
    rdi: usize,
    rax: usize,
    record: *const Record,
    /// Where to go on.
    next: usize,
}

unsafe extern "C" {
    // Defined below.
    fn bivouac_gate();
}

/// The gate's address.
pub fn address() -> usize {
    bivouac_gate as *const () as usize
}

/// Finds out how vector registers are saved.
pub fn prepare() -> Result<(), Failed> {
    use std::arch::x86_64::__cpuid_count;
    if !std::arch::is_x86_feature_detected!("xsave") {
        return Err(Failed::Processor);
    }
    let (low, high): (u32, u32);
    // SAFETY: a processor and a kernel with XSAVE have this instruction; register 0 is always there.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack))
    };
    let components = (u64::from(high) << 32 | u64::from(low)) & SAVED;
    let mut size = BASE;
    for component in (2..8).filter(|component| components & 1 << component != 0) {
        let leaf = __cpuid_count(0xd, component);
        size = size.max(leaf.eax as usize + leaf.ebx as usize);
    }
    VECTORS.store(size.next_multiple_of(64), Ordering::Relaxed);
    COMPONENTS.store(components as usize, Ordering::Relaxed);
    Ok(())
}

/// Asks the door, and writes into the frame where to go on.
///
/// # Safety
/// Called by the gate, with its frame.
unsafe extern "C-unwind" fn ask(frame: *mut Frame) {
    // SAFETY: the gate's own memory, which nobody else has.
    let frame = unsafe { &mut *frame };
    let args = [frame.rdi, frame.rsi, frame.rdx, frame.r10, frame.r8, frame.r9];
    // SAFETY: the arguments that libc would make the call with.
    let asked = || unsafe { door::answer(frame.rax, args) };
    let answer = boundary::attempt(asked).unwrap_or(Some(Err(crate::vfs::Errno::IO)));
    if let Some(result) = answer {
        frame.rax = match result {
            Ok(value) => value,
            Err(errno) => usize::from(errno.0).wrapping_neg(),
        };
        // SAFETY: the trampoline's record, never changed.
        frame.next = unsafe { (*frame.record).behind };
    }
}

global_asm!(
    ".text",
    ".p2align 4",
    ".type bivouac_gate, @function",
    ".hidden bivouac_gate",
    ".globl bivouac_gate",
    "bivouac_gate:",
    ".cfi_startproc",
    // The frame that called is the site's own: its stack pointer is ours, and where it goes on is in the
    // record.
    ".cfi_def_cfa 7, 0",
    ".cfi_escape 0x10, 16, 2, 0x7b, 0",
    "cmp rax, {numbers}",
    "jae 9f",
    "lea rcx, [rip + {kinds}]",
    "movzx ecx, byte ptr [rcx + rax]",
    "cmp ecx, {close}",
    "je 2f",
    "ja 3f",
    "jrcxz 9f",
    // A descriptor that is the kernel's. (Its number's upper half may be anything.)
    "cmp edi, {fds}",
    "jae 9f",
    "mov ecx, edi",
    "shl rcx, 2",
    "add rcx, [rip + {words}]",
    "mov ecx, [rcx]",
    "and ecx, {state}",
    "cmp ecx, {foreign}",
    "jne 5f",
    "9:",
    "jmp [r11]",
    // One that is being closed already.
    "2:",
    "cmp edi, {fds}",
    "jae 9b",
    "mov ecx, edi",
    "shl rcx, 2",
    "add rcx, [rip + {words}]",
    "mov ecx, [rcx]",
    "and ecx, {state}",
    "cmp ecx, {changing}",
    "je 9b",
    "jmp 5f",
    "3:",
    "cmp ecx, {open}",
    "je 4f",
    "ja 6f",
    // A mapping without a file.
    "test r10d, {anonymous}",
    "jnz 9b",
    "jmp 5f",
    "4:",
    "bt esi, {looked_at}",
    "jc 9b",
    "jmp 5f",
    "6:",
    "cmp ecx, {open_at}",
    "jne 5f",
    "bt edx, {looked_at}",
    "jc 9b",
    // Everything is saved, and the door asked.
    "5:",
    "lea rsp, [rsp - 128]",
    ".cfi_adjust_cfa_offset 128",
    "push [r11]",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset 16, -136",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "push r10",
    ".cfi_adjust_cfa_offset 8",
    "push r8",
    ".cfi_adjust_cfa_offset 8",
    "push r9",
    ".cfi_adjust_cfa_offset 8",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset 3, -208",
    "mov rbx, rsp",
    ".cfi_def_cfa_register 3",
    "sub rsp, [rip + {vectors}]",
    "and rsp, -64",
    // The part of the header that the processor does not write has to be zero.
    "xor eax, eax",
    "mov [rsp + {header}], rax",
    "mov [rsp + {header} + 8], rax",
    "mov [rsp + {header} + 16], rax",
    "mov [rsp + {header} + 24], rax",
    "mov [rsp + {header} + 32], rax",
    "mov [rsp + {header} + 40], rax",
    "mov [rsp + {header} + 48], rax",
    "mov [rsp + {header} + 56], rax",
    "mov eax, dword ptr [rip + {components}]",
    "xor edx, edx",
    "xsave64 [rsp]",
    "mov rdi, rbx",
    "call {ask}",
    "mov eax, dword ptr [rip + {components}]",
    "xor edx, edx",
    "xrstor64 [rsp]",
    "mov rsp, rbx",
    ".cfi_def_cfa_register 7",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore 3",
    "pop r9",
    ".cfi_adjust_cfa_offset -8",
    "pop r8",
    ".cfi_adjust_cfa_offset -8",
    "pop r10",
    ".cfi_adjust_cfa_offset -8",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_register 16, 11",
    "lea rsp, [rsp + 128]",
    ".cfi_adjust_cfa_offset -128",
    "jmp r11",
    ".cfi_endproc",
    ".size bivouac_gate, . - bivouac_gate",
    numbers = const NUMBERS,
    kinds = sym KINDS,
    close = const Kind::Close as u8,
    open = const Kind::Open as u8,
    open_at = const Kind::OpenAt as u8,
    fds = const fds::NUMBERS,
    words = sym WORDS,
    state = const fds::STATE,
    foreign = const fds::FOREIGN,
    changing = const fds::CHANGING,
    anonymous = const libc::MAP_ANONYMOUS,
    looked_at = const LOOKED_AT_BIT,
    vectors = sym VECTORS,
    components = sym COMPONENTS,
    header = const HEADER,
    ask = sym ask,
);

#[cfg(test)]
mod tests;
