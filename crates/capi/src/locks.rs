//! Locks of open files.

use crate::error::{Failed, answer, status};
use crate::file::{File, of};
use crate::text::natural;
use bivouac_client::LockKind;
use bivouac_proto::Errno;
use libc::off_t;
use std::ffi::c_int;

const UNLOCK: c_int = 0;
const SHARED: c_int = 1;
const EXCLUSIVE: c_int = 2;

/// A range as the client core wants it.
fn range(offset: off_t, length: off_t) -> Result<(u64, u64), Failed> {
    let (start, length) = (natural(offset)?, natural(length)?);
    let end = if length == 0 {
        u64::MAX
    } else {
        start.checked_add(length).ok_or(Errno(libc::EOVERFLOW as u16))?
    };
    Ok((start, end))
}

fn exclusive(kind: c_int) -> Result<bool, Failed> {
    match kind {
        SHARED => Ok(false),
        EXCLUSIVE => Ok(true),
        _ => Err(Failed::new(Errno::INVAL, "there is no such kind of lock")),
    }
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_lock(
    file: *const File,
    kind: c_int,
    offset: off_t,
    length: off_t,
    wait: c_int,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let file = unsafe { of(file) }?;
        let (start, end) = range(offset, length)?;
        if kind == UNLOCK {
            return Ok(file.unlock(LockKind::Description, start, end)?);
        }
        let exclusive = exclusive(kind)?;
        if wait == 0 {
            return Ok(file.lock(LockKind::Description, exclusive, start, end)?);
        }
        loop {
            match file.lock_waiting(LockKind::Description, exclusive, start, end, &|_| false) {
                // A turn is over.
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    })
}

/// See `bivouac.h`.
///
/// # Safety
/// `file` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_can_lock(
    file: *const File,
    kind: c_int,
    offset: off_t,
    length: off_t,
) -> c_int {
    answer(|| {
        // SAFETY: as the caller says.
        let file = unsafe { of(file) }?;
        let (start, end) = range(offset, length)?;
        let conflict = file.test_lock(LockKind::Description, exclusive(kind)?, start, end)?;
        Ok(i64::from(conflict.is_none()))
    }) as c_int
}
