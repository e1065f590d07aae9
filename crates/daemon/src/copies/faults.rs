//! Copies whose storage fails: this server's own, and others'.
//!
//! A copy that could not make a change, or cannot be read, is *suspect* until the map says that it is behind. The
//! controller hears of suspects in the answers to its pings, and commits that; where nobody else has what the copy has,
//! the map stays as it is, and the error is the program's.
//!
//! - *A holder fails.* The primary acknowledges the change only when the map says that the holder is behind
//!   ([`Copies::leave_out`]).
//! - *The primary fails.* It gives up its place: it says that it is suspect, refuses changes meanwhile, and the sender
//!   repeats them at the next primary ([`Copies::gives_up`]).
//! - *The storage fails as a whole*, which a probe tells: then the server is suspect in all that it holds, at once, rather
//!   than in one group after another, each of which would make a program wait. It does not try to make changes in which it
//!   is behind, and does not begin to catch up, before a probe succeeds.

use super::Copies;
use super::holder::is_of_blocks;
use bivouac_data::DataError;
use bivouac_layout::{Epoch, Group, Ino, Map, ServerId};
use bivouac_proto::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long it takes at most until the map says of a copy that it is behind: some pings, and a new controller.
const HEARD: Duration = Duration::from_secs(5);
/// Longest sleep meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// A probe's result is believed for so long by those who see a failure.
const PROBED: Duration = Duration::from_millis(200);

/// What is known of storage that fails.
#[derive(Default)]
pub(crate) struct Faults {
    /// Copies that are not behind by the map yet; since when they were behind at that moment, if they were.
    suspects: Mutex<BTreeMap<(Group, ServerId), Option<Epoch>>>,
    /// Whether there are any: looked at before each change.
    any: AtomicBool,
    /// This server's storage fails as a whole.
    is_failing: AtomicBool,
    /// When it was last found to work although something has failed.
    probed: Mutex<Option<Instant>>,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Group, ServerId), Option<Epoch>>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a copy cannot be relied on, and the map does not say so yet.
    pub(super) fn is_suspect(&self, group: Group, holder: ServerId) -> bool {
        self.any.load(Ordering::Acquire) && self.lock().contains_key(&(group, holder))
    }

    /// Whether this server's storage fails as a whole.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    fn add(&self, group: Group, holder: ServerId, since: Option<Epoch>) {
        let known = self.lock().insert((group, holder), since);
        self.any.store(true, Ordering::Release);
        if known != Some(since) {
            tracing::error!(?group, %holder, "the copy cannot be relied on: its storage fails");
        }
    }
}

/// Whether a map says of a holder that it has fallen behind, for whom that was known before.
fn is_out(map: &Map, group: Group, holder: ServerId, before: Option<Epoch>) -> bool {
    let is_holder = map.holders(group).all().contains(&holder);
    !is_holder || !map.is_up(holder) || map.behind_since(group, holder).is_some_and(|now| Some(now) != before)
}

impl Copies {
    /// A holder's storage fails: the controller is to know that it has not everything.
    pub(crate) fn suspect(&self, group: Group, holder: ServerId) {
        self.faults.add(group, holder, self.links.map().behind_since(group, holder));
        if holder == self.me {
            self.links.lease.set_suspect(true);
        }
    }

    /// Copies that are in step by the map, and whose storage fails.
    pub(crate) fn suspects(&self) -> Vec<(Group, ServerId)> {
        let mut suspects = self.faults.lock();
        if !suspects.is_empty() {
            let map = self.links.map();
            // Until the map says that they have fallen behind since.
            suspects.retain(|(group, holder), since| {
                map.behind_since(*group, *holder).is_none_or(|now| Some(now) == *since)
            });
        }
        self.faults.any.store(!suspects.is_empty(), Ordering::Release);
        self.links.lease.set_suspect(suspects.keys().any(|(_, holder)| *holder == self.me));
        suspects.keys().copied().collect()
    }

    /// Whether others can take this server's place in a group.
    pub(super) fn has_others(&self, group: Group) -> bool {
        self.links.map().serving(group).any(|holder| holder != self.me)
    }

    /// Whether this server is about to lose its place in a group, because its storage has failed.
    pub(super) fn gives_up(&self, group: Group) -> bool {
        self.faults.is_suspect(group, self.me) && self.has_others(group)
    }

    /// Holders could not make a change. Waits until the map says that they are behind; `before` is the map by which they
    /// were asked. If it does not say so, the change must not be acknowledged.
    pub(super) fn leave_out(&self, before: &Map, group: Group, failed: &[ServerId]) -> Result<(), Errno> {
        let is_in =
            |map: &Map, holder: ServerId| !is_out(map, group, holder, before.behind_since(group, holder));
        let until = Instant::now() + HEARD;
        let mut map = self.links.map();
        for holder in failed.iter().filter(|holder| is_in(&map, **holder)) {
            self.faults.add(group, *holder, before.behind_since(group, *holder));
        }
        // Another primary decides about the change.
        while map.primary_of(group) == Some(self.me) && failed.iter().any(|holder| is_in(&map, *holder)) {
            if Instant::now() >= until {
                return Err(Errno::IO);
            }
            map = self.links.wait_for_map(map.epoch, LOOK).ok_or(Errno::IO)?;
        }
        Ok(())
    }

    /// This server's own copy could not make a change, or cannot be read. Whether others can take its place.
    pub(crate) fn fails_here(&self, group: Group, ino: Ino, errno: Errno) -> bool {
        self.suspect(group, self.me);
        self.note_failure(ino, errno);
        self.has_others(group)
    }

    /// The own storage has failed an operation on a sub-file. If it fails as a whole, or the sub-file is gone, more than
    /// the group concerned cannot be relied on.
    pub(crate) fn note_failure(&self, ino: Ino, errno: Errno) {
        if !errno.is_of_broken_storage() || self.links.map().copies == 1 {
            return;
        }
        if matches!(self.store.extent(ino), Err(DataError::Missing(_))) {
            self.suspect_file(ino);
        }
        let mut probed = self.faults.probed.lock().unwrap_or_else(PoisonError::into_inner);
        if self.faults.is_failing() || probed.is_some_and(|probed| probed.elapsed() < PROBED) {
            return;
        }
        match self.store.probe() {
            Ok(()) => *probed = Some(Instant::now()),
            Err(error) => {
                tracing::error!(%error, "the storage fails as a whole: others take this server's place");
                self.faults.is_failing.store(true, Ordering::Relaxed);
                drop(probed);
                self.suspect_all();
            }
        }
    }

    /// The storage cannot put on stable storage what it has taken: the kernel may have dropped any of it. So nothing that
    /// this server holds of blocks can be relied on. Waits until the map says so, where others have it. Whether they do.
    pub(crate) fn could_not_sync(&self) -> bool {
        self.suspect_all();
        self.wait_until_out()
    }

    /// A request about a whole sub-file has failed with this errno. Waits until the map says what that means for this
    /// server's copies. Whether it has changed, so that the request has to be looked at once more.
    pub(crate) fn could_not_answer(&self, ino: Ino, is_sync: bool, errno: Errno) -> bool {
        if !errno.is_of_broken_storage() || self.links.map().copies == 1 {
            return false;
        }
        self.note_failure(ino, errno);
        if is_sync { self.could_not_sync() } else { self.wait_until_out() }
    }

    /// The own storage has failed this server's part of a change in where a file's blocks are, which others go on with. In none of
    /// the groups that it holds is it to be relied on before it has learnt of that. Whether the map says so by now.
    pub(crate) fn could_not_take_part(&self, ino: Ino, errno: Errno, groups: Vec<Group>) -> bool {
        self.note_failure(ino, errno);
        let map = self.links.map();
        let (behind, in_step): (Vec<Group>, Vec<Group>) =
            groups.iter().partition(|group| map.is_behind(**group, self.me));
        if !in_step.iter().all(|group| self.has_others(*group)) {
            return false;
        }
        let told = self.catching.spoil(behind);
        in_step.into_iter().chain(told).for_each(|group| self.suspect(group, self.me));
        self.wait_until_out();
        let map = self.links.map();
        groups.iter().all(|group| map.is_behind(*group, self.me))
    }

    /// Waits until this server is behind where it is suspect and others are in step. Whether there was any such group, and
    /// the map says so now.
    fn wait_until_out(&self) -> bool {
        let suspects: Vec<(Group, Option<Epoch>)> = {
            let suspects = self.faults.lock();
            let mine = suspects.iter().filter(|((_, holder), _)| *holder == self.me);
            mine.map(|((group, _), since)| (*group, *since))
                .filter(|(group, _)| self.has_others(*group))
                .collect()
        };
        let until = Instant::now() + HEARD;
        let mut map = self.links.map();
        while !suspects.iter().all(|(group, since)| is_out(&map, *group, self.me, *since)) {
            match self.links.wait_for_map(map.epoch, LOOK).filter(|_| Instant::now() < until) {
                Some(next) => map = next,
                None => return false,
            }
        }
        !suspects.is_empty()
    }

    /// The groups of blocks in which this server is in step, and others are, too.
    fn in_step_here(&self, map: &Map) -> Vec<Group> {
        let is_mine = |group: &Group| {
            let mut in_step = map.holders(*group).in_step();
            in_step.any(|holder| holder == self.me) && map.serving(*group).any(|holder| holder != self.me)
        };
        map.replicated().filter(is_of_blocks).filter(is_mine).collect()
    }

    pub(super) fn suspect_all(&self) {
        let map = self.links.map();
        let behind = map.replicated().filter(is_of_blocks).filter(|group| map.is_behind(*group, self.me));
        // The map may be about to say that it is in step in what it has caught up with.
        let told = self.catching.spoil(behind.collect());
        self.in_step_here(&map).into_iter().chain(told).for_each(|group| self.suspect(group, self.me));
    }

    /// A sub-file is gone: nothing of it can be relied on. It can only be fetched as a whole.
    fn suspect_file(&self, ino: Ino) {
        let Some(before) = ino.0.checked_sub(1) else { return };
        let Ok(files) = self.files(ino.shard(), Ino(before)) else { return };
        let Some((_, layout)) = files.first().filter(|(found, _)| *found == ino) else { return };
        let map = self.links.map();
        let mine = self.in_step_here(&map);
        layout
            .groups(&map, u64::MAX)
            .filter(|group| mine.contains(group))
            .for_each(|group| self.suspect(group, self.me));
    }

    /// Whether the storage works, as far as a probe can tell. To be asked before this server catches up.
    pub(super) fn works_again(&self) -> bool {
        if !self.faults.is_failing() {
            return true;
        }
        match self.store.probe() {
            Ok(()) => {
                tracing::info!("the storage works again");
                self.faults.is_failing.store(false, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }
}
