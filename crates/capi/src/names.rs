//! Names: making, moving, removing them.

use crate::deployment::{Deployment, of};
use crate::error::{Failed, answer, status};
use crate::text::{path, room, text};
use bivouac_client::Client;
use bivouac_layout::Ino;
use libc::mode_t;
use std::ffi::{c_char, c_int, c_uint};

/// Does something with one path.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
unsafe fn with(
    deployment: *const Deployment,
    name: *const c_char,
    body: impl FnOnce(&Client, &[u8]) -> Result<(), Failed>,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (of(deployment)?, path(name)?) };
        body(&deployment.client, path)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_mkdir(
    deployment: *const Deployment,
    name: *const c_char,
    mode: mode_t,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { with(deployment, name, |client, path| Ok(client.mkdir(Ino::ROOT, path, mode).map(drop)?)) }
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_rmdir(deployment: *const Deployment, name: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { with(deployment, name, |client, path| Ok(client.rmdir(Ino::ROOT, path)?)) }
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_unlink(deployment: *const Deployment, name: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { with(deployment, name, |client, path| Ok(client.unlink(Ino::ROOT, path)?)) }
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `from` and `to` are NULL or end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_rename(
    deployment: *const Deployment,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, from, to) = unsafe { (of(deployment)?, path(from)?, path(to)?) };
        Ok(deployment.client.rename(Ino::ROOT, from, Ino::ROOT, to, flags)?)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `file` and `name` are NULL or end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_link(
    deployment: *const Deployment,
    file: *const c_char,
    name: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, file, name) = unsafe { (of(deployment)?, path(file)?, path(name)?) };
        Ok(deployment.client.link((Ino::ROOT, file, false), Ino::ROOT, name).map(drop)?)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `target` and `name` are NULL or end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_symlink(
    deployment: *const Deployment,
    target: *const c_char,
    name: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, target, name) = unsafe { (of(deployment)?, text(target)?, path(name)?) };
        Ok(deployment.client.symlink(target, Ino::ROOT, name).map(drop)?)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL; `target` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_readlink(
    deployment: *const Deployment,
    name: *const c_char,
    target: *mut c_char,
    length: usize,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (deployment, path, room) =
            unsafe { (of(deployment)?, path(name)?, room(target.cast(), length)?) };
        let found = deployment.client.readlink((Ino::ROOT, path, false))?;
        let most = found.len().min(room.len());
        room[..most].copy_from_slice(&found[..most]);
        Ok(found.len() as i64)
    }) as isize
}
