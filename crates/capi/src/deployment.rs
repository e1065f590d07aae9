//! Deployments that the process is attached to, and what is open in each.

use crate::dir::Dir;
use crate::error::{Failed, answer, status};
use crate::file::File;
use crate::text::{put, text};
use bivouac_client::host::{Host, Plain};
use bivouac_client::{Client, ClientError, Environment};
use bivouac_layout::{Ino, ServerState};
use bivouac_proto::Errno;
use bivouac_proto::auth::{KEY_LEN, Key};
use std::collections::HashSet;
use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A deployment that the process is attached to. Each open file and directory has a reference to it, and so has the program
/// until it detaches.
pub struct Deployment {
    pub(crate) client: Arc<Client>,
    /// The client is the preload library's.
    shared: bool,
    mount: CString,
    host: CString,
    pub(crate) opens: Opens,
}

/// The preload library's client of a deployment, if it has one of it.
type Shared = fn(&str) -> Option<Arc<Client>>;

static SHARED: OnceLock<(Shared, &'static dyn Host)> = OnceLock::new();

/// Has deployments that the preload library uses be used through its client, and others as its host has it. To be called once, by
/// that library.
pub fn share(shared: Shared, host: &'static dyn Host) {
    let _ = SHARED.set((shared, host));
}

/// What is open in a deployment, by its address, so that detaching can close it. A forked child begins with nothing.
pub(crate) struct Opens(AtomicPtr<Known>);

#[derive(Default)]
struct Known {
    forks: u64,
    all: Mutex<HashSet<Open>>,
}

/// Something open.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Open {
    File(*mut File),
    Dir(*mut Dir),
}

// SAFETY: only addresses; who takes one out of the set owns what is there.
unsafe impl Send for Open {}

impl Opens {
    fn new(forks: u64) -> Opens {
        Opens(AtomicPtr::new(Box::into_raw(Box::new(Known { forks, ..Known::default() }))))
    }

    fn known(&self, forks: u64) -> &Mutex<HashSet<Open>> {
        let mut known = self.0.load(Ordering::Acquire);
        // SAFETY: from Box::into_raw; never freed while `self` lives.
        while unsafe { (*known).forks } != forks {
            // A thread that this process does not have may have held the lock: what the parent had open is left alone.
            let new = Box::into_raw(Box::new(Known { forks, ..Known::default() }));
            match self.0.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => known = new,
                Err(now) => {
                    // SAFETY: another thread was first, and ours was not published.
                    drop(unsafe { Box::from_raw(new) });
                    known = now;
                }
            }
        }
        // SAFETY: as above.
        unsafe { &(*known).all }
    }

    pub(crate) fn add(&self, forks: u64, open: Open) {
        self.known(forks).lock().unwrap_or_else(PoisonError::into_inner).insert(open);
    }

    /// Whether it was open: then it is the caller's.
    pub(crate) fn take(&self, forks: u64, open: Open) -> bool {
        self.known(forks).lock().unwrap_or_else(PoisonError::into_inner).remove(&open)
    }

    fn take_all(&self, forks: u64) -> HashSet<Open> {
        std::mem::take(&mut *self.known(forks).lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Opens {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw, and nobody else uses it any more.
        drop(unsafe { Box::from_raw(*self.0.get_mut()) });
    }
}

impl Deployment {
    fn attach(name: Option<&str>, key: Option<Key>) -> Result<Arc<Deployment>, Failed> {
        let environment = Environment::from_env();
        let named = name.or(environment.as_ref().map(|environment| &*environment.name));
        let (shared, host) =
            SHARED.get().map_or((None, &Plain as &'static dyn Host), |(shared, host)| (Some(shared), *host));
        let shared = shared.zip(named).filter(|_| key.is_none());
        let (client, is_shared) = match (shared.and_then(|(shared, name)| shared(name)), name, &environment) {
            (Some(client), ..) => (client, true),
            (None, Some(name), _) => (Client::attach_named(name, key, host)?, false),
            (None, None, Some(environment)) => (Client::attach(environment, host)?, false),
            (None, None, None) => return Err(ClientError::Unnamed.into()),
        };
        let plain = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
        let (mount, host) = {
            let map = client.deployment_map();
            let node = map.nodes.iter().find(|node| node.id == client.node());
            (plain(client.mount()), plain(node.map_or(b"", |node| node.host.as_bytes())))
        };
        let opens = Opens::new(client.forks());
        Ok(Arc::new(Deployment { client, shared: is_shared, mount, host, opens }))
    }

    fn detach(&self) {
        for open in self.opens.take_all(self.client.forks()) {
            match open {
                // SAFETY: it was open, from Box::into_raw, and nobody uses it any more, as `bivouac.h` demands.
                Open::File(file) => unsafe { Box::from_raw(file) }.close(),
                // SAFETY: as above.
                Open::Dir(dir) => drop(unsafe { Box::from_raw(dir) }),
            }
        }
        if !self.shared {
            self.client.detach();
        }
    }
}

/// Gives the program its reference.
///
/// # Safety
/// `place` is NULL or valid for a write.
unsafe fn hand_over(attached: Arc<Deployment>, place: *mut *const Deployment) -> Result<(), Failed> {
    let program = Arc::into_raw(attached);
    // SAFETY: as the caller says.
    unsafe { put(place, program) }.inspect_err(|_| {
        // SAFETY: the program has not got it.
        unsafe { Arc::from_raw(program) }.detach();
    })
}

/// The deployment that a program means.
///
/// # Safety
/// `deployment` is NULL, or came from [`bivouac_attach`] and is not detached before `'a` ends.
pub(crate) unsafe fn of<'a>(deployment: *const Deployment) -> Result<&'a Deployment, Failed> {
    // SAFETY: as the caller says.
    unsafe { deployment.as_ref() }
        .ok_or_else(|| Failed::new(Errno::INVAL, "a NULL was given for a deployment"))
}

/// A reference of one's own to it.
///
/// # Safety
/// As for [`of`].
pub(crate) unsafe fn owned(deployment: *const Deployment) -> Result<Arc<Deployment>, Failed> {
    // SAFETY: as the caller says; it came from `Arc::into_raw`, and the program's reference keeps it alive.
    unsafe {
        of(deployment)?;
        Arc::increment_strong_count(deployment);
        Ok(Arc::from_raw(deployment))
    }
}

fn utf8(text: &[u8]) -> Result<&str, Failed> {
    std::str::from_utf8(text).map_err(|_| Failed::new(Errno::INVAL, "the name of a deployment is ASCII"))
}

/// A key, from its hexadecimal digits.
fn key(digits: &[u8]) -> Result<Key, Failed> {
    let wrong = || Failed::new(Errno::INVAL, format!("a key has {} hexadecimal digits", 2 * KEY_LEN));
    Key::from_hex(digits.trim_ascii()).ok_or_else(wrong)
}

/// See `bivouac.h`.
///
/// # Safety
/// `name` is NULL or ends with NUL; `deployment` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_attach(name: *const c_char, deployment: *mut *const Deployment) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let name = if name.is_null() { None } else { Some(utf8(unsafe { text(name) }?)?) };
        let attached = Deployment::attach(name, None)?;
        // SAFETY: as the caller says.
        unsafe { hand_over(attached, deployment) }
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `name` and `digits` are NULL or end with NUL; `deployment` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_attach_with_key(
    name: *const c_char,
    digits: *const c_char,
    deployment: *mut *const Deployment,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (name, key) = unsafe { (utf8(text(name)?)?, key(text(digits)?)?) };
        let attached = Deployment::attach(Some(name), Some(key))?;
        // SAFETY: as the caller says.
        unsafe { hand_over(attached, deployment) }
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or came from [`bivouac_attach`]; nobody uses it, or what is open in it, from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_detach(deployment: *const Deployment) {
    if !deployment.is_null() {
        answer(|| {
            // SAFETY: from Arc::into_raw, and by this call the program gives its reference back.
            unsafe { Arc::from_raw(deployment) }.detach();
            Ok(0)
        });
    }
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or came from [`bivouac_attach`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_mount_path(deployment: *const Deployment) -> *const c_char {
    // SAFETY: as the caller says.
    unsafe { of(deployment) }.map_or(c"".as_ptr(), |deployment| deployment.mount.as_ptr())
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or came from [`bivouac_attach`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_host(deployment: *const Deployment) -> *const c_char {
    // SAFETY: as the caller says.
    unsafe { of(deployment) }.map_or(c"".as_ptr(), |deployment| deployment.host.as_ptr())
}

/// `BIVOUAC_API`.
const API: c_int = 1;

/// See `bivouac.h`.
#[unsafe(no_mangle)]
pub extern "C" fn bivouac_api() -> c_int {
    API
}

/// See `bivouac.h`.
#[unsafe(no_mangle)]
pub extern "C" fn bivouac_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// `struct bivouac_space`.
#[repr(C)]
pub struct bivouac_space {
    total: u64,
    available: u64,
    files: u64,
    block_size: u32,
    servers: u32,
    reserved: [u64; 4],
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or came from [`bivouac_attach`]; `space` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_statfs(deployment: *const Deployment, space: *mut bivouac_space) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let client = &unsafe { of(deployment) }?.client;
        let known = client.statfs(Ino::ROOT)?;
        let up = client.deployment_map().servers.iter().filter(|s| s.state == ServerState::Up).count();
        let found = bivouac_space {
            total: known.total,
            available: known.available,
            files: known.inodes,
            block_size: known.block_size,
            servers: up as u32,
            reserved: [0; 4],
        };
        // SAFETY: as the caller says.
        unsafe { put(space, found) }
    })
}
