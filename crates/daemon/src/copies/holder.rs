//! What a holder of blocks does that is not their primary.

use super::Copies;
use super::marks::Kind;
use bivouac_data::DataError;
use bivouac_layout::{Epoch, Group, Ino, Map, ServerId};
use bivouac_meta::Standing;
use bivouac_proto::attr::FILE_MAX;
use bivouac_proto::copies::{CHUNK, Change, CopyReply, CopyRequest, DIGESTED, Mark, SUMMED_AT_ONCE};
use bivouac_proto::data::Fallocate;
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};

/// Longest range of which checksums are asked at once, bytes.
const DIGEST_AT_ONCE: u64 = 64 << 20;

impl Copies {
    /// Serves another server's request, which states the epoch `since` and a version of the file's layout. What is to go with
    /// the reply is appended to `out`.
    pub(crate) fn serve(
        &self,
        (from, since, layout): (ServerId, Epoch, u32),
        request: &CopyRequest,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<CopyReply, Failure> {
        match *request {
            CopyRequest::Forward { group, slot, turn, ino, offset, len, change } => {
                self.is_used();
                let mark = Mark { group, ino, offset, len };
                let Change::Sent { sent, sum, sync } = change else {
                    return self.forwarded((from, slot, turn), (mark, since, layout), change, payload);
                };
                let bytes = self.chain.take(sent, &self.links);
                match bytes.filter(|bytes| crc32c::crc32c(bytes) == sum) {
                    Some(bytes) => {
                        let change = Change::Write { sync };
                        self.forwarded((from, slot, turn), (mark, since, layout), change, &bytes)
                    }
                    None => Ok(CopyReply::Missing),
                }
            }
            CopyRequest::Fetch { group, ino, offset, len } => {
                let len = len.min(MAX_PAYLOAD);
                let _settled = self.settled(group, ino, offset..offset.saturating_add(len.into()))?;
                out.resize(len as usize, 0);
                let count = self.store.read(ino, offset, out).map_err(|error| error.errno())?;
                out.truncate(count);
                Ok(CopyReply::Read)
            }
            CopyRequest::Digest { group, ino, offset, len }
                if len <= DIGEST_AT_ONCE && offset <= FILE_MAX =>
            {
                let _settled = self.settled(group, ino, offset..offset + len)?;
                let digests = self.digests(ino, offset, len).map_err(|error| error.errno())?;
                digests.iter().for_each(|digest| out.extend_from_slice(&digest.to_le_bytes()));
                Ok(CopyReply::Read)
            }
            CopyRequest::Digest { .. } => Err(Errno::INVAL.into()),
            CopyRequest::Extent { group, ino } => {
                self.serving(group)?;
                self.ranges.outlast(ino)?;
                self.serving(group)?;
                let extent = self.store.extent(ino).map_err(|error| error.errno())?;
                Ok(CopyReply::Extent { length: extent.length, written: extent.written })
            }
            CopyRequest::Sums { group, ino, offset, len }
                if len <= SUMMED_AT_ONCE && offset <= FILE_MAX && offset.is_multiple_of(CHUNK) =>
            {
                let range = offset..offset + len;
                let is_primary = self.links.map().primary_of(group) == Some(self.me);
                let _settled = is_primary.then(|| self.settled(group, ino, range.clone())).transpose()?;
                let (length, sums) = self.own_sums(ino, range)?;
                Ok(CopyReply::Sums { length, is_sure: self.store.are_sums_sure(), sums })
            }
            CopyRequest::Sums { .. } => Err(Errno::INVAL.into()),
            CopyRequest::Bytes { ino, offset, len, .. } => {
                out.resize(len.min(MAX_PAYLOAD) as usize, 0);
                let count = self.store.read(ino, offset, out).map_err(|error| error.errno())?;
                out.truncate(count);
                Ok(CopyReply::Read)
            }
            CopyRequest::UnderWay { group } => {
                self.serving(group)?;
                let (first, changes) = self.slots.under_way();
                Ok(CopyReply::UnderWay { first, changes })
            }
            // It is looked at while it comes.
            CopyRequest::Ahead { .. } => Err(Errno::INVAL.into()),
            CopyRequest::Marks => Ok(CopyReply::Marks(self.marks.all())),
            CopyRequest::Stripes { after } => Ok(CopyReply::Stripes(self.stripes(after))),
        }
    }

    /// Makes a change that the primary has others make, too.
    fn forwarded(
        &self,
        (from, slot, turn): (ServerId, u32, u64),
        (mark, since, layout): (Mark, Epoch, u32),
        change: Change,
        payload: &[u8],
    ) -> Result<CopyReply, Failure> {
        let fits = match change {
            Change::Write { .. } => payload.len() as u64 == mark.len,
            Change::Mirror { .. } | Change::Restore => payload.len() as u64 <= mark.len,
            Change::Fallocate(_) => payload.is_empty(),
            // It has become a write.
            Change::Sent { .. } => false,
        };
        let end = mark.offset.checked_add(mark.len).filter(|end| *end <= FILE_MAX);
        let (true, Some(end)) = (fits, end) else { return Err(Errno::INVAL.into()) };
        let kind = match change {
            Change::Restore => Kind::Reaches(0),
            Change::Fallocate(mode) if !super::grows(mode) => Kind::Reaches(0),
            Change::Write { .. } | Change::Sent { .. } | Change::Fallocate(_) => Kind::Reaches(end),
            Change::Mirror { undoes: true } => Kind::Undoes,
            Change::Mirror { undoes: false } => Kind::Settles,
        };
        let outcome = self.catching.fetches.apply(mark.ino, mark.offset..end, || {
            let before = self.store.extent(mark.ino).map_or(0, |extent| extent.length);
            let rest = self.marks.note((from, slot), kind, (mark, turn), before);
            // The mark comes first: the next primary either finds it, or asks when this map is known here.
            let map = self.links.map();
            if map.primary_of(mark.group) != Some(from) || !map.holders(mark.group).all().contains(&self.me) {
                return None;
            }
            // It may have waited here while the sender was replaced, and became the primary again.
            if !self.links.stands(Standing { group: mark.group, since }) {
                return None;
            }
            if self.faults.is_failing() && self.is_excused_in(&map, mark.group) {
                return Some((Ok(()), map));
            }
            if matches!(change, Change::Mirror { .. } | Change::Restore) && !payload.is_empty() {
                // These are the primary's: they are not undone.
                self.marks.reaches(mark.ino, mark.offset + payload.len() as u64);
            }
            // Before there is anything that an older one does not show. (What a change is undone by comes after it.)
            if !matches!(change, Change::Mirror { .. } | Change::Restore)
                && let Err(error) = self.learn_layout(mark.ino, layout)
            {
                return Some((Err(error), map));
            }
            let made = match change {
                Change::Write { .. } | Change::Sent { .. } => self.copy_write(mark.ino, mark.offset, payload),
                Change::Fallocate(mode) => self.store.fallocate_summed(mark.ino, mark.offset, mark.len, mode),
                Change::Mirror { .. } => self.copy_mirror(mark.ino, mark.offset..end, payload, Some(rest)),
                Change::Restore => {
                    self.restore_here(mark.ino, mark.offset..end, payload).map_err(DataError::Io)
                }
            };
            Some((made, map))
        });
        // Others do not wait until it is on stable storage.
        let outcome = outcome.map(|(made, map)| match change {
            Change::Write { sync: true } if made.is_ok() => (self.sync_copy(mark.ino), map),
            _ => (made, map),
        });
        match outcome {
            // By the same map: the sender is about to hear of a newer one.
            None => Err(Refusal::Busy.into()),
            Some((Ok(()), _)) => Ok(CopyReply::Made),
            Some((Err(error), map)) => {
                if error.errno().is_of_broken_storage() {
                    self.note_failure(mark.ino, error.errno());
                }
                if self.is_excused_in(&map, mark.group) {
                    tracing::warn!(ino = %mark.ino, %error, "a change was not made while catching up");
                    return Ok(CopyReply::Made);
                }
                // The primary is about to leave this copy out, and others may hear of that first.
                let is_last_word = matches!(change, Change::Mirror { .. } | Change::Restore);
                if is_last_word || error.errno().is_of_broken_storage() {
                    self.suspect(mark.group, self.me);
                }
                Ok(CopyReply::Failed(error.errno()))
            }
        }
    }

    /// Whether a change of a group need not be made here: this server is behind, and will compare the group again.
    fn is_excused_in(&self, map: &Map, group: Group) -> bool {
        let since = map.behind_since(group, self.me);
        since.is_some_and(|since| self.catching.excuses(group, since))
    }

    /// Puts a copy on stable storage. Whatever the reason why that failed: the kernel may have dropped changes.
    fn sync_copy(&self, ino: Ino) -> Result<(), DataError> {
        self.store.sync(ino).map_err(|error| {
            tracing::error!(%ino, %error, "a copy could not be synced");
            self.suspect_all();
            DataError::Io(Errno::IO)
        })
    }

    pub(crate) fn copy_write(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), DataError> {
        match self.store.write_summed(ino, offset, bytes, false)? {
            wrote if wrote.count == bytes.len() => Ok(()),
            _ => Err(DataError::Io(Errno::NOSPC)),
        }
    }

    /// The range becomes these bytes, and a hole behind them. `before`: how long the sub-file is at least to be without
    /// the range.
    pub(super) fn copy_mirror(
        &self,
        ino: Ino,
        range: std::ops::Range<u64>,
        bytes: &[u8],
        before: Option<u64>,
    ) -> Result<(), DataError> {
        if !bytes.is_empty() {
            self.copy_write(ino, range.start, bytes)?;
        }
        let (data_end, length) = (range.start + bytes.len() as u64, self.store.extent(ino)?.length);
        if data_end >= range.end || length <= data_end {
            return Ok(());
        }
        if length > range.end {
            return self.store.fallocate_summed(ino, data_end, range.end - data_end, Fallocate::PunchHole);
        }
        let end = before.filter(|_| bytes.is_empty()).map_or(data_end, |before| before.min(data_end));
        self.store.truncate(ino, end, false).map(drop)
    }

    /// The checksums of a range of a sub-file.
    pub(super) fn digests(&self, ino: Ino, offset: u64, len: u64) -> Result<Vec<u32>, DataError> {
        let mut buffer = vec![0; DIGESTED as usize];
        let end = offset + len;
        let starts = (offset..end).step_by(DIGESTED as usize);
        starts
            .map(|at| {
                let wanted = (end - at).min(DIGESTED) as usize;
                let count = self.store.read(ino, at, &mut buffer[..wanted])?;
                buffer[count..wanted].fill(0);
                Ok(crc32c::crc32c(&buffer[..wanted]))
            })
            .collect()
    }
}

/// Whether a group is one of blocks.
pub(super) fn is_of_blocks(group: &Group) -> bool {
    matches!(group, Group::Blocks { .. })
}
