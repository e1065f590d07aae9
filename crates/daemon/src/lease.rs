//! The lease under which a server answers for what has copies.
//!
//! Another server takes the place of one that does not answer the controller. The one that is replaced may not know
//! that: it was stopped, or its link to the controller is cut, while programs of its own node still reach it. So it
//! answers for what has copies only while it has a lease, which it gets from the controller again and again; and the
//! controller replaces it only when the lease has run out. What has one copy needs no lease: nobody else has it. An I/O node needs
//! one in any case: any server can take its place ([`Lease::may_forward`]).
//!
//! The two clocks need not agree. The server says what its own clock shows when it answers a ping ([`Lease::clock`]),
//! and the controller sends that back with a later ping ([`Lease::grant`]). From that moment of its own clock the server
//! counts; the controller counts from when it heard of it, which was later.
//!
//! It is enough to look at the lease when a request comes in: what is read then was true at that moment, or later, and
//! the program was waiting already; what is changed needs the other copies, which know who is the primary. What ends
//! something (a close, a session, a step of a change that has begun) does not look at it: it must not get lost because a
//! lease has lapsed for a moment while a new controller is elected.

use bivouac_node::release::monotonic;
use bivouac_node::{Fences, VersionPage};
use bivouac_proto::control::Grant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A server's lease.
#[derive(Default)]
pub(crate) struct Lease {
    /// The end, by the clock of this node, nanoseconds; [`VersionPage::FOR_EVER`] if none is needed.
    until: AtomicU64,
    /// The end of what was granted, whether it is needed for what this server has or not.
    granted: AtomicU64,
    /// What the processes of this node believe without asking ends with the lease.
    page: OnceLock<Arc<VersionPage>>,
    /// They read copies directly only until then, too, and only while this server has everything of what it holds.
    fences: OnceLock<Arc<Fences>>,
    /// It lacks something, as the map says, or because its storage has failed.
    is_behind: AtomicBool,
    is_suspect: AtomicBool,
    /// The server stops.
    has_ended: AtomicBool,
    /// Held while the pages are told.
    telling: Mutex<()>,
}

impl Lease {
    /// The server's clock, nanoseconds.
    pub(crate) fn clock() -> u64 {
        monotonic()
    }

    /// The version page of the server.
    pub(crate) fn set_page(&self, page: &Arc<VersionPage>) {
        let _ = self.page.set(page.clone());
        self.tell();
    }

    /// The fence page of the server.
    pub(crate) fn set_fences(&self, fences: &Arc<Fences>) {
        let _ = self.fences.set(fences.clone());
        self.tell();
    }

    /// A new map says whether this server lacks something of the blocks that it holds.
    pub(crate) fn set_behind(&self, is_behind: bool) {
        self.is_behind.store(is_behind, Ordering::SeqCst);
        self.tell();
    }

    /// Whether the map is still to say so.
    pub(crate) fn set_suspect(&self, is_suspect: bool) {
        self.is_suspect.store(is_suspect, Ordering::SeqCst);
        self.tell();
    }

    /// Nothing of this server has copies.
    pub(crate) fn is_not_needed(&self) {
        self.until.store(VersionPage::FOR_EVER, Ordering::Release);
        self.tell();
    }

    /// The controller grants it. (A moment that is still to come is that of another clock.)
    pub(crate) fn grant(&self, grant: Grant) {
        if grant.from <= Lease::clock() {
            let until = grant.from.saturating_add(u64::from(grant.millis) * 1_000_000);
            self.until.fetch_max(until, Ordering::AcqRel);
            self.granted.fetch_max(until, Ordering::AcqRel);
            self.tell();
        }
    }

    /// The server stops: others may take its place as soon as it answers no more, so nobody is to believe anything of it,
    /// or read it directly, from now on.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.tell();
    }

    fn until(&self) -> u64 {
        if self.has_ended.load(Ordering::SeqCst) { 0 } else { self.until.load(Ordering::Acquire) }
    }

    fn tell(&self) {
        // Who comes later knows more, and is to have the last word.
        let _alone = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let until = self.until();
        if let Some(page) = self.page.get() {
            page.believe_until(until);
        }
        if let Some(fences) = self.fences.get() {
            let shows = !self.is_behind.load(Ordering::SeqCst) && !self.is_suspect.load(Ordering::SeqCst);
            fences.show_copies_until(if until == VersionPage::FOR_EVER || !shows { 0 } else { until });
        }
    }

    /// Whether this server may issue anything to a backend as an I/O node.
    pub(crate) fn may_forward(&self) -> bool {
        !self.has_ended.load(Ordering::SeqCst) && monotonic() < self.granted.load(Ordering::Acquire)
    }

    /// Whether it has not run out.
    pub(crate) fn is_valid(&self) -> bool {
        let until = self.until();
        until == VersionPage::FOR_EVER || monotonic() < until
    }

    /// How long it is still valid, milliseconds; 0 if it has run out, `None` if none is needed.
    pub(crate) fn left(&self) -> Option<u64> {
        let until = self.until();
        (until != VersionPage::FOR_EVER).then(|| until.saturating_sub(monotonic()) / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_what_the_servers_own_clock_showed() {
        let lease = Lease::default();
        let page = Arc::new(VersionPage::create().expect("made"));
        page.life().store(1, Ordering::Release);
        lease.set_page(&page);
        let seen = || (lease.is_valid(), page.is_live());
        assert_eq!(seen(), (false, false), "at the start");
        let now = Lease::clock();
        lease.grant(Grant { from: now - 3_000_000_000, millis: 2000 });
        assert_eq!(seen(), (false, false), "it has run out on its way");
        lease.grant(Grant { from: now + 3_000_000_000, millis: 2000 });
        assert_eq!(seen(), (false, false), "another clock");
        lease.grant(Grant { from: now, millis: 60_000 });
        assert_eq!(seen(), (true, true));
        lease.grant(Grant { from: now - 100_000_000, millis: 100 });
        assert_eq!(seen(), (true, true), "one that comes late takes nothing away");
        assert!(lease.left().is_some_and(|left| left > 30_000));
        lease.end();
        assert_eq!(seen(), (false, false), "the server stops");
        lease.grant(Grant { from: now, millis: 90_000 });
        assert_eq!(seen(), (false, false), "it has stopped");
        let lease = Lease::default();
        lease.is_not_needed();
        assert!(!lease.may_forward(), "nobody has granted anything");
        lease.grant(Grant { from: Lease::clock(), millis: 60_000 });
        assert!(lease.may_forward());
        assert_eq!((lease.is_valid(), lease.left()), (true, None));
    }
}
