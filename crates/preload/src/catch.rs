//! System calls that libc makes inside itself, caught at their instructions (an option: `--catch-syscalls`).
//!
//! Faces see what goes through symbols. When libc opens a message catalogue, a locale or a time zone, or when
//! a program takes `open` from libc by a handle, nothing goes through symbols. With this option, `syscall`
//! instructions of libc and of the loader ask the library first, as if each had a face.
//!
//! # How
//! Once, before the program has threads, for each loaded library of libc's family ([`objects`]):
//! - [`sites`] finds its `syscall` instructions. Bytes that look like one are candidates; the unwind
//!   table ([`functions`]) tells in which function each lies, and that function is disassembled from its
//!   beginning. Only calls on files count: where the number is known from the code, all others are left
//!   alone, and cost nothing.
//! - Of each site *the one instruction before* the `syscall` is replaced by a jump to a trampoline
//!   ([`patch`]), which does what that instruction did and goes on to the gate. Nothing but a whole
//!   instruction is ever overwritten, so that no jump from elsewhere can land in the middle of what was
//!   written, and it need not be known where jumps lead. An instruction too short for a long jump becomes a
//!   short one into padding that nothing runs into, where the long one is. What cannot be replaced so (it
//!   uses the instruction pointer, or is a jump itself, or there is no padding near) is left alone, and
//!   counted.
//! - The [`gate`] asks the [`door`] whether the call concerns the mount. If not, it goes on *at the `syscall`
//!   instruction in its old place*, with all registers as they were. So cancellation, restarted calls,
//!   signals, unwinding and whatever looks at the instruction pointer find what they always found. If yes, it
//!   goes on behind it, with the result.
//!
//! # What it relies on
//! A `syscall` instruction changes rax, rcx and r11 (and, for compilers, the flags), so code may use these
//! before it. 128 bytes below the stack pointer may be in use. All other registers, vectors included, are
//! kept. What is served does not come back to be served again: the library's own calls are its own
//! instructions, and of libc it calls only what then passes, or what is done in another way there (a
//! descriptor that is the kernel's, an `open` that a face has looked at).
//!
//! A thread may be cancelled at any time in a call that passes, as ever. (In the few instructions of a
//! trampoline it would be ended without unwinding: only `pthread_cleanup_push` of C counts then.) In a call
//! that is served, it is not cancelled.
//!
//! # Where it cannot be done
//! On other machines, or where the kernel does not allow code to be changed (some SELinux policies), the
//! library prints one line about it, and the program runs as without the option. In each library of libc's
//! family, either all sites that were found are changed, or none.

#[cfg(target_arch = "x86_64")]
mod door;
#[cfg(target_arch = "x86_64")]
mod functions;
#[cfg(target_arch = "x86_64")]
mod gate;
#[cfg(target_arch = "x86_64")]
mod objects;
#[cfg(target_arch = "x86_64")]
mod patch;
#[cfg(target_arch = "x86_64")]
mod sites;

use crate::raw::complain;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A bit of `open`'s flags that the kernel ignores, by which a face tells the gate that it has looked at the
/// path already.
pub const LOOKED_AT: i32 = 1 << LOOKED_AT_BIT;
const LOOKED_AT_BIT: u32 = 30;

static ON: AtomicBool = AtomicBool::new(false);

/// The flag that a face adds to an `open` that it passes to libc.
#[inline(always)]
pub fn open_mark() -> i32 {
    if ON.load(Ordering::Relaxed) { LOOKED_AT } else { 0 }
}

/// Changes libc's code, if the environment variable asks for it. To be called once, while there is only one
/// thread, if a deployment is configured.
#[cold]
pub fn begin(variable: Option<&CStr>) {
    let value = variable.map_or(&b""[..], CStr::to_bytes);
    if value.is_empty() || value == b"0" {
        return;
    }
    let report = value == b"report";
    match start() {
        Ok(done) => {
            if report {
                let Done { caught, left } = done;
                complain(&format!(
                    "{caught} system call instructions of libc are caught, {left} are left alone"
                ));
            }
        }
        Err(why) => complain(&format!("libc's own system calls are not caught: {why}")),
    }
}

/// What was done.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
struct Done {
    caught: usize,
    left: usize,
}

#[cfg(not(target_arch = "x86_64"))]
fn start() -> Result<Done, &'static str> {
    Err("that is known for x86_64 only")
}

#[cfg(target_arch = "x86_64")]
fn start() -> Result<Done, patch::Failed> {
    gate::prepare()?;
    let mut done = Done { caught: 0, left: 0 };
    let objects = objects::of_libc();
    if objects.is_empty() {
        return Err(patch::Failed::NoLibc);
    }
    for object in objects {
        let found = sites::find(&object.image, &object.code, &object.functions(), door::concerns);
        patch::apply(object.code.clone(), &found.sites, gate::address())?;
        done.caught += found.sites.len();
        done.left += found.left;
        ON.store(true, Ordering::Relaxed);
    }
    Ok(done)
}
