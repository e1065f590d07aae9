//! Round trips of empty requests, over the same transport that file system requests use: the least that a
//! request can cost on this machine. Each client is a thread with a connection of its own; the servers are
//! processes, as real ones are.

use crate::cpu;
use crate::error::BenchError;
use crate::histogram::Histogram;
use crate::report::{Cost, Latency};
use bivouac_layout::{Epoch, NodeId, ServerId};
use bivouac_proto::auth::{Credentials, Hello, KEY_LEN, Key, Role, Welcome};
use bivouac_proto::{Header, Kind, Reply, Status};
use bivouac_transport::{
    Call, ConnectOptions, Connection, Endpoint, Outgoing, Parting, PeerInfo, Server, ServerOptions, Service,
    TransportError,
};
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};

/// Round trips before the measurement: connections have their threads then.
const WARM_UP: u64 = 200;
/// What takes the place of a deployment's number.
const DEPLOYMENT: u64 = 1;

/// Which sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sockets {
    /// Within one node.
    Unix,
    /// Between nodes.
    Tcp,
}

impl FromStr for Sockets {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Sockets, &'static str> {
        match text {
            "unix" => Ok(Sockets::Unix),
            "tcp" => Ok(Sockets::Tcp),
            _ => Err("unix or tcp"),
        }
    }
}

/// What was measured.
#[derive(Serialize, Debug)]
pub struct NullReport {
    version: u32,
    sockets: Sockets,
    clients: u32,
    servers: u32,
    operations: u64,
    seconds: f64,
    rate: f64,
    latency_us: Latency,
    cpu_us: Cost,
}

impl NullReport {
    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "{} null round trips over {:?} sockets, {} clients, {} servers: {:.0} a second, {}, {}",
            self.operations,
            self.sockets,
            self.clients,
            self.servers,
            self.rate,
            self.latency_us,
            self.cpu_us
        )
    }
}

/// Which client asks which servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dealing {
    /// Each client has one server.
    One,
    /// Each client asks all servers in random order, as for names in a directory that is split over them.
    Spread,
    /// Each client has one server, which asks the next one before it answers, as for a change of what has two copies.
    Chained,
}

/// Makes `count` round trips from each of `clients`, which are dealt to `servers` processes of `program`.
pub fn measure(
    program: &Path,
    sockets: Sockets,
    clients: u32,
    servers: u32,
    dealing: Dealing,
    count: u64,
) -> Result<NullReport, BenchError> {
    if clients == 0 || servers == 0 || count == 0 {
        return Err(BenchError::Plan(
            "there is nothing to do: at least one client, server and round trip".into(),
        ));
    }
    let key = new_key()?;
    let mut servers =
        (0..servers).map(|_| NullServer::start(program, sockets, &key)).collect::<Result<Vec<_>, _>>()?;
    let mut next: Vec<String> = servers.iter().map(|server| server.endpoint.to_string()).collect();
    next.rotate_left(1);
    for (server, next) in servers.iter_mut().zip(next) {
        server.go(if dealing == Dealing::Chained { &next } else { "" })?;
    }
    let mut connections = Vec::new();
    for client in 0..clients as usize {
        let credentials = Credentials { uid: 0, gid: 0, groups: Vec::new() };
        let role = Role::Client { credentials, node: NodeId::NONE, job: 0 };
        let mine = match dealing {
            Dealing::One | Dealing::Chained => std::slice::from_ref(&servers[client % servers.len()]),
            Dealing::Spread => &servers[..],
        };
        let connect = |server: &NullServer| {
            let options = ConnectOptions::default();
            Connection::connect(&server.endpoint, &key, DEPLOYMENT, role.clone(), &options).map(|(c, _)| c)
        };
        let mut own = mine.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
        trips(&mut own, WARM_UP)?;
        connections.push(own);
    }
    let cost = || servers.iter().filter_map(|s| cpu::of(s.child.id())).sum::<u64>();
    let before = (cpu::own(), cost());
    let barrier = Barrier::new(connections.len());
    let measured = std::thread::scope(|scope| {
        let threads: Vec<_> = connections
            .iter_mut()
            .map(|own| {
                scope.spawn(|| {
                    barrier.wait();
                    let began = cpu::now();
                    trips(own, count).map(|latency| (began, cpu::now(), latency))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or(Err(BenchError::Interrupted)))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let after = (cpu::own(), cost());
    let mut latency = Histogram::new();
    measured.iter().for_each(|(.., more)| latency.add(more));
    let began = measured.iter().map(|m| m.0).min().unwrap_or(0);
    let seconds = (measured.iter().map(|m| m.1).max().unwrap_or(0) - began) as f64 / 1e9;
    let operations = latency.total();
    Ok(NullReport {
        version: 1,
        sockets,
        clients,
        servers: servers.len() as u32,
        operations,
        seconds,
        rate: operations as f64 / seconds.max(1e-9),
        latency_us: Latency::of(&latency),
        cpu_us: Cost::of(operations, after.0 - before.0, Some(after.1.saturating_sub(before.1))),
    })
}

fn trips(connections: &mut [Connection], count: u64) -> Result<Histogram, BenchError> {
    let mut place: u64 = 0;
    let mut latency = Histogram::new();
    let request = Outgoing { before: &[], header: Header::new(Kind::Request), body: &[], payload: &[] };
    let mut last = cpu::now();
    for _ in 0..count {
        // An order that no branch predictor could learn.
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let which = (place >> 33) as usize % connections.len().max(1);
        if let Some(connection) = connections.get_mut(which) {
            let answer = connection.call(&request, &mut [])?;
            if answer.header.status != Status::OK {
                return Err(TransportError::Protocol("a server was not answered by the next one").into());
            }
        }
        let now = cpu::now();
        latency.record(now - last);
        last = now;
    }
    Ok(latency)
}

fn new_key() -> Result<Key, BenchError> {
    let mut key = [0; KEY_LEN];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| BenchError::Prepare { what: "make a key".into(), cause: e.into() })?;
    Ok(Key(key))
}

/// A server process. It ends with its standard input.
struct NullServer {
    child: Child,
    endpoint: Endpoint,
}

impl NullServer {
    fn start(program: &Path, sockets: Sockets, key: &Key) -> Result<NullServer, BenchError> {
        let word = if sockets == Sockets::Unix { "unix" } else { "tcp" };
        let mut command = Command::new(program);
        command.args(["bench", "--null-server", word]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let failed = |cause| BenchError::Start {
            command: format!("{} bench --null-server", program.display()),
            cause,
        };
        let mut child = command.spawn().map_err(failed)?;
        let mut line = String::new();
        if let (Some(input), Some(output)) = (&mut child.stdin, child.stdout.take()) {
            let _ = input.write_all(&key.0);
            let _ = BufReader::new(output).read_line(&mut line);
        }
        match line.trim().parse() {
            Ok(endpoint) => Ok(NullServer { child, endpoint }),
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(std::io::Error::other("it says no address")))
            }
        }
    }

    /// Has it serve: alone, or by asking the server at this address first.
    fn go(&mut self, next: &str) -> Result<(), BenchError> {
        let told = self.child.stdin.as_mut().map(|input| writeln!(input, "{next}"));
        told.unwrap_or(Ok(())).map_err(|cause| BenchError::Prepare {
            what: "tell a server where the next one is".into(),
            cause,
        })
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Is a server: takes a key from standard input, prints where it listens, takes the address of the server to ask (or an
/// empty line), and serves until its input ends.
pub fn serve(sockets: Sockets) -> Result<(), BenchError> {
    let cannot = |what: &str| {
        let what = what.to_owned();
        |cause| BenchError::Prepare { what, cause }
    };
    let mut key = [0; KEY_LEN];
    let mut input = std::io::stdin().lock();
    std::io::Read::read_exact(&mut input, &mut key).map_err(cannot("read the key"))?;
    let endpoint = match sockets {
        Sockets::Unix => Endpoint::Unix(format!("bivouac-bench-{}", std::process::id())),
        Sockets::Tcp => Endpoint::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
    };
    let null = Arc::new(Null { key: Key(key), next: OnceLock::new(), idle: Mutex::default() });
    let server = Server::start(null.clone(), vec![endpoint], ServerOptions::default())?;
    if let Some(address) = server.local_addrs().first() {
        println!("{address}");
    }
    let mut next = String::new();
    input.read_line(&mut next).map_err(cannot("read which server is next"))?;
    if let Ok(next) = next.trim().parse() {
        let _ = null.next.set(next);
    }
    std::io::copy(&mut input, &mut std::io::sink()).map_err(cannot("wait for the end"))?;
    server.stop();
    Ok(())
}

/// Answers everything at once, or when another server has answered.
struct Null {
    key: Key,
    /// The server that is asked about each request of a client.
    next: OnceLock<Endpoint>,
    /// Connections to it.
    idle: Mutex<Vec<Connection>>,
}

impl Null {
    fn ask(&self, next: &Endpoint) -> Result<(), TransportError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => {
                let options = ConnectOptions { considerate: true, ..ConnectOptions::default() };
                Connection::connect(next, &self.key, DEPLOYMENT, Role::Server(ServerId(0)), &options)?.0
            }
        };
        let request = Outgoing { before: &[], header: Header::new(Kind::Request), body: &[], payload: &[] };
        connection.call(&request, &mut [])?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(())
    }
}

impl Service for Null {
    /// Whether it is a client's.
    type Session = bool;

    fn key(&self) -> &Key {
        &self.key
    }

    fn deployment(&self) -> u64 {
        DEPLOYMENT
    }

    fn versions(&self) -> (Epoch, u64) {
        (Epoch(1), 1)
    }

    fn accept(&self, hello: &Hello, _: PeerInfo) -> Option<(bool, Welcome)> {
        let is_clients = matches!(hello.role, Role::Client { .. });
        Some((is_clients, Welcome { epoch: Epoch(1), namespace: 1, process: 0 }))
    }

    fn serve(&self, session: &mut bool, call: &mut Call) {
        let (_, _, _, reply) = call.parts();
        match self.next.get().filter(|_| *session).map_or(Ok(()), |next| self.ask(next)) {
            Ok(()) => reply.ok(&Reply::Done),
            Err(error) => reply.fail(&error.errno().into()),
        }
    }

    fn closed(&self, _: bool, _: Parting) {}
}
