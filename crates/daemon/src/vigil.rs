//! A word in shared memory that the kernel itself changes when this process dies.
//!
//! Processes of the node rely on a server's version page, and on its fence page, as long as the page is valid. A server that is
//! killed cannot invalidate it any more, and other daemons that could do so may be killed at the same time.
//! But the kernel can: when a thread dies, in whatever way, the kernel sets a bit in the word of each *robust
//! futex* that the thread owns. So a thread that does nothing else owns the page's word ([`Life`]) as long as the server
//! serves.
//!
//! The kernel finds these words by a list that each thread registers. libc has registered one for each
//! thread, for its own robust mutexes. This thread uses none of those: while it runs it registers a list with
//! the one word, and at its end it registers libc's list again.

use bivouac_node::{Fences, VersionPage};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

/// Shared memory with a word that is to hold the number of a thread that lives as long as the server.
pub(crate) trait Life: Send + Sync + 'static {
    fn life(&self) -> &AtomicU32;
}

impl Life for VersionPage {
    fn life(&self) -> &AtomicU32 {
        VersionPage::life(self)
    }
}

impl Life for Fences {
    fn life(&self) -> &AtomicU32 {
        self.page().life()
    }
}

/// The kernel's `struct robust_list_head`.
#[repr(C)]
struct Head {
    first: *const Link,
    /// From a link to its futex word, bytes.
    distance: isize,
    /// A link that is being put into the list, or taken out.
    pending: *const Link,
}

/// The kernel's `struct robust_list`: the last one leads back to the head.
#[repr(C)]
struct Link {
    next: *const Head,
}

/// Keeps a page valid until it is dropped or the process dies.
pub(crate) struct Vigil {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Vigil {
    /// Begins. On return the page is valid.
    pub(crate) fn begin(page: Arc<impl Life>) -> std::io::Result<Vigil> {
        let over = Arc::new(AtomicBool::new(false));
        let (until, (tell, told)) = (over.clone(), std::sync::mpsc::channel());
        let thread =
            std::thread::Builder::new().name("vigil".into()).stack_size(64 << 10).spawn(move || {
                let registered = Registered::new(page.life());
                let works = registered.is_ok();
                if works {
                    // SAFETY: a system call without arguments.
                    let me = unsafe { libc::gettid() }.unsigned_abs();
                    page.life().store(me, Ordering::Release);
                }
                let _ = tell.send(registered.as_ref().map(|_| ()).map_err(|e| e.raw_os_error()));
                while works && !until.load(Ordering::Acquire) {
                    std::thread::park();
                }
                page.life().store(0, Ordering::Release);
            })?;
        match told.recv() {
            Ok(Ok(())) => Ok(Vigil { over, thread: Some(thread) }),
            Ok(Err(Some(errno))) => Err(std::io::Error::from_raw_os_error(errno)),
            _ => Err(std::io::Error::other("the thread has ended")),
        }
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Registers the list of one word for this thread. When dropped, registers libc's list again.
struct Registered {
    libcs: *const Head,
    head: *mut Head,
    link: *mut Link,
}

impl Registered {
    fn new(life: &AtomicU32) -> std::io::Result<Registered> {
        let (mut libcs, mut length) = (ptr::null::<Head>(), 0usize);
        // SAFETY: the kernel writes an address and a length behind these pointers; 0 is this thread.
        let got = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut libcs, &raw mut length) };
        if got != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // Raw for their whole life: the kernel reads them at any time.
        let head = Box::into_raw(Box::new(Head { first: ptr::null(), distance: 0, pending: ptr::null() }));
        let link = Box::into_raw(Box::new(Link { next: head }));
        let registered = Registered { libcs, head, link };
        let word = ptr::from_ref(life) as isize;
        // SAFETY: made above, and known to nobody else yet.
        unsafe {
            (*head).first = link;
            (*head).distance = word - link as isize;
        }
        // SAFETY: the list is well formed, and stays until another one is registered in `drop`.
        let set = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
        if set == 0 { Ok(registered) } else { Err(std::io::Error::last_os_error()) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: what libc had registered for this very thread, which is still good.
        let set = unsafe { libc::syscall(libc::SYS_set_robust_list, self.libcs, size_of::<Head>()) };
        if set == 0 {
            // SAFETY: from Box::into_raw, and the kernel does not know them any more.
            unsafe {
                drop(Box::from_raw(self.head));
                drop(Box::from_raw(self.link));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_dies_with_its_server_however_that_ends() {
        let page = Arc::new(VersionPage::create().expect("made"));
        page.believe_until(VersionPage::FOR_EVER);
        let reader = VersionPage::attach(page.descriptor().expect("its own")).expect("attached");
        assert!(!reader.is_live());
        let vigil = Vigil::begin(page.clone()).expect("begins");
        assert!(reader.is_live());
        drop(vigil);
        assert!(!reader.is_live());
        for signal in [libc::SIGKILL, libc::SIGTERM] {
            // SAFETY: the child begins a thread, says so by the page, and waits for its end.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let vigil = Vigil::begin(page.clone());
                loop {
                    std::thread::park();
                    std::hint::black_box(&vigil);
                }
            }
            bivouac_testing::eventually("the child begins", || reader.is_live());
            let mut status = 0;
            // SAFETY: our own child, which is waited for once.
            let ended =
                unsafe { libc::kill(child, signal) == 0 && libc::waitpid(child, &mut status, 0) == child };
            assert!(ended && !reader.is_live(), "after signal {signal}");
        }
    }
}
