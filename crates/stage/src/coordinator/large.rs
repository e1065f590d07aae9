//! Large files: begun by one worker, filled by several, completed by one.

use super::{CHANGED, Coordinator};
use crate::tree::{Meta, Turns};
use crate::wire::{Copied, How, Task};

/// Sections have at least so many bytes, so that requests to the backend are long and sequential, and at most
/// so many, so that the last ones are not waited for long.
const SHORTEST: u64 = 16 << 20;
const LONGEST: u64 = 256 << 20;

/// Files whose blocks have at least so many bytes are divided by blocks, so that each worker moves those of
/// its own server; shorter ones would make short requests to the backend.
const LONG_BLOCK: u64 = 512 << 10;

/// How often a file that changes is copied.
const ATTEMPTS: u8 = 3;

/// A large file that is being copied.
pub(super) struct Large {
    meta: Meta,
    /// Sections that are not done.
    left: usize,
    failed: Option<String>,
    bytes: u64,
    attempts: u8,
}

impl Coordinator<'_> {
    pub(super) fn begun(&mut self, path: Vec<u8>, begun: Result<(Meta, Option<Turns>), String>) {
        let (meta, turns) = match begun {
            Ok(begun) => begun,
            Err(why) => {
                self.large.remove(&path);
                return self.failed(&path, &why);
            }
        };
        let sections = self.sections(meta.size, turns);
        let large = self.large.entry(path.clone());
        let large = large.or_insert(Large { meta, left: 0, failed: None, bytes: 0, attempts: 0 });
        *large = Large { meta, left: sections.len(), failed: None, bytes: 0, attempts: large.attempts + 1 };
        if sections.is_empty() {
            self.queue.put_first(Task::Finish { path, meta });
            return;
        }
        for (range, only) in sections.into_iter().rev() {
            let node = only.as_ref().and_then(|(turns, turn)| turns.nodes.get(usize::from(*turn)).copied());
            let task = Task::Section { path: path.clone(), meta, range, only };
            match node.filter(|node| self.crew.has(*node)) {
                Some(node) => self.queue.put_first_for(node, task),
                None => self.queue.put_back(task),
            }
        }
    }

    /// How a file is divided.
    fn sections(&self, size: u64, turns: Option<Turns>) -> Vec<Section> {
        sections(size, turns, self.crew.streams() as u64)
    }

    pub(super) fn section_done(&mut self, path: &[u8], done: Result<u64, String>) {
        let Some(large) = self.large.get_mut(path) else { return };
        match done {
            Ok(bytes) => large.bytes += bytes,
            Err(why) => drop(large.failed.get_or_insert(why)),
        }
        large.left = large.left.saturating_sub(1);
        if large.left == 0 {
            // If sections failed because the source was changed, this says so.
            let (path, meta) = (path.to_vec(), large.meta);
            self.queue.put_first(match large.failed {
                Some(_) => Task::Abandon { path: path.clone() },
                None => Task::Finish { path: path.clone(), meta },
            });
            if let Some(why) = self.large.get(&path).and_then(|large| large.failed.clone()) {
                self.large.remove(&path);
                self.failed(&path, &why);
            }
        }
    }

    pub(super) fn large_done(&mut self, path: &[u8], copied: Copied) {
        let Some(large) = self.large.get(path) else { return };
        let (meta, bytes, attempts) = (large.meta, large.bytes, large.attempts);
        match copied {
            Copied::Changed if attempts < ATTEMPTS => {
                self.queue.put_first(Task::Begin { path: path.to_vec(), meta });
                return;
            }
            Copied::Done { .. } => {
                self.report.bytes += bytes;
                self.copied(path, &How::Copy, copied);
            }
            Copied::Changed => {
                self.queue.put_first(Task::Abandon { path: path.to_vec() });
                self.failed(path, CHANGED);
            }
            other => {
                self.queue.put_first(Task::Abandon { path: path.to_vec() });
                self.copied(path, &How::Copy, other);
            }
        }
        self.large.remove(path);
    }
}

/// A range; and which blocks of it, if not all.
type Section = (std::ops::Range<u64>, Option<(Turns, u16)>);

fn sections(size: u64, turns: Option<Turns>, streams: u64) -> Vec<Section> {
    let turns = turns.filter(|turns| turns.block >= LONG_BLOCK && turns.nodes.len() > 1);
    // Two for each stream, so that those that end early find more.
    let parts = turns.as_ref().map_or(1, |turns| turns.nodes.len() as u64);
    let fair = size.saturating_mul(parts) / (2 * streams.max(1));
    let unit = turns.as_ref().map_or(1 << 20, |turns| turns.block * parts);
    let length = fair.clamp(SHORTEST * parts, LONGEST * parts).div_ceil(unit) * unit;
    let mut sections = Vec::new();
    for start in (0..size.div_ceil(length)).map(|number| number * length) {
        let range = start..(start + length).min(size);
        match &turns {
            Some(turns) => {
                let each =
                    (0..turns.nodes.len() as u16).map(|turn| (range.clone(), Some((turns.clone(), turn))));
                sections.extend(each);
            }
            None => sections.push((range, None)),
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn sections_cover_a_file_once() {
        for (size, block, streams) in
            [(1000 * MIB + 5, None, 8), (17 * MIB, None, 64), (300 * MIB + 7, Some(4 * MIB), 8)]
        {
            let turns = block.map(|block| Turns { block, nodes: vec![3, 1, 2] });
            let mut covered = 0;
            let mut last = 0;
            for (range, only) in sections(size, turns, streams) {
                match only {
                    None => {
                        assert_eq!(range.start, last);
                        last = range.end;
                        covered += range.end - range.start;
                    }
                    Some((turns, turn)) => {
                        assert!(range.start.is_multiple_of(turns.block * 3));
                        let blocks = range.start / turns.block..range.end.div_ceil(turns.block);
                        for block in blocks.filter(|block| block % 3 == u64::from(turn)) {
                            covered += ((block + 1) * turns.block).min(range.end) - block * turns.block;
                        }
                    }
                }
            }
            assert_eq!(covered, size);
        }
        let short = Turns { block: MIB / 4, nodes: vec![1, 2] };
        assert!(sections(100 * MIB, Some(short), 4).iter().all(|(_, only)| only.is_none()));
    }
}
