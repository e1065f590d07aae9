//! The controller against daemons that do nothing but listen, hang and die.

use super::raft::voter::{Times, Voter, VoterConfig};
use super::raft::{Identity, Proposal};
use super::*;
use bivouac_layout::Founding;
use bivouac_layout::NodeId;
use bivouac_layout::map::{Node, Server as MapServer};
use bivouac_proto::auth::{Hello, KEY_LEN, Welcome};
use bivouac_proto::{Reply, Request};
use bivouac_testing::{HANG, eventually, is_quick};
use bivouac_transport::engine::budget::ping;
use bivouac_transport::engine::budget::refusing::GONE;
use bivouac_transport::{Call, Parting, PeerInfo, Server, ServerOptions, Service};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const KEY: Key = Key([7; KEY_LEN]);
const DEPLOYMENT: u64 = 42;

/// A directory of one test, removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn scratch(name: &str) -> Scratch {
    let path = std::env::temp_dir().join(format!("bivouac-controller-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a scratch directory");
    Scratch(path)
}

pub(crate) fn two_servers() -> Map {
    let founding =
        founding(&["127.0.0.1:1".parse().expect("address"), "127.0.0.1:2".parse().expect("address")]);
    founding.map().expect("a map")
}

fn voter_config(dir: &Scratch) -> VoterConfig {
    VoterConfig {
        identity: Identity { deployment: DEPLOYMENT, node: NodeId(0) },
        directory: dir.path().join("voter"),
        carriers: Box::new(|_| unreachable!("it is alone")),
        times: Times::USUAL,
    }
}

/// A group of one voter, with a first map.
fn founded(dir: &Scratch, founding: Founding) -> Arc<Voter> {
    let voter = Voter::create(voter_config(dir)).expect("made");
    voter.found(HANG).expect("founded");
    eventually("it leads", || voter.standing().leads);
    let map = Box::new(founding.map().expect("a map"));
    voter.propose(Proposal::Found(map), HANG).expect("committed");
    Arc::new(voter)
}

/// What a voter finds that begins with the files of another one, which was stopped.
fn recovered(dir: &Scratch) -> Arc<Map> {
    let voter = Voter::open(voter_config(dir)).expect("opens").expect("is there");
    eventually("it leads", || voter.standing().leads);
    voter.confirm(HANG).expect("alone");
    voter.map().expect("a map")
}

pub(crate) fn founding(addresses: &[SocketAddr]) -> Founding {
    let ids: Vec<ServerId> = (0..addresses.len() as u16).map(ServerId).collect();
    let servers = ids.iter().zip(addresses).map(|(id, address)| MapServer {
        id: *id,
        node: NodeId(0),
        address: *address,
        state: ServerState::Up,
        joined: 0,
        former: Vec::new(),
    });
    // The agent is the first server's daemon.
    let nodes = vec![Node { id: NodeId(0), host: "here".into(), agent: addresses[0], domain: 0 }];
    Founding::new(DEPLOYMENT, "/bivouac", nodes, servers.collect())
}

/// What a fake daemon was asked.
#[derive(Default)]
struct Seen {
    epoch: AtomicU64,
    pings: AtomicUsize,
    /// Pings before the newest map.
    before: AtomicUsize,
    hangs: AtomicBool,
    boot: AtomicU64,
    shutdown: Mutex<Option<bool>>,
}

struct Fake(Arc<Seen>);

impl Service for Fake {
    type Session = ();
    fn key(&self) -> &Key {
        &KEY
    }
    fn deployment(&self) -> u64 {
        DEPLOYMENT
    }
    fn versions(&self) -> (Epoch, u64) {
        (Epoch(self.0.epoch.load(Ordering::SeqCst)), 0)
    }
    fn accept(&self, _: &Hello, _: PeerInfo) -> Option<((), Welcome)> {
        Some(((), Welcome { epoch: self.versions().0, namespace: 0, process: 0 }))
    }
    fn serve(&self, _: &mut (), call: &mut Call) {
        let (_, body, _, reply) = call.parts();
        while self.0.hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        match bivouac_proto::decode(body) {
            Ok(Request::Control(ControlRequest::Ping { .. })) => {
                self.0.pings.fetch_add(1, Ordering::SeqCst);
                let epoch = self.versions().0;
                reply.ok(&Reply::Control(ControlReply::Pong {
                    epoch,
                    boot: self.0.boot.load(Ordering::SeqCst),
                    caught_up: Vec::new(),
                    suspects: Vec::new(),
                    clock: 0,
                    accounted: Epoch(0),
                    unreached: Vec::new(),
                    rebuilt: 0,
                }));
            }
            Ok(Request::Control(ControlRequest::Install { news })) => {
                self.0.before.store(self.0.pings.load(Ordering::SeqCst), Ordering::SeqCst);
                self.0.epoch.store(news.epoch().0, Ordering::SeqCst);
                reply.ok(&Reply::Done);
            }
            Ok(Request::Control(ControlRequest::Shutdown { keep })) => {
                *lock(&self.0.shutdown) = Some(keep);
                reply.ok(&Reply::Done);
            }
            other => panic!("not expected: {other:?}"),
        }
    }
    fn closed(&self, (): (), _: Parting) {}
}

struct Daemon {
    seen: Arc<Seen>,
    server: Option<Server>,
    address: SocketAddr,
    /// Its socket for its own node.
    own: Endpoint,
}

fn daemon(address: &str) -> Daemon {
    let seen = Arc::new(Seen::default());
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    seen.boot.store(number as u64, Ordering::SeqCst);
    let own = Endpoint::Unix(format!("bivouac-controller-{}-{number}", std::process::id()));
    let endpoints = vec![Endpoint::Tcp(address.parse().expect("address")), own.clone()];
    let options = ServerOptions { grace: Duration::from_millis(50), ..ServerOptions::default() };
    let server = Server::start(Arc::new(Fake(seen.clone())), endpoints, options).expect("listens");
    let Endpoint::Tcp(address) = server.local_addrs()[0] else { unreachable!("asked for TCP") };
    Daemon { seen, server: Some(server), address, own }
}

struct Cluster {
    daemons: Vec<Daemon>,
    controller: Controller,
    stopped: mpsc::Receiver<bool>,
    voter: Arc<Voter>,
    dir: Scratch,
}

fn config(own: Endpoint, stop: impl Fn(bool) + Send + Sync + 'static) -> ControllerConfig {
    ControllerConfig { key: KEY, node: NodeId(0), own, fresh: true, restarts: false, stop: Arc::new(stop) }
}

fn start(config: ControllerConfig, voter: &Arc<Voter>) -> Controller {
    Controller::start(config, MapLog::of(voter.clone()).expect("a map")).expect("starts")
}

/// Three servers; the controller is in the daemon of the first.
fn cluster(name: &str) -> Cluster {
    cluster_of(name, 1)
}

/// The same with two copies of everything.
fn replicated(name: &str) -> Cluster {
    cluster_of(name, 2)
}

fn cluster_of(name: &str, replicas: u8) -> Cluster {
    cluster_with(name, replicas, false)
}

/// `restarts`: agents start dead servers again.
fn cluster_with(name: &str, replicas: u8, restarts: bool) -> Cluster {
    let daemons: Vec<Daemon> = (0..3).map(|_| daemon("127.0.0.1:0")).collect();
    let addresses: Vec<SocketAddr> = daemons.iter().map(|d| d.address).collect();
    let dir = scratch(name);
    let (send, stopped) = mpsc::channel();
    let stop = move |keep| {
        let _ = send.send(keep);
    };
    let founding = Founding { replicas, metadata_replicas: replicas, ..founding(&addresses) };
    let voter = founded(&dir, founding);
    let config = ControllerConfig { restarts, ..config(daemons[0].own.clone(), stop) };
    let controller = start(config, &voter);
    Cluster { daemons, controller, stopped, voter, dir }
}

impl Cluster {
    fn state(&self, server: u16) -> ServerState {
        self.controller.newest().server(ServerId(server)).expect("listed").state
    }

    fn overview(&self) -> Vec<ServerHealth> {
        let request = ControlRequest::Overview;
        match self.controller.handle(&request) {
            Ok(Some(ControlReply::Overview { health, .. })) => health,
            other => panic!("no overview: {other:?}"),
        }
    }
}

#[test]
fn every_daemon_gets_the_first_map_at_once() {
    // On a busy machine the first ping may have to be repeated, hardly three times over.
    assert!((0..3).any(|_| {
        let cluster = cluster("first");
        eventually("the map is everywhere", || {
            cluster.daemons.iter().all(|d| d.seen.epoch.load(Ordering::SeqCst) == 1)
        });
        cluster.daemons.iter().all(|d| d.seen.before.load(Ordering::SeqCst) == 1)
    }));
}

/// What the controller says of the deployment's beginning, when nothing is pending or something has failed.
fn beginning(controller: &Controller) -> (u32, Vec<(Member, String)>) {
    let mut said = (0, Vec::new());
    eventually("all serve, or somebody does not", || {
        match controller.handle(&ControlRequest::Beginning) {
            Ok(Some(ControlReply::Beginning { pending, failed })) => said = (pending, failed),
            other => panic!("no answer: {other:?}"),
        }
        said.0 == 0 || !said.1.is_empty()
    });
    said
}

#[test]
fn a_deployment_has_begun_when_all_daemons_have_the_map_and_resumes_with_the_map_that_it_had() {
    let mut cluster = cluster("resume");
    assert_eq!(beginning(&cluster.controller), (0, Vec::new()));
    drop(cluster.daemons[1].server.take());
    eventually("down", || cluster.state(1) == ServerState::Down);
    cluster.controller.stop();
    let before = cluster.controller.newest();
    cluster.daemons[1] = daemon("127.0.0.1:0");
    let addresses: Vec<_> =
        cluster.daemons.iter().zip(0..).map(|(daemon, id)| (ServerId(id), daemon.address)).collect();
    let resume = |number, servers: &[(ServerId, SocketAddr)]| {
        let agents = vec![(NodeId(0), cluster.daemons[0].address)];
        cluster.voter.propose(Proposal::Resume { number, agents, servers: servers.to_vec() }, HANG)
    };
    assert!(matches!(resume(7, &addresses[..2]), Err(ControllerError::Refused)), "others than there were");
    let resumed = resume(7, &addresses).expect("resumes");
    assert_eq!(resume(7, &addresses).expect("has resumed").epoch, resumed.epoch, "a start counts once");
    assert!(resume(8, &addresses).expect("another start").epoch > resumed.epoch);
    let controller = start(config(cluster.daemons[0].own.clone(), |_| {}), &cluster.voter);
    assert_eq!(beginning(&controller), (0, Vec::new()));
    let map = controller.newest();
    assert!(map.epoch > before.epoch && map.shards == before.shards);
    for (server, (_, address)) in map.servers.iter().zip(addresses) {
        assert_eq!((server.state, server.address), (ServerState::Up, address));
    }
    // The next one finds the change, too.
    controller.stop();
    cluster.voter.stop();
    assert_eq!(*recovered(&cluster.dir), *map);
}

#[test]
fn a_daemon_that_is_not_there_at_the_beginning_is_named() {
    let daemons = [daemon("127.0.0.1:0"), daemon("127.0.0.1:0")];
    let addresses: Vec<SocketAddr> = daemons.iter().map(|d| d.address).collect();
    let [here, gone] = daemons;
    drop(gone);
    let dir = scratch("gone");
    let controller = start(config(here.own.clone(), |_| {}), &founded(&dir, founding(&addresses)));
    let (pending, failed) = beginning(&controller);
    assert!((1..=2).contains(&pending), "{pending}");
    assert!(matches!(&failed[..], [(Member::Server(ServerId(1)), _)]), "{failed:?}");
}

#[test]
fn nothing_is_resumed_that_was_not_founded() {
    let dir = scratch("never");
    assert!(Voter::open(voter_config(&dir)).expect("no error").is_none());
    // Nor what another deployment has left.
    founded(&dir, founding(&["127.0.0.1:1".parse().expect("address")])).stop();
    let identity = Identity { deployment: DEPLOYMENT + 1, node: NodeId(0) };
    let other = VoterConfig { identity, ..voter_config(&dir) };
    assert!(Voter::open(other).expect("no error").is_none());
}

#[test]
fn a_dead_server_is_seen_within_two_seconds_and_told_to_the_living() {
    let mut cluster = cluster("dead");
    eventually("begun", || cluster.controller.has_begun());
    drop(cluster.daemons[1].server.take());
    let took = eventually("down", || cluster.state(1) == ServerState::Down);
    // Two seconds where the machine has time; never as late as one that only hangs.
    assert!(took < ping::HANG, "{took:?}");
    assert_eq!((cluster.state(0), cluster.state(2)), (ServerState::Up, ServerState::Up));
    eventually("published", || {
        [0, 2].iter().all(|i| cluster.daemons[*i].seen.epoch.load(Ordering::SeqCst) == 2)
    });
    assert_eq!(cluster.voter.map().expect("a map"), cluster.controller.newest());
    let alive: Vec<bool> = cluster.overview().iter().map(|h| h.alive).collect();
    assert_eq!(alive, [true, false, true]);
}

#[test]
fn a_server_that_is_only_slow_stays_up_one_that_hangs_is_down_until_it_answers() {
    let cluster = cluster("hangs");
    // The controller's own, on its node's socket, and another, over the network.
    let slow = [cluster.daemons[0].seen.clone(), cluster.daemons[2].seen.clone()];
    let seen = slow[1].clone();
    // One that has not had its first map yet is not taken for one that hangs: it recovers its metadata.
    eventually("begun", || cluster.controller.has_begun());
    slow.iter().for_each(|s| s.hangs.store(true, Ordering::SeqCst));
    // A loaded machine: longer than a lost one may take to be noticed.
    std::thread::sleep(2 * ping::SILENCE);
    slow.iter().for_each(|s| s.hangs.store(false, Ordering::SeqCst));
    for slow in slow {
        let pings = slow.pings.load(Ordering::SeqCst);
        eventually("answers again", || slow.pings.load(Ordering::SeqCst) > pings + 1);
    }
    assert_eq!(cluster.controller.newest().epoch, Epoch(1), "all are up, and were");
    seen.hangs.store(true, Ordering::SeqCst);
    let took = eventually("down", || cluster.state(2) == ServerState::Down);
    assert!(took > ping::HANG - health::INTERVAL, "{took:?}");
    seen.hangs.store(false, Ordering::SeqCst);
    eventually("up", || cluster.state(2) == ServerState::Up);
    eventually("told", || seen.epoch.load(Ordering::SeqCst) == 4);
}

#[test]
fn a_server_that_is_started_again_is_up_and_gets_the_map() {
    let mut cluster = cluster("again");
    drop(cluster.daemons[1].server.take());
    eventually("down", || cluster.state(1) == ServerState::Down);
    let again = daemon(&cluster.daemons[1].address.to_string());
    eventually("up", || cluster.state(1) == ServerState::Up);
    eventually("told", || again.seen.epoch.load(Ordering::SeqCst) == 4);
}

#[test]
fn a_server_that_its_agent_starts_again_is_waited_for_and_joins_without_being_down() {
    let mut cluster = cluster_with("expected", 1, true);
    eventually("watched", || cluster.daemons.iter().all(|d| d.seen.epoch.load(Ordering::SeqCst) > 0));
    let joined = |cluster: &Cluster| cluster.controller.newest().server(ServerId(1)).expect("listed").joined;
    for restart in 1..=2 {
        drop(cluster.daemons[1].server.take());
        std::thread::sleep(GONE / 4);
        assert_eq!(cluster.state(1), ServerState::Up, "nobody is told to give it up");
        cluster.daemons[1] = daemon(&cluster.daemons[1].address.to_string());
        eventually("it joins", || joined(&cluster) == restart);
        eventually("up", || cluster.state(1) == ServerState::Up);
        let epoch = 1 + 2 * u64::from(restart);
        assert_eq!(cluster.controller.newest().epoch, Epoch(epoch), "it was joining, and is up");
        let told = cluster.daemons[1].seen.clone();
        eventually("told", || told.epoch.load(Ordering::SeqCst) == epoch);
    }
    drop(cluster.daemons[1].server.take());
    let took = eventually("down", || cluster.state(1) == ServerState::Down);
    assert!(took > GONE - 2 * health::INTERVAL && took < ping::HANG, "{took:?}");
}

#[test]
fn with_copies_nobody_waits_for_a_server_that_is_started_again() {
    let mut cluster = cluster_with("copies-expected", 2, true);
    eventually("watched", || cluster.daemons.iter().all(|d| d.seen.epoch.load(Ordering::SeqCst) > 0));
    drop(cluster.daemons[1].server.take());
    eventually("down", || cluster.state(1) == ServerState::Down);
    cluster.daemons[1] = daemon(&cluster.daemons[1].address.to_string());
    eventually("up", || cluster.state(1) == ServerState::Up);
}

#[test]
fn an_unreachable_server_does_not_make_the_controller_spin() {
    let mut cluster = cluster("spin");
    drop(cluster.daemons[1].server.take());
    eventually("down", || cluster.state(1) == ServerState::Down);
    let pings = || cluster.daemons[0].seen.pings.load(Ordering::SeqCst) as u32;
    let (before, cpu, begin) = (pings(), cpu_time(), Instant::now());
    eventually("pinged further", || pings() >= before + 4);
    // Some more for the map that has changed, and for where the time begins and ends.
    let (pings, took) = (pings() - before, begin.elapsed());
    assert!(pings <= took.div_duration_f64(health::INTERVAL) as u32 + 3, "{pings} pings in {took:?}");
    // Other tests of this binary run beside it, so only a busy loop would show.
    assert!(cpu_time() - cpu < begin.elapsed() * 3 / 4);
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_controller_that_follows_another_one_declares_down_who_has_died_meanwhile_and_nobody_else() {
    let mut cluster = cluster("follows");
    eventually("all have the map", || {
        cluster.daemons.iter().all(|d| d.seen.epoch.load(Ordering::SeqCst) == 1)
    });
    cluster.controller.stop();
    drop(cluster.daemons[1].server.take());
    let next = start(
        ControllerConfig { fresh: false, ..config(cluster.daemons[0].own.clone(), |_| {}) },
        &cluster.voter,
    );
    let state = |server| next.newest().server(ServerId(server)).expect("listed").state;
    eventually("down", || state(1) == ServerState::Down);
    assert_eq!((state(0), state(2), next.newest().epoch), (ServerState::Up, ServerState::Up, Epoch(2)));
}

#[test]
fn a_server_that_was_restarted_while_nobody_was_the_controller_is_found_out_by_the_next_one() {
    let mut cluster = replicated("found-out");
    eventually("all have the map", || {
        cluster.daemons.iter().all(|d| d.seen.epoch.load(Ordering::SeqCst) == 1)
    });
    cluster.controller.stop();
    drop(cluster.daemons[1].server.take());
    // It has no map, and has lost what is in memory.
    let _again = daemon(&cluster.daemons[1].address.to_string());
    let next = start(
        ControllerConfig { fresh: false, ..config(cluster.daemons[0].own.clone(), |_| {}) },
        &cluster.voter,
    );
    eventually("down, joining and up", || next.newest().epoch == Epoch(4));
    assert!(!next.newest().behind.is_empty(), "it has to catch up");
}

#[test]
fn a_deposed_controller_changes_nothing() {
    let cluster = cluster("deposed");
    eventually("watched", || cluster.daemons.iter().all(|d| d.seen.pings.load(Ordering::SeqCst) > 0));
    cluster.voter.stop();
    let give_up = ControlRequest::GiveUp { servers: vec![ServerId(0)], accept_loss: true };
    assert!(cluster.controller.handle(&give_up).is_err());
    assert!(cluster.controller.handle(&ControlRequest::Overview).is_err(), "it would be old news");
    assert_eq!(cluster.controller.newest().epoch, Epoch(1));
    assert_eq!(recovered(&cluster.dir).epoch, Epoch(1));
}

#[test]
fn shutdown_tells_all_others_and_then_its_own_daemon() {
    let cluster = cluster("shutdown");
    let request = ControlRequest::Shutdown { keep: true };
    assert!(cluster.controller.handle(&request).expect("accepted").is_none());
    assert_eq!(cluster.stopped.recv_timeout(HANG), Ok(true));
    let told = |i: usize| *lock(&cluster.daemons[i].seen.shutdown);
    assert_eq!((told(0), told(1), told(2)), (None, Some(true), Some(true)));
    // A second time changes nothing.
    cluster.controller.handle(&ControlRequest::Shutdown { keep: false }).expect("accepted");
    assert!(cluster.stopped.recv_timeout(Duration::from_millis(200)).is_err());
}

#[test]
fn shutdown_does_not_wait_for_the_dead() {
    assert!(is_quick(control::STOP, || {
        let mut cluster = cluster("shutdown-dead");
        drop(cluster.daemons[1].server.take());
        let begin = Instant::now();
        cluster.controller.handle(&ControlRequest::Shutdown { keep: false }).expect("accepted");
        assert_eq!(cluster.stopped.recv_timeout(HANG), Ok(false));
        assert_eq!(*lock(&cluster.daemons[2].seen.shutdown), Some(false));
        begin.elapsed()
    }));
}

#[test]
fn requests_of_other_families_are_refused() {
    let cluster = cluster("refuse");
    let result = cluster.controller.handle(&ControlRequest::Stats);
    assert!(matches!(result, Err(ControllerError::NotForController)));
}
