//! The number of this process and thread without a system call each time, and whether another process is
//! still alive.
//!
//! The process and thread numbers are cached, and `fork` must not leave the parent's in the child: the
//! process's is kept in a page that the kernel wipes on fork (MADV_WIPEONFORK), the thread's beside the
//! process's that it was learnt under. A `vfork` child, which shares its parent's memory, sees the parent's
//! numbers: that is as good, since the parent's thread waits for it.

use crate::fd::Fd;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    static THREAD: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The number of this process.
#[inline]
pub fn pid() -> u32 {
    let Some(cached) = page() else { return real_pid() };
    match cached.load(Ordering::Relaxed) {
        0 => {
            let pid = real_pid();
            cached.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

/// Finds out the number of this process now, and of each `fork` child when it begins. Otherwise a `vfork`
/// child might be the first to ask, and its number would be taken for its parent's.
pub fn know_from_the_start() {
    extern "C" fn learn() {
        pid();
    }
    pid();
    // SAFETY: the function may run at any time in a fork's child: it makes system calls only. (libc's list of
    // such functions is all that is touched, and where it has no room, all is as without this.)
    unsafe { libc::pthread_atfork(None, None, Some(learn)) };
}

/// The number of this process as the kernel says it: differs from [`pid`] in a `vfork` child.
pub fn real_pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// The number of this thread.
pub fn tid() -> u32 {
    let pid = pid();
    let fresh = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
    // A `vfork` child, which shares this memory, must not leave its number here.
    let borrowed = || real_pid() != pid;
    THREAD
        .try_with(|cached| match cached.get() {
            (known, tid) if known == pid => tid,
            _ => {
                let tid = fresh();
                if !borrowed() {
                    cached.set((pid, tid));
                }
                tid
            }
        })
        .unwrap_or_else(|_| fresh())
}

/// A number that differs between threads that share memory; a `vfork` child has that of its parent's thread.
pub fn thread_mark() -> usize {
    THREAD.try_with(|cached| std::ptr::from_ref(cached) as usize).unwrap_or(0)
}

/// Whether a process or thread is alive. A zombie is not.
pub fn is_alive(id: u32) -> bool {
    let Some(pid) = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw) else {
        return false;
    };
    if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    !is_zombie(id)
}

fn is_zombie(id: u32) -> bool {
    let mut path = [0u8; 32];
    let text = path_of_stat(id, &mut path);
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(text, flags, rustix::fs::Mode::empty()).map(Fd::from) else {
        return false;
    };
    let mut content = [0u8; 256];
    let Ok(n) = rustix::io::read(&file, &mut content[..]) else {
        return false;
    };
    // `number (name) state ...`; the name may hold anything, also `)`.
    let content = content.get(..n).unwrap_or_default();
    let Some(end) = content.iter().rposition(|b| *b == b')') else {
        return false;
    };
    matches!(content.get(end + 2), Some(b'Z' | b'X'))
}

fn path_of_stat(id: u32, buffer: &mut [u8; 32]) -> &[u8] {
    use std::io::Write;
    let mut rest = &mut buffer[..];
    let _ = write!(rest, "/proc/{id}/stat");
    let unused = rest.len();
    buffer.get(..32 - unused).unwrap_or_default()
}

/// The page that a fork wipes; `None` where the kernel cannot do that.
#[inline]
fn page() -> Option<&'static AtomicU32> {
    let known = PAGE.load(Ordering::Acquire);
    let page = if known.is_null() { make_page()? } else { known };
    // SAFETY: the page was mapped, is never unmapped, and holds zero bytes: a valid AtomicU32.
    Some(unsafe { &*page })
}

#[cold]
fn make_page() -> Option<*mut AtomicU32> {
    const LEN: usize = 4096;
    // SAFETY: a fresh anonymous mapping at a place of the kernel's choice.
    let page = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            LEN,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .ok()?;
    // SAFETY: the mapping is ours and has no content yet.
    let wiped = unsafe { rustix::mm::madvise(page, LEN, Advice::LinuxWipeOnFork) };
    let mine = page.cast::<AtomicU32>();
    let won = wiped.is_ok()
        && PAGE.compare_exchange(std::ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if won {
        return Some(mine);
    }
    // SAFETY: nobody else has seen the mapping.
    let _ = unsafe { rustix::mm::munmap(page, LEN) };
    let known = PAGE.load(Ordering::Acquire);
    (!known.is_null()).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel_also_in_another_thread() {
        assert_eq!(pid(), std::process::id());
        let here = tid();
        let there = std::thread::spawn(|| (tid(), pid())).join().unwrap();
        assert_ne!(here, there.0);
        assert_eq!(there.1, std::process::id());
    }

    #[test]
    fn a_fork_child_has_its_own_numbers() {
        let _alone = crate::table::tests::alone();
        let before = (pid(), tid());
        let child = crate::table::tests::in_child(move || {
            let own = std::process::id();
            (pid() == own && tid() == own && before.0 != own) as i32
        });
        assert_eq!(child, 1);
    }

    #[test]
    fn a_dead_child_that_nobody_waited_for_is_not_alive() {
        let _alone = crate::table::tests::alone();
        assert!(is_alive(pid()) && is_alive(tid()));
        let mut child = std::process::Command::new("/bin/sleep").arg("100").spawn().unwrap();
        assert!(is_alive(child.id()));
        child.kill().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while is_alive(child.id()) {
            assert!(std::time::Instant::now() < end, "a zombie counts as alive");
        }
        child.wait().unwrap();
        assert!(!is_alive(child.id()) && !is_alive(0) && !is_alive(u32::MAX));
    }
}
