//! Comparing copies with their checksums and with each other, and repairing what differs (`bivouac verify`).
//!
//! The primary of a group does it, range by range: while it keeps changes of the range out, it asks all copies in step
//! for two checksums of each chunk: of its bytes, and the stored one. From these it concludes, chunk by chunk:
//!
//! - All copies have the same bytes: they are right. A stored checksum that is another one is written anew.
//! - Some differ: a copy is right if its bytes fit its checksum; if that is so of several that differ, because one of
//!   them has lost a change as a whole, the primary's. Others get its bytes.
//! - None fits its checksum: nobody knows what is right, and nothing is changed.
//!
//! How long sub-files are says nothing, except where the file ends: a hole at the end of a sub-file looks the same
//! whether it is there or not. All copies of the last block end where the file does.
//!
//! A truncation or a removal may reach one copy a moment later than another. So what differs is looked at several times
//! before it is believed.

use super::fetching::Source;
use super::{Copies, Step};
use crate::links::{Whom, all_of};
use bivouac_layout::{FileLayout, Group, Ino, ServerId};
use bivouac_meta::Standing;
use bivouac_proto::copies::{CHUNK, Change, CopyReply, CopyRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::verify::{Fault, Finding, Outcome};
use bivouac_proto::{Errno, Refusal, Reply, Request};
use bivouac_transport::engine::To;
use std::ops::Range;
use std::time::Duration;

/// How often copies are looked at before it is believed that they differ.
const LOOKS: u32 = 6;
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// A copy of a range.
struct View {
    server: ServerId,
    /// The sub-file's end, if that is in the range; or else the range's start or end.
    end: u64,
    /// For each chunk the checksum of its bytes, and the stored one.
    sums: Vec<(u32, u32)>,
}

/// A wrong stretch of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wrong {
    server: ServerId,
    fault: Fault,
    /// Where the right bytes are.
    source: Option<ServerId>,
    range: Range<u64>,
}

/// Whether copies have the same bytes, which fit their checksums.
fn agree(views: &[View]) -> bool {
    views.windows(2).all(|pair| pair[0].sums == pair[1].sums)
        && views.iter().all(|view| view.sums.iter().all(|(bytes, stored)| bytes == stored))
}

/// Whether copies end at the same place.
fn end_alike(views: &[View]) -> bool {
    views.windows(2).all(|pair| pair[0].end == pair[1].end)
}

/// What is being checked.
#[derive(Clone, Copy)]
pub(crate) struct Checked<'f> {
    pub(crate) group: Group,
    pub(crate) ino: Ino,
    pub(crate) layout: &'f FileLayout,
    /// Whether what is wrong is to be made right.
    pub(crate) repairs: bool,
}

/// What is wrong with one chunk of some copies, the primary's first: the server's place, what, and the place of the right
/// bytes.
fn judge(sums: &[(u32, u32)]) -> Vec<(usize, Fault, Option<usize>)> {
    let is_sound = |sum: &(u32, u32)| sum.0 == sum.1;
    let Some(first) = sums.first() else { return Vec::new() };
    let unsound = sums.iter().enumerate().filter(|(_, sum)| !is_sound(sum)).map(|(place, _)| place);
    if sums.iter().all(|sum| sum.0 == first.0) {
        return unsound.map(|place| (place, Fault::Checksum, Some(place))).collect();
    }
    let Some(source) = sums.iter().position(is_sound) else {
        return unsound.map(|place| (place, Fault::Bytes, None)).collect();
    };
    let wrong = |(place, sum): (usize, &(u32, u32))| match (sum.0 == sums[source].0, is_sound(sum)) {
        (true, true) => None,
        (true, false) => Some((place, Fault::Checksum, Some(place))),
        (false, true) => Some((place, Fault::Differs, Some(source))),
        (false, false) => Some((place, Fault::Bytes, Some(source))),
    };
    sums.iter().enumerate().filter_map(wrong).collect()
}

/// What is wrong with copies of a range, the primary's first, in stretches.
fn judge_all(views: &[View], range: &Range<u64>) -> Vec<Wrong> {
    let mut found: Vec<Wrong> = Vec::new();
    for chunk in 0..range.end.saturating_sub(range.start).div_ceil(CHUNK) {
        let of_chunk = |view: &View| view.sums.get(chunk as usize).copied().unwrap_or_default();
        let sums: Vec<(u32, u32)> = views.iter().map(of_chunk).collect();
        let start = range.start + chunk * CHUNK;
        let end = range.end.min(start + CHUNK);
        for (place, fault, source) in judge(&sums) {
            let (server, source) = (views[place].server, source.map(|source| views[source].server));
            let extends = |known: &&mut Wrong| {
                (known.server, known.fault, known.source, known.range.end) == (server, fault, source, start)
            };
            match found.iter_mut().find(extends) {
                Some(known) => known.range.end = end,
                None => found.push(Wrong { server, fault, source, range: start..end }),
            }
        }
    }
    found
}

impl Copies {
    /// Compares a range of whole chunks in blocks of a group of which this server is the primary. `is_there`: whether the
    /// file has not been removed.
    pub(crate) fn check(
        &self,
        file: &Checked<'_>,
        range: &Range<u64>,
        is_there: impl Fn() -> bool,
    ) -> Result<Vec<Finding>, Failure> {
        let Checked { group, ino, layout, .. } = *file;
        for look in 1..=LOOKS {
            let standing = Standing { group, since: self.links.epoch() };
            let settled = self.settled(group, ino, range.clone())?;
            self.goes_by(ino, layout.version)?;
            let mut views = self.views(group, (ino, layout.version), range)?;
            if !end_alike(&views) {
                let end = self.longest(&self.links.map(), ino, layout)?;
                if !(range.start < end && end <= range.end) {
                    views.iter_mut().for_each(|view| view.end = range.end);
                }
            }
            if agree(&views) && end_alike(&views) {
                return Ok(Vec::new());
            }
            if look == LOOKS {
                return Ok(if is_there() {
                    self.make_right(standing, file, range, &views)
                } else {
                    Vec::new()
                });
            }
            drop(settled);
            std::thread::sleep(PAUSE);
        }
        Ok(Vec::new())
    }

    /// All copies in step, the own one first.
    fn views(
        &self,
        group: Group,
        (ino, layout): (Ino, u32),
        range: &Range<u64>,
    ) -> Result<Vec<View>, Failure> {
        let map = self.links.map();
        let (length, sums) = self.own_sums(ino, range.clone())?;
        let end = |length: u64| length.clamp(range.start, range.end);
        let mut views = vec![View { server: self.me, end: end(length), sums }];
        let len = range.end - range.start;
        for server in map.serving(group).filter(|server| *server != self.me) {
            let request = Request::Copy(CopyRequest::Sums { group, ino, offset: range.start, len });
            match self.links.ask(all_of(server).of_layout(layout), &request)? {
                Reply::Copy(CopyReply::Sums { length, sums, .. }) if sums.len() == views[0].sums.len() => {
                    views.push(View { server, end: end(length), sums });
                }
                _ => return Err(Errno::PROTO.into()),
            }
        }
        Ok(views)
    }

    /// The length of the own sub-file, and for each chunk of a range the checksum of its bytes, and the stored one.
    pub(super) fn own_sums(&self, ino: Ino, range: Range<u64>) -> Result<(u64, Vec<(u32, u32)>), Errno> {
        let (length, sums) = self.store.sums_in(ino, range)?;
        Ok((length, sums.into_iter().map(|sum| (sum.bytes, sum.stored)).collect()))
    }

    /// Bytes of a range were fetched from its primary, `count` of them, because the own ones differ. If the primary's are
    /// not what was written there, and the own ones are, these stay: damage does not spread to those who catch up. How
    /// many bytes there are then.
    pub(super) fn keep_what_is_right(
        &self,
        from: &Source,
        offset: u64,
        bytes: &mut [u8],
        mut count: usize,
    ) -> Result<usize, Failure> {
        let Source { group, primary, ino, layout, .. } = *from;
        let len = bytes.len() as u64;
        let request = Request::Copy(CopyRequest::Sums { group, ino, offset, len });
        let Reply::Copy(CopyReply::Sums { is_sure, sums, .. }) =
            self.links.ask(Whom::from(To::Primary(primary, group)).of_layout(layout), &request)?
        else {
            return Err(Errno::PROTO.into());
        };
        if !is_sure || sums.iter().all(|(bytes, stored)| bytes == stored) {
            return Ok(count);
        }
        let (_, own) = self.own_sums(ino, offset..offset + len)?;
        bytes.get_mut(count..).unwrap_or_default().fill(0);
        for (chunk, (theirs, own)) in bytes.chunks_mut(CHUNK as usize).enumerate().zip(sums.iter().zip(own)) {
            let (number, chunk) = chunk;
            if theirs.0 != theirs.1 && own.0 == theirs.1 {
                let at = number as u64 * CHUNK;
                tracing::error!(%ino, %primary, offset = offset + at, "the primary's bytes are damaged: they are not taken");
                chunk.fill(0);
                let read = self.store.read(ino, offset + at, chunk).map_err(|error| error.errno())?;
                count = count.max(at as usize + read);
            }
        }
        Ok(count)
    }

    fn make_right(
        &self,
        standing: Standing,
        file: &Checked<'_>,
        range: &Range<u64>,
        views: &[View],
    ) -> Vec<Finding> {
        let Checked { ino, repairs, .. } = *file;
        let mut findings = Vec::new();
        let mut note = |wrong: &Wrong, outcome| {
            let Wrong { server, fault, ref range, .. } = *wrong;
            tracing::error!(%ino, %server, ?fault, offset = range.start, ?outcome, "a copy is not as it should be");
            let len = range.end - range.start;
            findings.push(Finding::SubFile { ino, server, fault, offset: range.start, len, outcome });
        };
        let all = judge_all(views, range);
        for wrong in &all {
            let outcome = match wrong.source {
                None => Outcome::Damaged,
                Some(_) if !repairs => Outcome::Seen,
                Some(source) => self.outcome(self.restore(standing, file, wrong, source)),
            };
            note(wrong, outcome);
        }
        // What was repaired has the right length, too.
        let Some(own) = views.first() else { return findings };
        let is_known = |server| all.iter().any(|wrong| wrong.server == server || wrong.server == self.me);
        for view in views.iter().filter(|view| view.end != own.end && !is_known(view.server)) {
            let from = view.end.min(own.end);
            let range = from - (from - range.start) % CHUNK..range.end;
            let wrong = Wrong { server: view.server, fault: Fault::Length, source: Some(self.me), range };
            let outcome = match repairs {
                false => Outcome::Seen,
                true => self.outcome(self.restore(standing, file, &wrong, self.me)),
            };
            note(&wrong, outcome);
        }
        findings
    }

    fn outcome(&self, restored: Result<(), Failure>) -> Outcome {
        match restored {
            Ok(()) => Outcome::Repaired,
            Err(error) => {
                tracing::error!(?error, "a copy could not be repaired");
                Outcome::Damaged
            }
        }
    }

    /// A stretch of a copy becomes as it is on another server.
    fn restore(
        &self,
        standing: Standing,
        file: &Checked<'_>,
        wrong: &Wrong,
        source: ServerId,
    ) -> Result<(), Failure> {
        let (group, ino) = (standing.group, file.ino);
        let (offset, len) = (wrong.range.start, wrong.range.end - wrong.range.start);
        let mut bytes = vec![0; len as usize];
        let count = match source == self.me {
            true => self.store.read(ino, offset, &mut bytes).map_err(|error| error.errno())?,
            false => {
                let request = Request::Copy(CopyRequest::Bytes { group, ino, offset, len: len as u32 });
                let to = all_of(source).of_layout(file.layout.version);
                match self.links.ask_into(to, &request, &[], &mut bytes)? {
                    (Reply::Copy(CopyReply::Read), count) if count <= bytes.len() => count,
                    _ => return Err(Errno::PROTO.into()),
                }
            }
        };
        let bytes = bytes.get(..count).unwrap_or_default();
        if !self.links.stands(standing) {
            return Err(Refusal::OldServer.into());
        }
        if wrong.server == self.me {
            return Ok(self.restore_here(ino, wrong.range.clone(), bytes)?);
        }
        let slot = self.slots.take();
        let (place, change) = ((slot.number(), slot.turn()), Change::Restore);
        let step = Step { group, place, ino, offset, len, change, standing };
        let failed = self.forward(&step, &[wrong.server], bytes);
        if !self.links.stands(standing) {
            return Err(Refusal::OldServer.into());
        }
        match failed.first() {
            None => Ok(()),
            Some((_, errno)) => Err((*errno).into()),
        }
    }

    /// A range of whole chunks becomes these bytes, and zeros behind them, and its checksums those of that. When the file
    /// was written last stays as it is.
    pub(super) fn restore_here(&self, ino: Ino, range: Range<u64>, bytes: &[u8]) -> Result<(), Errno> {
        self.unseen(ino, None, || {
            self.copy_mirror(ino, range.clone(), bytes, None)?;
            self.store.renew_sums(ino, range)
        })
        .map_err(|error| error.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(server: u16, end: u64, sums: &[(u32, u32)]) -> View {
        View { server: ServerId(server), end, sums: sums.to_vec() }
    }

    #[test]
    fn a_copy_that_fits_its_checksum_is_right() {
        assert_eq!(judge(&[(1, 1), (1, 1)]), []);
        assert_eq!(judge(&[(1, 1), (2, 1)]), [(1, Fault::Bytes, Some(0))]);
        assert_eq!(judge(&[(2, 1), (1, 1)]), [(0, Fault::Bytes, Some(1))]);
        assert_eq!(
            judge(&[(2, 1), (3, 1), (1, 1)]),
            [(0, Fault::Bytes, Some(2)), (1, Fault::Bytes, Some(2))]
        );
    }

    #[test]
    fn of_copies_that_fit_their_checksums_the_primarys_is_right() {
        assert_eq!(judge(&[(1, 1), (2, 2)]), [(1, Fault::Differs, Some(0))]);
        assert_eq!(
            judge(&[(3, 1), (2, 2), (1, 1)]),
            [(0, Fault::Bytes, Some(1)), (2, Fault::Differs, Some(1))]
        );
    }

    #[test]
    fn what_all_have_is_right_whatever_their_checksums_say() {
        assert_eq!(judge(&[(1, 1), (1, 2)]), [(1, Fault::Checksum, Some(1))]);
        assert_eq!(judge(&[(1, 2), (1, 3)]), [(0, Fault::Checksum, Some(0)), (1, Fault::Checksum, Some(1))]);
        assert_eq!(
            judge(&[(1, 1), (1, 2), (5, 5)]),
            [(1, Fault::Checksum, Some(1)), (2, Fault::Differs, Some(0))]
        );
    }

    #[test]
    fn where_no_copy_fits_its_checksum_nothing_is_right() {
        assert_eq!(judge(&[(1, 2), (3, 4)]), [(0, Fault::Bytes, None), (1, Fault::Bytes, None)]);
    }

    #[test]
    fn chunks_with_the_same_fault_are_one_stretch() {
        let views =
            [view(0, 3 * CHUNK, &[(1, 1), (1, 1), (1, 1)]), view(1, 3 * CHUNK, &[(7, 1), (7, 1), (1, 1)])];
        let range = 0..3 * CHUNK;
        let wrong = Wrong {
            server: ServerId(1),
            fault: Fault::Bytes,
            source: Some(ServerId(0)),
            range: 0..2 * CHUNK,
        };
        assert_eq!((agree(&views), judge_all(&views, &range)), (false, vec![wrong]));
        let copies = [view(0, 5, &[(1, 1)]), view(1, 6, &[(1, 1)])];
        assert!(agree(&copies) && !end_alike(&copies));
    }
}
