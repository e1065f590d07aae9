//! The request engine: gets a request to the server that has to carry it out, and its answer back, whatever
//! connections, servers and maps do meanwhile.
//!
//! A request keeps its identity (session, slot, sequence) from its first attempt until its outcome is known:
//! through lost answers, and through refusals, because the refusal of one attempt does not say that an
//! earlier one was refused, too. A server that has carried the request out answers again instead of doing it
//! twice. The identity belongs to the request slot of the connection that the first attempt went over. So that
//! connection is kept for this request until it is answered; a slot whose connection is broken is nobody's.
//!
//! Each attempt begins with the newest map, which names the server anew ([`Target`]). If the map says that
//! the server is down, and there is no newer one, the request ends with EIO; one whose place nobody takes is waited for while
//! it is started again ([`vacancy`]). If the server's answer takes long, the attempt goes on for
//! as long as the server is up. If the connection breaks, or the server refuses the attempt because its own
//! map is older or it has just been started, the engine waits a little and begins the next attempt, until
//! the patience of the sender's [`Budget`] is over. If the sender's map is older, the engine learns the newer
//! one, and begins the next attempt at once.
//!
//! Clients and servers send requests by this one machine, [`call`] and [`call_each`]. In what they differ is
//! their [`Requester`]: where connections are kept, where a newer map comes from, which servers may be asked,
//! what a refusal means to them. It is a type parameter: a client pays for no decision of the servers'.
//! Control requests and requests to an agent are single attempts over a connection that their sender holds
//! ([`attempt`]). All of them take their times from one table ([`budget`]).
//!
//! What requests mean, and where a map comes from, is left to the senders. The engine has no threads and
//! holds no lock; it allocates nothing for a single request.

mod attempt;
mod backoff;
pub mod budget;
mod identity;
mod several;
mod vacancy;

pub use attempt::{Answered, Watch, attempt};
pub use budget::Budget;
pub use identity::Lane;
pub use several::{Job, call_each};
pub use vacancy::{Waited, wait_until_up};

use crate::connection::Outgoing;
use crate::error::TransportError;
use backoff::Backoff;
use bivouac_layout::map::{NO_SERVER, ServerState};
use bivouac_layout::{Epoch, Group, Map, News, ServerId, ShardId};
use bivouac_proto::header::LOST;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Kind, Refusal, Reply, RequestId};
use identity::Identity;
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Deref;
use std::time::{Duration, Instant};

/// The namespace version of a request that does not depend on cached paths: no version is newer.
pub const ANY_NAMESPACE: u64 = u64::MAX;

/// Who sends requests, and in what senders differ. A sender has a session, a map and connections.
pub trait Requester {
    /// A connection of this sender's, with what it keeps beside the [`Lane`].
    type Link;
    /// How it holds the map while an attempt is made.
    type MapRef<'c>: Deref<Target = Map>
    where
        Self: 'c;
    /// Where its requests go.
    type To: Target;
    /// The times of its requests.
    const BUDGET: Budget;

    /// The newest map that it knows.
    fn map(&self) -> Self::MapRef<'_>;

    /// Takes over a map that came with a refusal, if it is sound and newer.
    fn learn(&self, news: News);

    /// The server that a request goes to, by a map.
    fn server(&self, to: Self::To, map: &Map) -> ServerId {
        to.server(map)
    }

    /// Whether its sender may still send it, by the newest map: asked at every attempt, after the map, and when the answer
    /// takes long.
    fn stands(&self, _: Self::To) -> bool {
        true
    }

    /// A server has been silent for as long as [`Budget::silence`], or takes no connection.
    fn is_silent(&self, _: ServerId) {}

    /// Whether a message over a connection that has been silent since then is better sent again over another one: the link
    /// was cut meanwhile and is there again, and the kernel repeats what was lost after as long again only.
    fn is_lost(&self, _: ServerId, _since: Instant) -> bool {
        false
    }

    /// Asks for the newest map, if there is anybody to ask, before a server that does not answer is waited for
    /// any longer.
    fn refresh(&self) {}

    /// Whether requests of this sender may go to a server in this state.
    fn asks(state: ServerState) -> bool;

    /// A connection to a server of the map, of this request alone until it is given back.
    fn take(&self, server: ServerId, map: &Map) -> Result<Self::Link, TransportError>;

    /// Gives a connection back, which may be broken.
    fn give(&self, server: ServerId, link: Self::Link);

    /// Whether a connection that was taken can still be used.
    fn works(link: &Self::Link) -> bool;

    /// The connection itself, with its request slot.
    fn lane(link: &mut Self::Link) -> &mut Lane;

    /// The session that requests are part of.
    fn session(&self) -> Result<u64, TransportError>;

    /// The namespace version that a request carries to a server; a refusal if the sender has to change the
    /// request without asking.
    fn namespace(&self, _: ServerId, _: Self::To) -> Result<u64, Refusal> {
        Ok(ANY_NAMESPACE)
    }

    /// Calls `send` once, with the messages to send ahead of a request to this server.
    fn send_with<T>(
        &self,
        _: ServerId,
        send: impl FnOnce(&[u8]) -> Result<T, TransportError>,
    ) -> Result<T, TransportError> {
        send(&[])
    }

    /// What to do about a refusal. (The engine itself deals with [`Refusal::StaleMap`].)
    fn refused(&self, server: ServerId, refusal: &Refusal) -> Refused;

    /// Whether a server that has just refused a connection has been waited for long enough.
    fn is_gone(&self, server: ServerId) -> bool;

    /// Whether a server that is not up has been waited for long enough, by whomever ([`GONE`](budget::refusing::GONE)).
    fn is_missed(&self, server: ServerId) -> bool;

    /// Whether an error would be the same at every further attempt.
    fn is_hopeless(error: &TransportError) -> bool {
        is_hopeless(error)
    }

    /// Whether the process ends, and with it most likely all servers: nothing is repeated or waited for then.
    fn is_closing(&self) -> bool {
        false
    }
}

/// Whether an error of a connection is one of what both ends are, which no other attempt changes.
pub fn is_hopeless(error: &TransportError) -> bool {
    matches!(
        error,
        TransportError::Version { .. }
            | TransportError::Authentication
            | TransportError::Protocol(_)
            | TransportError::TooLong { .. }
    )
}

/// What a sender does about a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It waits, and repeats the request. If its patience ends before, it gets the refusal.
    Repeat,
    /// It wants to see the refusal.
    HandOver,
}

/// Where a request goes. The map is asked at every attempt: so the server of a shard that moves, or another
/// holder of a piece whose first holder is down, is found without its sender.
pub trait Target: Copy {
    /// The server to ask, by this map.
    fn server(&self, map: &Map) -> ServerId;

    /// The shard that the request states.
    fn shard(&self) -> ShardId;

    /// The version of the file's layout that the request states.
    fn layout(&self) -> u32 {
        0
    }

    /// Whether the map names one that is up, if there is one that can answer.
    fn names_who_is_up(&self) -> bool;
}

/// Where requests go that do not depend on how their path was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// The server that holds a shard.
    Shard(ShardId),
    /// The primary of a group of blocks.
    Group(Group),
    /// A certain server; the shard is one of its own, or 0 where none is concerned.
    Server(ServerId, ShardId),
    /// A certain server as long as it is the primary of this group of blocks: nobody else has the answer.
    Primary(ServerId, Group),
}

impl Target for To {
    fn server(&self, map: &Map) -> ServerId {
        match self {
            To::Shard(shard) => map.primary(*shard),
            To::Group(group) => map.primary_of(*group).unwrap_or(NO_SERVER),
            To::Server(server, _) => *server,
            To::Primary(server, group) => {
                map.primary_of(*group).filter(|primary| primary == server).unwrap_or(NO_SERVER)
            }
        }
    }

    fn shard(&self) -> ShardId {
        match self {
            To::Shard(shard) | To::Server(_, shard) => *shard,
            To::Group(_) | To::Primary(..) => ShardId(0),
        }
    }

    fn names_who_is_up(&self) -> bool {
        match self {
            To::Shard(_) | To::Group(_) => true,
            To::Server(..) | To::Primary(..) => false,
        }
    }
}

/// What is sent.
#[derive(Clone, Copy)]
pub struct Message<'m> {
    /// The encoded request.
    pub body: &'m [u8],
    /// What follows it.
    pub payload: &'m [IoSlice<'m>],
    /// Waits for the answer in place of the engine.
    pub watch: Option<Watch<'m>>,
}

/// Sends a request until it is answered or given up. The answer's payload comes into `into`.
pub fn call<R: Requester>(
    requester: &R,
    to: R::To,
    message: &Message<'_>,
    into: &mut [IoSliceMut<'_>],
) -> Result<Answered, Failure> {
    call_as(requester, Identity::default(), to, message, into)
}

fn call_as<R: Requester>(
    requester: &R,
    mut identity: Identity<R::Link>,
    to: R::To,
    message: &Message<'_>,
    into: &mut [IoSliceMut<'_>],
) -> Result<Answered, Failure> {
    let mut backoff = Backoff::new(&R::BUDGET);
    let mut refreshed = false;
    let outcome = loop {
        let map = requester.map();
        let server = requester.server(to, &map);
        if !requester.stands(to) {
            break Err(Refusal::OldServer.into());
        }
        if !is_asked::<R>(&map, server) {
            if is_last(&map, &to) && vacancy::is_worth_waiting_for(requester, &map, server) {
                drop(map);
                if !requester.is_closing() && backoff.wait(vacancy::PAUSE) {
                    requester.refresh();
                    continue;
                }
            }
            // Who has an old map by which nobody is up would never hear of a newer one.
            if !std::mem::replace(&mut refreshed, true) {
                requester.refresh();
                continue;
            }
            break Err(Errno::IO.into());
        }
        let namespace = match requester.namespace(server, to) {
            Ok(namespace) => namespace,
            // An earlier attempt may have been carried out: only the server can say. With a version before the
            // first, it refuses if not.
            Err(_) if identity.has_begun() => 0,
            Err(refusal) => break Err(refusal.into()),
        };
        let silence = Silence::default();
        let asked = identity.link_for(requester, server, &map).and_then(|(mut link, id, attempts)| {
            let mut header = Header { namespace, attempt: attempts, ..header(&map, &to, id) };
            let asked = requester.send_with(server, |before| {
                let connection = &mut R::lane(&mut link).connection;
                if header.shard == ShardId::FORWARDED {
                    // What was not sent need not be doubted.
                    connection.check()?;
                }
                let process = connection.process();
                if identity.is_lost_to(process) {
                    header.flags |= LOST;
                }
                let outgoing = Outgoing { before, header, body: message.body, payload: message.payload };
                let asked = attempt(connection, &outgoing, into, message.watch, || {
                    is_worth_waiting_for(requester, to, server, &silence)
                });
                if asked.is_err() {
                    identity.lost_at(process);
                }
                asked
            });
            identity.done_with(requester, server, link);
            asked
        });
        match asked {
            Ok(Err(Failure::Refused(refusal))) => {
                if let Err(failure) = adapt(requester, server, map.epoch, refusal, &mut backoff) {
                    break Err(failure);
                }
            }
            Ok(answered) => break answered,
            Err(error) => {
                if let Err(errno) = mend(requester, to, server, &error, &mut backoff) {
                    break Err(errno.into());
                }
            }
        }
    };
    identity.give_back(requester);
    outcome
}

/// Sends a request on which nothing depends, once, and waits for its answer for no longer than the server is silent. `None`:
/// it was not answered, or was refused.
pub fn ask_once<R: Requester>(requester: &R, to: R::To, body: &[u8]) -> Option<Reply> {
    let map = requester.map();
    let server = requester.server(to, &map);
    let mut link = requester.take(server, &map).ok()?;
    let header = header(&map, &to, RequestId::default());
    let outgoing = Outgoing { before: &[], header, body, payload: &[] };
    let asked = attempt(&mut R::lane(&mut link).connection, &outgoing, &mut [], None, || {
        requester.is_silent(server);
        false
    });
    requester.give(server, link);
    asked.ok()?.ok().map(|answered| answered.reply)
}

/// Sends a request for which no answer is awaited; it may still be lost with its connection. Says whether it
/// was sent.
pub fn post<R: Requester>(requester: &R, to: R::To, body: &[u8]) -> bool {
    let map = requester.map();
    let server = requester.server(to, &map);
    // One repetition: the connection at hand may have been broken for long.
    for _ in 0..2 {
        let Ok(mut link) = requester.take(server, &map) else {
            return false;
        };
        let header = header(&map, &to, RequestId::default());
        let sent = R::lane(&mut link).connection.post(&Outgoing { before: &[], header, body, payload: &[] });
        requester.give(server, link);
        if sent.is_ok() {
            return true;
        }
    }
    false
}

fn header(map: &Map, to: &impl Target, id: RequestId) -> Header {
    let mut header = Header::new(Kind::Request);
    (header.shard, header.epoch, header.namespace, header.id) = (to.shard(), map.epoch, ANY_NAMESPACE, id);
    header.layout = to.layout();
    header
}

fn is_asked<R: Requester>(map: &Map, server: ServerId) -> bool {
    map.server(server).is_some_and(|server| R::asks(server.state))
}

/// Whether nobody can answer in the place of the server that the map names, if that is not up.
fn is_last(map: &Map, to: &impl Target) -> bool {
    map.copies == 1 || to.names_who_is_up()
}

/// Since when the server of an attempt has been silent, once it has been for long: nothing is timed before.
#[derive(Default)]
struct Silence {
    since: Cell<Option<Instant>>,
}

impl Silence {
    /// It has been silent for so long at least.
    fn since(&self, for_long: Duration) -> Instant {
        let now = Instant::now();
        let since = self.since.get().unwrap_or_else(|| now.checked_sub(for_long).unwrap_or(now));
        self.since.set(Some(since));
        since
    }
}

/// Whether a server that has been silent is to be waited for. Who may not send the request any more does not wait for an
/// answer, either: it may be keeping others waiting, and a link that was cut brings late what was lost.
fn is_worth_waiting_for<R: Requester>(requester: &R, to: R::To, server: ServerId, silence: &Silence) -> bool {
    requester.is_silent(server);
    requester.refresh();
    is_asked::<R>(&requester.map(), server)
        && requester.stands(to)
        && !requester.is_lost(server, silence.since(R::BUDGET.silence))
        && !requester.is_closing()
}

/// After a refusal of an attempt that was made by the map of `epoch`: prepares the next attempt, or says how
/// the request ends.
fn adapt<R: Requester>(
    requester: &R,
    server: ServerId,
    epoch: Epoch,
    refusal: Refusal,
    backoff: &mut Backoff,
) -> Result<(), Failure> {
    let mut wait = || !requester.is_closing() && backoff.wait(R::BUDGET.longest_refused);
    match refusal {
        Refusal::StaleMap(newer) => {
            requester.learn(newer);
            // A map that is not newer does not help; a sound server does not send one.
            if requester.map().epoch > epoch || wait() { Ok(()) } else { Err(Errno::IO.into()) }
        }
        refusal => match requester.refused(server, &refusal) {
            Refused::Repeat if wait() => Ok(()),
            _ => Err(refusal.into()),
        },
    }
}

/// After an attempt that was not answered: waits before the next one, or says how the request ends.
fn mend<R: Requester>(
    requester: &R,
    to: R::To,
    server: ServerId,
    error: &TransportError,
    backoff: &mut Backoff,
) -> Result<(), Errno> {
    if R::is_hopeless(error) || requester.is_closing() {
        return Err(error.errno());
    }
    // With copies the map says who takes its place: it is waited for until then.
    if *error == TransportError::Refused && requester.map().copies == 1 && requester.is_gone(server) {
        return Err(Errno::IO);
    }
    // The first repetition is for a connection that was broken before the request, and costs no question.
    if backoff.has_begun() {
        requester.refresh();
        let map = requester.map();
        let server = requester.server(to, &map);
        let is_awaited = is_last(&map, &to) && vacancy::may_come(&map, server);
        if !is_asked::<R>(&map, server) && !is_awaited {
            return Err(Errno::IO);
        }
    }
    if backoff.wait(Budget::LONGEST_PAUSE) { Ok(()) } else { Err(Errno::IO) }
}
