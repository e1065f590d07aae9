//! Extended attributes.

use crate::deployment::{Deployment, of};
use crate::error::{answer, status};
use crate::text::{bytes, copy, path, text};
use bivouac_layout::Ino;
use std::ffi::{c_char, c_int, c_void};

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `file` and `name` are NULL or end with NUL; `value` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_getxattr(
    deployment: *const Deployment,
    file: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    length: usize,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (deployment, path, name) = unsafe { (of(deployment)?, path(file)?, text(name)?) };
        let found = deployment.client.get_xattr((Ino::ROOT, path, true), name)?;
        // SAFETY: as the caller says.
        unsafe { copy(&found, value, length) }
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `file` is NULL or ends with NUL; `names` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_listxattr(
    deployment: *const Deployment,
    file: *const c_char,
    names: *mut c_char,
    length: usize,
) -> isize {
    answer(|| {
        // SAFETY: as the caller says.
        let (deployment, path) = unsafe { (of(deployment)?, path(file)?) };
        let found = deployment.client.list_xattr((Ino::ROOT, path, true))?;
        // SAFETY: as the caller says.
        unsafe { copy(&found, names.cast(), length) }
    }) as isize
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `file` and `name` are NULL or end with NUL; `value` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_setxattr(
    deployment: *const Deployment,
    file: *const c_char,
    name: *const c_char,
    value: *const c_void,
    length: usize,
    flags: c_int,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path, name, value) =
            unsafe { (of(deployment)?, path(file)?, text(name)?, bytes(value, length)?) };
        Ok(deployment.client.set_xattr((Ino::ROOT, path, true), name, value, flags)?)
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `file` and `name` are NULL or end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_removexattr(
    deployment: *const Deployment,
    file: *const c_char,
    name: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (deployment, path, name) = unsafe { (of(deployment)?, path(file)?, text(name)?) };
        Ok(deployment.client.remove_xattr((Ino::ROOT, path, true), name)?)
    })
}
