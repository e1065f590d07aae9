//! The client core against a data server that does what the test says: refuses, loses answers, stores less
//! than asked, claims what cannot be, and goes away.

mod common;

use bivouac_client::Handle;
use bivouac_layout::map::{Generation, Node, Server as MapServer, ServerState};
use bivouac_layout::{Epoch, Map, News, NodeId, ServerId, balance};
use bivouac_proto::auth::{Hello, Key, Role, Welcome};
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Refusal, Reply, Request};
use bivouac_testing::HANG;
use bivouac_transport::{Call, Endpoint, Parting, PeerInfo, Server, ServerOptions, Service};
use common::{Cluster, cluster_with};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What the server does with a client's next request for data.
enum Act {
    Refuse(Refusal),
    /// Carries it out and breaks the connection.
    LoseAnswer,
    /// Writes so many bytes of it.
    WriteOnly(u32),
    /// Answers with this.
    Claim(DataReply),
}

/// A data server with one file in memory.
struct Scripted {
    key: Key,
    epoch: AtomicU64,
    file: Mutex<Vec<u8>>,
    script: Mutex<VecDeque<Act>>,
    /// Requests of clients for data, as they came.
    asked: Mutex<Vec<(Header, DataRequest)>>,
}

impl Service for Scripted {
    /// Whether it is a client.
    type Session = bool;

    fn key(&self) -> &Key {
        &self.key
    }

    fn deployment(&self) -> u64 {
        99
    }

    fn versions(&self) -> (Epoch, u64) {
        (Epoch(self.epoch.load(Ordering::SeqCst)), 0)
    }

    fn accept(&self, hello: &Hello, _: PeerInfo) -> Option<(bool, Welcome)> {
        let welcome = Welcome { epoch: self.versions().0, namespace: 0, process: 0 };
        Some((matches!(hello.role, Role::Client { .. }), welcome))
    }

    fn serve(&self, is_client: &mut bool, call: &mut Call) {
        let (header, body, payload, reply) = call.parts();
        match bivouac_proto::decode(body) {
            Ok(Request::Control(ControlRequest::Ping { .. })) => {
                reply.ok(&Reply::Control(ControlReply::Pong {
                    epoch: self.versions().0,
                    boot: 1,
                    caught_up: Vec::new(),
                    suspects: Vec::new(),
                    clock: 0,
                    accounted: Epoch(0),
                    unreached: Vec::new(),
                    rebuilt: 0,
                }));
            }
            Ok(Request::Control(ControlRequest::Install { news })) => {
                self.epoch.store(news.epoch().0, Ordering::SeqCst);
                reply.ok(&Reply::Done);
            }
            Ok(Request::Data(request)) => {
                let mut act = None;
                if *is_client {
                    self.asked.lock().unwrap().push((*header, request));
                    act = self.script.lock().unwrap().pop_front();
                }
                match act {
                    Some(Act::Refuse(refusal)) => reply.fail(&Failure::Refused(refusal)),
                    Some(Act::Claim(claim)) => reply.ok(&Reply::Data(claim)),
                    Some(Act::WriteOnly(count)) => {
                        let answer = self.carry_out(request, &payload[..count as usize], reply.buffer());
                        reply.ok(&Reply::Data(answer));
                    }
                    Some(Act::LoseAnswer) => {
                        self.carry_out(request, payload, reply.buffer());
                        panic!("on purpose: the connection breaks");
                    }
                    None => {
                        let answer = self.carry_out(request, payload, reply.buffer());
                        reply.ok(&Reply::Data(answer));
                    }
                }
            }
            _ => reply.ok(&Reply::Done),
        }
    }

    fn closed(&self, _: bool, _: Parting) {}
}

impl Scripted {
    fn carry_out(&self, request: DataRequest, payload: &[u8], out: &mut Vec<u8>) -> DataReply {
        let mut file = self.file.lock().unwrap();
        let length = file.len() as u64;
        match request {
            DataRequest::Read { offset, len, .. } => {
                out.extend(file.iter().skip(offset as usize).take(len as usize));
                DataReply::Read { length }
            }
            DataRequest::Write { offset, .. } => {
                let (begin, end) = (offset as usize, offset as usize + payload.len());
                let longer = file.len().max(end);
                file.resize(longer, 0);
                file[begin..end].copy_from_slice(payload);
                DataReply::Written { count: payload.len() as u32, before: length, undo: 0 }
            }
            DataRequest::Extent { .. } => DataReply::Extent { length, allocated: length, written: None },
            _ => DataReply::Done,
        }
    }
}

/// A deployment whose files in blocks lie on the scripted server, and one such file.
struct Play {
    c: Cluster,
    scripted: Arc<Scripted>,
    server: Option<Server>,
    handle: Arc<Handle>,
}

const SIZE: usize = 200_000;

impl Play {
    fn new(name: &str) -> Play {
        let scripted = Arc::new(Scripted {
            key: Key([7; 32]),
            epoch: AtomicU64::new(0),
            file: Mutex::default(),
            script: Mutex::default(),
            asked: Mutex::default(),
        });
        let anywhere = vec![Endpoint::Tcp("127.0.0.1:0".parse().unwrap())];
        let server = Server::start(scripted.clone(), anywhere, ServerOptions::default()).unwrap();
        let Endpoint::Tcp(address) = server.local_addrs()[0] else { unreachable!("asked for TCP") };
        let c = cluster_with(name, 1, |map: &mut Map| {
            let (id, node) = (ServerId(1), NodeId(1));
            map.nodes.push(Node { id: node, host: "there".into(), agent: address, domain: 1 });
            map.servers.push(MapServer {
                id,
                node,
                address,
                state: ServerState::Up,
                joined: 0,
                former: Vec::new(),
            });
            map.shards = balance::deal(&[], &[ServerId(0)]);
            map.generations = vec![Generation { servers: vec![id] }];
        });
        let handle = c.open("f", libc::O_CREAT | libc::O_RDWR).expect("made");
        assert_eq!(handle.pwrite(0, &[IoSlice::new(&[1; SIZE])]), Ok(SIZE));
        assert_eq!(*scripted.file.lock().unwrap(), [1; SIZE], "all of it lies on the scripted server");
        scripted.asked.lock().unwrap().clear();
        Play { c, scripted, server: Some(server), handle }
    }

    fn script(&self, acts: impl IntoIterator<Item = Act>) {
        self.scripted.script.lock().unwrap().extend(acts);
    }

    /// What the server was asked since this was called last.
    fn asked(&self) -> Vec<(Header, DataRequest)> {
        assert!(self.scripted.script.lock().unwrap().is_empty(), "all was played");
        std::mem::take(&mut self.scripted.asked.lock().unwrap())
    }

    fn write(&self, offset: u64) -> Result<usize, Errno> {
        self.handle.pwrite(offset, &[IoSlice::new(&[2; 1000])])
    }

    fn read(&self, len: usize) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; len];
        let count = self.handle.pread(0, &mut [IoSliceMut::new(&mut buffer)])?;
        buffer.truncate(count);
        Ok(buffer)
    }
}

/// The attempts are one request: of one identity, counted.
fn assert_one_request(asked: &[(Header, DataRequest)], attempts: usize) {
    assert_eq!(asked.len(), attempts, "{asked:?}");
    for (attempt, (header, request)) in asked.iter().enumerate() {
        assert_eq!((header.id, request), (asked[0].0.id, &asked[0].1));
        assert_eq!(usize::from(header.attempt), attempt);
    }
}

#[test]
fn a_busy_server_and_one_with_an_older_map_are_asked_again_with_the_same_identity() {
    let play = Play::new("s-busy");
    let refusals = [Refusal::Busy, Refusal::OldServer, Refusal::Busy];
    play.script(refusals.map(Act::Refuse));
    assert_eq!(play.write(5000), Ok(1000));
    assert_one_request(&play.asked(), 4);
    assert_eq!(play.scripted.file.lock().unwrap()[4999..5001], [1, 2]);
    // Of a program's next request the server hears nothing of the one before.
    assert_eq!(play.write(0), Ok(1000));
    assert_one_request(&play.asked(), 1);
}

#[test]
fn a_newer_map_is_used_by_the_next_attempt_and_by_later_requests() {
    let play = Play::new("s-stale");
    let before = play.c.map.epoch;
    let mut newer = play.c.map.clone();
    newer.epoch = Epoch(before.0 + 1);
    play.script([Act::Refuse(Refusal::StaleMap(News::Whole(Box::new(newer.clone()))))]);
    assert_eq!(play.write(0), Ok(1000));
    let asked = play.asked();
    assert_one_request(&asked, 2);
    assert_eq!([asked[0].0.epoch, asked[1].0.epoch], [before, newer.epoch]);
    // One that is of another deployment, or makes no sense, is not taken over.
    let (mut foreign, mut broken) = (newer.clone(), newer.clone());
    (foreign.epoch, foreign.deployment) = (Epoch(before.0 + 2), 98);
    (broken.epoch, broken.shards) = (Epoch(before.0 + 2), Vec::new());
    play.script([foreign, broken].map(|map| Act::Refuse(Refusal::StaleMap(News::Whole(Box::new(map))))));
    assert_eq!(play.write(0), Ok(1000));
    let epochs: Vec<Epoch> = play.asked().iter().map(|(header, _)| header.epoch).collect();
    assert_eq!(epochs, [newer.epoch; 3]);
}

#[test]
fn a_request_whose_answer_was_lost_is_repeated_with_the_same_identity() {
    let play = Play::new("s-lost");
    play.script([Act::LoseAnswer, Act::LoseAnswer]);
    assert_eq!(play.write(0), Ok(1000));
    assert_one_request(&play.asked(), 3);
    play.script([Act::LoseAnswer]);
    assert_eq!(play.read(1000), Ok(vec![2; 1000]));
    assert_one_request(&play.asked(), 2);
}

#[test]
fn a_server_that_stores_less_than_asked_is_a_short_write_and_one_that_claims_more_is_an_error() {
    let play = Play::new("s-short");
    play.script([Act::WriteOnly(400)]);
    assert_eq!(play.write(0), Ok(400));
    assert_eq!(play.scripted.file.lock().unwrap()[399..401], [2, 1]);
    play.asked();
    for count in [1001, u32::MAX] {
        play.script([Act::Claim(DataReply::Written { count, before: 0, undo: 0 })]);
        assert_eq!(play.write(0), Err(Errno::PROTO), "{count} of 1000");
        play.asked();
    }
    // An answer of another kind.
    play.script([Act::Claim(DataReply::Passed)]);
    assert_eq!(play.write(0), Err(Errno::PROTO));
}

#[test]
fn the_size_of_a_file_that_is_open_for_writing_is_what_its_server_has() {
    let play = Play::new("s-size");
    let reader = play.c.open("f", libc::O_RDONLY).expect("opened");
    assert_eq!(reader.attr().map(|attr| attr.size), Ok(SIZE as u64));
    // Somebody else writes.
    play.scripted.file.lock().unwrap().resize(SIZE + 77, 3);
    assert_eq!(reader.attr().map(|attr| attr.size), Ok(SIZE as u64 + 77));
    assert_eq!(play.read(SIZE + 1000).map(|all| all.len()), Ok(SIZE + 77));
    play.c.client.closed(reader.id());
}

#[test]
fn a_server_that_is_gone_is_eio_and_at_once_when_that_is_known() {
    let mut play = Play::new("s-gone");
    drop(play.server.take());
    let begun = Instant::now();
    assert_eq!(play.write(0), Err(Errno::IO));
    assert_eq!(play.read(1000), Err(Errno::IO));
    assert!(begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
    // By now the map says so: a hundred requests take no longer than one.
    bivouac_testing::eventually("the server is down", || {
        let begun = Instant::now();
        (0..100).all(|_| play.write(0) == Err(Errno::IO)) && begun.elapsed().as_millis() < 1000
    });
    // Files of which nothing lies there are as before.
    play.c.write("small", b"still here");
    assert_eq!(play.c.read("small"), b"still here");
}
