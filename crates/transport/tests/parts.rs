//! Long requests that are passed on while they come.

mod common;

use bivouac_layout::Epoch;
use bivouac_proto::auth::{Hello, Key, Welcome};
use bivouac_proto::data::DataRequest;
use bivouac_proto::{Header, Kind, Reply};
use bivouac_transport::{
    Call, Connection, Outgoing, Parting, PeerInfo, Server, ServerOptions, Service, TransportError,
};
use common::*;
use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Notes what it is shown, and what it serves.
struct Watching {
    key: Key,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    /// How much of payloads it was shown, in order.
    shown: Vec<usize>,
    /// Lengths of the payloads of requests that it has served.
    served: Vec<usize>,
    /// Something was not as it had been sent.
    wrong: bool,
}

impl Service for Watching {
    /// How often it was shown something of the request that is coming.
    type Session = usize;

    fn key(&self) -> &Key {
        &self.key
    }

    fn deployment(&self) -> u64 {
        DEPLOYMENT
    }

    fn versions(&self) -> (Epoch, u64) {
        (Epoch(1), 0)
    }

    fn accept(&self, _: &Hello, _: PeerInfo) -> Option<(usize, Welcome)> {
        Some((0, Welcome { epoch: Epoch(1), namespace: 0, process: 0 }))
    }

    fn arriving(&self, times: &mut usize, header: &Header, body: &[u8], so_far: &[u8]) -> bool {
        let mut notes = self.notes.lock().unwrap();
        notes.wrong |= body != write_request(0) || so_far.len() >= header.payload_len as usize;
        notes.wrong |= so_far != &patterned(0, so_far.len())[..];
        notes.shown.push(so_far.len());
        *times += 1;
        // Of a request with an odd length it wants to see no more than the beginning.
        header.payload_len.is_multiple_of(2)
    }

    fn serve(&self, times: &mut usize, call: &mut Call) {
        let (_, _, payload, reply) = call.parts();
        let mut notes = self.notes.lock().unwrap();
        notes.wrong |= *payload != patterned(0, payload.len())[..];
        notes.served.push(payload.len());
        *times = 0;
        reply.ok(&Reply::Done);
    }

    fn closed(&self, _: usize, _: Parting) {}
}

fn watching() -> (Arc<Watching>, Server) {
    let service = Arc::new(Watching { key: key(1), notes: Mutex::default() });
    let server = Server::start(service.clone(), vec![loopback()], ServerOptions::default()).unwrap();
    (service, server)
}

fn posted<'a>(body: &'a [u8], payload: &'a [IoSlice<'a>]) -> Outgoing<'a> {
    Outgoing { before: &[], header: Header::new(Kind::Request), body, payload }
}

/// Posts a request of `len` bytes, in pieces; waits after each until `seen`.
fn post_in_pieces(connection: &mut Connection, len: usize, pieces: usize, seen: impl Fn(usize)) {
    let (data, body) = (patterned(0, len), write_request(0));
    connection.post_begin(&posted(&body, &[]), len).unwrap();
    for piece in 1..=pieces {
        let there = len * piece / pieces;
        let payload = [IoSlice::new(&data[..there])];
        connection.post_more(&posted(&body, &payload), true).unwrap();
        assert_eq!(connection.is_broken(), piece < pieces);
        seen(there);
    }
}

#[test]
fn a_long_payload_is_shown_while_it_comes() {
    let (service, server) = watching();
    let mut connection = connect(&server.local_addrs()[0]);
    let len = 1 << 20;
    post_in_pieces(&mut connection, len, 4, |there| {
        let is_there = || match service.notes.lock().unwrap() {
            notes if there < len => notes.shown.last() == Some(&there),
            notes => notes.served == [len],
        };
        eventually("it has seen that", is_there);
    });
    // The connection goes on as if nothing had been.
    let answer = call(&mut connection, &write_request(0), &[IoSlice::new(&patterned(0, 10))], &mut []);
    assert_eq!(answer.unwrap().1, Some(Reply::Done));
    let notes = service.notes.lock().unwrap();
    assert!(!notes.wrong);
    assert!(notes.shown.is_sorted());
    assert_eq!(notes.served, [len, 10]);
}

#[test]
fn a_pause_in_the_middle_is_not_shown_as_if_more_had_come() {
    let (service, server) = watching();
    let mut connection = connect(&server.local_addrs()[0]);
    let pause = ServerOptions::default().linger * 5;
    post_in_pieces(&mut connection, 1 << 20, 2, |_| std::thread::sleep(pause));
    eventually("it has served that", || !service.notes.lock().unwrap().served.is_empty());
    let notes = service.notes.lock().unwrap();
    assert!(!notes.wrong && notes.shown.is_sorted_by(|before, next| before < next), "{:?}", notes.shown);
}

#[test]
fn who_has_seen_enough_is_shown_no_more_and_short_payloads_are_not_shown() {
    let (service, server) = watching();
    let mut connection = connect(&server.local_addrs()[0]);
    let pause = |_| std::thread::sleep(Duration::from_millis(50));
    for len in [(1 << 20) + 1, 10_000] {
        post_in_pieces(&mut connection, len, 3, pause);
    }
    eventually("it has served them", || service.notes.lock().unwrap().served.len() == 2);
    let notes = service.notes.lock().unwrap();
    assert!(!notes.wrong && notes.shown.len() == 1, "{:?}", notes.shown);
}

#[test]
fn a_payload_that_does_not_come_to_its_end_is_not_served() {
    let (service, server) = watching();
    let mut connection = connect(&server.local_addrs()[0]);
    let (data, body) = (patterned(0, 200_000), write_request(0));
    let payload = [IoSlice::new(&data[..100_000])];
    let request =
        Outgoing { before: &[], header: Header::new(Kind::Request), body: &body, payload: &payload };
    connection.post_begin(&request, data.len()).unwrap();
    connection.post_more(&request, true).unwrap();
    assert!(connection.is_broken());
    // It cannot be used for anything else.
    let other = call(&mut connection, &encoded(DataRequest::Space), &[], &mut []);
    assert!(matches!(other, Err(TransportError::Closed)), "{other:?}");
    drop(connection);
    check_gone(&server);
    assert!(service.notes.lock().unwrap().served.is_empty());
}

#[test]
fn a_peer_that_takes_nothing_is_given_up_after_its_silence() {
    let server = start(Toy::new());
    let (proxy, through) = proxied(&loopback(), &server.local_addrs()[1], 1);
    let mut connection = connect(&through);
    assert!(!connection.has_ended());
    proxy.set(Faults { silent: true, ..Faults::default() });
    connection.set_silence(Duration::from_millis(200)).unwrap();
    let (data, body) = (patterned(0, 8 << 20), write_request(0));
    let payload = [IoSlice::new(&data)];
    let request =
        Outgoing { before: &[], header: Header::new(Kind::Request), body: &body, payload: &payload };
    connection.post_begin(&request, data.len()).unwrap();
    // Without waiting it sends what there is room for.
    connection.post_more(&request, false).unwrap();
    assert!(connection.is_broken());
    let waited = connection.post_more(&request, true);
    assert!(matches!(waited, Err(TransportError::TimedOut)), "{waited:?}");
    drop(proxy);
    eventually("the end is seen", || connection.has_ended());
}

fn check_gone(server: &Server) {
    eventually("the connection is gone", || server.connections() == 0);
}
