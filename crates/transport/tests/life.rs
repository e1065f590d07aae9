//! A server's life: starting, idling, growing, stopping. One test at a time: they count threads and CPU time
//! of the process.

mod common;

use bivouac_proto::data::DataRequest;
use bivouac_proto::{Errno, Status};
use bivouac_testing::is_quick;
use bivouac_transport::{Endpoint, Server, ServerOptions, TransportError, raise_descriptor_limit};
use common::*;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CPU time of the process so far. (Needs no descriptor.)
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Numbers of the threads of this name.
fn threads(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let comm = |path: std::path::PathBuf| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
    tasks.filter(|t| comm(t.path()).trim() == name).map(|t| t.path().display().to_string()).collect()
}

/// How often the threads of this name went to sleep.
fn sleeps(name: &str) -> u64 {
    let status = |path: String| std::fs::read_to_string(path + "/status").unwrap_or_default();
    let count = |status: String| {
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:").map(str::to_owned));
        line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    threads(name).into_iter().map(|t| count(status(t))).sum()
}

fn named(name: &str) -> ServerOptions {
    ServerOptions { name: name.to_owned(), ..ServerOptions::default() }
}

/// Asks for what is answered when the test lets go.
fn held(connection: &mut bivouac_transport::Connection) -> Result<Status, TransportError> {
    call(connection, &encoded(DataRequest::Extent { ino: HELD }), &[], &mut []).map(|(status, ..)| status)
}

#[test]
fn two_thousand_idle_connections_hold_no_thread_and_cost_no_cpu() {
    let _alone = alone();
    raise_descriptor_limit().unwrap();
    let toy = Toy::new();
    let options = ServerOptions { worker_idle: Duration::from_millis(300), ..named("idle") };
    let server = Server::start(toy.clone(), vec![unix_endpoint(), loopback()], options).unwrap();
    let mut connections: Vec<_> = (0..2000).map(|i| connect(&server.local_addrs()[i % 2])).collect();
    assert_eq!(server.connections(), 2000);
    assert_eq!(toy.sessions.load(Ordering::SeqCst), 2000);
    for connection in connections.iter_mut().step_by(100) {
        check_read(connection, 5, 100);
    }
    // The acceptor and one worker.
    eventually("idle workers leave", || threads("idle").len() == 2);
    assert_eq!(server.workers(), 1);

    // Once the deadlines for authenticating are behind us, nothing wakes up at all.
    eventually("nothing is woken for a whole second", || {
        let (cpu_before, sleeps_before) = (cpu(), sleeps("idle"));
        std::thread::sleep(Duration::from_secs(1));
        cpu() - cpu_before < Duration::from_millis(5) && sleeps("idle") == sleeps_before
    });

    for connection in &mut connections {
        check_read(connection, 5, 100);
    }
    drop(connections);
    eventually("the server notices", || server.connections() == 0);
    assert_eq!(toy.sessions.load(Ordering::SeqCst), 0);
    assert_eq!(server.stop(), 0);
    assert_eq!(threads("idle"), Vec::<String>::new());
}

#[test]
fn stopping_finishes_requests_under_way_closes_the_rest_and_joins() {
    let _alone = alone();
    let toy = Toy::new();
    let server = Server::start(toy.clone(), vec![unix_endpoint()], named("stopping")).unwrap();
    let address = server.local_addrs()[0].clone();
    let (mut idle, mut busy) = (connect(&address), connect(&address));
    let during = std::thread::spawn(move || held(&mut busy));
    eventually("it is under way", || toy.served.load(Ordering::SeqCst) == 1);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| server.stop());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!stopping.is_finished(), "it waits for the request");
        toy.let_go();
        assert_eq!(stopping.join().unwrap(), 0);
    });
    assert_eq!(during.join().unwrap(), Ok(Status::OK));
    assert_eq!(held(&mut idle), Err(TransportError::Closed));
    assert_eq!(toy.sessions.load(Ordering::SeqCst), 0);
    assert_eq!(threads("stopping"), Vec::<String>::new());
    let again = Server::start(toy, vec![address], ServerOptions::default());
    assert_eq!(again.map(|_| ()), Ok(()), "the name is free again");
}

#[test]
fn stopping_does_not_wait_for_ever_for_a_handler() {
    let _alone = alone();
    let toy = Toy::new();
    let options = ServerOptions { grace: Duration::from_millis(100), ..ServerOptions::default() };
    let server = Server::start(toy.clone(), vec![unix_endpoint()], options).unwrap();
    let mut busy = connect(&server.local_addrs()[0]);
    let during = std::thread::spawn(move || held(&mut busy));
    eventually("it is under way", || toy.served.load(Ordering::SeqCst) == 1);
    // The handler is still at it: it was not waited for.
    assert_eq!(server.stop(), 1);
    // It still gets its answer: nothing of what it did is denied.
    toy.let_go();
    assert_eq!(during.join().unwrap(), Ok(Status::OK));
    eventually("it is closed then", || toy.sessions.load(Ordering::SeqCst) == 0);
}

#[test]
fn blocked_requests_do_not_hold_up_others() {
    let _alone = alone();
    let toy = Toy::new();
    let server = start(toy.clone());
    let address = &server.local_addrs()[0];
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| assert_eq!(held(&mut connect(address)), Ok(Status::OK)));
        }
        eventually("all are under way", || toy.served.load(Ordering::SeqCst) == 100);
        // Nothing else is answered until it was.
        check_read(&mut connect(address), 0, 100);
        toy.let_go();
    });
}

#[test]
fn more_busy_connections_than_workers_are_all_served() {
    let _alone = alone();
    let options = ServerOptions { max_workers: 3, ..ServerOptions::default() };
    let server = Server::start(Toy::new(), vec![unix_endpoint()], options).unwrap();
    let address = &server.local_addrs()[0];
    std::thread::scope(|scope| {
        for i in 0..20 {
            scope.spawn(move || {
                let mut connection = connect(address);
                for _ in 0..50 {
                    check_read(&mut connection, i, 1000);
                }
            });
        }
    });
    assert!(server.workers() <= 3);
}

#[test]
fn a_connection_that_sends_now_and_then_keeps_no_worker() {
    let _alone = alone();
    let linger = Duration::from_secs(2);
    assert!(is_quick(linger / 2, || {
        let options = ServerOptions { linger, ..ServerOptions::default() };
        let server = Server::start(Toy::new(), vec![unix_endpoint()], options).unwrap();
        let mut rare = connect(&server.local_addrs()[0]);
        check_read(&mut rare, 0, 100);
        std::thread::sleep(5 * linger / 2);
        check_read(&mut rare, 0, 100);
        std::thread::sleep(linger / 8);
        // Who waited for a further request would be waited for.
        let begun = Instant::now();
        assert_eq!(server.stop(), 0);
        begun.elapsed()
    }));
}

#[test]
fn a_taken_port_or_name_is_named_in_the_error() {
    let _alone = alone();
    let server = start(Toy::new());
    for taken in server.local_addrs() {
        let result = Server::start(Toy::new(), vec![taken.clone()], ServerOptions::default());
        let Err(TransportError::Listen { endpoint, errno }) = result.map(|_| ()) else { panic!() };
        assert_eq!((&endpoint, errno), (taken, Errno::ADDRINUSE));
    }
}

#[test]
fn running_out_of_descriptors_delays_new_connections_and_leaves_old_ones_alone() {
    let _alone = alone();
    let server = start(Toy::new());
    let address: Endpoint = server.local_addrs()[0].clone();
    let mut old = connect(&address);
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let mut low = limit;
    low.current = Some(200);
    setrlimit(Resource::Nofile, low).unwrap();
    let mut fill: Vec<OwnedFd> = Vec::new();
    while let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3) {
        fill.push(fd);
    }
    // One for the client; the server has none left.
    fill.pop();
    let new = std::thread::spawn(move || check_read(&mut connect(&address), 0, 100));
    let before = cpu();
    std::thread::sleep(Duration::from_millis(500));
    let spent = cpu() - before;
    assert!(!new.is_finished());
    assert!(spent < Duration::from_millis(50), "it spins: {spent:?}");
    let (status, ..) = call(&mut old, &read_request(0, 0), &[], &mut []).unwrap();
    drop(fill);
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(status, Status::OK);
    new.join().unwrap();
}
