//! POSIX asynchronous I/O.
//!
//! glibc does it with helper threads and system calls of its own. For a file of ours the work is done within the call,
//! and the request is marked as finished where glibc's own `aio_error`, `aio_return` and `aio_suspend` look: so those
//! need no faces. What is asked to happen on completion happens.

use super::{bytes, room};
use crate::raw::{MAX_TRANSFER, errno, result};
use crate::vfs::{self, Errno, fds};
use std::ffi::{c_int, c_void};

/// glibc's `struct aiocb`, of which the members after the event are its own.
#[repr(C)]
pub struct Request {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    buffer: *mut c_void,
    len: usize,
    event: libc::sigevent,
    next: *mut Request,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    value: isize,
    offset: i64,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::aiocb>());

type Start = unsafe extern "C" fn(*mut Request) -> c_int;

/// Does a request on a file of ours, and marks it.
///
/// # Safety
/// `request` is a valid request, whose buffer is as long as it says.
unsafe fn finish(request: *mut Request, work: impl FnOnce(&Request) -> Result<usize, Errno>) {
    // SAFETY: promised by the caller.
    unsafe {
        let outcome = work(&*request);
        (*request).value = outcome.map_or(-1, |count| count as isize);
        (*request).error = outcome.err().map_or(0, |errno| c_int::from(errno.0));
        notify(&(*request).event);
    }
}

fn read(request: &Request) -> Result<usize, Errno> {
    // SAFETY: promised by the program: the buffer has room for `len` bytes.
    vfs::pread(request.fd, unsafe { room(request.buffer, request.len.min(MAX_TRANSFER)) }, request.offset)
}

fn write(request: &Request) -> Result<usize, Errno> {
    // SAFETY: promised by the program: the buffer holds `len` bytes.
    vfs::data::pwrite(
        request.fd,
        unsafe { bytes(request.buffer, request.len.min(MAX_TRANSFER)) },
        request.offset,
    )
}

/// Says that a request is done, in the way that the program asked for.
///
/// # Safety
/// `event` is what the program passed.
unsafe fn notify(event: &libc::sigevent) {
    extern "C" fn run(event: *mut c_void) -> *mut c_void {
        // SAFETY: made below by Box::into_raw, for this thread alone.
        let event = unsafe { Box::from_raw(event.cast::<(ThreadFunction, libc::sigval)>()) };
        event.0(event.1);
        std::ptr::null_mut()
    }
    match event.sigev_notify {
        libc::SIGEV_SIGNAL => {
            // SAFETY: a signal to this very process.
            unsafe { libc::sigqueue(libc::getpid(), event.sigev_signo, event.sigev_value) };
        }
        libc::SIGEV_THREAD => {
            // SAFETY: glibc's layout: the function stands first in the union behind the three numbers.
            let function =
                unsafe { std::ptr::from_ref(event).cast::<Option<ThreadFunction>>().add(2).read() };
            let Some(function) = function else { return };
            let job = Box::into_raw(Box::new((function, event.sigev_value)));
            let mut thread = 0;
            // SAFETY: the thread takes the job over; if there is none, it comes back.
            unsafe {
                if libc::pthread_create(&mut thread, std::ptr::null(), run, job.cast()) == 0 {
                    libc::pthread_detach(thread);
                } else {
                    drop(Box::from_raw(job));
                }
            }
        }
        _ => {}
    }
}

type ThreadFunction = extern "C" fn(libc::sigval);

fn is_ours(fd: c_int) -> bool {
    !fds::is_foreign(fd) && fds::is_ours(fd)
}

/// # Safety
/// `request` is a valid request.
unsafe fn start(
    request: *mut Request,
    work: impl FnOnce(&Request) -> Result<usize, Errno>,
    real: Option<Start>,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        if !is_ours((*request).fd) {
            return real.map_or_else(|| result(Err::<(), _>(Errno::NOSYS)), |real| real(request));
        }
        finish(request, work);
        0
    }
}

fn real_read() -> Option<Start> {
    next!("aio_read", fn(*mut Request) -> c_int)
}

fn real_write() -> Option<Start> {
    next!("aio_write", fn(*mut Request) -> c_int)
}

/// `lio_listio` with requests on files of ours among others.
///
/// # Safety
/// `list` points to `count` requests or NULLs, `event` is NULL or valid.
unsafe fn start_list(
    mode: c_int,
    list: *const *mut Request,
    count: c_int,
    event: *const libc::sigevent,
) -> c_int {
    let mut failed = false;
    // SAFETY: promised by the caller.
    unsafe {
        let list = std::slice::from_raw_parts(list, count as usize);
        for &request in list.iter().filter(|request| !request.is_null()) {
            let started = match (*request).operation {
                libc::LIO_READ => start(request, read, real_read()),
                libc::LIO_WRITE => start(request, write, real_write()),
                _ => continue,
            };
            failed |= started != 0 || is_ours((*request).fd) && (*request).error != 0;
        }
        if mode == libc::LIO_WAIT {
            for &request in list.iter().filter(|request| !request.is_null()) {
                while libc::aio_error(request.cast()) == libc::EINPROGRESS {
                    let one = [request.cast::<libc::aiocb>().cast_const()];
                    if libc::aio_suspend(one.as_ptr(), 1, std::ptr::null()) != 0 && errno() == Errno::INTR {
                        return -1;
                    }
                }
            }
        } else if let Some(event) = event.as_ref() {
            notify(event);
        }
    }
    if failed { result(Err::<(), _>(Errno::IO)) } else { 0 }
}

/// # Safety
/// As for [`start_list`].
unsafe fn any_ours(list: *const *mut Request, count: c_int) -> bool {
    let Ok(count) = usize::try_from(count) else { return false };
    if !vfs::active() || list.is_null() {
        return false;
    }
    // SAFETY: promised by the caller.
    unsafe {
        std::slice::from_raw_parts(list, count)
            .iter()
            .any(|request| request.as_ref().is_some_and(|r| is_ours(r.fd)))
    }
}

/// # Safety
/// As for `lio_listio`.
unsafe fn listed(mode: c_int, list: *const *mut Request, count: c_int, event: *mut libc::sigevent) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        if any_ours(list, count) {
            return start_list(mode, list, count, event);
        }
        let real = next!("lio_listio", fn(c_int, *const *mut Request, c_int, *mut libc::sigevent) -> c_int);
        real.map_or(-1, |real| real(mode, list, count, event))
    }
}

/// # Safety
/// `request` is a valid request.
unsafe fn synced(operation: c_int, request: *mut Request) -> c_int {
    // SAFETY: promised by the caller.
    unsafe {
        if is_ours((*request).fd) {
            finish(request, |request| vfs::fsync(request.fd, operation == libc::O_DSYNC).map(|()| 0));
            return 0;
        }
        next!("aio_fsync", fn(c_int, *mut Request) -> c_int).map_or(-1, |real| real(operation, request))
    }
}

/// # Safety
/// `request` is NULL or valid.
unsafe fn cancelled(fd: c_int, request: *mut Request) -> c_int {
    if is_ours(fd) {
        return libc::AIO_ALLDONE;
    }
    // SAFETY: promised by the caller.
    next!("aio_cancel", fn(c_int, *mut Request) -> c_int).map_or(-1, |real| unsafe { real(fd, request) })
}

faces! {
    fn aio_read(request: *mut Request) -> c_int { start(request, read, real_read()) }
    fn aio_read64(request: *mut Request) -> c_int { start(request, read, real_read()) }
    fn aio_write(request: *mut Request) -> c_int { start(request, write, real_write()) }
    fn aio_write64(request: *mut Request) -> c_int { start(request, write, real_write()) }
    fn aio_fsync(operation: c_int, request: *mut Request) -> c_int { synced(operation, request) }
    fn aio_fsync64(operation: c_int, request: *mut Request) -> c_int { synced(operation, request) }
    fn aio_cancel(fd: c_int, request: *mut Request) -> c_int { cancelled(fd, request) }
    fn aio_cancel64(fd: c_int, request: *mut Request) -> c_int { cancelled(fd, request) }
    fn lio_listio(mode: c_int, list: *const *mut Request, count: c_int, event: *mut libc::sigevent) -> c_int {
        listed(mode, list, count, event)
    }
    fn lio_listio64(mode: c_int, list: *const *mut Request, count: c_int, event: *mut libc::sigevent) -> c_int {
        listed(mode, list, count, event)
    }
}
