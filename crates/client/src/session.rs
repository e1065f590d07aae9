//! Who this process is in the deployment, and whom it can reach.
//!
//! A session knows its environment, its host ([`crate::host`]) and its user, the key, the node's agent and its table of
//! open descriptions, the map, and connections to the agent and to servers. It owns the process's [`Memory`], because it is
//! the session that notices a fork: then a session of the child's own begins, and a memory of its own with it
//! ([`numbers`]).
//!
//! What requests ask and what their answers mean it does not know, except those to the agent ([`agent`]).
//!
//! Everything that threads share is either immutable, atomic, or replaced as a whole; no lock is waited for
//! that another thread might have held at a fork. After a fork the child begins a session of its own (request
//! identities and process locks belong to a session), with connections of its own, at its first call.

mod agent;
mod attaching;
mod credentials;
mod fork;
mod key;
mod links;
mod maps;
mod mounted;
mod numbers;
mod servers;

use crate::host::{Host, OwnFd, SizeLimit};
use crate::memory::Memory;
use bivouac_layout::{News, NodeId};
use bivouac_node::{ByServer, Environment, OpenTable};
use bivouac_proto::auth::{Credentials, Key};
use bivouac_transport::Refusals;
use fork::ForkMark;
use links::Pool;
use maps::Maps;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use links::Link;
pub use maps::MapRef;
pub use mounted::strip_mount;

/// An agent that has heard of the controller within this has the newest map that it can have: there are two pings a second.
const JUST_NOW: Duration = Duration::from_secs(1);

/// A process's place in a deployment.
pub(crate) struct Session {
    environment: Environment,
    host: &'static dyn Host,
    size_limit: SizeLimit,
    key: Key,
    uid: u32,
    credentials: Credentials,
    agent: u64,
    node: NodeId,
    node_dir: Vec<u8>,
    table: OpenTable,
    /// What the table is mapped by, kept for an agent that follows when this one is killed: it looks for it
    /// in `/proc`.
    _table_for_agent: OwnFd,
    fork: ForkMark,
    /// The newest map, and those that some call still goes by.
    maps: Maps,
    memory: Memory,
    /// The session and the fork count that it belongs to.
    session: AtomicU64,
    session_forks: AtomicU64,
    /// Who owns this process's locks: its first session, which an exec does not change.
    owner: AtomicU64,
    /// Only the caller uses this client, so that what is replaced can be freed.
    sole: AtomicBool,
    /// While a thread begins a session: the fork count (upper half) that the session is for, and the thread.
    renewing: AtomicU64,
    slots: AtomicU32,
    /// Counts what was sent ahead to copies.
    ahead: AtomicU64,
    pools: ByServer<Pool>,
    agents: Pool,
    refusals: Refusals,
    /// Whether blocks on this node are read and written directly.
    local_access: bool,
}

impl Session {
    /// The node's table of open descriptions.
    pub(crate) fn table(&self) -> &OpenTable {
        &self.table
    }

    /// Directory of what this node's processes share.
    pub(crate) fn node_dir(&self) -> &[u8] {
        &self.node_dir
    }

    /// Where programs see the file system.
    pub(crate) fn mount(&self) -> &[u8] {
        self.environment.mount.as_bytes()
    }

    /// The directory of the site's storage that is forwarded, if one is.
    pub(crate) fn forwarded(&self) -> Option<&[u8]> {
        self.environment.forwarded.as_deref().map(str::as_bytes)
    }

    /// How often the process had been forked, counted from where this client began: another number in each child.
    pub(crate) fn forks(&self) -> u64 {
        self.fork.count()
    }

    /// A child process begins (also noticed without this call, where the kernel is 4.14 or newer).
    pub(crate) fn after_fork(&self) {
        self.fork.advance();
    }

    /// Another process takes over, with memory, but no descriptors, of the one before it: as after a fork.
    ///
    /// # Safety
    /// Nobody else uses this client now, and nobody will but the caller, until it is passed on in the same
    /// way.
    pub(crate) unsafe fn begin_again(&self) {
        self.sole.store(true, Ordering::Relaxed);
        self.fork.advance();
    }

    pub(crate) fn agent_number(&self) -> u64 {
        self.agent
    }

    pub(crate) fn host(&self) -> &'static dyn Host {
        self.host
    }

    /// The process's limit on the size of files.
    #[inline]
    pub(crate) fn size_limit(&self) -> SizeLimit {
        self.size_limit
    }

    /// The node that this process runs on.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// The next number of bytes that are sent ahead to a copy.
    pub(crate) fn next_ahead(&self) -> u64 {
        self.ahead.fetch_add(1, Ordering::Relaxed)
    }

    /// The newest map known.
    #[inline]
    pub(crate) fn map(&self) -> MapRef<'_> {
        self.maps.newest()
    }

    /// Takes over a map, if it is sound and newer.
    pub(crate) fn learn_map(&self, news: News) {
        let current = self.map();
        let Some(map) = news.added_to(&current) else { return };
        let primaries_change = map.copies > 1 || map.shards != current.shards;
        // A lost race only means that somebody else installed one: the next refusal brings this one again.
        self.maps.install(&current, Box::new(map));
        if primaries_change {
            self.memory().hear_of_other_servers();
        }
    }

    /// How often the node's agent has been restarted beside processes that lived on.
    pub(crate) fn agent_restarts(&self) -> u64 {
        self.table.adoptions()
    }

    /// What this process remembers.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How long ago the controller was last heard of. `None`: it never was.
    pub(crate) fn unheard(&self) -> Option<Duration> {
        self.refusals.heard(self.table().heard());
        self.refusals.unheard()
    }

    /// Whether the node's agent, which has heard of the controller just now, has the map that this process has.
    pub(crate) fn has_newest_map(&self) -> bool {
        let is_heard = self.unheard().is_some_and(|unheard| unheard < JUST_NOW);
        is_heard && self.table().epoch() == self.map().epoch
    }

    /// Which servers have refused connections.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Whether blocks on this node are read and written directly.
    #[inline]
    pub(crate) fn local_access(&self) -> bool {
        self.local_access
    }
}
