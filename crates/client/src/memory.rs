//! The lowest room: what this process remembers of the deployment.
//!
//! It knows which directories paths lead through ([`paths`]), what servers have answered about names and inodes
//! ([`facts`]) and what the process's own changes did to that ([`own`]), which moves of directories the process has
//! heard of ([`heard`]), what it has listed and may ask about next ([`listing`], [`ahead`]), and which locks it may hold
//! ([`held`]).
//!
//! It sends nothing, and knows neither connections nor maps nor servers' pages. Whether something that is remembered
//! still is true is for [`crate::requests`] to say, which compares it with what servers show now.
//!
//! No thread waits here for one that may not exist any more: after a fork, the child's session begins with a memory of
//! its own ([`Memory::begin_again`]), because threads of the parent may have held locks in it.

pub(crate) mod ahead;
pub(crate) mod facts;
mod heard;
mod held;
pub(crate) mod listing;
mod own;
pub(crate) mod paths;
mod replaced;

use facts::Facts;
use heard::Heard;
use listing::Listing;
use paths::Paths;
use replaced::Replaced;

pub(crate) use heard::Reached;
pub(crate) use held::Held;

/// What this process remembers.
pub(crate) struct Memory {
    heard: Heard,
    paths: Replaced<Paths>,
    facts: Replaced<Facts>,
    held: Replaced<Held>,
    /// The directory that was listed last, as a hint.
    listing: Listing,
}

impl Memory {
    /// Of a process that knows nothing yet.
    pub(crate) fn new(held: Held) -> Memory {
        Memory {
            heard: Heard::default(),
            paths: Replaced::new(Paths::default()),
            facts: Replaced::new(Facts::default()),
            held: Replaced::new(held),
            listing: Listing::default(),
        }
    }

    pub(crate) fn paths(&self) -> &Paths {
        self.paths.get()
    }

    pub(crate) fn facts(&self) -> &Facts {
        self.facts.get()
    }

    pub(crate) fn held(&self) -> &Held {
        self.held.get()
    }

    pub(crate) fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Forgets paths and facts in a fork's child. What was heard of moves stays true, and so do the hints.
    ///
    /// # Safety
    /// With `sole`, no other thread uses this memory: what is replaced is freed. Otherwise it stays.
    pub(crate) unsafe fn begin_again(&self, sole: bool) {
        // SAFETY: as the caller says.
        unsafe {
            self.paths.replace(Paths::new(self.era()), sole);
            self.facts.replace(Facts::new(self.era()), sole);
        }
    }

    /// Takes over which locks the fork's child may hold, as the agent has said.
    ///
    /// # Safety
    /// As for [`Memory::begin_again`].
    pub(crate) unsafe fn begin_locks(&self, held: Held, sole: bool) {
        // SAFETY: as the caller says.
        unsafe { self.held.replace(held, sole) }
    }
}
