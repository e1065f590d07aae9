//! Peers that know too little or mean ill: wrong keys, other versions, garbage, silence.

mod common;

use bivouac_proto::auth::{Challenge, Hello, Proof, Role, Side, prove};
use bivouac_proto::header::{HEADER_LEN, MAX_BODY, MAX_PAYLOAD};
use bivouac_proto::{Errno, Header, Kind, Status, decode, encode};
use bivouac_transport::{Connection, Endpoint, Server, ServerOptions, TransportError};
use common::*;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

fn try_connect(server: &Server, byte: u8, deployment: u64, role: Role) -> Result<(), TransportError> {
    Connection::connect(&server.local_addrs()[0], &key(byte), deployment, role, &options()).map(|_| ())
}

fn tcp_of(server: &Server) -> SocketAddr {
    match &server.local_addrs()[1] {
        Endpoint::Tcp(address) => *address,
        Endpoint::Unix(_) | Endpoint::Node(_) => unreachable!(),
    }
}

fn raw(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

/// Whether the server closes (rather than stays silent for 5 s); what it sent before.
fn closes(stream: &mut TcpStream) -> (bool, Vec<u8>) {
    let mut all = Vec::new();
    let mut piece = [0; 1000];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return (true, all),
            Ok(n) => all.extend_from_slice(&piece[..n]),
            Err(error) => return (error.kind() == std::io::ErrorKind::ConnectionReset, all),
        }
    }
}

fn auth_message(message: &impl serde::Serialize) -> Vec<u8> {
    let mut body = Vec::new();
    encode(message, &mut body);
    let mut header = Header::new(Kind::Auth);
    header.body_len = body.len() as u32;
    [&header.to_bytes()[..], &body].concat()
}

fn receive_message(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; HEADER_LEN];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; Header::from_bytes(&head).unwrap().body_len as usize];
    stream.read_exact(&mut body).unwrap();
    body
}

fn hello() -> Hello {
    Hello { nonce: [4; 32], deployment: DEPLOYMENT, role: Role::Control }
}

/// Authenticates by hand.
fn log_in(address: SocketAddr) -> TcpStream {
    let mut stream = raw(address);
    stream.write_all(&auth_message(&hello())).unwrap();
    let challenge: Challenge = decode(&receive_message(&mut stream)).unwrap();
    let proof = prove(&key(1), Side::Client, &hello(), &challenge.nonce);
    stream.write_all(&auth_message(&Proof { proof })).unwrap();
    receive_message(&mut stream);
    stream
}

#[test]
fn a_wrong_key_another_deployment_and_an_unwanted_role_are_refused() {
    let toy = Toy::new();
    let server = start(toy.clone());
    assert_eq!(try_connect(&server, 2, DEPLOYMENT, Role::Control), Err(TransportError::Authentication));
    assert_eq!(try_connect(&server, 1, DEPLOYMENT + 1, Role::Control), Err(TransportError::Authentication));
    assert_eq!(try_connect(&server, 1, DEPLOYMENT, Role::Agent(666)), Err(TransportError::Authentication));
    assert_eq!(toy.sessions.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(try_connect(&server, 1, DEPLOYMENT, Role::Control), Ok(()));
}

#[test]
fn a_client_that_forges_its_proof_gets_neither_service_nor_reason() {
    let server = start(Toy::new());
    for forged in [[0; 32], prove(&key(1), Side::Server, &hello(), &[0; 32])] {
        let mut stream = raw(tcp_of(&server));
        stream.write_all(&auth_message(&hello())).unwrap();
        receive_message(&mut stream);
        stream.write_all(&auth_message(&Proof { proof: forged })).unwrap();
        assert_eq!(closes(&mut stream), (true, vec![]));
    }
    // The server's own proof sent back at it is not one either.
    let mut stream = raw(tcp_of(&server));
    stream.write_all(&auth_message(&hello())).unwrap();
    let challenge: Challenge = decode(&receive_message(&mut stream)).unwrap();
    stream.write_all(&auth_message(&Proof { proof: challenge.proof })).unwrap();
    assert_eq!(closes(&mut stream), (true, vec![]));
}

#[test]
fn a_client_of_another_version_learns_the_servers() {
    let server = start(Toy::new());
    let mut message = auth_message(&hello());
    message[4] = 9;
    let mut stream = raw(tcp_of(&server));
    stream.write_all(&message).unwrap();
    let (closed, answer) = closes(&mut stream);
    let answer = Header::from_bytes(answer.first_chunk().unwrap()).unwrap();
    assert!(closed);
    assert_eq!((answer.kind, answer.status), (Kind::Auth, Errno::PROTO.into()));
}

#[test]
fn a_server_of_another_version_is_named_by_its_version() {
    let mut head = Header::new(Kind::Auth).to_bytes();
    head[4..6].copy_from_slice(&513u16.to_le_bytes());
    // Also from a version whose header is shorter.
    for answer in [&head[..], &head[..6], &head[..20]] {
        assert_eq!(connect_to_fake(answer), TransportError::Version { theirs: 513 });
    }
    assert_eq!(connect_to_fake(&head[..5]), TransportError::Closed);
    assert!(matches!(connect_to_fake(&[b'S'; 200]), TransportError::Protocol(_)));
}

/// Connects to something that answers with these bytes and closes.
fn connect_to_fake(answer: &[u8]) -> TransportError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Endpoint::Tcp(listener.local_addr().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(answer);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut [0; 1000]);
        });
        Connection::connect(&address, &key(1), DEPLOYMENT, Role::Control, &options()).unwrap_err()
    })
}

#[test]
fn requests_before_the_authentication_close_the_connection() {
    let toy = Toy::new();
    let server = start(toy.clone());
    let mut request = header();
    let body = read_request(0, 10);
    request.body_len = body.len() as u32;
    let request = [&request.to_bytes()[..], &body].concat();
    for start in [vec![], auth_message(&hello())] {
        let mut stream = raw(tcp_of(&server));
        stream.write_all(&start).unwrap();
        stream.write_all(&request).unwrap();
        assert!(closes(&mut stream).0);
    }
    assert_eq!(toy.served.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[test]
fn lengths_beyond_the_bounds_close_the_connection() {
    let server = start(Toy::new());
    let with = |kind, body: u32, payload: u32| {
        let mut header = Header::new(kind);
        (header.body_len, header.payload_len) = (body, payload);
        header.to_bytes()
    };
    for head in [
        with(Kind::Auth, MAX_BODY + 1, 0),
        with(Kind::Auth, u32::MAX, u32::MAX),
        with(Kind::Auth, MAX_BODY, 0),
        with(Kind::Auth, 10, 1),
    ] {
        let mut stream = raw(tcp_of(&server));
        stream.write_all(&head).unwrap();
        assert!(closes(&mut stream).0);
    }
    for head in [
        with(Kind::Request, MAX_BODY + 1, 0),
        with(Kind::Request, 0, MAX_PAYLOAD + 1),
        with(Kind::Request, u32::MAX, u32::MAX),
        with(Kind::Reply, 0, 0),
        with(Kind::Callback, 0, 0),
    ] {
        let mut stream = log_in(tcp_of(&server));
        stream.write_all(&head).unwrap();
        assert!(closes(&mut stream).0);
    }
}

#[test]
fn those_who_do_not_finish_authenticating_are_closed_and_hold_no_thread() {
    // Workers that a burst woke for a moment end soon; one that a connection held would not.
    let options = ServerOptions {
        greeting: Duration::from_millis(2000),
        worker_idle: Duration::from_millis(20),
        ..ServerOptions::default()
    };
    let server = Server::start(Toy::new(), vec![unix_endpoint(), loopback()], options).unwrap();
    let message = auth_message(&hello());
    let begun = Instant::now();
    let mut streams: Vec<_> = (0..100)
        .map(|i| {
            let mut stream = raw(tcp_of(&server));
            stream.write_all(&message[..message.len() * i / 100]).unwrap();
            stream
        })
        .collect();
    eventually("all are accepted", || server.connections() > 90);
    eventually("no thread is held", || server.workers() < 10);
    assert!(server.connections() > 90, "looked too late");
    // One that trickles gets no more time than the silent ones.
    for byte in &message[..10] {
        std::thread::sleep(Duration::from_millis(20));
        let _ = streams[0].write_all(&[*byte]);
    }
    for stream in &mut streams {
        assert_eq!(closes(stream), (true, vec![]));
    }
    assert!((1980..3700).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    eventually("all are gone", || server.connections() == 0);
    check_read(&mut connect(&server.local_addrs()[0]), 0, 10);
}

#[test]
fn a_client_that_stalls_within_a_request_is_closed() {
    let options = ServerOptions { stall: Duration::from_millis(200), ..ServerOptions::default() };
    let server = Server::start(Toy::new(), vec![unix_endpoint(), loopback()], options).unwrap();
    let mut head = header();
    (head.body_len, head.payload_len) = (5, 1000);
    let message = [&head.to_bytes()[..], &[0; 500]].concat();
    for len in [1, 63, 64, 67, 300] {
        let mut stream = log_in(tcp_of(&server));
        stream.write_all(&message[..len]).unwrap();
        assert!(closes(&mut stream).0, "{len}");
    }
    // One that does not take its answer, too.
    let mut stream = log_in(tcp_of(&server));
    for _ in 0..20 {
        let body = read_request(0, MAX_PAYLOAD as usize);
        let mut head = header();
        head.body_len = body.len() as u32;
        let _ = stream.write_all(&[&head.to_bytes()[..], &body].concat());
    }
    eventually("it is gone", || server.connections() == 0);
}

static LIVE: LazyLock<Server> = LazyLock::new(|| start(Toy::new()));

fn message_like() -> impl Strategy<Value = Vec<u8>> {
    let head = (0u8..5, any::<u8>(), 0u32..3000, 0u32..3000, any::<u16>()).prop_map(
        |(kind, flags, body, payload, status)| {
            let mut header = Header::new(Kind::Request);
            (header.flags, header.body_len, header.payload_len) = (flags, body, payload);
            header.status = Status(status);
            let mut bytes = header.to_bytes();
            bytes[6] = kind;
            bytes.to_vec()
        },
    );
    let piece = prop_oneof![
        head,
        proptest::collection::vec(any::<u8>(), 0..200),
        Just(auth_message(&hello())),
        Just(read_request(0, 100)),
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_server_survives_any_bytes(
        bytes in message_like(),
        authenticated: bool,
        cut in 0usize..400,
        mutation in (any::<prop::sample::Index>(), any::<u8>()),
    ) {
        let mut bytes = bytes;
        if !bytes.is_empty() {
            let i = mutation.0.index(bytes.len());
            bytes[i] ^= mutation.1;
        }
        bytes.truncate(bytes.len().max(cut) - cut);
        let mut stream = if authenticated { log_in(tcp_of(&LIVE)) } else { raw(tcp_of(&LIVE)) };
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        // Whatever it was, the server ends the connection and serves on.
        prop_assert!(closes(&mut stream).0);
        check_read(&mut connect(&LIVE.local_addrs()[0]), 1, 50);
    }

    #[test]
    fn a_client_survives_any_answer(bytes in message_like()) {
        // An error, and neither a panic nor a wait.
        connect_to_fake(&bytes);
    }
}
