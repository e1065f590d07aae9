//! Attributes.

use crate::deployment::{Deployment, of};
use crate::error::status;
use crate::text::{natural, path, put};
use bivouac_layout::{Ino, Map};
use bivouac_proto::Attr;
use bivouac_proto::meta::{AS_IT_IS, SetAttr, SetTime};
use libc::{gid_t, mode_t, off_t, uid_t};
use std::ffi::{c_char, c_int};

/// `struct bivouac_stat`.
#[repr(C)]
pub struct bivouac_stat {
    inode: u64,
    size: u64,
    allocated: u64,
    accessed: i64,
    modified: i64,
    changed: i64,
    created: i64,
    mode: u32,
    links: u32,
    user: u32,
    group: u32,
    block_size: u32,
    copies: u32,
    reserved: [u64; 4],
}

/// `BIVOUAC_NOW`.
const NOW: i64 = i64::MAX;
/// `BIVOUAC_AS_IT_IS`.
const LEFT: i64 = i64::MIN;

/// Attributes as a program sees them.
pub(crate) fn shown(map: &Map, attr: &Attr) -> bivouac_stat {
    let layout = attr.layout.as_deref();
    bivouac_stat {
        inode: attr.ino.0,
        size: attr.st_size(),
        allocated: attr.st_blocks() * 512,
        accessed: attr.atime,
        modified: attr.mtime,
        changed: attr.ctime,
        created: attr.btime,
        mode: attr.kind.mode_bits() | u32::from(attr.mode),
        links: attr.nlink,
        user: attr.uid,
        group: attr.gid,
        block_size: layout.map_or(map.block_size, |layout| layout.block_size),
        copies: u32::from(layout.map_or(map.copies, |layout| layout.replicas)),
        reserved: [0; 4],
    }
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL; `attributes` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_stat(
    deployment: *const Deployment,
    name: *const c_char,
    follow: c_int,
    attributes: *mut bivouac_stat,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (of(deployment)?, path(name)?) };
        let attr = deployment.client.stat((Ino::ROOT, path, follow != 0))?;
        let found = shown(&deployment.client.deployment_map(), &attr);
        // SAFETY: as the caller says.
        unsafe { put(attributes, found) }
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_access(
    deployment: *const Deployment,
    name: *const c_char,
    mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (of(deployment)?, path(name)?) };
        Ok(deployment.client.access((Ino::ROOT, path, true), mask as u32)?)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_truncate(
    deployment: *const Deployment,
    name: *const c_char,
    length: off_t,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (of(deployment)?, path(name)?) };
        Ok(deployment.client.truncate((Ino::ROOT, path, true), natural(length)?).map(drop)?)
    })
}

/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
unsafe fn set(deployment: *const Deployment, name: *const c_char, follow: bool, set: SetAttr) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (of(deployment)?, path(name)?) };
        Ok(deployment.client.set_attr((Ino::ROOT, path, follow), set).map(drop)?)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_chmod(
    deployment: *const Deployment,
    name: *const c_char,
    mode: mode_t,
) -> c_int {
    let changes = SetAttr { mode: Some((mode & 0o7777) as u16), ..SetAttr::default() };
    // SAFETY: as the caller says.
    unsafe { set(deployment, name, true, changes) }
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_chown(
    deployment: *const Deployment,
    name: *const c_char,
    user: uid_t,
    group: gid_t,
    follow: c_int,
) -> c_int {
    // (An owner of all ones means that it stays, here as there.)
    let gid = Some(group).filter(|group| *group != AS_IT_IS);
    let changes = SetAttr { uid: Some(user), gid, ..SetAttr::default() };
    // SAFETY: as the caller says.
    unsafe { set(deployment, name, follow != 0, changes) }
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `name` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_utimes(
    deployment: *const Deployment,
    name: *const c_char,
    accessed: i64,
    modified: i64,
    follow: c_int,
) -> c_int {
    let time = |time| match time {
        LEFT => None,
        NOW => Some(SetTime::Now),
        nanos => Some(SetTime::To(nanos)),
    };
    let changes = SetAttr { atime: time(accessed), mtime: time(modified), ..SetAttr::default() };
    // SAFETY: as the caller says.
    unsafe { set(deployment, name, follow != 0, changes) }
}
