//! Several calls at once: dead, silent and slow servers, and transfers larger than any socket buffer.

mod common;

use bivouac_layout::Ino;
use bivouac_proto::Status;
use bivouac_proto::data::DataRequest;
use bivouac_transport::{Exchange, Outgoing, TransportError, exchange};
use common::*;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn ok(call: &Exchange<'_, '_>) -> usize {
    let received = call.result.as_ref().unwrap().as_ref().unwrap();
    assert_eq!(received.header.status, Status::OK);
    received.payload_len
}

#[test]
fn one_dead_and_one_slow_server_do_not_fail_the_others() {
    let mut servers: Vec<_> = (0..4).map(|_| Some(start(Toy::new()))).collect();
    for kind in [0, 1] {
        let mut connections: Vec<_> =
            servers.iter().map(|s| s.as_ref().map(|s| connect(&s.local_addrs()[kind]))).collect();
        let mut dead = connections[1].take().unwrap();
        let [Some(a), None, Some(slow), Some(b)] = &mut connections[..] else { panic!() };
        servers[1] = None;

        let len = 300_000;
        let mut rooms = vec![vec![0; len]; 2];
        let [room_a, room_b] = &mut rooms[..] else { panic!() };
        let (mut into_a, mut into_b) = ([IoSliceMut::new(room_a)], [IoSliceMut::new(room_b)]);
        let read = read_request(7, len);
        let sleep = encoded(DataRequest::Extent { ino: Ino(150) });
        let outgoing = |body| Outgoing { before: &[], header: header(), body, payload: &[] };
        let begun = Instant::now();
        let mut calls = [
            Exchange::new(a, outgoing(&read), &mut into_a),
            Exchange::new(&mut dead, outgoing(&read), &mut []),
            Exchange::new(slow, outgoing(&sleep), &mut []),
            Exchange::new(b, outgoing(&read), &mut into_b),
        ];
        exchange(&mut calls);
        assert!(begun.elapsed() >= Duration::from_millis(150), "{:?}", begun.elapsed());
        assert_eq!((ok(&calls[0]), ok(&calls[2]), ok(&calls[3])), (len, 0, len));
        assert!(matches!(calls[1].result, Some(Err(TransportError::Closed))), "{:?}", calls[1].result);
        assert!(dead.is_broken() && !a.is_broken());
        assert_eq!(dead.body(), b"");
        // The body stays readable through the connection.
        assert!(bivouac_proto::decode::<bivouac_proto::Reply>(a.body()).is_ok());
        assert!(rooms.iter().all(|r| *r == patterned(7, len)));
        servers[1] = Some(start(Toy::new()));
    }
}

#[test]
fn a_silent_server_times_out_alone_and_its_connection_is_broken() {
    let servers: Vec<_> = (0..3).map(|_| start(Toy::new())).collect();
    let (proxy, through) = proxied(&loopback(), &servers[0].local_addrs()[1], 1);
    let mut through = connect(&through);
    check_read(&mut through, 0, 100);
    let mut others: Vec<_> = servers[1..].iter().map(|s| connect(&s.local_addrs()[1])).collect();
    proxy.set(Faults { silent: true, ..Faults::default() });
    through.set_silence(Duration::from_millis(200)).unwrap();

    let body = read_request(0, 1000);
    let request = Outgoing { before: &[], header: header(), body: &body, payload: &[] };
    let mut rooms = vec![vec![0; 1000]; 3];
    let mut into: Vec<_> = rooms.iter_mut().map(|r| [IoSliceMut::new(r)]).collect();
    let begun = Instant::now();
    let mut calls: Vec<_> = std::iter::once(&mut through)
        .chain(&mut others)
        .zip(&mut into)
        .map(|(connection, into)| Exchange::new(connection, request, into))
        .collect();
    exchange(&mut calls);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(200) && took < HANG / 2, "{took:?}");
    assert!(matches!(calls[0].result, Some(Err(TransportError::TimedOut))));
    assert_eq!((ok(&calls[1]), ok(&calls[2])), (1000, 1000));
    assert!(through.is_broken());
}

#[test]
fn transfers_larger_than_all_buffers_do_not_deadlock() {
    let servers: Vec<_> = (0..4).map(|_| start(Toy::new())).collect();
    let len = 8 << 20;
    let data = patterned(1, len);
    // In slices, so that transfers stop and go on at every place in them.
    let payload: Vec<_> = data.chunks(70_001).map(IoSlice::new).collect();
    let body = encoded(DataRequest::Space);
    for kind in [0, 1] {
        let mut connections: Vec<_> = servers.iter().map(|s| connect(&s.local_addrs()[kind])).collect();
        let mut rooms = vec![vec![0; len]; 4];
        let mut into: Vec<_> = rooms.iter_mut().map(|r| [IoSliceMut::new(r)]).collect();
        let request = Outgoing { before: &[], header: header(), body: &body, payload: &payload };
        let mut calls: Vec<_> =
            connections.iter_mut().zip(&mut into).map(|(c, i)| Exchange::new(c, request, i)).collect();
        exchange(&mut calls);
        assert!(calls.iter().all(|c| ok(c) == len));
        assert!(rooms.iter().all(|r| *r == data));
    }
}

#[test]
fn a_full_link_does_not_hold_up_the_requests_after_it() {
    let (stuck, free) = (Toy::new(), Toy::new());
    let servers = [start(stuck.clone()), start(free.clone())];
    let (proxy, through) = proxied(&loopback(), &servers[0].local_addrs()[1], 1);
    let mut first = connect(&through);
    let mut second = connect(&servers[1].local_addrs()[1]);
    proxy.set(Faults { silent: true, ..Faults::default() });

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let data = patterned(0, 8 << 20);
            let payload = [IoSlice::new(&data)];
            let (large, small) = (write_request(0), read_request(0, 0));
            let mut calls = [
                Exchange::new(
                    &mut first,
                    Outgoing { before: &[], header: header(), body: &large, payload: &payload },
                    &mut [],
                ),
                Exchange::new(
                    &mut second,
                    Outgoing { before: &[], header: header(), body: &small, payload: &[] },
                    &mut [],
                ),
            ];
            exchange(&mut calls);
            assert_eq!((ok(&calls[0]), ok(&calls[1])), (0, 0));
        });
        eventually("the second server is asked", || free.served.load(Ordering::SeqCst) == 1);
        assert_eq!(stuck.served.load(Ordering::SeqCst), 0);
        proxy.set(Faults::default());
    });
    assert_eq!(stuck.served.load(Ordering::SeqCst), 1);
}

#[test]
fn more_connections_than_fit_the_stack_are_watched_too() {
    let server = start(Toy::new());
    let mut connections: Vec<_> = (0..50).map(|i| connect(&server.local_addrs()[i % 2])).collect();
    let bodies: Vec<_> = (0..50).map(|i| read_request(i, 20_000)).collect();
    let mut rooms = vec![vec![0; 20_000]; 50];
    let mut into: Vec<_> = rooms.iter_mut().map(|r| [IoSliceMut::new(r)]).collect();
    let mut calls: Vec<_> = connections
        .iter_mut()
        .zip(&bodies)
        .zip(&mut into)
        .map(|((c, body), i)| {
            Exchange::new(c, Outgoing { before: &[], header: header(), body, payload: &[] }, i)
        })
        .collect();
    exchange(&mut calls);
    assert!(calls.iter().all(|c| ok(c) == 20_000));
    assert!(rooms.iter().enumerate().all(|(i, r)| *r == patterned(i as u64, 20_000)));
}

#[test]
fn a_call_that_cannot_begin_leaves_the_others_alone() {
    let server = start(Toy::new());
    let (mut a, mut b) = (connect(&server.local_addrs()[0]), connect(&server.local_addrs()[0]));
    let (huge, small) = (vec![0; 2 << 20], read_request(0, 0));
    let mut calls = [
        Exchange::new(&mut a, Outgoing { before: &[], header: header(), body: &huge, payload: &[] }, &mut []),
        Exchange::new(
            &mut b,
            Outgoing { before: &[], header: header(), body: &small, payload: &[] },
            &mut [],
        ),
    ];
    exchange(&mut calls);
    assert!(matches!(calls[0].result, Some(Err(TransportError::TooLong { .. }))));
    assert_eq!(ok(&calls[1]), 0);
    assert!(!a.is_broken());
}
