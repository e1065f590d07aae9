//! Files of the backend, and what a batch does with them.
//!
//! A batch is one vectored system call, repeated until everything is done, the file ends, or the backend fails. Each of its
//! requests gets the answer that it would have got alone: where a merged call has not done all of a request and the file has
//! not simply ended, that request is issued again by itself, and what the backend says then is its answer.

use crate::queue::Batch;
use crate::request::{Asked, Kind};
use bivouac_proto::Errno;
use std::io::{IoSlice, IoSliceMut};

/// A file of the backend that is open.
pub trait File: Send + Sync {
    /// Reads from `offset`; fewer bytes than there is room for, and 0 at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno>;

    /// Writes at `offset`; perhaps fewer bytes than there are.
    fn write_at(&self, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno>;
}

impl File for std::fs::File {
    fn read_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        rustix::io::preadv(self, into, offset).map_err(errno)
    }

    fn write_at(&self, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        rustix::io::pwritev(self, from, offset).map_err(errno)
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    u16::try_from(error.raw_os_error()).map_or(Errno::IO, Errno)
}

/// What came of a request: how many bytes, or why none.
pub type Outcome = Result<u64, Errno>;

/// How a call has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Everything is done.
    Complete,
    /// The file ends.
    OfFile,
    /// The backend has failed, or does nothing.
    Failed(Errno),
}

/// Reads or writes all of the buffers, one behind the other, from `offset`. How many bytes, and how that ended.
fn transfer(file: &dyn File, kind: Kind, mut offset: u64, buffers: Vec<&mut [u8]>) -> (u64, End) {
    let mut done = 0;
    let mut note = |count: usize| {
        offset = offset.saturating_add(count as u64);
        done += count as u64;
        offset
    };
    let mut at = note(0);
    let end = match kind {
        Kind::Read => {
            let mut slices: Vec<IoSliceMut<'_>> = buffers.into_iter().map(IoSliceMut::new).collect();
            let mut left = &mut slices[..];
            loop {
                IoSliceMut::advance_slices(&mut left, 0);
                if left.is_empty() {
                    break End::Complete;
                }
                match file.read_at(at, left) {
                    Ok(0) => break End::OfFile,
                    Ok(count) => {
                        at = note(count);
                        IoSliceMut::advance_slices(&mut left, count);
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => break End::Failed(error),
                }
            }
        }
        Kind::Write => {
            let mut slices: Vec<IoSlice<'_>> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
            let mut left = &mut slices[..];
            loop {
                IoSlice::advance_slices(&mut left, 0);
                if left.is_empty() {
                    break End::Complete;
                }
                match file.write_at(at, left) {
                    // A backend that takes nothing and does not say why.
                    Ok(0) => break End::Failed(Errno::IO),
                    Ok(count) => {
                        at = note(count);
                        IoSlice::advance_slices(&mut left, count);
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => break End::Failed(error),
                }
            }
        }
    };
    (done, end)
}

/// Carries out one request.
fn alone(file: &dyn File, asked: &Asked, buffer: &mut [u8]) -> Outcome {
    match transfer(file, asked.kind, asked.offset, vec![buffer]) {
        (0, End::Failed(error)) => Err(error),
        (count, _) => Ok(count),
    }
}

/// Carries out a batch. `buffers`: of each of its requests, as long as what was asked for. What came of each.
pub(crate) fn carry_out(file: &dyn File, batch: &Batch, mut buffers: Vec<&mut [u8]>) -> Vec<Outcome> {
    if let ([(_, asked)], [buffer]) = (&batch.parts[..], &mut buffers[..]) {
        return vec![alone(file, asked, buffer)];
    }
    // Bytes between requests, which nobody has asked for.
    let mut holes: Vec<Vec<u8>> = Vec::new();
    let mut at = batch.offset;
    for (_, asked) in &batch.parts {
        holes.push(vec![0; (asked.offset - at) as usize]);
        at = asked.end();
    }
    let all = holes.iter_mut().zip(&mut buffers).flat_map(|(hole, buffer)| [&mut hole[..], &mut **buffer]);
    let (done, end) =
        transfer(file, batch.kind, batch.offset, all.filter(|slice| !slice.is_empty()).collect());
    let shares = batch.shares(done).map(|(_, count)| count);
    let one = |(count, asked): (u64, &Asked), buffer| match end {
        End::Failed(_) if count < asked.len => alone(file, asked, buffer),
        _ => Ok(count),
    };
    let asked = batch.parts.iter().map(|(_, asked)| asked);
    shares.zip(asked).zip(buffers).map(|(share, buffer)| one(share, buffer)).collect()
}
