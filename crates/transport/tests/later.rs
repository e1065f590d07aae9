//! Requests that the service takes away and answers later, from another thread, in another order, or not at all.

mod common;

use bivouac_layout::{Epoch, Ino};
use bivouac_proto::auth::{Hello, Key, Welcome};
use bivouac_proto::data::DataRequest;
use bivouac_proto::header::{MAX_PAYLOAD, NO_REPLY};
use bivouac_proto::{Errno, Reply, Request, Status, decode};
use bivouac_transport::{
    Call, Connection, Outgoing, Parting, PeerInfo, Server, ServerOptions, Service, TransportError,
};
use common::*;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Takes all writes away; answers everything else at once, with its payload.
struct Keeper {
    key: Key,
    /// With the offset of each.
    kept: Mutex<Vec<(u64, Call)>>,
    at_once: AtomicUsize,
    sessions: AtomicUsize,
}

impl Service for Keeper {
    type Session = ();

    fn key(&self) -> &Key {
        &self.key
    }

    fn deployment(&self) -> u64 {
        DEPLOYMENT
    }

    fn versions(&self) -> (Epoch, u64) {
        (Epoch(5), 6)
    }

    fn accept(&self, _: &Hello, _: PeerInfo) -> Option<((), Welcome)> {
        self.sessions.fetch_add(1, Ordering::SeqCst);
        Some(((), Welcome { epoch: Epoch(5), namespace: 6, process: 0 }))
    }

    fn serve(&self, _: &mut (), call: &mut Call) {
        let (_, body, payload, reply) = call.parts();
        match decode(body) {
            Ok(Request::Data(DataRequest::Write { offset, .. })) => {
                self.kept.lock().unwrap().push((offset, call.later()));
            }
            _ => {
                self.at_once.fetch_add(1, Ordering::SeqCst);
                reply.buffer().extend_from_slice(payload);
                reply.ok(&Reply::Done);
            }
        }
    }

    fn closed(&self, _: (), _: Parting) {
        self.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Keeper {
    fn start(options: ServerOptions) -> (Arc<Keeper>, Server) {
        let keeper = Arc::new(Keeper {
            key: key(1),
            kept: Mutex::default(),
            at_once: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
        });
        let server = Server::start(keeper.clone(), vec![unix_endpoint(), loopback()], options).unwrap();
        (keeper, server)
    }

    fn waits_for(&self, count: usize) {
        eventually("the requests are there", || self.kept.lock().unwrap().len() == count);
    }

    /// The request for this offset.
    fn take(&self, offset: u64) -> Call {
        let mut kept = self.kept.lock().unwrap();
        let at = kept.iter().position(|(of, _)| *of == offset).expect("it has come");
        kept.swap_remove(at).1
    }
}

/// Checks the payload of a request for its offset, and answers with the same bytes.
fn answer(mut call: Call, offset: u64) {
    let (_, _, payload, reply) = call.parts();
    assert!(*payload == patterned(offset, payload.len())[..]);
    reply.buffer().extend_from_slice(payload);
    reply.ok(&Reply::Done);
}

/// Writes in a thread of its own; what came of it.
fn write(mut connection: Connection, offset: u64, len: usize) -> JoinHandle<Result<Status, TransportError>> {
    std::thread::spawn(move || {
        let (data, mut back) = (patterned(offset, len), vec![0; len]);
        let (status, _, count) = call(
            &mut connection,
            &write_request(offset),
            &[IoSlice::new(&data)],
            &mut [std::io::IoSliceMut::new(&mut back)],
        )?;
        if status == Status::OK {
            assert!(count == len && back == data);
        }
        Ok(status)
    })
}

#[test]
fn they_are_answered_in_any_order_with_whole_payloads_both_ways() {
    let (keeper, server) = Keeper::start(ServerOptions::default());
    for address in server.local_addrs() {
        for len in [0, 1, 4096, 70_000, 300_000, MAX_PAYLOAD as usize] {
            let writers: Vec<_> = (0..5).map(|number| write(connect(address), number, len)).collect();
            keeper.waits_for(5);
            for number in [3, 0, 4, 1, 2] {
                let call = keeper.take(number);
                assert_eq!(call.header().payload_len as usize, len);
                answer(call, number);
            }
            for writer in writers {
                assert_eq!(writer.join().unwrap().unwrap(), Status::OK);
            }
        }
    }
}

#[test]
fn many_more_of_them_wait_than_there_are_threads() {
    let options = ServerOptions { max_workers: 2, ..ServerOptions::default() };
    let (keeper, server) = Keeper::start(options);
    let address = &server.local_addrs()[1];
    let writers: Vec<_> = (0..40).map(|number| write(connect(address), number, 5000)).collect();
    keeper.waits_for(40);
    assert!(server.workers() <= 2);
    // Somebody else is served meanwhile.
    let (status, ..) = call(&mut connect(address), &encoded(DataRequest::Space), &[], &mut []).unwrap();
    assert_eq!(status, Status::OK);
    for number in 0..40 {
        answer(keeper.take(number), number);
    }
    for writer in writers {
        assert_eq!(writer.join().unwrap().unwrap(), Status::OK);
    }
}

#[test]
fn what_the_connection_sent_after_one_is_served_whole() {
    let (keeper, server) = Keeper::start(ServerOptions::default());
    for address in server.local_addrs() {
        let mut connection = connect(address);
        let served = keeper.at_once.load(Ordering::SeqCst);
        let space = encoded(DataRequest::Space);
        let mut header = header();
        header.flags = NO_REPLY;
        // All of it is likely to come at once, and the end of it later.
        for number in 0..200 {
            let (offset, len) = (number, 700 * (number as usize % 3));
            let data = patterned(offset, len);
            let body = if number % 2 == 0 { write_request(offset) } else { space.clone() };
            let payload = [IoSlice::new(&data)];
            connection.post(&Outgoing { before: &[], header, body: &body, payload: &payload }).unwrap();
        }
        keeper.waits_for(100);
        eventually("the others are served", || keeper.at_once.load(Ordering::SeqCst) == served + 100);
        for number in (0..100).rev().map(|half| 2 * half) {
            answer(keeper.take(number), number);
        }
        // None of these had an answer: the next one is this request's.
        let (status, ..) = call(&mut connection, &space, &[], &mut []).unwrap();
        assert_eq!(status, Status::OK);
    }
}

#[test]
fn one_that_is_dropped_gets_an_error_and_its_connection_goes_on() {
    let (keeper, server) = Keeper::start(ServerOptions::default());
    let mut connection = connect(&server.local_addrs()[0]);
    let writer = std::thread::spawn(move || {
        let (status, ..) = call(&mut connection, &write_request(1), &[], &mut []).unwrap();
        let again = call(&mut connection, &encoded(DataRequest::Extent { ino: Ino(1) }), &[], &mut []);
        (status, again.unwrap().0)
    });
    keeper.waits_for(1);
    drop(keeper.take(1));
    assert_eq!(writer.join().unwrap(), (Status::from(Errno::IO), Status::OK));
}

#[test]
fn a_client_that_has_gone_is_noticed_before_and_its_answer_harms_nobody() {
    let (keeper, server) = Keeper::start(ServerOptions::default());
    for address in server.local_addrs() {
        let connection = connect(address);
        let fd = connection.as_fd().as_raw_fd();
        let gone = write(connection, 7, 100_000);
        keeper.waits_for(1);
        // SAFETY: the descriptor is open as long as the thread waits for its answer.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        rustix::net::shutdown(fd, rustix::net::Shutdown::Both).unwrap();
        assert!(gone.join().unwrap().is_err());
        eventually("the session is closed", || keeper.sessions.load(Ordering::SeqCst) == 0);
        eventually("the connection is", || server.connections() == 0);
        answer(keeper.take(7), 7);
        let other = write(connect(address), 8, 100_000);
        keeper.waits_for(1);
        answer(keeper.take(8), 8);
        assert_eq!(other.join().unwrap().unwrap(), Status::OK);
        eventually("that is closed, too", || keeper.sessions.load(Ordering::SeqCst) == 0);
    }
}

#[test]
fn a_server_that_stops_waits_for_none_of_them() {
    let (keeper, server) = Keeper::start(ServerOptions::default());
    let writer = write(connect(&server.local_addrs()[1]), 7, 100);
    keeper.waits_for(1);
    assert_eq!(server.stop(), 0);
    assert!(writer.join().unwrap().is_err());
    answer(keeper.take(7), 7);
}
