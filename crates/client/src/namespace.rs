//! Names, and what is known of the inodes that they lead to.
//!
//! This room walks paths ([`walk`]) and looks names up ([`lookup`]), lists directories ([`list`], [`ahead`]), reads and sets
//! attributes ([`attributes`], [`extents`], [`xattrs`]), and makes, moves and removes names ([`names`], [`renaming`]).
//!
//! It knows the [`Requests`], and below them the session and the memory. It does not know open descriptions, and of
//! the contents of files only how long they are and what space they take.

mod absent;
mod again;
mod ahead;
mod attributes;
mod extents;
mod lazy;
mod list;
mod lookup;
mod names;
mod places;
mod renaming;
mod space;
mod target;
mod walk;
mod xattrs;

use crate::memory::Memory;
use crate::requests::Requests;
use crate::session::Session;

pub(crate) use again::{Failing, led_to};
pub(crate) use attributes::removed;
pub use space::StatFs;
pub use target::{Changed, Target};
pub(crate) use walk::{Last, Place, Walk};

/// The names of a deployment, as this process sees them.
pub(crate) struct Namespace {
    requests: Requests,
}

impl Namespace {
    pub(crate) fn new(requests: Requests) -> Namespace {
        Namespace { requests }
    }

    /// How requests are sent.
    #[inline]
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Who the process is, and whom it can reach.
    #[inline]
    pub(crate) fn session(&self) -> &Session {
        self.requests.session()
    }

    /// What it remembers.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        self.requests.memory()
    }
}
