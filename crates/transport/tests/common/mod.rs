//! A small service to test connections against, and short ways to start and call it.
#![allow(dead_code, unused_imports)] // each test file uses its part

pub mod ledger;

use bivouac_layout::{Epoch, Ino};
use bivouac_proto::auth::{Hello, KEY_LEN, Key, Role, Welcome};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Kind, Reply, Request, RequestId, Status, decode, encode};
use bivouac_transport::{
    Call, ConnectOptions, Connection, Endpoint, Outgoing, Parting, PeerInfo, Server, ServerOptions, Service,
    TransportError,
};
use std::io::{IoSlice, IoSliceMut, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub use bivouac_testing::faults::{Address, FaultProxy, Faults};
pub use bivouac_testing::{HANG, eventually};

pub const DEPLOYMENT: u64 = 77;

pub fn key(byte: u8) -> Key {
    Key([byte; KEY_LEN])
}

/// Byte `i` of every pattern that the tests send and expect.
pub fn pattern(i: u64) -> u8 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub fn patterned(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(pattern).collect()
}

/// What the data requests mean here:
/// `Read`: the pattern from memory; `Seek`: the pattern from a file by `ok_file`, `offset` bytes of it;
/// `Write`: checks the pattern; `Space`: the payload comes back; `Extent`: sleeps `ino` ms, or for [`HELD`]
/// until [`Toy::let_go`]; `Pass`: a descriptor of the file; `Sync`: panics; `Remove`: forgets to answer.
pub struct Toy {
    pub key: Key,
    pub file: std::fs::File,
    pub served: AtomicUsize,
    pub sessions: AtomicUsize,
    pub last_peer: std::sync::Mutex<Option<PeerInfo>>,
    let_go: (Mutex<bool>, Condvar),
}

/// What an `Extent` asks for that is not answered until the test says so, for [`HANG`] at most.
pub const HELD: Ino = Ino(u64::MAX);

/// Length of the toy's file.
pub const FILE_LEN: usize = 9 << 20;

impl Toy {
    pub fn new() -> Arc<Toy> {
        Toy::with_key(key(1))
    }

    pub fn with_key(key: Key) -> Arc<Toy> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&patterned(0, FILE_LEN)).unwrap();
        Arc::new(Toy {
            key,
            file,
            served: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            last_peer: std::sync::Mutex::new(None),
            let_go: Default::default(),
        })
    }

    /// Lets all requests for [`HELD`] be answered, also later ones.
    pub fn let_go(&self) {
        *self.let_go.0.lock().unwrap() = true;
        self.let_go.1.notify_all();
    }
}

impl Service for Toy {
    type Session = u64;

    fn key(&self) -> &Key {
        &self.key
    }

    fn deployment(&self) -> u64 {
        DEPLOYMENT
    }

    fn versions(&self) -> (Epoch, u64) {
        (Epoch(5), 6)
    }

    fn accept(&self, hello: &Hello, peer: PeerInfo) -> Option<(u64, Welcome)> {
        if hello.role == Role::Agent(666) {
            return None;
        }
        assert!(hello.role != Role::Agent(667), "on purpose");
        *self.last_peer.lock().unwrap() = Some(peer);
        self.sessions.fetch_add(1, Ordering::SeqCst);
        Some((0, Welcome { epoch: Epoch(5), namespace: 6, process: 0 }))
    }

    fn serve(&self, served: &mut u64, call: &mut Call) {
        let (_, body, payload, reply) = call.parts();
        *served += 1;
        self.served.fetch_add(1, Ordering::SeqCst);
        let Ok(Request::Data(request)) = decode(body) else {
            return reply.fail(&Failure::Errno(Errno::INVAL));
        };
        match request {
            DataRequest::Read { offset, len, .. } => {
                reply.buffer().extend((offset..offset + u64::from(len)).map(pattern));
                // Bodies of different lengths.
                reply.ok(&Reply::Data(DataReply::Read { length: offset }));
            }
            DataRequest::Seek { ino, offset, .. } => {
                let read = Reply::Data(DataReply::Read { length: 2 });
                reply.ok_file(&read, self.file.as_fd(), ino.0, offset as usize).expect("the file is read");
            }
            DataRequest::Write { offset, .. } => {
                let good = payload.iter().enumerate().all(|(i, b)| *b == pattern(offset + i as u64));
                match good {
                    true => reply.ok(&Reply::Data(DataReply::Written {
                        before: 0,
                        undo: 0,
                        count: payload.len() as u32,
                    })),
                    false => reply.fail(&Failure::Errno(Errno::IO)),
                }
            }
            DataRequest::Extent { ino: HELD } => {
                let held = self.let_go.0.lock().unwrap();
                drop(self.let_go.1.wait_timeout_while(held, HANG, |let_go| !*let_go).unwrap());
                reply.ok(&Reply::Done);
            }
            DataRequest::Extent { ino } => {
                std::thread::sleep(Duration::from_millis(ino.0));
                reply.ok(&Reply::Done);
            }
            DataRequest::Space => {
                reply.buffer().extend_from_slice(payload);
                reply.ok(&Reply::Done);
            }
            DataRequest::Pass { .. } => {
                reply.ok_descriptor(&Reply::Data(DataReply::Passed), self.file.as_fd())
            }
            DataRequest::Sync { .. } => panic!("on purpose"),
            DataRequest::Remove { .. } => {}
            _ => reply.fail(&Failure::Errno(Errno::NOSYS)),
        }
    }

    fn closed(&self, _: u64, _: Parting) {
        self.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}

pub fn unix_endpoint() -> Endpoint {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    Endpoint::Unix(format!("bivouac-test-{}-{n}", std::process::id()))
}

pub fn loopback() -> Endpoint {
    Endpoint::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// A proxy to a server, which clients find at the endpoint.
pub fn proxied(at: &Endpoint, upstream: &Endpoint, seed: u64) -> (FaultProxy, Endpoint) {
    let proxy = FaultProxy::start(&address(at), address(upstream), seed).unwrap();
    let endpoint = match proxy.address() {
        Address::Tcp(address) => Endpoint::Tcp(*address),
        Address::Abstract(name) => Endpoint::Unix(name.clone()),
    };
    (proxy, endpoint)
}

/// Where an endpoint is, for the proxy.
pub fn address(endpoint: &Endpoint) -> Address {
    match endpoint {
        Endpoint::Tcp(address) => Address::Tcp(*address),
        Endpoint::Unix(name) => Address::Abstract(name.clone()),
        Endpoint::Node(_) => panic!("not in these tests"),
    }
}

/// Starts a server on a Unix socket (first address) and on TCP (second).
pub fn start(service: Arc<Toy>) -> Server {
    Server::start(service, vec![unix_endpoint(), loopback()], ServerOptions::default()).unwrap()
}

pub fn options() -> ConnectOptions {
    ConnectOptions { timeout: HANG, silence: HANG, ..ConnectOptions::default() }
}

pub fn connect(endpoint: &Endpoint) -> Connection {
    Connection::connect(endpoint, &key(1), DEPLOYMENT, Role::Control, &options()).unwrap().0
}

pub fn encoded(request: DataRequest) -> Vec<u8> {
    let mut body = Vec::new();
    encode(&Request::Data(request), &mut body);
    body
}

pub fn header() -> Header {
    let mut header = Header::new(Kind::Request);
    header.id = RequestId { session: 1, slot: 2, sequence: 3 };
    header
}

pub fn read_request(offset: u64, len: usize) -> Vec<u8> {
    encoded(DataRequest::Read { ino: Ino(1), offset, len: len as u32 })
}

pub fn write_request(offset: u64) -> Vec<u8> {
    encoded(DataRequest::Write { ino: Ino(1), offset, sync: false })
}

/// Calls, and returns status, reply and length of the payload.
pub fn call(
    connection: &mut Connection,
    body: &[u8],
    payload: &[IoSlice<'_>],
    into: &mut [IoSliceMut<'_>],
) -> Result<(Status, Option<Reply>, usize), TransportError> {
    let answer = connection.call(&Outgoing { before: &[], header: header(), body, payload }, into)?;
    Ok((answer.header.status, decode(answer.body).ok(), answer.payload_len))
}

/// Reads through the connection and checks every byte.
pub fn check_read(connection: &mut Connection, offset: u64, len: usize) {
    let mut into = vec![0; len];
    let (status, _, n) =
        call(connection, &read_request(offset, len), &[], &mut [IoSliceMut::new(&mut into)]).unwrap();
    assert_eq!((status, n), (Status::OK, len));
    assert!(into == patterned(offset, len));
}
