//! Peers that know too little or mean ill: wrong keys, other versions, garbage, silence.

mod common;

use bivouac_proto::auth::{Challenge, Hello, Proof, Role, Side, prove};
use bivouac_proto::header::{HEADER_LEN, MAX_BODY, MAX_PAYLOAD};
use bivouac_proto::{Errno, Header, Kind, Status, decode, encode};
use bivouac_transport::{Connection, Endpoint, Server, ServerOptions, TransportError};
use common::*;
use proptest::prelude::*;
use std::io::{ErrorKind, Read, Write};
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
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
}

/// Waits until the server closes, and says what it sent before.
#[track_caller]
fn closes(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = [0; 1000];
    let begun = Instant::now();
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&piece[..n]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return all,
            // A wait with a limit is ended when the process is stopped and goes on.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("not closed after {:?}, {} bytes: {error}", begun.elapsed(), all.len()),
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
        assert_eq!(closes(&mut stream), []);
    }
    // The server's own proof sent back at it is not one either.
    let mut stream = raw(tcp_of(&server));
    stream.write_all(&auth_message(&hello())).unwrap();
    let challenge: Challenge = decode(&receive_message(&mut stream)).unwrap();
    stream.write_all(&auth_message(&Proof { proof: challenge.proof })).unwrap();
    assert_eq!(closes(&mut stream), []);
}

#[test]
fn a_client_of_another_version_learns_the_servers() {
    let server = start(Toy::new());
    let mut message = auth_message(&hello());
    message[4] ^= 0xff;
    let mut stream = raw(tcp_of(&server));
    stream.write_all(&message).unwrap();
    let answer = closes(&mut stream);
    let answer = Header::from_bytes(answer.first_chunk().unwrap()).unwrap();
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
        closes(&mut stream);
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
        closes(&mut stream);
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
        closes(&mut stream);
    }
}

#[test]
fn those_who_do_not_finish_authenticating_are_closed_and_hold_no_thread() {
    // On a busy machine their time may be over before it was seen what they hold: then they get more.
    let seen =
        [2, 8, 32].into_iter().any(|greeting| are_closed_and_hold_no_thread(Duration::from_secs(greeting)));
    assert!(seen, "looked too late each time");
}

/// Whether it could be seen.
fn are_closed_and_hold_no_thread(greeting: Duration) -> bool {
    // Workers that a burst woke for a moment end soon; one that a connection held would not.
    let options =
        ServerOptions { greeting, worker_idle: Duration::from_millis(20), ..ServerOptions::default() };
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
    eventually("all are accepted, or were", || server.connections() > 90 || begun.elapsed() > greeting);
    eventually("no thread is held", || server.workers() < 10);
    let seen = server.connections() > 90;
    // One that trickles gets no more time than the silent ones: had it until its message is whole, it would
    // be answered.
    let pause = 2 * greeting / message.len() as u32;
    for byte in &message {
        std::thread::sleep(pause);
        if streams[0].write_all(&[*byte]).is_err() {
            break;
        }
    }
    for stream in &mut streams {
        assert_eq!(closes(stream), []);
    }
    let early = greeting - Duration::from_millis(20);
    assert!(begun.elapsed() >= early, "{:?}", begun.elapsed());
    eventually("all are gone", || server.connections() == 0);
    check_read(&mut connect(&server.local_addrs()[0]), 0, 10);
    seen
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
        closes(&mut stream);
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

/// A server that waits for the rest of a message for longer than a test does: who is done with writing is
/// closed for that.
static LIVE: LazyLock<Server> = LazyLock::new(|| {
    let options = ServerOptions { greeting: 10 * HANG, stall: 10 * HANG, ..ServerOptions::default() };
    Server::start(Toy::new(), vec![unix_endpoint(), loopback()], options).unwrap()
});

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
        closes(&mut stream);
        check_read(&mut connect(&LIVE.local_addrs()[0]), 1, 50);
    }

    #[test]
    fn a_client_survives_any_answer(bytes in message_like()) {
        // An error, and neither a panic nor a wait.
        connect_to_fake(&bytes);
    }
}
