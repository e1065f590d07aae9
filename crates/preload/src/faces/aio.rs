//! POSIX asynchronous I/O (`<aio.h>`). The C library's helper threads make system calls that no symbol leads
//! to, and would meet the placeholder descriptor. So an operation on a file of the mount is done within the
//! call that asks for it, and is complete when that returns.
//!
//! The outcome is kept where the C library itself keeps it, in the control block. Its own `aio_error`,
//! `aio_return`, `aio_suspend` and `aio_cancel` look there (an operation that is complete is never looked up
//! among the threads' requests), so they need no faces, and lists of both kinds of files work. Notifications
//! are delivered by the C library too: it delivers the one of a `lio_listio` at once when there is nothing to
//! do.

use crate::raw::result;
use crate::vfs::{self, Errno, data, fds};
use bivouac_proto::attr::TRANSFER_MAX;
use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

use super::real::{FAULT, restore_errno, saved_errno};
use super::{bytes, room};

/// A control block, `struct aiocb`, which is `struct aiocb64` as well.
#[repr(C)]
pub struct Block {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    buffer: *mut c_void,
    len: usize,
    event: libc::sigevent,
    /// The C library's own, for its queue.
    next: *mut Block,
    absolute_priority: c_int,
    policy: c_int,
    /// What `aio_error` answers.
    error: AtomicI32,
    /// What `aio_return` answers.
    returned: isize,
    offset: i64,
    reserved: [u8; 32],
}

const _: () = assert!(
    size_of::<Block>() == size_of::<libc::aiocb>()
        && offset_of!(Block, event) == offset_of!(libc::aiocb, aio_sigevent)
        && offset_of!(Block, offset) == offset_of!(libc::aiocb, aio_offset)
);

/// How much lower than the process's an operation's priority may be (`AIO_PRIO_DELTA_MAX`).
const MAX_PRIORITY: c_int = 20;

real! {
    real_aio_read = aio_read(block: *mut Block) -> c_int, else -1;
    real_aio_write = aio_write(block: *mut Block) -> c_int, else -1;
    real_aio_fsync = aio_fsync(kind: c_int, block: *mut Block) -> c_int, else -1;
    real_lio_listio = lio_listio(
        mode: c_int, list: *const *mut Block, count: c_int, event: *mut libc::sigevent,
    ) -> c_int, else -1;
}

/// Something to do with a file of the mount.
#[derive(Clone, Copy)]
enum Operation {
    Read,
    Write,
    Sync {
        data_only: bool,
    },
    /// An unknown one, in a list.
    Unknown,
}

/// Whether a control block is for a file of the mount.
///
/// # Safety
/// `block` is null or points to a control block.
unsafe fn is_ours(block: *const Block) -> bool {
    // SAFETY: promised by the caller.
    match unsafe { block.as_ref() } {
        Some(block) => !fds::is_foreign(block.fd) && fds::is_ours(block.fd),
        None => false,
    }
}

/// Moves the bytes.
///
/// # Safety
/// The buffer is as the operation needs it.
unsafe fn perform(block: &Block, operation: Operation) -> Result<usize, Errno> {
    let len = block.len.min(TRANSFER_MAX);
    let transfers = matches!(operation, Operation::Read | Operation::Write);
    if transfers && len > 0 && block.buffer.is_null() {
        return Err(FAULT);
    }
    match operation {
        // SAFETY: promised by the caller.
        Operation::Read => data::pread(block.fd, unsafe { room(block.buffer, len) }, block.offset),
        // SAFETY: likewise.
        Operation::Write => data::pwrite(block.fd, unsafe { bytes(block.buffer, len) }, block.offset),
        Operation::Sync { data_only } => vfs::fsync(block.fd, data_only).map(|()| 0),
        Operation::Unknown => Err(Errno::INVAL),
    }
}

/// Does an operation, keeps its outcome and delivers its notification. Fails when it can't be accepted at
/// all. Answers whether it succeeded.
///
/// # Safety
/// As for `aio_read` and its relatives; `block` is for a file of the mount.
unsafe fn run(block: *mut Block, operation: Operation) -> Result<bool, Errno> {
    // SAFETY: the control block and its buffer belong to the operation until it is complete.
    let (outcome, mut event) = unsafe {
        let block = &mut *block;
        let accepted = (0..=MAX_PRIORITY).contains(&block.priority);
        let outcome = if accepted { perform(block, operation) } else { Err(Errno::INVAL) };
        let event = block.event;
        block.returned = outcome.map_or(-1, |count| count as isize);
        // Other threads may be polling: what they see after this store is complete.
        block.error.store(outcome.err().map_or(0, |errno| c_int::from(errno.0)), Ordering::Release);
        if !accepted {
            return Err(Errno::INVAL);
        }
        (outcome, event)
    };
    // From here on the program may have freed the control block.
    if event.sigev_notify != libc::SIGEV_NONE {
        let errno = saved_errno();
        let nothing = [null_mut()];
        // SAFETY: a list without operations; list and event live through the call.
        unsafe { real_lio_listio(libc::LIO_NOWAIT, nothing.as_ptr(), 1, &raw mut event) };
        restore_errno(errno);
    }
    Ok(outcome.is_ok())
}

/// # Safety
/// As for `aio_fsync`.
unsafe fn sync(kind: c_int, block: *mut Block) -> Result<(), Errno> {
    if kind != libc::O_DSYNC && kind != libc::O_SYNC {
        return Err(Errno::INVAL);
    }
    // SAFETY: promised by the caller.
    unsafe { run(block, Operation::Sync { data_only: kind == libc::O_DSYNC }) }.map(|_| ())
}

/// Carries out those operations of a list that are ours, then leaves the others and the list's own
/// notification to the C library.
///
/// # Safety
/// As for `lio_listio`.
unsafe fn list_io(
    mode: c_int,
    list: *const *mut Block,
    count: c_int,
    event: *mut libc::sigevent,
) -> Result<(), Errno> {
    let forward = |list| {
        // SAFETY: promised by the caller of `list_io`.
        let answer = unsafe { real_lio_listio(mode, list, count, event) };
        if answer == 0 { Ok(()) } else { Err(super::real::last_error()) }
    };
    let known = mode == libc::LIO_WAIT || mode == libc::LIO_NOWAIT;
    let len = usize::try_from(count).unwrap_or(0);
    if !vfs::active() || !known || len == 0 || list.is_null() {
        return forward(list);
    }
    // SAFETY: promised by the caller.
    let blocks = unsafe { std::slice::from_raw_parts(list, len) };
    // SAFETY: null, or control blocks.
    if !blocks.iter().any(|&block| unsafe { is_ours(block) }) {
        return forward(list);
    }
    let mut others = Vec::new();
    others.try_reserve_exact(len).map_err(|_| Errno(libc::EAGAIN as u16))?;
    let mut failure = None;
    for &block in blocks {
        // SAFETY: null, or a control block.
        if !unsafe { is_ours(block) } {
            others.push(block);
            continue;
        }
        others.push(null_mut());
        // SAFETY: ours, so it is a control block.
        let operation = match unsafe { (*block).operation } {
            libc::LIO_READ => Operation::Read,
            libc::LIO_WRITE => Operation::Write,
            libc::LIO_NOP => continue,
            _ => Operation::Unknown,
        };
        // SAFETY: promised by the caller.
        match unsafe { run(block, operation) } {
            Ok(true) => {}
            // A program that does not wait learns of the error from the control block.
            Ok(false) if mode == libc::LIO_NOWAIT => {}
            Err(errno) if mode == libc::LIO_NOWAIT => failure = Some(errno),
            Ok(false) | Err(_) => failure = Some(Errno::IO),
        }
    }
    forward(others.as_ptr())?;
    failure.map_or(Ok(()), Err)
}

/// # Safety
/// As for `aio_read`.
unsafe fn read(block: *mut Block) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        if is_ours(block) { result(run(block, Operation::Read).map(|_| ())) } else { real_aio_read(block) }
    }
}

/// # Safety
/// As for `aio_write`.
unsafe fn write(block: *mut Block) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        if is_ours(block) { result(run(block, Operation::Write).map(|_| ())) } else { real_aio_write(block) }
    }
}

/// # Safety
/// As for `aio_fsync`.
unsafe fn fsync(kind: c_int, block: *mut Block) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { if is_ours(block) { result(sync(kind, block)) } else { real_aio_fsync(kind, block) } }
}

faces! {
    fn aio_read(block: *mut Block) -> c_int { read(block) }
    fn aio_read64(block: *mut Block) -> c_int { read(block) }
    fn aio_write(block: *mut Block) -> c_int { write(block) }
    fn aio_write64(block: *mut Block) -> c_int { write(block) }
    fn aio_fsync(kind: c_int, block: *mut Block) -> c_int { fsync(kind, block) }
    fn aio_fsync64(kind: c_int, block: *mut Block) -> c_int { fsync(kind, block) }
    fn lio_listio(mode: c_int, list: *const *mut Block, count: c_int, event: *mut libc::sigevent) -> c_int {
        result(list_io(mode, list, count, event))
    }
    fn lio_listio64(mode: c_int, list: *const *mut Block, count: c_int, event: *mut libc::sigevent) -> c_int {
        result(list_io(mode, list, count, event))
    }
}
