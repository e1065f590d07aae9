//! Services: which part of a daemon serves which requests.
//!
//! A daemon is made of services for its roles: the agent's, a server's storage. Each is registered for families of requests;
//! what no service of the daemon serves is refused. What concerns the daemon itself is not a service's: the daemon does it.

use crate::copies::Coming;
use bivouac_layout::ShardId;
use bivouac_proto::auth::Role;
use bivouac_proto::{Family, Header};
use bivouac_transport::Call;
use std::sync::Arc;

/// What is known of a connection.
pub(crate) struct Session {
    /// Who is at the other end.
    pub(crate) role: Role,
    /// Its process, on a Unix socket.
    pub(crate) pid: Option<u32>,
    /// The connection is a lifeline: the daemon ends with it.
    pub(crate) lifeline: bool,
    /// It is one no longer: the daemon goes on, or ends already.
    pub(crate) released: bool,
    /// What is being done with the payload of the request that is coming.
    pub(crate) coming: Option<Coming>,
}

/// Serves requests of some families.
pub(crate) trait Service: Send + Sync {
    /// More has come of a long request ([`bivouac_transport::Service::arriving`]).
    fn arriving(&self, _: &mut Session, _: &Header, _body: &[u8], _so_far: &[u8]) -> bool {
        false
    }

    /// Serves a request. The deployment has begun.
    fn serve(&self, session: &mut Session, call: &mut Call);
}

/// The services of a daemon.
#[derive(Default)]
pub(crate) struct Services {
    registered: Vec<(Family, Arc<dyn Service>)>,
    forwarding: Option<Arc<dyn Service>>,
}

impl Services {
    /// Has requests of these families served by a service.
    pub(crate) fn register(&mut self, families: &[Family], service: &Arc<impl Service + 'static>) {
        self.registered.extend(families.iter().map(|family| (*family, service.clone() as Arc<dyn Service>)));
    }

    /// Has requests about what is the backend's served by a service.
    pub(crate) fn forward(&mut self, service: Arc<dyn Service>) {
        self.forwarding = Some(service);
    }

    /// Who serves requests of a family that state a shard.
    pub(crate) fn of(&self, family: Family, shard: ShardId) -> Option<&dyn Service> {
        if shard == ShardId::FORWARDED
            && let Some(forwarding) = &self.forwarding
        {
            return Some(&**forwarding);
        }
        self.registered.iter().find(|(of, _)| *of == family).map(|(_, service)| &**service)
    }
}
