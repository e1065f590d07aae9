//! How a session begins: with the node's agent, which says who is there.

use super::Session;
use super::agent::{ask, attach_request, connect_agent};
use super::credentials::present_credentials;
use super::fork::ForkMark;
use super::key::{find_key, read_key};
use super::links::{Link, Pool};
use super::maps::Maps;
use crate::error::ClientError;
use crate::host::{Host, OwnFd, SizeLimit};
use crate::memory::{Held, Memory};
use bivouac_layout::Forwarding;
use bivouac_node::{ByServer, Environment, OpenTable};
use bivouac_proto::agent::{AgentReply, AgentRequest};
use bivouac_proto::auth::{ANY_DEPLOYMENT, Key};
use bivouac_proto::node::NodeRequest;
use bivouac_proto::{Errno, Reply, Request};
use bivouac_transport::{Refusals, TransportError};
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

impl Session {
    /// Begins: connects to the node's agent and takes part in the deployment that `environment` names. `host`: the process
    /// that this is.
    pub(crate) fn attach(environment: &Environment, host: &'static dyn Host) -> Result<Session, ClientError> {
        let key = find_key(environment, rustix::process::getuid().as_raw())?;
        Session::begin(environment.clone(), key, host)
    }

    /// The same for a deployment by its name, and with its key if this node is not to be asked for it.
    pub(crate) fn attach_named(
        name: &str,
        key: Option<Key>,
        host: &'static dyn Host,
    ) -> Result<Session, ClientError> {
        if !bivouac_node::names::is_valid_name(name) {
            return Err(ClientError::Name { name: name.into() });
        }
        let found = bivouac_node::place::find(rustix::process::getuid().as_raw(), name);
        let key_path = found.as_deref().map(bivouac_node::key_path).unwrap_or_default();
        let key = match key {
            Some(key) => key,
            None if key_path.is_empty() => return Err(ClientError::Unknown { name: name.into() }),
            None => read_key(&key_path)?,
        };
        let job = Environment::from_env().and_then(|environment| environment.job);
        let mount = String::new();
        let environment =
            Environment { name: name.into(), mount, key_path, mounted: None, forwarded: None, job };
        Session::begin(environment, key, host)
    }

    /// Begins. Where programs see the file system, the map says, if the environment does not.
    fn begin(
        mut environment: Environment,
        key: Key,
        host: &'static dyn Host,
    ) -> Result<Session, ClientError> {
        let uid = rustix::process::getuid().as_raw();
        let credentials = present_credentials();
        let name = environment.name.clone();
        let answer = || ClientError::Answer { name: name.clone() };
        let agent_error = |source| ClientError::Agent { name: name.clone(), source };
        let fork = ForkMark::new()
            .map_err(|e| agent_error(TransportError::System(Errno(e.raw_os_error() as u16))))?;
        let mut link =
            connect_agent(&environment, host, (&key, ANY_DEPLOYMENT), (uid, &credentials), fork.count())
                .map_err(agent_error)?;
        let (reply, _) = ask(&mut link, &Request::Agent(attach_request())).map_err(agent_error)?;
        if reply.is_none() {
            return Err(ClientError::Closed { name: name.clone() });
        }
        let Some(Reply::Agent(AgentReply::Attached { session, owner, locked, agent, node, run_dir, map })) =
            reply
        else {
            return Err(answer());
        };
        let table = |link: &mut Link| {
            if map.check().is_err() {
                return Err(answer());
            }
            match ask(link, &Request::Node(NodeRequest::Table)).map_err(agent_error)? {
                (Some(Reply::Done), Some(descriptor)) => {
                    Ok((OpenTable::attach(run_dir.as_bytes(), descriptor.as_fd())?, descriptor))
                }
                _ => Err(answer()),
            }
        };
        let (table, descriptor) = table(&mut link).inspect_err(|_| {
            // Otherwise the session would last as long as the process.
            let _ = ask(&mut link, &Request::Agent(AgentRequest::Detach { session }));
        })?;
        let restarts = table.adoptions();
        if environment.mount.is_empty() {
            environment.mount.clone_from(&map.mount);
            let serves = |forwarding: &&Forwarding| !forwarding.io_nodes.is_empty();
            environment.forwarded =
                map.forwarding.as_ref().filter(serves).map(|forwarding| forwarding.directory.clone());
        }
        let session = Session {
            environment,
            host,
            size_limit: SizeLimit(host.file_size_limit()),
            key,
            uid,
            credentials,
            agent,
            node,
            node_dir: run_dir.into_bytes(),
            table,
            _table_for_agent: OwnFd::new(host, descriptor),
            session: AtomicU64::new(session),
            session_forks: AtomicU64::new(fork.count()),
            owner: AtomicU64::new(owner),
            fork,
            maps: Maps::new(map),
            memory: Memory::new(Held::new(locked, restarts)),
            slots: AtomicU32::new(1),
            ahead: AtomicU64::new(0),
            pools: ByServer::default(),
            agents: Pool::default(),
            sole: AtomicBool::new(false),
            renewing: AtomicU64::new(0),
            refusals: Refusals::default(),
            local_access: local_access(),
        };
        session.agents.give(link, session.fork.count());
        Ok(session)
    }

    /// Ends before the process does: has the agent forget the session.
    pub(crate) fn detach(&self) {
        let session = self.session.load(Ordering::Relaxed);
        // If no agent answers, the session ends with the process.
        let _ = self.ask_agent(&AgentRequest::Detach { session });
    }
}

/// Direct access to blocks on this node can be switched off (`BIVOUAC_LOCAL=0`), to measure the way over the
/// wire.
fn local_access() -> bool {
    // SAFETY: getenv with a constant name; the value is looked at before anything else can change the
    // environment.
    let value = unsafe { libc::getenv(c"BIVOUAC_LOCAL".as_ptr()) };
    // SAFETY: getenv returns null or a NUL-terminated string: its first byte can be read.
    value.is_null() || unsafe { *value } != b'0' as libc::c_char
}
