//! What data servers do when a range of a file goes to others, in memory: as the real ones, without what keeps programs out.

use super::{Inner, SubFile};
use bivouac_layout::restripe::{leaves, moves};
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::restripe::{Restripe, RestripeReply, RestripeRequest};
use std::collections::HashMap;
use std::ops::Range;

type Files = HashMap<Ino, SubFile>;

fn free(files: &mut Files, ino: Ino, stretches: &[Range<u64>], end: u64) {
    let Some(file) = files.get_mut(&ino) else { return };
    for stretch in stretches {
        let length = file.bytes.len() as u64;
        file.bytes[stretch.start.min(length) as usize..stretch.end.min(length) as usize].fill(0);
    }
    if !stretches.is_empty() && end < file.bytes.len() as u64 {
        file.bytes.truncate(end as usize);
    }
    if file.bytes.is_empty() {
        files.remove(&ino);
    }
}

impl Inner {
    /// Serves a request; what the step says has to be sound.
    pub fn restripe(&self, me: ServerId, request: &RestripeRequest) -> Result<RestripeReply, Errno> {
        let map = self.map();
        let step: &Restripe = request.step().expect("a store sends nothing else");
        let ino = step.ino;
        assert!(step.old.is_valid(&map) && step.new.is_valid(&map) && step.start < step.end);
        assert_eq!(step.new.version, step.old.version + 1);
        let length =
            || self.data[me.0 as usize].lock().unwrap().get(&ino).map_or(0, |file| file.bytes.len() as u64);
        let part = |length: u64| step.start..step.end.min(length);
        match request {
            RestripeRequest::Fence(_) => Ok(RestripeReply::Fenced { length: length() }),
            RestripeRequest::Take { length, .. } => {
                let mut bytes = 0;
                for taken in moves(&map, (&step.old, &step.new), part(*length), me) {
                    let from = self.data[taken.from.server.0 as usize].lock().unwrap().get(&ino).cloned();
                    let Some(from) = from else { continue };
                    let (start, end) = (taken.from.offset, taken.from.offset + taken.from.len);
                    let end = end.min(from.bytes.len() as u64);
                    if start >= end {
                        continue;
                    }
                    let mut files = self.data[me.0 as usize].lock().unwrap();
                    let file = files.entry(ino).or_default();
                    file.bytes.resize(file.bytes.len().max(end as usize), 0);
                    let range = start as usize..end as usize;
                    file.bytes[range.clone()].copy_from_slice(&from.bytes[range]);
                    file.written = file.written.max(from.written);
                    bytes += end - start;
                }
                Ok(RestripeReply::Took { bytes })
            }
            RestripeRequest::Finish(_) => {
                let length = length();
                let left: Vec<_> = leaves(&map, (&step.old, &step.new), part(length), me).collect();
                let end = step.new.end_on(&map, me, length);
                free(&mut self.data[me.0 as usize].lock().unwrap(), ino, &left, end);
                Ok(RestripeReply::Done)
            }
            RestripeRequest::Undo(_) => {
                let length = length();
                let taken = moves(&map, (&step.old, &step.new), part(length), me);
                let taken: Vec<_> =
                    taken.map(|one| one.from.offset..one.from.offset + one.from.len).collect();
                let end = step.old.end_on(&map, me, length);
                free(&mut self.data[me.0 as usize].lock().unwrap(), ino, &taken, end);
                Ok(RestripeReply::Done)
            }
            RestripeRequest::Give { .. } => unreachable!("a store does not ask for bytes"),
        }
    }
}
