//! A daemon's life: start, wait, end.

use crate::agent::{Agent, random};
use crate::config::{DaemonConfig, ServerConfig};
use crate::daemon::{Daemon, End};
use crate::error::DaemonError;
use crate::heritage;
use crate::links::Links;
use crate::lookout;
use crate::run_dir::RunDir;
use crate::storage::{Open, Storage};
use crate::wards::View;
use bivouac_data::{DataError, DataStore};
use bivouac_layout::Map;
use bivouac_meta::{OpenError, Replayed};
use bivouac_node::FencesOf;
use bivouac_proto::auth::Role;
use bivouac_transport::{Endpoint, Server, ServerOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long storage that another server uses is waited for.
const DYING: Duration = Duration::from_secs(5);
/// Time between two looks at it.
const LOOK: Duration = Duration::from_millis(20);

/// A running daemon.
pub struct Running {
    /// Where it listens for other nodes.
    pub address: Option<SocketAddr>,
    daemon: Arc<Daemon>,
    server: Server,
    /// On agents.
    lookout: Option<JoinHandle<()>>,
}

/// Starts a daemon: opens its storage, makes its node's directories, binds its sockets. It serves control
/// requests from here on, and everything else once the first map is installed.
pub fn start(config: DaemonConfig) -> Result<Running, DaemonError> {
    if let Err(error) = bivouac_transport::raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of descriptors stays as it is");
    }
    let boot = random().map_err(|e| DaemonError::Thread(e.into()))?;
    let me = config.server.as_ref().map(|s| s.id);
    let stores = match &config.server {
        Some(server) => Some(open_stores(config.deployment, server)?),
        None => None,
    };
    let (data, meta) = stores.unzip();
    let role = me.map_or(Role::Agent(boot), Role::Server);
    let role = (role, config.server.as_ref().map_or(0, |server| server.succession));
    let links =
        Arc::new(Links::new(config.key.clone(), role, Map::before_the_first(config.deployment), data, boot));
    let mut endpoints = vec![Endpoint::Tcp(config.listen)];
    let agent = if config.agent {
        let (run_dir, table) = RunDir::create(&config)?;
        endpoints.push(agent_endpoint(&config));
        Some(Agent::start(config.node, config.closed, table, run_dir, links.clone())?)
    } else {
        None
    };
    if let Some(server) = &config.server {
        let names = bivouac_node::server_sockets(config.uid, &config.name, &config.key, server.id);
        endpoints.push(Endpoint::Node(names));
    }
    let node = agent.is_some().then_some(config.node);
    let daemon = Arc::new(Daemon::new(config, links.clone(), agent, boot, meta)?);
    let server = Server::start(daemon.clone(), endpoints, ServerOptions::default())?;
    let address = server.local_addrs().iter().find_map(|endpoint| match endpoint {
        Endpoint::Tcp(address) => Some(*address),
        Endpoint::Unix(_) | Endpoint::Node(_) => None,
    });
    let lookout = node.map(|node| lookout::start_on_agent(&links, node, daemon.ending.clone()));
    let lookout = lookout.transpose().map_err(DaemonError::Thread)?;
    Ok(Running { address, daemon, server, lookout })
}

/// Opens a server's stores. In a new storage, the metadata's directory is made before the data store's
/// identity file. So a storage with an identity file always had that directory; if it is missing, all
/// metadata is lost, and the error says so.
fn open_stores(deployment: u64, server: &ServerConfig) -> Result<(Arc<DataStore>, Replayed), DaemonError> {
    let first = server.storage.first().ok_or(DataError::NoDirectory)?;
    let metadata = metadata_directory(first);
    let resumes = server.storage.iter().any(|directory| DataStore::is_in(directory));
    if !resumes {
        bivouac_meta::make_directory(&metadata)?;
    }
    let open = || DataStore::open(&server.storage, deployment, server.id);
    let mut data = when_free(open, |error| matches!(error, DataError::InUse(_)))?;
    match heritage::fences(FencesOf { deployment, server: server.id }, resumes) {
        Ok(fences) => data = data.with_fences(fences),
        Err(error) => tracing::warn!(%error, "the processes of this node do not access sub-files directly"),
    }
    let open = || Replayed::open(&metadata, deployment);
    Ok((Arc::new(data), when_free(open, |error| matches!(error, OpenError::InUse(_)))?))
}

/// Opens what a server that was killed a moment ago may still have in use: the kernel lets go of it when all files of the
/// process are closed, which can take a while where storage is slow.
fn when_free<T, E>(open: impl Fn() -> Result<T, E>, is_in_use: impl Fn(&E) -> bool) -> Result<T, E> {
    let until = Instant::now() + DYING;
    loop {
        match open() {
            Err(error) if is_in_use(&error) && Instant::now() < until => std::thread::sleep(LOOK),
            opened => return opened,
        }
    }
}

/// Where in its first storage directory a server keeps the metadata.
pub(crate) fn metadata_directory(storage: &Path) -> PathBuf {
    storage.join("meta")
}

/// Where the daemon of a configuration listens as its node's agent.
pub(crate) fn agent_endpoint(config: &DaemonConfig) -> Endpoint {
    Endpoint::Node(bivouac_node::agent_sockets(config.uid, &config.name, &config.key))
}

impl Running {
    /// Tells the daemon to stop; `keep`: its storage stays.
    pub fn stop(&self, keep: bool) {
        self.daemon.ending.tell(End::Told { keep });
    }

    /// What an agent knows that looks after the servers of its node.
    pub fn view(&self) -> View {
        View::new(self.daemon.links.clone(), self.daemon.wards.clone(), self.daemon.tether.clone())
    }

    /// Serves until told to stop; why. [`Running::wait`] has to follow.
    pub fn told(&self) -> End {
        self.daemon.ending.wait()
    }

    /// Serves until told to stop; then ends requests under way, and removes what the daemon made (not its
    /// storage, if it is to be kept). Why it has ended.
    pub fn wait(self) -> End {
        let end = self.daemon.ending.wait();
        let keep = matches!(end, End::Told { keep: true } | End::Replaced);
        tracing::info!(?end, "stopping");
        if let Some(tether) = &self.daemon.tether {
            tether.stop();
        }
        if let Some(group) = &self.daemon.group {
            group.stop();
        }
        if let Some(storage) = &self.daemon.storage
            && self.daemon.links.map().is_departing(storage.me)
            && let Some(fences) = storage.fences()
        {
            // It may be for good: then nobody is to have anything of it, or to write what nobody will ever read. Programs ask
            // for descriptors again, and learn what has become of it.
            fences.renounce_all();
        }
        self.daemon.links.lease.end();
        self.daemon.links.close();
        if let Some(lookout) = self.lookout {
            let _ = lookout.join();
        }
        if let Some(storage) = &self.daemon.storage {
            if let Some(store) = storage.meta_store() {
                store.stop_waiting();
            }
            storage.verifier.stop();
        }
        self.server.stop();
        // The transport's server has stopped, and with it all other owners of the daemon are gone.
        let Some(daemon) = Arc::into_inner(self.daemon) else {
            tracing::error!("requests are still under way: the storage is left as it is");
            return end;
        };
        let Daemon { config, links, services, storage, group, agent, .. } = daemon;
        drop(services);
        if let Some(Open { meta, follower, rebuilder }) =
            storage.and_then(Arc::into_inner).and_then(Storage::into_open)
        {
            rebuilder.join();
            follower.join();
            if let Some(store) = Arc::into_inner(meta) {
                store.close();
            }
        }
        if !keep && let Some(server) = &config.server {
            if let Some(data) = &links.data
                && let Err(error) = data.destroy()
            {
                tracing::warn!(%error, "the storage was not removed completely");
            }
            for directory in &server.storage {
                remove(directory, server.created_storage);
            }
        }
        if let Some(group) = group.filter(|_| !keep) {
            group.remove();
        }
        if let Some(agent) = agent {
            agent.stop(keep);
        }
        end
    }
}

/// Removes the metadata in a storage directory, and the directory itself if Bivouac made it.
fn remove(directory: &Path, created: bool) {
    if let Err(error) = std::fs::remove_dir_all(metadata_directory(directory))
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %directory.display(), "metadata not removed");
    }
    if created
        && let Err(error) = std::fs::remove_dir(directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %directory.display(), "not removed");
    }
}
