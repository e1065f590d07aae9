//! A server's part in restriping: ranges of files leave it, and others come.
//!
//! The server of a file's inode drives each step ([`bivouac_proto::restripe`]); this module does what it asks for, and keeps
//! programs out of what is on its way:
//!
//! - Each request for blocks [enters](Restriping::enter) first. It is refused if it goes by a version of the file's layout
//!   that blocks have left since, or if it would change what a step keeps changes out of. Those that have entered before are
//!   waited for ([`flights`]).
//! - Processes of this node, which access sub-files past the server, are kept from writing by a fence while a range is on its
//!   way. When it has left, their descriptors become stale; and who asks for a new one enters, like any request.
//! - What has to be known after a restart is in the data store's journal ([`bivouac_data::Stripes`]).
//!
//! A step that is over stays over: a request of it that comes late changes nothing. Requests of one file follow each other,
//! except that an undoing interrupts a taking.
//!
//! While a range is on its way, nobody changes it, and reads go on where it is. So what is taken is what there is, and can be
//! taken in any order.

mod closed;
mod driven;
mod flights;
mod rate;
mod room;
mod taking;
mod yielding;

use crate::copies::Copies;
use crate::links::Links;
use crate::storage::Counters;
use bivouac_data::{DataError, DataStore, StripeNote};
use bivouac_layout::{FileLayout, Group, Ino, Map, ServerId, restripe};
use bivouac_node::fences::{Against, Fence, Lasting};
use bivouac_proto::data::{Access as Pass, DataRequest, Fallocate};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::restripe::{Restripe, RestripeReply, RestripeRequest, STRETCHES_MAX};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use closed::{Closed, ClosedFiles};
use driven::Driven;
pub(crate) use flights::Flight;
use flights::{Flights, Kind};
use rate::Rate;
pub(crate) use room::Room;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use yielding::Yielding;

/// Bytes of files that are on their way at once, at most; and as long as it is not known how fast they move.
const AT_ONCE: u64 = 256 << 20;
const UNKNOWN: u64 = 8 << 20;
/// Locks by which requests of one file follow each other.
const TURNS: usize = 64;
/// How long requests are waited for that are under way: most take a moment, but one may wait for others in turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long direct writes are waited for: long for a write.
const OUTSIDE: Duration = Duration::from_secs(1);
/// For so long the numbers of steps that are over are remembered: longer than requests are repeated.
const MEMORY: Duration = Duration::from_secs(120);

/// See the module.
pub(crate) struct Restriping {
    links: Arc<Links>,
    store: Arc<DataStore>,
    copies: Arc<Copies>,
    me: ServerId,
    flights: Flights,
    /// Files of which nothing is changed for a moment.
    closed: ClosedFiles,
    turns: [Mutex<()>; TURNS],
    /// What keeps processes of this node from writing.
    lasting: Mutex<HashMap<(Ino, u64), Option<Lasting>>>,
    over: Mutex<VecDeque<(Instant, Ino, u64)>>,
    taking: (Mutex<Interruptible>, Condvar),
    rate: Rate,
    /// What has been asked for and is to come.
    coming: Room,
    /// What leaves this server, beside what programs read.
    out: Yielding,
    /// What comes, beside what they write.
    into: Yielding,
    /// What moves of the files of which this server has the inodes, wherever it moves.
    driven: Driven,
}

/// Takings that are under way, each with whether it is to end.
type Interruptible = HashMap<(Ino, u64), Arc<AtomicBool>>;

/// What a request for blocks does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// It reads, or asks for something.
    Reads,
    /// It changes this range.
    Changes(Range<u64>),
}

/// Why this server has not done its part.
enum Failed {
    /// Its own storage has failed.
    Storage(Errno),
    /// Anything else.
    Other(Failure),
}

impl From<DataError> for Failed {
    fn from(error: DataError) -> Failed {
        Failed::Storage(error.errno())
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        Failed::Other(failure)
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        Failed::Other(errno.into())
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Failed {
        Failed::Other(refusal.into())
    }
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Failure {
        match failed {
            Failed::Storage(errno) => Failure::Errno(errno),
            Failed::Other(failure) => failure,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Restriping {
    /// Of a server that has just been started: what was fenced before still is.
    pub(crate) fn new(
        links: Arc<Links>,
        store: Arc<DataStore>,
        copies: Arc<Copies>,
        me: ServerId,
        counters: &Arc<Counters>,
    ) -> Restriping {
        let (read, written) = (counters.clone(), counters.clone());
        let restriping = Restriping {
            links,
            store,
            copies,
            me,
            flights: Flights::default(),
            closed: ClosedFiles::default(),
            turns: std::array::from_fn(|_| Mutex::default()),
            lasting: Mutex::default(),
            over: Mutex::default(),
            taking: Default::default(),
            rate: Rate::default(),
            coming: Room::default(),
            out: Yielding::new(Box::new(move || read.read.load(Ordering::Relaxed))),
            into: Yielding::new(Box::new(move || written.written.load(Ordering::Relaxed))),
            driven: Driven::new(Instant::now()),
        };
        for (ino, striped) in restriping.store.stripes().all() {
            striped.fences.keys().for_each(|number| restriping.keep_writers_out(ino, *number));
        }
        restriping
    }

    /// How many bytes of files may be on their way at once, where each server takes in `rate` bytes per second at most (0: any
    /// number): what arrives within a moment, also if programs begin to use the links just then. They wait for it where they
    /// want to write.
    pub(crate) fn at_once(&self, rate: u64) -> u64 {
        let limits = [rate, self.out.limit(), self.into.limit()];
        let slowest = limits.into_iter().filter(|limit| *limit > 0).min();
        // Of what a step goes over, about a half moves.
        let carried = || self.out.moved_most().max(self.into.moved_most()) / 2;
        slowest.unwrap_or_else(|| carried().max(self.driven.most()).max(UNKNOWN)).min(AT_ONCE)
    }

    /// A step of a file of which this server has the inode has moved so many bytes.
    pub(crate) fn has_moved(&self, bytes: u64) {
        self.driven.note(bytes, Instant::now());
    }

    /// A program's request for blocks begins, by this version of the file's layout. What it does, it does before it drops
    /// what this returns.
    pub(crate) fn enter(&self, ino: Ino, layout: u32, access: &Access) -> Result<Flight<'_>, Refusal> {
        let kind = if *access == Access::Reads { Kind::Read } else { Kind::Change };
        let flight = self.flights.begin(ino, kind);
        let refusal = self.store.stripes().with(ino, |striped| {
            if layout < striped.needed {
                return Some(Refusal::StaleLayout);
            }
            let is_fenced = |range: &Range<u64>| striped.fences.values().any(|fence| overlap(fence, range));
            match access {
                Access::Changes(range) if is_fenced(range) => Some(Refusal::Busy),
                _ => None,
            }
        });
        let closed = (kind == Kind::Change && self.closed.has(ino)).then_some(Refusal::Busy);
        match refusal.flatten().or(closed) {
            Some(refusal) => Err(refusal),
            None => Ok(flight),
        }
    }

    /// The server of a file's inode, or a program, changes the file by this version of its layout: who goes by an older one
    /// is refused here from now on. Where blocks of an older layout would be there are none of that any more, but perhaps
    /// others behind them, and these would look like holes.
    pub(crate) fn goes_by(&self, request: &DataRequest, layout: u32) -> Result<(), Errno> {
        let changes = match request {
            DataRequest::Write { ino, .. }
            | DataRequest::Truncate { ino, .. }
            | DataRequest::Fallocate { ino, .. }
            | DataRequest::Pass { ino, access: Pass::Write | Pass::Make } => Some(*ino),
            _ => None,
        };
        changes.map_or(Ok(()), |ino| self.copies.learn_layout(ino, layout)).map_err(|error| error.errno())
    }

    /// Serves another server's request. What is to go with the reply is appended to `out`.
    pub(crate) fn serve(
        &self,
        from: ServerId,
        request: &RestripeRequest,
        out: &mut Vec<u8>,
    ) -> Result<RestripeReply, Failure> {
        let map = self.links.map();
        if let Some(step) = request.step() {
            let is_sound = step.old.is_valid(&map) && step.new.is_valid(&map) && step.start < step.end;
            if !is_sound || step.new.version <= step.old.version {
                return Err(Errno::INVAL.into());
            }
            // Only the server of the inode knows whether a step is still to be.
            if map.primary(step.ino.shard()) != from {
                return Err(Refusal::Busy.into());
            }
        }
        let done = match request {
            RestripeRequest::Fence(step) => self.fence(&map, step),
            RestripeRequest::Take { step, length, rate } => self.take(&map, step, *length, *rate),
            RestripeRequest::Finish(step) => self.finish(&map, step),
            RestripeRequest::Undo(step) => self.undo(&map, step),
            RestripeRequest::Give { group, ino, number, stretches } => {
                if stretches.len() > STRETCHES_MAX {
                    return Err(Errno::INVAL.into());
                }
                let has_copies = matches!(group, Group::Blocks { copies: 2.., .. });
                if has_copies {
                    self.copies.serving(*group)?;
                }
                return self.give(*ino, *number, stretches, out).map_err(|failed| {
                    if let (Failed::Storage(errno), true) = (&failed, has_copies) {
                        // Another one is asked when the map says so.
                        self.copies.fails_here(*group, *ino, *errno);
                    }
                    failed.into()
                });
            }
        };
        match (done, request.step()) {
            (Err(Failed::Storage(errno)), Some(step)) if self.is_excused(step, errno) => {
                if matches!(request, RestripeRequest::Finish(_) | RestripeRequest::Undo(_)) {
                    self.end(step);
                }
                Ok(RestripeReply::Excused)
            }
            (done, _) => done.map_err(Failure::from),
        }
    }

    /// The own storage has failed a part of a step. Whether others can go on without this server.
    fn is_excused(&self, step: &Restripe, errno: Errno) -> bool {
        let map = self.links.map();
        if !errno.is_of_broken_storage() || step.new.copies(&map) == 1 {
            return false;
        }
        let groups: BTreeSet<Group> =
            [&step.old, &step.new].into_iter().flat_map(|layout| layout.groups(&map, u64::MAX)).collect();
        let mine = groups.into_iter().filter(|group| map.holders(*group).all().contains(&self.me));
        self.copies.could_not_take_part(step.ino, errno, mine.collect())
    }

    fn turn(&self, ino: Ino) -> MutexGuard<'_, ()> {
        lock(&self.turns[ino.0 as usize % TURNS])
    }

    fn is_over(&self, ino: Ino, number: u64) -> bool {
        lock(&self.over).iter().any(|(_, of, over)| (*of, *over) == (ino, number))
    }

    fn end(&self, step: &Restripe) {
        let mut over = lock(&self.over);
        while over.front().is_some_and(|(since, ..)| since.elapsed() >= MEMORY) {
            over.pop_front();
        }
        if !over.iter().any(|(_, of, number)| (*of, *number) == (step.ino, step.number)) {
            over.push_back((Instant::now(), step.ino, step.number));
        }
        drop(over);
        lock(&self.lasting).remove(&(step.ino, step.number));
    }

    fn keep_writers_out(&self, ino: Ino, number: u64) {
        let mut lasting = lock(&self.lasting);
        lasting
            .entry((ino, number))
            .or_insert_with(|| self.store.fences().map(|fences| fences.keep_up(ino, Against::Writers)));
    }

    /// Keeps changes of a step's range out, and waits for those that are under way.
    fn fence(&self, map: &Map, step: &Restripe) -> Result<RestripeReply, Failed> {
        let ino = step.ino;
        {
            let _turn = self.turn(ino);
            if self.is_over(ino, step.number) {
                return Err(Errno::AGAIN.into());
            }
            let note = StripeNote::Fenced { number: step.number, range: step.range() };
            self.store.stripes().note(ino, &note)?;
            self.keep_writers_out(ino, step.number);
        }
        if !self.flights.have_ended(ino, Kind::Change, PATIENCE) {
            return Err(Refusal::Busy.into());
        }
        // Nobody waits behind this fence: it only finds out that those who were inside have ended.
        drop(self.store.keep_out(ino, OUTSIDE)?);
        if self.links.map().members_since > map.epoch {
            // The map may say since then that a copy has missed a change that was waited for. Who drives the step has to know.
            return Err(Refusal::Busy.into());
        }
        let length = self.store.extent(ino)?.length;
        Ok(RestripeReply::Fenced { length })
    }

    /// Reads stretches for who takes them.
    fn give(
        &self,
        ino: Ino,
        number: u64,
        stretches: &[(u64, u32)],
        out: &mut Vec<u8>,
    ) -> Result<RestripeReply, Failed> {
        let is_fenced = self.store.stripes().with(ino, |striped| striped.fences.contains_key(&number));
        if is_fenced != Some(true) {
            return Err(Errno::AGAIN.into());
        }
        self.out.wait(stretches.iter().map(|(_, len)| u64::from(*len)).sum());
        let extent = self.store.extent(ino)?;
        let mut holes = Vec::with_capacity(stretches.len());
        for (offset, len) in stretches {
            let end = offset.saturating_add(u64::from(*len));
            let data = match self.store.seek(ino, *offset, false) {
                Ok(data) => data,
                Err(error) if error.errno() == Errno::NXIO => u64::MAX,
                Err(error) => return Err(error.into()),
            };
            let begin = out.len();
            if data < end {
                if begin + *len as usize > MAX_PAYLOAD as usize {
                    return Err(Errno::INVAL.into());
                }
                out.resize(begin + *len as usize, 0);
                self.store.read(ino, *offset, &mut out[begin..])?;
            }
            let is_hole = out[begin..].iter().all(|byte| *byte == 0);
            if is_hole {
                out.truncate(begin);
            }
            holes.push(is_hole);
        }
        Ok(RestripeReply::Gave { holes, length: extent.length, written: extent.written })
    }

    /// A step is decided: who goes by an older layout is refused, and what has left is given up.
    fn finish(&self, map: &Map, step: &Restripe) -> Result<RestripeReply, Failed> {
        let ino = step.ino;
        let _turn = self.turn(ino);
        if self.is_over(ino, step.number) {
            return Ok(RestripeReply::Done);
        }
        let note = StripeNote::Finished { number: step.number, needed: step.new.version };
        self.store.stripes().note(ino, &note)?;
        if !self.flights.have_ended(ino, Kind::Read, PATIENCE) {
            return Err(Refusal::Busy.into());
        }
        self.store.stripes().sync()?;
        // Copies of it may be compared at this moment.
        let _alone = match step.old.replicas {
            1 => None,
            _ => Some(self.copies.ranges().hold(ino, step.range())?),
        };
        let fence = self.store.keep_out(ino, OUTSIDE)?;
        if let Some(fence) = &fence {
            fence.retire();
        }
        let length = self.store.extent(ino)?.length;
        let range = step.start..step.end.min(length);
        let left: Vec<_> = restripe::leaves(map, (&step.old, &step.new), range, self.me).collect();
        self.give_up(step, &left, (map, &step.new))?;
        drop(fence);
        self.end(step);
        Ok(RestripeReply::Done)
    }

    /// A step is not to be: what was taken for it is given up.
    fn undo(&self, map: &Map, step: &Restripe) -> Result<RestripeReply, Failed> {
        let ino = step.ino;
        self.interrupt(step);
        let _turn = self.turn(ino);
        if self.is_over(ino, step.number) {
            return Ok(RestripeReply::Done);
        }
        let length = self.store.extent(ino)?.length;
        let range = step.start..step.end.min(length);
        let taken = restripe::moves(map, (&step.old, &step.new), range, self.me);
        let taken: Vec<_> =
            taken.map(|taken| taken.from.offset..taken.from.offset + taken.from.len).collect();
        let holds = step.old.servers_to_clear(map, u64::MAX).contains(&self.me);
        if !(taken.is_empty() && holds) {
            let _closed = match holds && step.old.replicas == 1 {
                true => Some(self.close(ino)?),
                false => None,
            };
            self.give_up(step, &taken, (map, &step.old))?;
        }
        self.copies.gives_back(ino, step.new.version, step.old.version);
        self.store.stripes().note(ino, &StripeNote::Undone { number: step.number })?;
        self.end(step);
        Ok(RestripeReply::Done)
    }

    /// Keeps everybody from changing anything of a file without copies: programs may write behind what is given up all the time.
    fn close(&self, ino: Ino) -> Result<(Closed<'_>, Option<Fence<'_>>), Failed> {
        let closed = self.closed.close(ino);
        if !self.flights.have_ended(ino, Kind::Change, PATIENCE) {
            return Err(Refusal::Busy.into());
        }
        Ok((closed, self.store.keep_out(ino, OUTSIDE)?))
    }

    /// Frees stretches of a sub-file, and makes it no longer than it has to be by this layout; if this server has nothing of
    /// the file by that, all of it goes. When it was written last stays.
    fn give_up(
        &self,
        step: &Restripe,
        stretches: &[Range<u64>],
        (map, layout): (&Map, &FileLayout),
    ) -> Result<(), Failed> {
        let ino = step.ino;
        if !layout.servers_to_clear(map, u64::MAX).contains(&self.me) {
            return Ok(self.copies.apply(ino, 0..u64::MAX, || self.store.drop_sub_file(ino))?);
        }
        if stretches.is_empty() {
            return Ok(());
        }
        let free = || {
            let before = self.store.extent(ino)?;
            let stretches = stretches.iter().filter(|stretch| stretch.start < before.length);
            self.punch(step, stretches.cloned())?;
            // Looked at here, where nothing else happens to the sub-file: others make it longer, behind what is given up.
            let end = layout.end_on(map, self.me, before.length);
            if end < before.length {
                self.store.truncate(ino, end, false)?;
            }
            before.written.map_or(Ok(()), |written| self.store.set_written(ino, written.at))
        };
        Ok(self.copies.apply(ino, 0..u64::MAX, free)?)
    }
}

impl Restriping {
    /// Makes stretches of a sub-file holes.
    fn punch(&self, step: &Restripe, stretches: impl Iterator<Item = Range<u64>>) -> Result<(), DataError> {
        joined(stretches).into_iter().try_for_each(|stretch| {
            let (offset, len) = (stretch.start, stretch.end - stretch.start);
            match step.old.replicas {
                1 => self.store.fallocate(step.ino, offset, len, Fallocate::PunchHole),
                _ => self.store.fallocate_summed(step.ino, offset, len, Fallocate::PunchHole),
            }
        })
    }
}

/// Stretches that follow each other, as one.
fn joined(stretches: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for stretch in stretches {
        match joined.last_mut() {
            Some(last) if last.end == stretch.start => last.end = stretch.end,
            _ => joined.push(stretch),
        }
    }
    joined
}
