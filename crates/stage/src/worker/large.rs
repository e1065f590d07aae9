//! Large files, which several workers fill.
//!
//! One worker begins the file, each section is a task of its own, and whoever gets the last task completes
//! it. Nothing stays open in between: any worker can do any of these.

use super::contents::{Buffers, settle};
use super::items::done;
use super::{LeftOut, Worker};
use crate::tree::{Meta, Turns};
use crate::wire::Copied;
use std::io;
use std::ops::Range;

impl Worker {
    /// Makes the file, in its full length. What the source is now, and where the blocks of the new file lie.
    pub(super) fn begin(
        &self,
        path: &[u8],
        listed: &Meta,
        left_out: &mut LeftOut,
    ) -> io::Result<(Meta, Option<Turns>)> {
        let (here, there) = (self.source(path), self.destination(path));
        settle(listed.mtime, listed.ctime);
        let source = self.trees.from.open(&here)?;
        let meta = source.meta()?;
        let part = self.trees.to.part_name(&there, &self.setup.run);
        let target = self.trees.to.create(&part)?;
        let filled = self
            .attributes(&here, &meta, |name, value| target.set_attribute(name, value), left_out)
            .and_then(|()| target.set_len(meta.size));
        if let Err(error) = filled {
            drop(target);
            let _ = self.trees.to.remove(&part);
            return Err(error);
        }
        Ok((meta, target.turns().or_else(|| source.turns())))
    }

    pub(super) fn section(
        &self,
        path: &[u8],
        meta: &Meta,
        range: Range<u64>,
        only: Option<&(Turns, u16)>,
        buffers: &mut Buffers,
    ) -> io::Result<u64> {
        let source = self.trees.from.open(&self.source(path))?;
        let part = self.trees.to.part_name(&self.destination(path), &self.setup.run);
        let target = self.trees.to.open_to_fill(&part)?;
        let range = range.start..range.end.min(meta.size);
        match only {
            Some((turns, turn)) if turns.block > 0 && !turns.nodes.is_empty() => {
                self.turn((&*source, &*target), range, meta.is_sparse(), (turns, *turn), buffers)
            }
            _ => self.range(&*source, &*target, range, meta.is_sparse(), buffers),
        }
    }

    /// Completes a file, if the source is what it was when it was begun.
    pub(super) fn finish(&self, path: &[u8], meta: &Meta) -> Copied {
        let (here, there) = (self.source(path), self.destination(path));
        let part = self.trees.to.part_name(&there, &self.setup.run);
        let complete = || -> io::Result<Copied> {
            self.pulse.go_on()?;
            if self.trees.from.stat(&here, false)?.state() != meta.state() {
                return Ok(Copied::Changed);
            }
            let target = match self.trees.to.open_to_fill(&part) {
                Ok(target) => target,
                Err(error) => {
                    // A worker that has died since may have done it.
                    let placed = self.trees.to.stat(&there, false);
                    let placed = placed.ok().filter(|p| p.size == meta.size && p.mtime == meta.mtime);
                    return placed.map(|placed| done(meta, &placed, 0)).ok_or(error);
                }
            };
            let set = target.set_meta(meta)?;
            let placed = if part == there { set } else { self.trees.to.place(&part, &there)? };
            Ok(done(meta, &placed, 0))
        };
        complete().unwrap_or_else(|error| Copied::Failed(error.to_string()))
    }
}
