//! Whether a deployment is configured, and the process's one client.
//!
//! Where there is no kernel mount, the library takes paths and descriptors over: it is [`active`]. Beside a
//! mount ([`beside`]) it leaves them to the kernel, and only knows which descriptors are the mount's.
//!
//! The client is attached at the first call that needs it, by one thread while others wait. If nothing
//! answers, the process is told once on stderr, and calls on the mount fail with EIO; a second later the next
//! call tries again, because the daemons may have been started meanwhile.

use crate::boundary;
use crate::hidden::{self, Preloaded};
use crate::raw;
use bivouac_client::Client;
use bivouac_layout::Ino;
use bivouac_node::release::monotonic;
use bivouac_node::{Environment, process};
use bivouac_proto::Errno;
use std::ffi::{CStr, c_char};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

const UNDECIDED: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
const BESIDE: u8 = 3;

static MODE: AtomicU8 = AtomicU8::new(UNDECIDED);
static CONFIG: AtomicPtr<Environment> = AtomicPtr::new(std::ptr::null_mut());
static ROOTS: AtomicPtr<Roots<'static>> = AtomicPtr::new(std::ptr::null_mut());
static CLIENT: AtomicPtr<Arc<Client>> = AtomicPtr::new(std::ptr::null_mut());
/// The state of attaching: 0 for none; the process (upper half) and the thread that attaches now; or
/// [`FAILED`] and when that was, milliseconds.
static ATTACHING: AtomicU64 = AtomicU64::new(0);
/// No process's number.
const FAILED: u64 = u32::MAX as u64;
/// How long nothing is tried after a failure, milliseconds.
const PAUSE: u32 = 1000;
/// The process has been told that nothing answers.
static TOLD: AtomicBool = AtomicBool::new(false);
/// The process's umask; kept by the `umask` face.
static UMASK: AtomicU32 = AtomicU32::new(0o022);

/// Whether paths and descriptors of a deployment are taken over. When not, the faces of most calls go
/// straight to the kernel.
#[inline]
pub fn active() -> bool {
    match MODE.load(Ordering::Relaxed) {
        ON => true,
        OFF | BESIDE => false,
        _ => decide_late() == ON,
    }
}

/// Whether anything is known of descriptors: active, or beside a mount. When not, every face goes straight to
/// the kernel.
#[inline]
pub fn tracking() -> bool {
    match MODE.load(Ordering::Relaxed) {
        ON | BESIDE => true,
        OFF => false,
        _ => decide_late() != OFF,
    }
}

/// Whether there is a mount, and this library only speeds up what is done with its files.
#[inline]
pub fn beside() -> bool {
    MODE.load(Ordering::Relaxed) == BESIDE
}

/// Before the library's start. (Not inlined: this is no place for an [`Environment`] on the stack.)
#[cold]
#[inline(never)]
fn decide_late() -> u8 {
    decide(Environment::from_env())
}

/// Decides at the start of the process, by the environment as the kernel passed it (libc may not have it
/// yet), whether the library is [`active`].
pub fn begin(envp: *const *const c_char) -> bool {
    decide(Environment::from_lookup(|name| variable(envp, name))) == ON
}

/// A variable of the environment that the kernel made for the process.
pub fn variable<'a>(envp: *const *const c_char, name: &CStr) -> Option<&'a CStr> {
    let name = name.to_bytes();
    let mut at = envp;
    loop {
        // SAFETY: the environment is an array of C strings, ended by NULL, that lasts as long as the process.
        let entry = unsafe {
            if at.is_null() || (*at).is_null() {
                return None;
            } else {
                CStr::from_ptr(*at)
            }
        };
        let value = entry.to_bytes_with_nul().strip_prefix(name).and_then(|rest| rest.strip_prefix(b"="));
        if let Some(value) = value {
            return CStr::from_bytes_with_nul(value).ok();
        }
        // SAFETY: the entry was not NULL, so there is another.
        at = unsafe { at.add(1) };
    }
}

#[cold]
fn decide(environment: Option<Environment>) -> u8 {
    let Some(environment) = environment else {
        MODE.store(OFF, Ordering::Relaxed);
        return OFF;
    };
    // A process that the mount was not meant for, or does not reach (on another node), has the library alone.
    let mode = match environment.mounted {
        Some(device) if super::beside::is_mounted(&environment.mount, device) => BESIDE,
        _ => ON,
    };
    let environment = Box::into_raw(Box::new(environment));
    if CONFIG
        .compare_exchange(std::ptr::null_mut(), environment, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        // SAFETY: not published.
        drop(unsafe { Box::from_raw(environment) });
    } else {
        let roots = Box::new([(mount(), Ino::ROOT), (forwarded(), Ino::FORWARDED)]);
        ROOTS.store(Box::into_raw(roots), Ordering::Release);
        learn_umask();
        process::know_from_the_start();
        read_file_size_limit();
    }
    MODE.store(mode, Ordering::Release);
    mode
}

fn learn_umask() {
    // There is no way to look without changing; the strict value is in force only for a moment.
    if let Ok(mask) = sys!(SYS_umask, 0o077) {
        let _ = sys!(SYS_umask, mask);
        UMASK.store(mask as u32, Ordering::Relaxed);
    }
}

/// `umask(2)`, remembered.
pub fn umask(mask: u32) -> u32 {
    let old = sys!(SYS_umask, mask).unwrap_or(0) as u32;
    if tracking() && !borrowed() {
        UMASK.store(mask & 0o777, Ordering::Relaxed);
    }
    old
}

fn read_file_size_limit() {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let limit = std::ptr::from_mut(&mut limit);
    if sys!(SYS_prlimit64, 0, libc::RLIMIT_FSIZE, 0, limit).is_ok() {
        // SAFETY: points to the variable above.
        hidden::set_file_size_limit(unsafe { (*limit).rlim_cur });
    }
}

/// The process has set its limit on the size of files. (That of a `vfork` child is not its parent's.)
pub fn learn_file_size_limit() {
    if tracking() && !borrowed() {
        read_file_size_limit();
    }
}

/// A mode for a new file, with the umask applied.
pub fn masked(mode: u32) -> u32 {
    mode & !UMASK.load(Ordering::Relaxed)
}

/// The configured deployment.
pub fn environment() -> Option<&'static Environment> {
    let config = CONFIG.load(Ordering::Acquire);
    // SAFETY: once set, it is never changed or freed.
    (!config.is_null()).then(|| unsafe { &*config })
}

/// The mount point; empty without a deployment (it is asked for only with one).
pub fn mount() -> &'static [u8] {
    environment().map_or(b"", |environment| environment.mount.as_bytes())
}

/// The directory of the site's storage that is forwarded; empty if none is.
pub fn forwarded() -> &'static [u8] {
    environment().and_then(|environment| environment.forwarded.as_deref()).map_or(b"", str::as_bytes)
}

/// The directories that are the client's, each with its inode. A path that is empty is none.
pub type Roots<'r> = [(&'r [u8], Ino); 2];

/// The mount point, and the directory that is forwarded. (They are not built where they are used: that takes stack.)
pub fn roots() -> &'static Roots<'static> {
    static NONE: Roots<'static> = [(b"", Ino::ROOT), (b"", Ino::FORWARDED)];
    let known = ROOTS.load(Ordering::Acquire);
    if known.is_null() {
        return &NONE;
    }
    // SAFETY: once set, it is never changed or freed.
    unsafe { &*known }
}

/// Whether this is a `vfork` child (or another process that shares this memory): descriptors, working
/// directory and umask are its own, so what it changes must not be written down here.
pub fn borrowed() -> bool {
    process::real_pid() != process::pid()
}

/// Whether there is a client: this process has used the mount.
pub fn has_client() -> bool {
    active() && !CLIENT.load(Ordering::Acquire).is_null()
}

/// Sends servers the closes that were kept, because this program is about to end.
pub fn tell_closes() {
    if has_client() && !borrowed() {
        let _ = boundary::attempt(|| client().map(|client| client.tell_closes()));
    }
}

/// The client. EIO when no daemon answers.
///
/// A `vfork` child gets one of its own ([`super::borrow`]): connections that it makes are descriptors of its
/// own, which must not come into its parent's pools.
pub fn client() -> Result<&'static Arc<Client>, Errno> {
    if borrowed() {
        return super::borrow::client();
    }
    let client = CLIENT.load(Ordering::Acquire);
    if client.is_null() {
        return attach();
    }
    // SAFETY: once set, it is never changed or freed.
    Ok(unsafe { &*client })
}

/// The client, for functions of the C library that mean the deployment of this name. `None`: it is another one than this
/// library's, or none can be had.
pub fn shared(name: &str) -> Option<Arc<Client>> {
    let is_ours = environment().is_some_and(|environment| environment.name == name);
    // A `vfork` child's client is not for keeping.
    if is_ours && !borrowed() { client().ok().cloned() } else { None }
}

#[cold]
fn attach() -> Result<&'static Arc<Client>, Errno> {
    let process = u64::from(process::pid()) << 32;
    let me = process | u64::from(process::tid());
    loop {
        let client = CLIENT.load(Ordering::Acquire);
        if !client.is_null() {
            // SAFETY: as in `client`.
            return Ok(unsafe { &*client });
        }
        match ATTACHING.load(Ordering::Acquire) {
            failed if failed >> 32 == FAILED && millis().wrapping_sub(failed as u32) < PAUSE => {
                return Err(Errno::IO);
            }
            // This same thread is attaching, and was interrupted by a signal whose handler uses the mount:
            // waiting would never end.
            thread if thread == me => return Err(Errno::IO),
            // Another thread is attaching.
            thread if thread >> 32 == process >> 32 => {
                let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 100_000 };
                let _ = rustix::thread::nanosleep(&pause);
            }
            // No thread is attaching, or only one of the process that this one was forked from; or it is time
            // to try again.
            other => {
                if ATTACHING.compare_exchange(other, me, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    let made = make_client();
                    if let Ok(client) = made {
                        CLIENT.store(std::ptr::from_ref(client).cast_mut(), Ordering::Release);
                    }
                    let state = if made.is_ok() { 0 } else { FAILED << 32 | u64::from(millis()) };
                    ATTACHING.store(state, Ordering::Release);
                    return made;
                }
            }
        }
    }
}

fn millis() -> u32 {
    (monotonic() / 1_000_000) as u32
}

pub(super) fn make_client() -> Result<&'static Arc<Client>, Errno> {
    let environment = environment().ok_or(Errno::IO)?;
    let attached = boundary::attempt(|| Client::attach(environment, &Preloaded));
    match attached {
        Ok(Ok(client)) => Ok(Box::leak(Box::new(client))),
        // The mount will say what there is to say.
        Ok(Err(_)) if beside() => Err(Errno::IO),
        Ok(Err(error)) => {
            if !TOLD.swap(true, Ordering::Relaxed) {
                raw::complain(&format!("{} cannot be used: {error}", environment.mount));
            }
            Err(Errno::IO)
        }
        Err(_) => Err(Errno::IO),
    }
}

/// A panic inside a program that knows nothing of Rust prints nothing: the call fails with EIO.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// Runs what enters the client. Not inlined: what it needs on the stack is not to be there in calls that do
/// not come here.
#[inline(never)]
pub fn apart<T, E>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    body()
}
