//! The number of the process's session, and how a fork's child gets one of its own.

use super::Session;
use super::agent::attach_request;
use crate::memory::Held;
use bivouac_layout::News;
use bivouac_proto::agent::AgentReply;
use bivouac_proto::meta::LockOwner;
use bivouac_proto::{Errno, Reply};
use bivouac_transport::TransportError;
use std::sync::atomic::Ordering;

impl Session {
    /// The number of this process's session; a fork's child gets its own at its first call.
    pub(crate) fn number(&self) -> Result<u64, TransportError> {
        let fork_count = self.fork.count();
        while self.session_forks.load(Ordering::Acquire) != fork_count {
            let me = fork_count << 32 | u64::from(bivouac_node::process::tid());
            let renewing = self.renewing.load(Ordering::Relaxed);
            if renewing == me {
                // This is a signal handler that has interrupted it in the same thread: waiting would never
                // end.
                return Err(TransportError::System(Errno::IO));
            }
            if renewing >> 32 != fork_count
                && self.renewing.compare_exchange(renewing, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                let renewed = self.renew(fork_count);
                if renewed.is_err() {
                    self.renewing.store(0, Ordering::Release);
                }
                renewed?;
            } else {
                // Another thread of this process is beginning the session.
                let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000 });
            }
        }
        Ok(self.session.load(Ordering::Relaxed))
    }

    /// The owner of this process's locks.
    pub(crate) fn lock_owner(&self) -> Result<LockOwner, Errno> {
        self.number().map_err(|error| error.errno())?;
        Ok(LockOwner::Process {
            session: self.owner.load(Ordering::Relaxed),
            pid: rustix::process::getpid().as_raw_nonzero().get() as u32,
        })
    }

    /// Begins the session of a fork's child.
    fn renew(&self, fork_count: u64) -> Result<(), TransportError> {
        // Locks may have been held by threads of the parent that do not exist in this process.
        let sole = self.sole.load(Ordering::Relaxed);
        // SAFETY: with `sole`, no other thread uses this client.
        unsafe { self.memory.begin_again(sole) };
        // Read before: if the agent is restarted meanwhile, the next one is told of locks.
        let restarts = self.agent_restarts();
        let reply = self.ask_agent_that_begins(&attach_request())?;
        let Some(Reply::Agent(AgentReply::Attached { session, owner, locked, map, .. })) = reply else {
            return Err(TransportError::System(Errno::IO));
        };
        self.learn_map(News::Whole(map));
        // SAFETY: as above.
        unsafe { self.memory.begin_locks(Held::new(locked, restarts), sole) };
        self.owner.store(owner, Ordering::Relaxed);
        self.session.store(session, Ordering::Relaxed);
        self.session_forks.store(fork_count, Ordering::Release);
        Ok(())
    }

    /// Whether this process has begun its session (a fork's child has not, before its first call).
    pub(crate) fn has_session(&self) -> bool {
        self.session_forks.load(Ordering::Acquire) == self.fork.count()
    }
}
