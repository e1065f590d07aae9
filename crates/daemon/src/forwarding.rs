//! The I/O node role: requests for a directory of the site's storage, which are carried out there.
//!
//! A server has this role while the map names it as an I/O node. What requests mean at the backend is
//! [`bivouac_forward::IoNode`]'s business; here they pass the gates that all requests pass: who may ask, by which map, and, for
//! those that change something, in their order and once. Reads and writes that wait in the queue are answered by the dispatcher
//! that has carried them out; the connection's worker does not wait for that.
//!
//! Every server remembers where the files are that others have open as I/O nodes ([`guardians`]), and says so when it is asked.
//!
//! A file that was removed while a program had it open cannot be found by other I/O nodes: the one that has it open keeps it, and
//! those that are asked for it later pass the requests on ([`elsewhere`]).

mod elsewhere;
mod guardians;

use self::elsewhere::{Elsewhere, Place};
use crate::config::ServerConfig;
use crate::links::Links;
use crate::order::{Order, Turn};
use crate::running::metadata_directory;
use crate::serve;
use crate::services::{Service, Session};
use bivouac_forward::{Bounds, By, Entrusted, IoNode, NOT_ISSUED, Options, Resident, Spec, Transfer};
use bivouac_layout::map::ServerState;
use bivouac_layout::{self as layout, Ino, ServerId, ShardId};
use bivouac_proto::attr::PATH_MAX;
use bivouac_proto::auth::Role;
use bivouac_proto::control::{Forwarded, HeldFile};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::{LOST, MAX_PAYLOAD, RequestId};
use bivouac_proto::meta::{MetaReply, MetaRequest, XattrMode};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, OpenId, Refusal, Reply, Request};
use bivouac_transport::engine::To;
use bivouac_transport::engine::budget::OVERLAP;
use bivouac_transport::{Call, Responder};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Directories that are kept within reach, and as many other files.
const PLACES: usize = 4 << 10;

/// The file that notes what was shown.
const JOURNAL: &str = "forwarded";

/// The directory that is served, and by which of the map's words.
struct Serving {
    forwarded: layout::Forwarding,
    node: Arc<IoNode>,
}

/// A change that was made, and what was answered.
struct Answered {
    sequence: u64,
    answer: Result<Vec<u8>, Errno>,
}

/// See the module.
pub(crate) struct Forwarding {
    me: ServerId,
    links: Arc<Links>,
    /// In the server's storage, where it has metadata: it goes with that.
    journal: Option<PathBuf>,
    order: Order,
    serving: Mutex<Option<Serving>>,
    /// What other I/O nodes have told.
    entrusted: Entrusted,
    /// What others keep.
    elsewhere: Elsewhere,
    answered: Mutex<HashMap<(u64, u32), Answered>>,
}

impl Forwarding {
    pub(crate) fn new(server: &ServerConfig, links: &Arc<Links>) -> Forwarding {
        let storage = server.storage.first();
        Forwarding {
            me: server.id,
            links: links.clone(),
            journal: storage.map(|storage| metadata_directory(storage).join(JOURNAL)),
            order: Order::new(OVERLAP),
            serving: Mutex::default(),
            entrusted: Entrusted::default(),
            elsewhere: Elsewhere::default(),
            answered: Mutex::default(),
        }
    }

    /// The backend, if this server forwards to it by the daemon's map and the sender's.
    fn node(&self, header: &Header, whatever_map: bool) -> Result<Arc<IoNode>, Failure> {
        let map = self.links.map();
        if !whatever_map && !(map.members_since..=map.epoch).contains(&header.epoch) {
            return Err(match header.epoch < map.epoch {
                true => Refusal::StaleMap(map.news_for(header.epoch)).into(),
                false => Refusal::OldServer.into(),
            });
        }
        if !whatever_map {
            self.check_lease()?;
        }
        let forwarded =
            map.forwarding.as_ref().filter(|forwarded| forwarded.all().any(|server| server == self.me));
        let forwarded = forwarded.ok_or(Errno::IO)?;
        let before = lock(&self.serving).as_ref().map(|serving| serving.node.clone());
        // Looked for without the lock: a backend may take its time.
        let outlived = before.filter(|before| before.is_outlived());
        let mut serving = lock(&self.serving);
        if let Some(outlived) = &outlived
            && serving.as_ref().is_some_and(|serving| Arc::ptr_eq(&serving.node, outlived))
        {
            tracing::warn!(directory = forwarded.directory, "the directory was gone, and is opened again");
            *serving = None;
        }
        if let Some(serving) = &mut *serving
            && serving.forwarded.directory == forwarded.directory
        {
            if serving.forwarded.scheduler != forwarded.scheduler {
                serving.node.set_scheduler(&spec(&forwarded.scheduler));
            }
            if serving.forwarded != *forwarded {
                serving.forwarded = forwarded.clone();
            }
            return Ok(serving.node.clone());
        }
        let options = Options {
            scheduler: spec(&forwarded.scheduler),
            bounds: Bounds::default(),
            places: PLACES,
            may_issue: {
                let links = self.links.clone();
                Box::new(move || links.lease.may_forward())
            },
            journal: self.journal.clone(),
        };
        let node = IoNode::open(Path::new(&forwarded.directory), options).inspect_err(|error| {
            tracing::error!(directory = forwarded.directory, %error, "the directory to forward cannot be used here");
        })?;
        let node = Arc::new(node);
        guardians::start(&node, &self.links, self.me);
        *serving = Some(Serving { forwarded: forwarded.clone(), node: node.clone() });
        Ok(node)
    }

    /// Refuses to do anything at the backend where another one may forward in this one's place.
    fn check_lease(&self) -> Result<(), Failure> {
        if self.links.lease.may_forward() { Ok(()) } else { Err(Refusal::OldServer.into()) }
    }

    /// What was forwarded.
    pub(crate) fn counts(&self) -> Forwarded {
        let Some(node) = lock(&self.serving).as_ref().map(|serving| serving.node.clone()) else {
            return Forwarded::default();
        };
        let counts = node.counts();
        Forwarded {
            requests_in: counts.requests_in,
            requests_out: counts.requests_out,
            bytes_in: counts.bytes_in,
            bytes_out: counts.bytes_out,
            opens: node.opens() as u64,
        }
    }

    /// Files that only this I/O node has any more, because they were removed while programs had them open: once for each open
    /// description, so many at most.
    pub(crate) fn kept(&self, most: usize) -> Vec<HeldFile> {
        let node = lock(&self.serving).as_ref().map(|serving| serving.node.clone());
        let kept = node.map_or(Vec::new(), |node| node.kept());
        kept.into_iter().take(most).map(|(ino, session)| HeldFile { ino, session }).collect()
    }

    /// `from_other`: another I/O node asks.
    fn meta(
        &self,
        header: &Header,
        from_other: bool,
        request: &MetaRequest<'_>,
        payload: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        // Nobody waits for the answer of a close, and so would notice a refusal.
        let is_close = matches!(
            request,
            MetaRequest::Release { .. } | MetaRequest::Abandon { .. } | MetaRequest::EndSession { .. }
        );
        let node = self.node(header, is_close)?;
        if is_close {
            let done = node.meta(request, payload, buffer);
            let is_known = !matches!(done, Err(Failure::Errno(Errno::NOENT)));
            // Locks may be elsewhere.
            let (is_known_elsewhere, told) = match !from_other && (!is_known || self.have_changed()) {
                true => self.release_elsewhere(request),
                // The request does not say whether the I/O node that passes it on knows the description.
                false => (false, Ok(())),
            };
            if let (false, Some(file)) = (is_known, closed(request)) {
                node.closed(file, is_known_elsewhere);
            }
            told?;
            return match done {
                Err(Failure::Errno(Errno::NOENT)) if !from_other => Ok(Reply::Done),
                done => done,
            };
        }
        let mut place = Place::Here;
        if !from_other {
            for ino in serve::named(request).into_iter().flatten() {
                let found = self.introduce(&node, ino)?;
                // What has no name is named by its number alone.
                if let ([Some(_), None], false) = (serve::named(request), serve::walks(request)) {
                    place = found;
                }
            }
            if let Place::Here = place {
                self.take_locks(&node, request)?;
            }
        }
        let mut carry_out = || match place {
            Place::Here => {
                let done = node.meta(request, payload, buffer);
                if let (Ok(_), Some(open)) = (&done, opens(request)) {
                    node.belongs(open, header.id.session);
                }
                if let Err(Failure::Errno(errno)) = &done {
                    node.suspect(*errno);
                }
                done
            }
            Place::At(server) => self.pass_on(server, request, payload, buffer),
        };
        if !serve::changes(request) {
            return carry_out();
        }
        let _turn = match self.order.take(header.id, header.attempt) {
            Turn::Begun(running) => running,
            Turn::Answered(_) | Turn::Overtaken => return Err(Refusal::Busy.into()),
        };
        if header.attempt > 0
            && let Some(answer) = self.before(header.id)
        {
            return answer;
        }
        // It may have waited for others.
        self.check_lease()?;
        let done = match header.flags & LOST != 0 && is_once(request) {
            // Whether it was done there nobody knows, and what is found now would not tell.
            true => Err(Errno::IO.into()),
            false => carry_out(),
        };
        let (id, attempt, flags, epoch) = (header.id, header.attempt, header.flags, header.epoch);
        tracing::debug!(?id, attempt, flags, %epoch, ?request, ?done, "a change at the backend");
        self.note(header.id, &done);
        done
    }

    /// Asks others where something is that this one does not know: I/O nodes that have shown it to a client, or had it open before
    /// this one served that client, and the guardians of one that has died. What nobody knows stays unknown. Where requests about it
    /// are carried out.
    ///
    /// # Errors
    /// A refusal if nobody has said where it is, but one refuses to say anything, because the maps differ still.
    fn introduce(&self, node: &IoNode, ino: Ino) -> Result<Place, Refusal> {
        if node.reaches(ino) {
            return Ok(Place::Here);
        }
        if let Some(path) = self.entrusted.find(ino)
            && node.learn(ino, &path).is_ok()
        {
            return Ok(Place::Here);
        }
        let mut servers = self.others();
        // Whoever has kept it before is asked first, and each time: the backend may have given its number to another file.
        let before = self.elsewhere.find(ino);
        servers.sort_by_key(|server| Some(*server) != before);
        let map = self.links.map();
        let up = map.servers.iter().filter(|server| server.state == ServerState::Up && server.id != self.me);
        let guardians: Vec<ServerId> =
            up.map(|server| server.id).filter(|id| !servers.contains(id)).collect();
        servers.extend(guardians);
        let mut answer = Ok(Place::Here);
        for server in servers {
            let mut path = vec![0; PATH_MAX];
            let request = Request::Meta(MetaRequest::Locate { ino });
            let to = To::Server(server, ShardId::FORWARDED);
            match self.links.ask_into(to, &request, &[], &mut path) {
                Ok((Reply::Meta(MetaReply::Kept), _)) => {
                    if before != Some(server) {
                        self.elsewhere.note(ino, server);
                    }
                    return Ok(Place::At(server));
                }
                Ok((_, length)) => {
                    let path = path.get(..length).unwrap_or_default();
                    if !path.is_empty() && node.learn(ino, Path::new(OsStr::from_bytes(path))).is_ok() {
                        return Ok(Place::Here);
                    }
                }
                Err(Failure::Refused(_)) => answer = Err(Refusal::OldServer),
                // It does not know it, or is down by now.
                Err(Failure::Errno(_)) => {}
            }
        }
        answer
    }

    /// Whether there have been other I/O nodes before.
    fn have_changed(&self) -> bool {
        self.links.map().forwarding.as_ref().is_some_and(|forwarded| !forwarded.former.is_empty())
    }

    /// Before an owner of locks sets, tests or gives up any here: what it has on the file at other I/O nodes, from the time when its
    /// node went through these, is taken here. Somebody else may have it by then: ENOLCK.
    fn take_locks(&self, node: &IoNode, request: &MetaRequest<'_>) -> Result<(), Errno> {
        let (ino, owner) = match *request {
            MetaRequest::Lock { ino, owner, .. }
            | MetaRequest::Unlock { ino, owner, .. }
            | MetaRequest::TestLock { ino, owner, .. } => (ino, owner),
            _ => return Ok(()),
        };
        if !self.have_changed() || node.has_locks(ino, owner) {
            return Ok(());
        }
        for server in self.others() {
            let to = To::Server(server, ShardId::FORWARDED);
            let asked = self.links.ask(to, &Request::Meta(MetaRequest::GiveLocks { ino, owner }));
            let Ok(Reply::Meta(MetaReply::Locks(given))) = asked else { continue };
            for range in given {
                let taken = MetaRequest::Lock { ino, owner, range, wait_ms: 0 };
                if let Err(failure) = node.meta(&taken, &[], &mut Vec::new()) {
                    tracing::error!(?failure, %ino, ?range, "a lock did not follow its owner to this I/O node");
                    return Err(Errno::NOLCK);
                }
            }
        }
        Ok(())
    }

    /// The other servers that forward, or did so before, and are up.
    fn others(&self) -> Vec<ServerId> {
        let map = self.links.map();
        let all = map.forwarding.iter().flat_map(|forwarded| forwarded.all());
        let is_up =
            |server: &ServerId| map.server(*server).is_some_and(|other| other.state == ServerState::Up);
        all.filter(|server| *server != self.me && is_up(server)).collect()
    }

    /// Has other I/O nodes told that a description or a process is gone, of which they may know something from before. Whether one
    /// does, and whether all were told.
    fn release_elsewhere(&self, request: &MetaRequest<'_>) -> (bool, Result<(), Failure>) {
        let (mut is_known, mut told) = (false, Ok(()));
        for server in self.others() {
            let to = To::Server(server, ShardId::FORWARDED);
            match self.links.ask(to, &Request::Meta(request.clone())) {
                Ok(_) => is_known = true,
                Err(Failure::Errno(Errno::NOENT)) => {}
                Err(failure) => told = Err(failure),
            }
        }
        (is_known, told)
    }

    /// What a request was answered that was carried out before.
    fn before(&self, id: RequestId) -> Option<Result<Reply, Failure>> {
        let answered = lock(&self.answered);
        let known = answered.get(&(id.session, id.slot)).filter(|known| known.sequence == id.sequence)?;
        Some(match &known.answer {
            Ok(body) => bivouac_proto::decode(body).map_err(|_| Errno::PROTO.into()),
            Err(errno) => Err((*errno).into()),
        })
    }

    fn note(&self, id: RequestId, done: &Result<Reply, Failure>) {
        let answer = match done {
            Ok(reply) => {
                let mut body = Vec::new();
                bivouac_proto::encode(reply, &mut body);
                Ok(body)
            }
            Err(Failure::Errno(errno)) => Err(*errno),
            // It was not carried out.
            Err(Failure::Refused(_)) => return,
        };
        if id.session != 0 {
            lock(&self.answered).insert((id.session, id.slot), Answered { sequence: id.sequence, answer });
        }
    }

    fn forget(&self, session: u64) {
        lock(&self.answered).retain(|(of, _), _| *of != session);
    }

    /// `from_other`: another I/O node has passed it on.
    fn data(&self, call: &mut Call, from_other: bool, request: DataRequest, job: u64) {
        let header = *call.header();
        let node = match self.node(&header, false) {
            Ok(node) => node,
            Err(failure) => return call.parts().3.fail(&failure),
        };
        match request.file().filter(|_| !from_other).map(|ino| self.introduce(&node, ino)) {
            None | Some(Ok(Place::Here)) => {}
            Some(Ok(Place::At(server))) => return self.pass_on_data(server, call, request),
            Some(Err(refusal)) => return call.parts().3.fail(&refusal.into()),
        }
        let by = By { job, process: header.id.session };
        match request.plain().0 {
            DataRequest::Read { ino, offset, len } => {
                let len = len.min(MAX_PAYLOAD) as usize;
                if len == 0 {
                    return read((&node, ino, offset), Ok(0), call.parts().3);
                }
                let later = || Box::new(Reading { call: call.later(), node: node.clone(), ino, offset, len });
                match node.transfer(by, &request, len as u64, later) {
                    Ok(Some(now)) => {
                        let reply = call.parts().3;
                        if let Some(file) = now.in_memory() {
                            drop(now);
                            return send(&file, offset, len, reply);
                        }
                        let outcome = now.carry_out(reply.room(len));
                        read((&node, ino, offset), outcome, reply);
                    }
                    Ok(None) => {}
                    Err(errno) => {
                        node.suspect(errno);
                        call.parts().3.fail(&errno.into());
                    }
                }
            }
            DataRequest::Write { .. } => {
                // What an earlier attempt may still write comes before in the queue; a later request of the slot must not.
                match self.order.take(header.id, header.attempt) {
                    Turn::Begun(_) => {}
                    Turn::Answered(_) | Turn::Overtaken => return call.parts().3.fail(&Refusal::Busy.into()),
                }
                let len = call.parts().2.len() as u64;
                if len == 0 {
                    return written(&node, Ok(0), call.parts().3);
                }
                let later = || Box::new(Writing { call: call.later(), node: node.clone() });
                match node.transfer(by, &request, len, later) {
                    Ok(Some(now)) => {
                        let (_, _, payload, reply) = call.parts();
                        written(&node, now.carry_out(payload), reply);
                    }
                    Ok(None) => {}
                    Err(errno) => {
                        node.suspect(errno);
                        call.parts().3.fail(&errno.into());
                    }
                }
            }
            request => match self
                .check_lease()
                .and_then(|()| Ok(node.data(&request).inspect_err(|errno| node.suspect(*errno))?))
            {
                Ok(done) => call.parts().3.ok(&Reply::Data(done)),
                Err(failure) => call.parts().3.fail(&failure),
            },
        }
    }
}

impl Service for Forwarding {
    fn serve(&self, session: &mut Session, call: &mut Call) {
        let (header, body, payload, reply) = call.parts();
        let Ok(request) = bivouac_proto::decode::<Request<'_>>(body) else {
            return reply.fail(&Errno::PROTO.into());
        };
        let outcome = match (&request, &session.role) {
            (Request::Meta(request), Role::Client { .. } | Role::Agent(_)) => {
                if let MetaRequest::EndSession { session } = request {
                    self.forget(*session);
                }
                self.meta(header, false, request, payload, reply.buffer())
            }
            (Request::Meta(MetaRequest::Entrust { files }), Role::Server(_)) => {
                for file in files {
                    self.entrusted.note(file.ino, Path::new(OsStr::from_bytes(&file.path)));
                }
                Ok(Reply::Done)
            }
            // What names nothing by a path.
            (Request::Meta(request), Role::Server(_)) if !serve::walks(request) => {
                match (self.meta(header, true, request, payload, reply.buffer()), request) {
                    // It does not know the file itself. (One that refuses may know it: what others have told is no answer then.)
                    (Err(Failure::Errno(errno)), MetaRequest::Locate { ino }) => {
                        match self.entrusted.find(*ino) {
                            Some(path) => {
                                reply.buffer().clear();
                                reply.buffer().extend_from_slice(path.as_os_str().as_bytes());
                                Ok(Reply::Done)
                            }
                            None => Err(errno.into()),
                        }
                    }
                    (done, _) => done,
                }
            }
            (Request::Data(request), role @ (Role::Client { .. } | Role::Server(_))) => {
                let (request, job) = (*request, if let Role::Client { job, .. } = role { *job } else { 0 });
                let from_other = matches!(role, Role::Server(_));
                return self.data(call, from_other, request, job);
            }
            _ => Err(Errno::ACCESS.into()),
        };
        match outcome {
            Ok(done) => reply.ok(&done),
            Err(failure) => {
                reply.buffer().clear();
                reply.fail(&failure);
            }
        }
    }
}

/// Whether a request that was carried out may be answered otherwise, or do harm, if it is carried out again.
fn is_once(request: &MetaRequest<'_>) -> bool {
    use MetaRequest as R;
    match request {
        R::Open { how, .. } => how.create.is_some_and(|create| create.exclusive),
        R::Append { .. }
        | R::Mkdir { .. }
        | R::MakeNode { .. }
        | R::Link { .. }
        | R::Unlink { .. }
        | R::Rmdir { .. }
        | R::Rename { .. }
        | R::RemoveXattr { .. } => true,
        R::SetXattr { mode, .. } => *mode != XattrMode::Set,
        _ => false,
    }
}

/// The file of which a description is gone.
fn closed(request: &MetaRequest<'_>) -> Option<Ino> {
    match *request {
        MetaRequest::Release { ino, .. } => Some(ino),
        MetaRequest::Abandon { ino, .. } => ino,
        _ => None,
    }
}

/// The description that a request opens.
fn opens(request: &MetaRequest<'_>) -> Option<OpenId> {
    match *request {
        MetaRequest::Open { open, .. }
        | MetaRequest::OpenInode { open, .. }
        | MetaRequest::MakeTemporary { open, .. } => Some(open),
        _ => None,
    }
}

/// A read that waits in the queue.
struct Reading {
    call: Call,
    node: Arc<IoNode>,
    ino: Ino,
    offset: u64,
    len: usize,
}

impl Transfer for Reading {
    fn buffer(&mut self) -> &mut [u8] {
        self.call.parts().3.room(self.len)
    }

    fn done(mut self: Box<Self>, outcome: Result<u64, Errno>) {
        read((&self.node, self.ino, self.offset), outcome, self.call.parts().3);
    }
}

/// A write that waits in the queue.
struct Writing {
    call: Call,
    node: Arc<IoNode>,
}

impl Transfer for Writing {
    fn buffer(&mut self) -> &mut [u8] {
        self.call.parts().2
    }

    fn done(mut self: Box<Self>, outcome: Result<u64, Errno>) {
        written(&self.node, outcome, self.call.parts().3);
    }
}

/// Answers a read, whose bytes are in the answer's buffer.
fn read((node, ino, offset): (&IoNode, Ino, u64), outcome: Result<u64, Errno>, reply: &mut Responder) {
    let count = match outcome {
        Ok(count) => count,
        Err(errno) => {
            node.suspect(errno);
            return reply.fail(&failure(errno));
        }
    };
    let is_short = count < reply.buffer().len() as u64 || count == 0;
    reply.buffer().truncate(count as usize);
    // Who gets less than he has asked for wants to know whether the file ends there.
    let end = offset.saturating_add(count);
    let length = if is_short { node.length(ino).map_or(end, |length| length.max(end)) } else { end };
    reply.ok(&Reply::Data(DataReply::Read { length }));
}

/// Answers a read with what the kernel has in memory.
fn send(file: &Resident, offset: u64, len: usize, reply: &mut Responder) {
    let answer = Reply::Data(DataReply::Read { length: offset.saturating_add(len as u64) });
    if let Err(errno) = reply.ok_file(&answer, file.as_fd(), offset, len) {
        return reply.fail(&errno.into());
    }
    if reply.was_unreadable() {
        file.suspect();
    }
}

/// Answers a write.
fn written(node: &IoNode, outcome: Result<u64, Errno>, reply: &mut Responder) {
    match outcome {
        Ok(count) => reply.ok(&Reply::Data(DataReply::Written { count: count as u32, before: 0, undo: 0 })),
        Err(errno) => {
            node.suspect(errno);
            reply.fail(&failure(errno));
        }
    }
}

/// Why a read or write has failed. What was not issued is to be repeated, here or elsewhere.
fn failure(errno: Errno) -> Failure {
    if errno == NOT_ISSUED { Refusal::OldServer.into() } else { errno.into() }
}

fn spec(text: &str) -> Spec {
    text.parse().unwrap_or_else(|error| {
        tracing::error!(%error, "an unknown scheduler: requests are issued as they come, and merged");
        Spec::default()
    })
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Ignores poisoning: each change is a single assignment or insertion.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
