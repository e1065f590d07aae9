//! What holders of blocks must know of files whose ranges go to other servers ([`crate::restriping`]).
//!
//! Whoever becomes the primary of a group has to keep changes out of what is on its way, and has to refuse older layouts, as the
//! primary before it did. All holders that are up are told when a step begins and ends. One that was away asks the others
//! before it catches up with anything ([`Copies::learn_stripes`]), and frees what has left it meanwhile.
//!
//! A server that catches up goes by layouts of files that it has asked for. Meanwhile a step may give it blocks which these do
//! not show. So it notes first that it takes something ([`Copies::takes`]), and from then on neither frees nor cuts off anything
//! of the file by an older layout. The same holds for what a program writes by a newer one ([`Copies::learn_layout`]): what a file
//! grows by may lie where nothing was before, without any step.
//!
//! What servers compare and fetch of each other they do by a version of the file's layout, like programs: blocks that have left
//! a server would look like holes there, and must not be taken for what the others should have.

use super::Copies;
use crate::links::all_of;
use bivouac_data::{DataError, StripeNote, Striped};
use bivouac_layout::{FileLayout, Group, Ino, Map, ServerId};
use bivouac_proto::copies::{CopyReply, CopyRequest, Mark, Stripe};
use bivouac_proto::data::Fallocate;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Request};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most files in one answer.
const FILES: usize = 10_000;
/// For so long it is remembered of which files something was taken: longer than a step takes, and than anybody goes by a layout that he has asked for.
const MEMORY: Duration = Duration::from_secs(3600);

/// By which version of its layout a server has taken something of a file, and when.
pub(super) type Taken = Mutex<HashMap<Ino, (u32, Instant)>>;

impl Copies {
    /// Refuses who goes by a layout that blocks have left since.
    pub(super) fn goes_by(&self, ino: Ino, layout: u32) -> Result<(), Refusal> {
        let needed = self.store.stripes().with(ino, |striped| striped.needed);
        if needed.is_none_or(|needed| needed <= layout) { Ok(()) } else { Err(Refusal::StaleLayout) }
    }

    /// From now on this server has something of a file, or is about to, that layouts before this version do not show.
    pub(crate) fn takes(&self, ino: Ino, version: u32) {
        self.apply(ino, 0..u64::MAX, || {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            // Not each time: the next time is when as many have come as are left.
            if taken.len() == taken.capacity() {
                taken.retain(|_, (_, since)| since.elapsed() < MEMORY);
            }
            taken.insert(ino, (version, Instant::now()));
        });
    }

    /// What was taken for a version of a file's layout was given up: the one before it stays. (It may have taken something by that,
    /// too.)
    pub(crate) fn gives_back(&self, ino: Ino, version: u32, before: u32) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, _)) = taken.get_mut(&ino).filter(|(known, _)| *known == version) {
            *known = before;
        }
    }

    /// Something of a file is changed here by this version of its layout: nobody goes by an older one any more.
    pub(crate) fn learn_layout(&self, ino: Ino, layout: u32) -> Result<(), DataError> {
        if self.needed(ino) < layout {
            self.store.stripes().note(ino, &StripeNote::Finished { number: 0, needed: layout })?;
            // Who has descriptors by an older one.
            self.store.renounce(ino);
        }
        Ok(())
    }

    /// The oldest version of a file's layout by which something of it may be changed here, as far as is known.
    pub(super) fn needed(&self, ino: Ino) -> u32 {
        self.store.stripes().with(ino, |striped| striped.needed).unwrap_or(0)
    }

    /// Whether it may have something of a file that this version of its layout does not show. (Nothing of the file is changed
    /// while the caller asks.)
    pub(super) fn has_newer(&self, ino: Ino, layout: u32) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let has_taken = taken.get(&ino).is_some_and(|(version, _)| *version > layout);
        drop(taken);
        has_taken || self.needed(ino) > layout
    }

    /// What this server knows of restriped files behind this one, in the order of their numbers.
    pub(super) fn stripes(&self, after: Ino) -> Vec<Stripe> {
        let stripe = |(ino, striped): (Ino, Striped)| Stripe {
            ino,
            needed: striped.needed,
            fences: striped.fences.iter().map(|(number, range)| (*number, range.start, range.end)).collect(),
        };
        let all = self.store.stripes().all().into_iter().filter(|(ino, _)| *ino > after);
        let mut all: Vec<Stripe> = all.map(stripe).collect();
        all.sort_unstable_by_key(|stripe| stripe.ino);
        all.truncate(FILES);
        all
    }

    /// Learns from all other servers what they know of restriped files, and forgets the fences of steps that nobody knows any
    /// more. Says whether all have answered.
    pub(super) fn learn_stripes(&self) -> bool {
        let map = self.links.map();
        // Steps that begin from here on are told to this server, too.
        let before: Vec<(Ino, Striped)> = self.store.stripes().all();
        let mut known: BTreeSet<(Ino, u64)> = BTreeSet::new();
        let others = map.servers.iter().map(|server| server.id).filter(|id| *id != self.me && map.is_up(*id));
        for server in others {
            match self.stripes_of(server) {
                Ok(stripes) => {
                    for stripe in stripes {
                        known.extend(stripe.fences.iter().map(|(number, ..)| (stripe.ino, *number)));
                        if self.take_over_stripe(&map, &stripe).is_err() {
                            return false;
                        }
                    }
                }
                Err(failure) => {
                    tracing::debug!(%server, ?failure, "it does not say which files are restriped");
                    return false;
                }
            }
        }
        let over =
            before.iter().flat_map(|(ino, striped)| striped.fences.keys().map(|number| (*ino, *number)));
        let over = over.filter(|(ino, number)| !known.contains(&(*ino, *number)) && self.has_copies(*ino));
        over.collect::<Vec<_>>()
            .into_iter()
            .all(|(ino, number)| self.store.stripes().note(ino, &StripeNote::Undone { number }).is_ok())
    }

    fn stripes_of(&self, server: ServerId) -> Result<Vec<Stripe>, Failure> {
        let mut all: Vec<Stripe> = Vec::new();
        loop {
            let after = all.last().map_or(Ino(0), |stripe| stripe.ino);
            match self.links.ask(all_of(server), &Request::Copy(CopyRequest::Stripes { after }))? {
                Reply::Copy(CopyReply::Stripes(more)) if more.is_empty() => return Ok(all),
                Reply::Copy(CopyReply::Stripes(more)) => all.extend(more),
                _ => return Err(Errno::PROTO.into()),
            }
        }
    }

    /// What another server knows of a file counts here, too.
    fn take_over_stripe(&self, map: &Map, stripe: &Stripe) -> Result<(), Failure> {
        let stripes = self.store.stripes();
        let before = stripes.of(stripe.ino).unwrap_or_default();
        let failed = |error: DataError| Failure::Errno(error.errno());
        if stripe.needed > before.needed {
            // That of a file that has no part here only makes programs look at its layout.
            let note = StripeNote::Finished { number: 0, needed: stripe.needed };
            stripes.note(stripe.ino, &note).map_err(failed)?;
        }
        for (number, start, end) in &stripe.fences {
            if before.fences.contains_key(number)
                || self.layout_of(map, stripe.ino)?.is_none_or(|layout| layout.copies(map) == 1)
            {
                continue;
            }
            let note = StripeNote::Fenced { number: *number, range: *start..*end };
            stripes.note(stripe.ino, &note).map_err(failed)?;
        }
        Ok(())
    }

    fn has_copies(&self, ino: Ino) -> bool {
        let map = self.links.map();
        matches!(self.layout_of(&map, ino), Ok(Some(layout)) if layout.copies(&map) > 1)
    }

    /// A file's layout, as its inode's server shows it; `None` if the file is gone, or has no copies.
    pub(super) fn layout_of(&self, map: &Map, ino: Ino) -> Result<Option<FileLayout>, Failure> {
        let before = Ino(ino.0.saturating_sub(1));
        let files = self.files(ino.shard(), before)?;
        let layout = files.into_iter().next().filter(|(found, _)| *found == ino).map(|(_, layout)| layout);
        Ok(layout.filter(|layout| layout.is_valid(map)))
    }

    /// Of changes that may not have been made everywhere, those of blocks that are still where they were.
    pub(super) fn those_that_stay(&self, map: &Map, marks: Vec<Mark>) -> Result<Vec<Mark>, Failure> {
        let mut layouts: BTreeMap<Ino, Option<FileLayout>> = BTreeMap::new();
        let mut stay = Vec::with_capacity(marks.len());
        for mark in marks {
            if self.needed(mark.ino) == 0 {
                stay.push(mark);
                continue;
            }
            if let std::collections::btree_map::Entry::Vacant(unknown) = layouts.entry(mark.ino) {
                unknown.insert(self.layout_of(map, mark.ino)?);
            }
            let layout = layouts.get(&mark.ino).and_then(Option::as_ref);
            let group: Option<Group> = layout
                .and_then(|layout| layout.piece_at(map, mark.offset, u64::MAX))
                .map(|piece| piece.group);
            if group == Some(mark.group) {
                stay.push(mark);
            }
        }
        Ok(stay)
    }

    /// Frees what this server has of blocks that are not its own by a file's layout: they have left while it was away.
    pub(super) fn clear_what_has_left(
        &self,
        map: &Map,
        ino: Ino,
        layout: &FileLayout,
    ) -> Result<(), Failure> {
        let needed = self.store.stripes().with(ino, |striped| (striped.needed, striped.fences.is_empty()));
        // While a step is under way, it may have taken what the layout does not show yet.
        if needed != Some((layout.version, true)) {
            return Ok(());
        }
        let failed = |error: DataError| Failure::Errno(error.errno());
        let length = self.store.extent(ino).map_err(failed)?.length;
        let is_own = |group| map.holders(group).all().contains(&self.me);
        let mut at = 0;
        while let Ok(data) = self.store.seek(ino, at, false) {
            let Some(piece) = layout.piece_at(map, data, length.max(data + 1)) else { break };
            at = piece.offset + piece.len;
            if !is_own(piece.group) {
                let punch = || match self.has_newer(ino, layout.version) {
                    true => Ok(()),
                    false => self.store.fallocate_summed(ino, piece.offset, piece.len, Fallocate::PunchHole),
                };
                self.apply(ino, piece.offset..at, || self.unseen(ino, None, punch)).map_err(failed)?;
            }
        }
        Ok(())
    }
}
