//! This process as a sender of requests: how the request engine ([`bivouac_transport::engine`]) gets its connections and maps, and
//! what it does about refusals.

use super::Requests;
use super::to::To;
use crate::session::{Link, MapRef};
use bivouac_layout::{Ino, Map, News, ServerId, ServerState};
use bivouac_node::release::monotonic;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use bivouac_transport::engine::budget::refusing::GONE;
use bivouac_transport::engine::{
    ANY_NAMESPACE, Answered, Budget, Lane, Message, Refused, Requester, Target, Waited, Watch,
};
use bivouac_transport::{Peer, TransportError, engine};
use std::io::{IoSlice, IoSliceMut};

/// Requests as the engine sends them.
pub(super) struct Asking<'c>(pub(super) &'c Requests);

impl<'c> Requester for Asking<'c> {
    type Link = Box<Link>;
    type MapRef<'a>
        = MapRef<'c>
    where
        Self: 'a;
    type To = To;
    const BUDGET: Budget = Budget::CLIENT;

    fn map(&self) -> MapRef<'c> {
        self.0.session().map()
    }

    fn server(&self, to: To, map: &Map) -> ServerId {
        match to {
            To::Forwarded(file) => map.io_node(self.0.session().node(), file),
            to => to.server(map),
        }
    }

    fn learn(&self, news: News) {
        self.0.session().learn_map(news);
    }

    fn refresh(&self) {
        if !self.0.session().has_newest_map() {
            let _ = self.0.session().refresh_map();
        }
    }

    fn asks(state: ServerState) -> bool {
        state == ServerState::Up
    }

    fn take(&self, server: ServerId, map: &Map) -> Result<Box<Link>, TransportError> {
        self.0.session().take_link(server, map)
    }

    fn give(&self, server: ServerId, link: Box<Link>) {
        self.0.session().give_link(server, link);
    }

    fn works(link: &Box<Link>) -> bool {
        link.works()
    }

    fn lane(link: &mut Box<Link>) -> &mut Lane {
        &mut link.lane
    }

    fn session(&self) -> Result<u64, TransportError> {
        self.0.session().number()
    }

    fn namespace(&self, server: ServerId, to: To) -> Result<u64, Refusal> {
        match to {
            To::Entry(_, reached) => self.0.namespace_for(server, reached),
            _ => Ok(ANY_NAMESPACE),
        }
    }

    fn send_with<R>(
        &self,
        server: ServerId,
        send: impl FnOnce(&[u8]) -> Result<R, TransportError>,
    ) -> Result<R, TransportError> {
        let Some(closes) = self.0.closes_for(server) else { return send(&[]) };
        let sent = send(closes.messages());
        match sent {
            Ok(_) => self.0.told(server, closes),
            Err(_) => self.0.not_told(server, closes),
        }
        sent
    }

    fn refused(&self, server: ServerId, refusal: &Refusal) -> Refused {
        match refusal {
            Refusal::OldServer | Refusal::Busy => Refused::Repeat,
            Refusal::StaleNamespace { version, moved } => {
                self.0.memory().hear(server, *version, moved.as_deref());
                Refused::HandOver
            }
            _ => Refused::HandOver,
        }
    }

    fn is_gone(&self, server: ServerId) -> bool {
        // Without a session it was the agent that refused.
        let peer = if self.0.session().has_session() { Peer::Server(server) } else { Peer::Agent };
        self.0.session().unheard();
        self.0.session().refusals().is_gone(peer)
    }

    fn is_missed(&self, server: ServerId) -> bool {
        // Nobody says of a server that it is back while there is no controller.
        let (session, now) = (self.0.session(), monotonic());
        let lasts = session.table().absence(server).and_then(|absence| absence.lasts(now));
        lasts.into_iter().chain(session.unheard()).any(|lasts| lasts >= GONE)
    }

    fn is_hopeless(error: &TransportError) -> bool {
        // What the program has used up, only the program can free.
        engine::is_hopeless(error)
            || matches!(error, TransportError::System(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
    }
}

impl Requests {
    /// The server that answers for an inode.
    pub(crate) fn server_of(&self, ino: Ino) -> ServerId {
        Asking(self).server(To::inode(ino), &self.session().map())
    }

    /// Waits for those of these servers that are not up, though the map names them: nobody can answer in their place.
    pub(crate) fn wait_until_up(&self, map: &Map, servers: &[ServerId]) -> Waited {
        engine::wait_until_up(&Asking(self), map, servers)
    }

    /// Asks servers that the newest map names, which `servers` chooses; one that alone has something is waited for. If the map
    /// changes meanwhile, one of them may have left the deployment; and where something has copies, others may have to be asked:
    /// what one server leaves out, because another one answers for it, it does by one map.
    pub(crate) fn by_newest_map<T>(
        &self,
        servers: impl Fn(&Map) -> Vec<ServerId>,
        ask: impl Fn(&Map, &[ServerId]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            let map = self.session().map();
            let servers = servers(&map);
            if self.wait_until_up(&map, &servers) == Waited::NewerMap {
                continue;
            }
            let answer = ask(&map, &servers);
            if (map.copies == 1 && answer.is_ok()) || self.session().map().epoch == map.epoch {
                return answer;
            }
        }
    }

    /// Sends a request until it is answered.
    pub(crate) fn call(
        &self,
        to: To,
        body: &[u8],
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
        watch: Option<Watch<'_>>,
    ) -> Result<Answered, Failure> {
        let answered = engine::call(&Asking(self), to, &Message { body, payload, watch }, into);
        match answered {
            // Patience is over.
            Err(Failure::Refused(Refusal::OldServer | Refusal::Busy)) => Err(Errno::IO.into()),
            answered => answered,
        }
    }
}
