//! The [`Client`], the public face of this crate: it owns the rooms, and offers what they can do to those who link it.

mod deployment;
mod names;

use crate::error::ClientError;
use crate::host::{Host, OwnFd};
use crate::memory::Memory;
use crate::namespace::Namespace;
use crate::requests::Requests;
use crate::session::Session;
use crate::spare::Spare;
use bivouac_node::{Environment, SlotId};
use bivouac_proto::auth::Key;
use std::sync::Arc;

/// How many descriptors are kept for asking the kernel whether a description is held. Programs that open and
/// close one file after the other use only a few slots.
const ASKERS: usize = 8;

/// One process's access to a deployment. All methods may be called from any thread.
pub struct Client {
    namespace: Namespace,
    /// Descriptors to ask through whether a description is held.
    askers: [Spare<OwnFd>; ASKERS],
}

impl Client {
    /// Begins: connects to the node's agent and takes part in the deployment that `environment` names. `host`: the process
    /// that this is.
    pub fn attach(environment: &Environment, host: &'static dyn Host) -> Result<Arc<Client>, ClientError> {
        Ok(Client::over(Session::attach(environment, host)?))
    }

    /// The same for a deployment by its name, and with its key if this node is not to be asked for it.
    pub fn attach_named(
        name: &str,
        key: Option<Key>,
        host: &'static dyn Host,
    ) -> Result<Arc<Client>, ClientError> {
        Ok(Client::over(Session::attach_named(name, key, host)?))
    }

    fn over(session: Session) -> Arc<Client> {
        let namespace = Namespace::new(Requests::new(session));
        Arc::new(Client { namespace, askers: std::array::from_fn(|_| Spare::default()) })
    }

    /// Ends before the process does: what it has locked through this client is released (if it has no other client of this
    /// deployment), and the agent forgets the session. To be called when everything that was opened is closed; nothing may be
    /// asked of this client afterwards. What is left of it goes with the last handle.
    pub fn detach(&self) {
        if self.session().has_session() {
            self.tell_closes();
            self.session().detach();
        }
    }

    /// Names, and the attributes of what they lead to.
    #[inline]
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// How requests are sent.
    #[inline]
    pub(crate) fn requests(&self) -> &Requests {
        self.namespace.requests()
    }

    /// Who the process is, and whom it can reach.
    #[inline]
    pub(crate) fn session(&self) -> &Session {
        self.namespace.session()
    }

    /// What it remembers.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        self.namespace.memory()
    }

    pub(crate) fn asker(&self, id: SlotId) -> &Spare<OwnFd> {
        &self.askers[id.index as usize % ASKERS]
    }
}
