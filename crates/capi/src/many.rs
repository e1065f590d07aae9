//! Pieces of many files at once.

use crate::deployment::{Deployment, of};
use crate::error::{Failed, status};
use crate::text::{natural, path, room};
use bivouac_client::Wanted;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use libc::off_t;
use std::ffi::{c_char, c_int, c_void};

/// `struct bivouac_piece`.
#[repr(C)]
pub struct bivouac_piece {
    path: *const c_char,
    offset: off_t,
    buffer: *mut c_void,
    length: usize,
    result: isize,
    reserved: u64,
}

/// A piece as the client core wants it.
///
/// # Safety
/// Its path is NULL or ends with NUL, and its buffer is valid for its length.
unsafe fn wanted<'a>(piece: &bivouac_piece) -> Result<Wanted<'a>, Failed> {
    // SAFETY: as the caller says.
    let (path, into) = unsafe { (path(piece.path)?, room(piece.buffer, piece.length)?) };
    Ok(Wanted { path, offset: natural(piece.offset)?, into, result: Err(Errno::IO) })
}

/// See `bivouac.h`.
///
/// # Safety
/// `deployment` is NULL or an attached one; `pieces` is valid for `count` of them, with valid paths and buffers that do not
/// overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_read_many(
    deployment: *const Deployment,
    pieces: *mut bivouac_piece,
    count: usize,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let deployment = unsafe { of(deployment) }?;
        if count == 0 {
            return Ok(());
        }
        if pieces.is_null() {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: as the caller says.
        let pieces = unsafe { std::slice::from_raw_parts_mut(pieces, count) };
        // SAFETY: as the caller says.
        let mut all: Vec<_> = pieces.iter().map(|piece| unsafe { wanted(piece) }).collect();
        let mut usable = Vec::with_capacity(count);
        for one in all.iter_mut().flatten() {
            let into = std::mem::take(&mut one.into);
            usable.push(Wanted { path: one.path, offset: one.offset, into, result: Err(Errno::IO) });
        }
        deployment.client.read_many(Ino::ROOT, &mut usable);
        let mut done = usable.into_iter();
        for (piece, one) in pieces.iter_mut().zip(all) {
            let result = one.and_then(|_| Ok(done.next().map_or(Err(Errno::IO), |one| one.result)?));
            piece.result = match result {
                Ok(count) => count as isize,
                Err(failed) => failed.number() as isize,
            };
        }
        Ok(())
    })
}
