//! Taking: a server gets what of a range is to be its own.
//!
//! It asks the primaries, by the old layout, for the stretches that it lacks: all of them at once, each for as many stretches
//! as go into a message of moderate length. Holes are not sent and stay holes. The sub-file becomes as long as what it got
//! reaches, not longer than the file.

use super::{Failed, Restriping, lock};
use bivouac_data::DataError;
use bivouac_layout::restripe::{Move, moves};
use bivouac_layout::{Group, Map, ServerId};
use bivouac_proto::restripe::{Restripe, RestripeReply, RestripeRequest, STRETCHES_MAX};
use bivouac_proto::{Errno, Reply, Request, Time};
use bivouac_transport::engine::To;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that are asked for at once.
const AT_ONCE: u64 = 2 << 20;
/// The same, of all files: enough for any link. With more, each link would carry many streams at once, which take its buffers
/// from each other, and from programs' small requests.
const AT_ONCE_IN_ALL: u64 = 4 * AT_ONCE;
/// Questions that are under way to one server.
const TO_ONE: usize = 2;

/// What is asked of one server at once.
struct Question {
    from: ServerId,
    group: Group,
    stretches: Vec<(u64, u32)>,
}

/// A taking that is under way, until it is dropped.
struct Taking<'r> {
    restriping: &'r Restriping,
    step: &'r Restripe,
    interrupted: Arc<AtomicBool>,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let (taking, ended) = &self.restriping.taking;
        lock(taking).remove(&(self.step.ino, self.step.number));
        ended.notify_all();
    }
}

impl Restriping {
    /// Ends the taking of a step, if it is under way, and sees to it that none begins.
    pub(super) fn interrupt(&self, step: &Restripe) {
        let (taking, ended) = &self.taking;
        let mut taking = lock(taking);
        while let Some(interrupted) = taking.get(&(step.ino, step.number)) {
            interrupted.store(true, Ordering::Relaxed);
            taking = ended.wait(taking).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    fn begin_taking<'r>(&'r self, step: &'r Restripe) -> Option<Taking<'r>> {
        let key = (step.ino, step.number);
        let mut taking = lock(&self.taking.0);
        if taking.contains_key(&key) || self.is_over(step.ino, step.number) {
            return None;
        }
        let interrupted = Arc::<AtomicBool>::default();
        taking.insert(key, interrupted.clone());
        Some(Taking { restriping: self, step, interrupted })
    }

    /// Gets what this server is to have of a step's range.
    pub(super) fn take(
        &self,
        map: &Map,
        step: &Restripe,
        length: u64,
        rate: u64,
    ) -> Result<RestripeReply, Failed> {
        let Some(taking) = self.begin_taking(step) else { return Err(Errno::AGAIN.into()) };
        let range = step.start..step.end.min(length);
        let wanted: Vec<Move> = moves(map, (&step.old, &step.new), range, self.me).collect();
        if step.new.replicas != 1 {
            self.copies.takes(step.ino, step.new.version);
        }
        if !step.old.servers_to_clear(map, u64::MAX).contains(&self.me) {
            // Whatever is here was left when this server was given up, or by an earlier try.
            let drop = || self.store.drop_sub_file(step.ino);
            self.copies.apply(step.ino, 0..u64::MAX, drop)?;
        }
        self.clear(step, &wanted)?;
        let mut by_server: BTreeMap<ServerId, Vec<Question>> = BTreeMap::new();
        for question in questions(&wanted) {
            by_server.entry(question.from).or_default().push(question);
        }
        let got = AtomicU64::new(0);
        let queues: Vec<&[Question]> =
            by_server.values().flat_map(|all| all.chunks(all.len().div_ceil(TO_ONE))).collect();
        let ask_all = |questions: &[Question]| -> Result<(), Failed> {
            for question in questions {
                if taking.interrupted.load(Ordering::Relaxed) || self.links.map().members_since > map.epoch {
                    return Err(Errno::AGAIN.into());
                }
                let bytes = question.stretches.iter().map(|(_, len)| u64::from(*len)).sum();
                self.rate.wait(bytes, rate);
                self.into.wait(bytes);
                let _coming = self.coming.take(bytes, || AT_ONCE_IN_ALL);
                got.fetch_add(self.get(step, question)?, Ordering::Relaxed);
            }
            Ok(())
        };
        match queues[..] {
            [] => {}
            [only] => ask_all(only)?,
            _ => std::thread::scope(|scope| {
                let all: Vec<_> = queues.iter().map(|queue| scope.spawn(|| ask_all(queue))).collect();
                let ended = all.into_iter().map(|one| one.join().unwrap_or(Err(Errno::IO.into())));
                ended.fold(Ok(()), Result::and)
            })?,
        }
        if !wanted.is_empty() {
            // It may have been synced where it was, and that server removes it when the step is decided.
            self.store.sync(step.ino)?;
        }
        Ok(RestripeReply::Took { bytes: got.into_inner() })
    }

    /// What an earlier try may have left is not to show where the file has holes.
    fn clear(&self, step: &Restripe, wanted: &[Move]) -> Result<(), Failed> {
        let Some((first, last)) = wanted.first().zip(wanted.last()) else { return Ok(()) };
        let length = self.store.extent(step.ino)?.length;
        let end = length.min(last.from.offset + last.from.len);
        let is_empty = match self.store.seek(step.ino, first.from.offset, false) {
            Ok(data) => data >= end,
            Err(error) if error.errno() == Errno::NXIO => true,
            Err(error) => return Err(error.into()),
        };
        if is_empty {
            return Ok(());
        }
        let stretches = wanted.iter().map(|wanted| wanted.from.offset..wanted.from.offset + wanted.from.len);
        let punch = || self.punch(step, stretches.filter(|stretch| stretch.start < end));
        Ok(self.copies.apply(step.ino, 0..u64::MAX, punch)?)
    }

    /// Gets some stretches, and writes them. How many bytes came.
    fn get(&self, step: &Restripe, question: &Question) -> Result<u64, Failed> {
        let Question { from, group, stretches } = question;
        let request = RestripeRequest::Give {
            group: *group,
            ino: step.ino,
            number: step.number,
            stretches: stretches.clone(),
        };
        let mut bytes = vec![0; stretches.iter().map(|(_, len)| *len as usize).sum()];
        let to = match group {
            Group::Blocks { copies: 2.., .. } => To::Primary(*from, *group),
            _ => To::Server(*from, bivouac_layout::ShardId(0)),
        };
        let (reply, count) = self.links.ask_into(to, &Request::Restripe(request), &[], &mut bytes)?;
        let Reply::Restripe(RestripeReply::Gave { holes, length, written }) = reply else {
            return Err(Errno::PROTO.into());
        };
        let written = written.map(|written| written.time(crate::links::now(), crate::links::now()).shown);
        let mut rest = bytes.get(..count).unwrap_or_default();
        if holes.len() != stretches.len() {
            return Err(Errno::PROTO.into());
        }
        for ((offset, len), is_hole) in stretches.iter().zip(holes) {
            let data = match is_hole {
                true => &[][..],
                false => {
                    let (data, later) = rest.split_at_checked(*len as usize).ok_or(Errno::PROTO)?;
                    rest = later;
                    data
                }
            };
            self.put(step, (*offset, *len), data, (length, written))?;
        }
        Ok(count as u64)
    }

    /// Writes a stretch. Its server's sub-file has a length, and was written last at some time.
    fn put(
        &self,
        step: &Restripe,
        (offset, len): (u64, u32),
        data: &[u8],
        (length, written): (u64, Option<Time>),
    ) -> Result<(), DataError> {
        // Behind the end of the file there is nothing.
        let end = offset.saturating_add(u64::from(len)).min(length);
        if end <= offset {
            return Ok(());
        }
        let data = data.get(..(end - offset) as usize).unwrap_or(data);
        let put = || {
            match step.new.replicas {
                _ if data.is_empty() => {}
                1 if self.store.write(step.ino, offset, data, false)?.count < data.len() => {
                    return Err(DataError::Io(Errno::NOSPC));
                }
                1 => {}
                _ => self.copies.copy_write(step.ino, offset, data)?,
            }
            // A file may end with a hole.
            if length <= offset + u64::from(len) && self.store.extent(step.ino)?.length < end {
                self.store.truncate(step.ino, end, true)?;
            }
            Ok(())
        };
        self.copies.apply(step.ino, offset..end, || self.copies.unseen(step.ino, written, put))
    }
}

/// What is asked of whom: in one question, stretches of one group that lie one behind the other.
fn questions(wanted: &[Move]) -> Vec<Question> {
    let mut open: BTreeMap<Group, (Question, u64)> = BTreeMap::new();
    let mut all = Vec::new();
    for Move { from, .. } in wanted {
        let mut at = from.offset;
        while at < from.offset + from.len {
            let len = (from.offset + from.len - at).min(AT_ONCE);
            let new = || (Question { from: from.server, group: from.group, stretches: Vec::new() }, 0);
            let (question, bytes) = open.entry(from.group).or_insert_with(new);
            question.stretches.push((at, len as u32));
            *bytes += len;
            at += len;
            if (*bytes >= AT_ONCE || question.stretches.len() >= STRETCHES_MAX)
                && let Some((full, _)) = open.remove(&from.group)
            {
                all.push(full);
            }
        }
    }
    all.extend(open.into_values().map(|(question, _)| question));
    all
}
