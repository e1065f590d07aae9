//! Copying the contents of files.
//!
//! Each piece is written, read back from the destination and compared. A file with holes keeps them: its
//! length is set first, and only its data is copied. Large files are divided into sections, so that several
//! threads copy one file.

use super::{Copy, Work, lock};
use crate::tree::{Meta, Open};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Bytes copied, and compared, at once.
const PIECE: usize = 4 << 20;
/// Files longer than this are copied by several threads, in sections of this length.
const STRETCH: u64 = 64 << 20;

/// A thread's buffers: for what it has read, and for what it reads back. They are as long as the longest
/// piece so far.
#[derive(Default)]
pub(super) struct Buffers(Vec<u8>, Vec<u8>);

impl Buffers {
    fn of(&mut self, len: usize) -> (&mut [u8], &mut [u8]) {
        if self.0.len() < len {
            (self.0, self.1) = (vec![0; len], vec![0; len]);
        }
        (&mut self.0[..len], &mut self.1[..len])
    }
}

/// A large file that several threads copy.
pub(super) struct Large {
    from: Vec<u8>,
    source: Box<dyn Open>,
    target: Box<dyn Open>,
    meta: Meta,
    state: Mutex<LargeState>,
}

struct LargeState {
    stretches: u64,
    failed: Option<String>,
}

impl Copy<'_> {
    /// Copies a small file, or begins to copy a large one.
    pub(super) fn file(&self, from: &[u8], to: &[u8], meta: Meta, buffers: &mut Buffers) -> io::Result<()> {
        let source = self.from.open(from)?;
        let target = self.to.create(to)?;
        self.attributes(from, &meta, |name, value| target.set_attribute(name, value))?;
        if meta.is_sparse() {
            // Also a hole at the end.
            target.set_len(meta.size)?;
        }
        if meta.size <= STRETCH {
            self.range(&*source, &*target, 0..meta.size, meta.is_sparse(), buffers)?;
            unchanged(&*source, meta.size)?;
            target.finish(&meta)?;
            self.file_done();
            return Ok(());
        }
        let stretches = meta.size.div_ceil(STRETCH);
        let state = Mutex::new(LargeState { stretches, failed: None });
        let large = Arc::new(Large { from: from.to_vec(), source, target, meta, state });
        for stretch in (0..stretches).rev() {
            self.put(Work::Stretch(large.clone(), stretch * STRETCH));
        }
        Ok(())
    }

    /// Copies a section of a large file. Whoever finishes the last section finishes the file.
    pub(super) fn stretch(&self, large: &Large, start: u64, buffers: &mut Buffers) {
        let end = (start + STRETCH).min(large.meta.size);
        let done = self.range(&*large.source, &*large.target, start..end, large.meta.is_sparse(), buffers);
        let mut state = lock(&large.state);
        if let Err(error) = done {
            state.failed.get_or_insert(error.to_string());
        }
        state.stretches -= 1;
        if state.stretches > 0 {
            return;
        }
        let ended = match state.failed.take() {
            Some(why) => Err(why),
            None => unchanged(&*large.source, large.meta.size)
                .and_then(|()| large.target.finish(&large.meta))
                .map_err(|e| e.to_string()),
        };
        match ended {
            Ok(()) => self.file_done(),
            Err(why) => self.failed(&large.from, &why),
        }
    }

    /// Copies a range; where the source has holes, the target has them from the start.
    fn range(
        &self,
        source: &dyn Open,
        target: &dyn Open,
        range: Range<u64>,
        sparse: bool,
        buffers: &mut Buffers,
    ) -> io::Result<()> {
        if !sparse {
            return self.data(source, target, range, buffers);
        }
        let mut at = range.start;
        while at < range.end {
            let data = source.next_data(at..range.end)?.unwrap_or(range.end..range.end);
            self.progress.moved(data.start - at);
            at = data.end;
            self.data(source, target, data, buffers)?;
        }
        Ok(())
    }

    /// Copies data, piece by piece, and compares each with what the destination then has.
    fn data(
        &self,
        source: &dyn Open,
        target: &dyn Open,
        range: Range<u64>,
        buffers: &mut Buffers,
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(PIECE as u64) as usize;
            let (piece, back) = buffers.of(len);
            if source.read(at, piece)? != len {
                return Err(changed());
            }
            target.write(at, piece)?;
            if target.read(at, back)? != len || back != piece {
                return Err(io::Error::other(format!(
                    "what was written at byte {at} does not read back the same"
                )));
            }
            at += len as u64;
            self.bytes.fetch_add(len as u64, Ordering::Relaxed);
            self.progress.moved(len as u64);
        }
        Ok(())
    }
}

/// Fails if a source has grown beyond what was copied.
fn unchanged(source: &dyn Open, size: u64) -> io::Result<()> {
    match source.read(size, &mut [0])? {
        0 => Ok(()),
        _ => Err(changed()),
    }
}

fn changed() -> io::Error {
    io::Error::other("its size changed while it was copied")
}
