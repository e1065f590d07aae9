//! Sending requests, and what their answers mean to this process.
//!
//! A client asks servers that are up. It gets newer maps from its node's agent, carries the namespace version
//! of cached paths ([`moves`]), and sends kept closes ahead of its requests ([`closes`]). Refusals that only time mends are
//! repeated ([`asking`]); the contents of a lazy file are fetched ([`fetching`]); refusals that concern paths go to the
//! caller. Servers of this node share pages with their processes ([`pages`]); by these, what the process remembers is
//! compared with what is true now ([`known`]).
//!
//! This room knows the [`Session`], and through it the memory. It does not know paths: it is given the inodes, and the
//! directories with names, that requests are about.

mod asking;
mod closes;
mod data;
mod fetching;
mod known;
mod metadata;
mod moves;
mod pages;
mod to;

use crate::memory::Memory;
use crate::session::Session;
use bivouac_node::ByServer;
use closes::Kept;
use pages::Pages;

pub(crate) use data::{
    DataJob, OUTDATED, ahead_job, copy_job, data_done, data_job, piece_job, read_job, write_job,
};
pub(crate) use known::{Before, Contents};
pub(crate) use metadata::Came;
pub(crate) use to::To;

/// The requests of a process.
pub(crate) struct Requests {
    session: Session,
    kept: ByServer<Kept>,
    pages: Pages,
}

impl Requests {
    pub(crate) fn new(session: Session) -> Requests {
        Requests { session, kept: ByServer::default(), pages: Pages::default() }
    }

    /// Who the process is, and whom it can reach.
    #[inline]
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// What it remembers.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        self.session.memory()
    }
}
