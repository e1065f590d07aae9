//! What a metadata store needs from outside itself, as this daemon has it: this server's own data, and the other servers.
//!
//! What is asked of this server itself takes no connection, but has to pass the same checks as what comes by one.

use crate::copies::{Copies, Sender};
use crate::fetching::Fetching;
use crate::links::{Links, Whom, all_of, encoded, now};
use crate::restriping::Restriping;
use crate::serve;
use bivouac_layout::{Group, Map, ServerId};
use bivouac_meta::{Outside, Standing};
use bivouac_proto::copies::Copied;
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::lazy::{FetchReply, FetchRequest};
use bivouac_proto::peer::{Borrowed, PeerRequest};
use bivouac_proto::restripe::{RestripeReply, RestripeRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply, Request, Time};
use bivouac_transport::engine::{self, Job, Message, Requester, To, Waited};
use std::sync::Arc;
use std::time::Instant;

/// What the metadata store asks of the rest of the deployment.
pub(crate) struct Around {
    links: Arc<Links>,
    /// The server that the store belongs to: one without a number has no store.
    me: ServerId,
    copies: Arc<Copies>,
    restriping: Arc<Restriping>,
    fetching: Arc<Fetching>,
}

impl Around {
    pub(crate) fn new(
        links: Arc<Links>,
        me: ServerId,
        copies: Arc<Copies>,
        restriping: Arc<Restriping>,
        fetching: Arc<Fetching>,
    ) -> Around {
        Around { links, me, copies, restriping, fetching }
    }

    fn own_data(
        &self,
        (standing, layout): (Option<Standing>, u32),
        request: &DataRequest,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<DataReply, Errno> {
        let store = self.links.data.as_ref().ok_or(Errno::IO)?;
        let until = Instant::now() + Links::BUDGET.patience;
        loop {
            let by = Sender { server: self.me, standing };
            self.copies.check_sender(by, request).map_err(|refusal| errno(refusal.into()))?;
            self.restriping.goes_by(request, layout)?;
            self.fetching.interrupt(request)?;
            match serve::data_locally((store, &self.copies), request, payload, into) {
                Err(Failure::Refused(_)) if Instant::now() < until && !self.links.is_closing() => {
                    std::thread::sleep(Links::BUDGET.first_pause);
                }
                answer => {
                    if let (Err(Failure::Errno(errno)), DataRequest::Extent { ino }) = (&answer, request) {
                        // By the map that there is then, this server may not be asked.
                        self.copies.could_not_answer(*ino, false, *errno);
                    }
                    return answer.map_err(errno);
                }
            }
        }
    }
}

impl Around {
    /// Asks several servers the same, by a standing, while this one does its part, if it is among them: that takes long. The
    /// answers in the servers' order; `of`: what a reply to this request is.
    fn ask_with_own<T>(
        &self,
        standing: Standing,
        servers: &[ServerId],
        request: &Request<'_>,
        own: impl FnOnce() -> Result<T, Failure>,
        of: impl Fn(Reply) -> Option<T>,
    ) -> Vec<Result<T, Failure>> {
        let body = encoded(request);
        let others = servers.iter().filter(|server| **server != self.me);
        let job = |server: &ServerId| Job::new(all_of(*server).by(Some(standing)), &body[..], &[], &mut []);
        let mut jobs: Vec<Job<'_, Whom>> = others.map(job).collect();
        let mut own = match (servers.contains(&self.me), jobs.is_empty()) {
            (true, true) => Some(own()),
            (false, _) => {
                engine::call_each(&*self.links, &mut jobs);
                None
            }
            (true, false) => std::thread::scope(|scope| {
                let asked = scope.spawn(|| engine::call_each(&*self.links, &mut jobs));
                let own = own();
                let _ = asked.join();
                Some(own)
            }),
        };
        let mut jobs = jobs.into_iter();
        let answer = |server: &ServerId| {
            if *server == self.me {
                return own.take().unwrap_or(Err(Errno::IO.into()));
            }
            let answered = jobs.next().map_or(Err(Errno::IO.into()), |mut job| job.take())?;
            of(answered.reply).ok_or(Errno::PROTO.into())
        };
        servers.iter().map(answer).collect()
    }
}

impl Outside for Around {
    fn map(&self) -> Arc<Map> {
        self.links.map()
    }

    fn me(&self) -> ServerId {
        self.me
    }

    fn peer(&self, server: ServerId, request: &PeerRequest<'_>) -> Result<Reply, Failure> {
        let message = Message { body: &peer_body(request), payload: &[], watch: None };
        engine::call(&*self.links, all_of(server), &message, &mut []).map(|answered| answered.reply)
    }

    fn peer_all(&self, servers: &[ServerId], request: &PeerRequest<'_>) -> Vec<Result<Reply, Failure>> {
        let body = peer_body(request);
        let job = |server: &ServerId| Job::new(all_of(*server), &body[..], &[], &mut []);
        self.links.call_each(servers.iter().map(job).collect()).collect()
    }

    fn peer_each(&self, requests: &[(ServerId, PeerRequest<'_>)]) -> Vec<Result<Reply, Failure>> {
        let job = |(server, request): &(ServerId, PeerRequest<'_>)| {
            Job::new(all_of(*server), peer_body(request), &[], &mut [])
        };
        self.links.call_each(requests.iter().map(job).collect()).collect()
    }

    fn data(
        &self,
        standing: Option<Standing>,
        (server, layout): (ServerId, u32),
        request: &DataRequest,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<DataReply, Errno> {
        if server == self.me {
            return self.own_data((standing, layout), request, payload, into);
        }
        let to = all_of(server).only().by(standing).of_layout(layout);
        let answered = self.links.ask_into(to, &Request::Data(*request), payload, into);
        answered.map_err(errno).and_then(|(reply, _)| data_reply(reply))
    }

    fn copied(
        &self,
        standing: Standing,
        (group, layout): (Group, u32),
        request: &DataRequest,
        payload: &[u8],
    ) -> Result<DataReply, Errno> {
        let until = Instant::now() + Links::BUDGET.patience;
        loop {
            let by = Sender { server: self.me, standing: Some(standing) };
            self.copies.check_sender(by, request).map_err(|refusal| errno(refusal.into()))?;
            let map = self.links.map();
            let answer = match map.primary_of(group) {
                Some(primary) if primary == self.me => {
                    self.restriping.goes_by(request, layout)?;
                    self.copies.change((group, map.epoch), (request, Some(by)), payload, None)
                }
                _ => {
                    let copied = Request::Copied(Copied { group, request: *request, here: None });
                    let answered = self.links.ask_into(
                        Whom::from(To::Group(group)).by(Some(standing)).of_layout(layout),
                        &copied,
                        payload,
                        &mut [],
                    );
                    answered.and_then(|(reply, _)| Ok(data_reply(reply)?))
                }
            };
            match answer {
                Err(Failure::Refused(_))
                    if Instant::now() < until && !self.links.is_closing() && self.links.stands(standing) =>
                {
                    std::thread::sleep(Links::BUDGET.first_pause);
                }
                answer => return answer.map_err(errno),
            }
        }
    }

    fn wait_until_up(&self, map: &Map, servers: &[ServerId]) -> bool {
        engine::wait_until_up(&*self.links, map, servers) == Waited::NewerMap
    }

    fn data_each(
        &self,
        standing: Option<Standing>,
        layout: u32,
        requests: &[(ServerId, DataRequest)],
    ) -> Vec<Result<DataReply, Errno>> {
        let others = requests.iter().filter(|(server, _)| *server != self.me);
        let job = |(server, request): &(ServerId, DataRequest)| {
            let to = all_of(*server).by(standing).of_layout(layout);
            Job::new(to, encoded(&Request::Data(*request)), &[], &mut [])
        };
        let mut answers = self.links.call_each(others.map(job).collect());
        let other = |answer: Result<Reply, Failure>| answer.map_err(errno).and_then(data_reply);
        let answer = |(server, request): &(ServerId, DataRequest)| match *server == self.me {
            true => self.own_data((standing, layout), request, &[], &mut []),
            false => answers.next().map_or(Err(Errno::IO), other),
        };
        requests.iter().map(answer).collect()
    }

    fn restripe(
        &self,
        standing: Standing,
        servers: &[ServerId],
        request: &RestripeRequest,
    ) -> Vec<Result<RestripeReply, Failure>> {
        let own = || self.restriping.serve(self.me, request, &mut Vec::new());
        self.ask_with_own(standing, servers, &Request::Restripe(request.clone()), own, |reply| match reply {
            Reply::Restripe(reply) => Some(reply),
            _ => None,
        })
    }

    fn fetch(
        &self,
        standing: Standing,
        servers: &[ServerId],
        request: &FetchRequest,
    ) -> Vec<Result<FetchReply, Failure>> {
        let own = || self.fetching.serve(self.me, request);
        self.ask_with_own(standing, servers, &Request::Fetch(Box::new(request.clone())), own, |reply| {
            match reply {
                Reply::Fetch(reply) => Some(reply),
                _ => None,
            }
        })
    }

    fn stands(&self, standing: Standing) -> bool {
        self.links.stands(standing)
    }

    fn distrust(&self, group: Group, holder: ServerId) {
        self.copies.suspect(group, holder);
    }

    fn now(&self) -> Time {
        now()
    }
}

/// The same of a request from server to server, which may be long and is not copied for it.
fn peer_body(request: &PeerRequest<'_>) -> Vec<u8> {
    let mut body = Vec::with_capacity(512);
    bivouac_proto::encode(&Borrowed(request), &mut body);
    body
}

fn data_reply(reply: Reply) -> Result<DataReply, Errno> {
    match reply {
        Reply::Data(reply) => Ok(reply),
        Reply::Done => Ok(DataReply::Done),
        _ => Err(Errno::PROTO),
    }
}

fn errno(failure: Failure) -> Errno {
    match failure {
        Failure::Errno(errno) => errno,
        Failure::Refused(_) => Errno::IO,
    }
}
