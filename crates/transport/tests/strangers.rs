//! Peers that connect and never prove anything: they cost little, and keep nobody out. One test at a time:
//! they count descriptors of the process.

mod common;

use bivouac_proto::auth::Role;
use bivouac_transport::{Connection, Endpoint, Server, ServerOptions};
use common::*;
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with(options: ServerOptions) -> Server {
    Server::start(Toy::new(), vec![unix_endpoint(), loopback()], options).expect("starts")
}

fn tcp_of(server: &Server) -> SocketAddr {
    match &server.local_addrs()[1] {
        Endpoint::Tcp(address) => *address,
        Endpoint::Unix(_) | Endpoint::Node(_) => unreachable!(),
    }
}

fn silent(server: &Server) -> TcpStream {
    TcpStream::connect(tcp_of(server)).expect("the kernel takes it")
}

#[test]
fn hundreds_who_say_nothing_hold_few_descriptors_and_keep_no_client_out() {
    let _alone = alone();
    let options = ServerOptions {
        guests: 20,
        fair: Duration::from_millis(20),
        greeting: 10 * HANG,
        ..ServerOptions::default()
    };
    let server = with(options);
    let first = connect(&server.local_addrs()[1]);
    let idle: Vec<_> = (0..400).map(|_| silent(&server)).collect();
    let begun = Instant::now();
    let mut most = 0;
    let mut clients = vec![first];
    for _ in 0..5 {
        clients.push(connect(&server.local_addrs()[1]));
        clients.push(connect(&server.local_addrs()[0]));
        most = most.max(server.connections());
    }
    // 400 strangers, 20 at a time, each for 20 ms, and not for as long as they may take to authenticate.
    assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
    assert!(most <= 2 * 20 + clients.len(), "{most} connections");
    for client in &mut clients {
        check_read(client, 0, 10);
    }
    drop(idle);
}

#[test]
fn of_a_burst_of_clients_none_is_cut_although_there_is_room_for_few() {
    let _alone = alone();
    let options = ServerOptions { guests: 2, fair: Duration::from_secs(5), ..ServerOptions::default() };
    let server = with(options);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|i| {
                let server = &server;
                scope.spawn(move || check_read(&mut connect(&server.local_addrs()[i % 2]), 0, 10))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("served"));
    });
}

#[test]
fn the_last_descriptors_are_not_given_to_connections() {
    let _alone = alone();
    let begin = File::open("/dev/null").expect("opens").as_raw_fd();
    // The far ends of the connections are descriptors of this process too.
    let options = ServerOptions {
        ceiling: begin + 120,
        fair: Duration::ZERO,
        greeting: Duration::from_secs(60),
        ..ServerOptions::default()
    };
    let server = with(options);
    let mut client = connect(&server.local_addrs()[1]);
    let idle: Vec<_> = (0..100).map(|_| silent(&server)).collect();
    eventually("those that were accepted are known", || server.connections() > 10);
    std::thread::sleep(Duration::from_millis(100));
    assert!(server.connections() < 90, "{} connections", server.connections());
    check_read(&mut client, 0, 10);
    drop(idle);
    eventually("all have left", || server.connections() == 1);
    // Where strangers hold the last descriptors, clients take their place.
    let idle: Vec<_> = (0..40).map(|_| silent(&server)).collect();
    eventually("they are known", || server.connections() == 41);
    let clients: Vec<_> = (0..20).map(|_| connect(&server.local_addrs()[1])).collect();
    drop((idle, clients));
}

/// Connects as another user, by a program of its own, and waits for the end; whether it came.
fn other_user_is_shut_out(name: &str) -> bool {
    let script = "import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(60)
s.connect(chr(0) + sys.argv[1])
try: end = s.recv(1)
except ConnectionResetError: end = b''
print(end == b'')";
    let mut python = Command::new("python3");
    python.args(["-B", "-c", script, name]).uid(1001).gid(1001).current_dir("/");
    let output = python.output().expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout == b"True\n"
}

#[test]
fn a_process_of_another_user_is_shut_out_of_the_nodes_sockets() {
    if bivouac_testing::skipped_without_root("being another user") {
        return;
    }
    let _alone = alone();
    let options = || ServerOptions { greeting: 10 * HANG, ..ServerOptions::default() };
    let server = with(ServerOptions { strangers: 0, ..options() });
    let Endpoint::Unix(name) = &server.local_addrs()[0] else { unreachable!() };
    assert!(other_user_is_shut_out(name));
    check_read(&mut connect(&server.local_addrs()[0]), 0, 10);
    // Where others may try, they take each other's places and nobody else's.
    let server = with(ServerOptions { strangers: 1, ..options() });
    let Endpoint::Unix(name) = &server.local_addrs()[0] else { unreachable!() };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| other_user_is_shut_out(name));
        eventually("the first is there", || server.connections() == 1);
        let second = Command::new("python3")
            .args(["-B", "-c", "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + sys.argv[1]); s.settimeout(1)\ntry: s.recv(1)\nexcept TimeoutError: pass", name])
            .uid(1001)
            .gid(1001)
            .current_dir("/")
            .status();
        assert!(second.expect("python runs").success());
        assert!(first.join().expect("ends"));
    });
    let own =
        Connection::connect(&server.local_addrs()[0], &key(1), DEPLOYMENT, Role::Control, &common::options());
    check_read(&mut own.expect("the own user's").0, 0, 10);
}
