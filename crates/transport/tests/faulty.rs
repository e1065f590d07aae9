//! Connections over a bad network.

mod common;

use bivouac_transport::TransportError;
use common::*;
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

#[test]
fn a_faultless_proxy_changes_nothing() {
    let server = start(Toy::new());
    for address in server.local_addrs() {
        let (_proxy, through) = proxied(&unix_endpoint(), address, 1);
        let mut connection = connect(&through);
        for len in [0, 100, 5000, 1 << 20] {
            check_read(&mut connection, 3, len);
        }
    }
}

#[test]
fn delays_slow_down_and_silence_passes() {
    let server = start(Toy::new());
    let (proxy, through) = proxied(&loopback(), &server.local_addrs()[1], 1);
    let mut connection = connect(&through);
    let delay = Duration::from_millis(30);
    proxy.set(Faults { delay: delay..delay * 2, ..Faults::default() });
    let begun = Instant::now();
    check_read(&mut connection, 0, 100);
    assert!(begun.elapsed() >= 2 * delay);

    proxy.set(Faults { silent: true, ..Faults::default() });
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| check_read(&mut connection, 0, 100));
        std::thread::sleep(Duration::from_millis(200));
        proxy.set(Faults::default());
    });
    assert!(begun.elapsed() >= Duration::from_millis(200));
}

#[test]
fn a_cut_anywhere_is_an_error_and_never_a_wrong_answer() {
    let server = start(Toy::new());
    let len = 40_000;
    let data = patterned(0, len);
    // The authentication takes some 400 bytes; from there on the cut moves through request and answer.
    for after in (0..90_000).step_by(1777) {
        let (proxy, through) = proxied(&loopback(), &server.local_addrs()[1], after);
        let mut connection = connect(&through);
        proxy.set(Faults { cut_after: Some(after), ..Faults::default() });
        let mut results = Vec::new();
        for _ in 0..2 {
            let written = call(&mut connection, &write_request(0), &[IoSlice::new(&data)], &mut []);
            results.push(written.map(|_| ()));
            let mut room = vec![0; len];
            let read = call(&mut connection, &read_request(0, len), &[], &mut [IoSliceMut::new(&mut room)]);
            assert!(read.is_err() || room == data);
            results.push(read.map(|_| ()));
        }
        assert_eq!(results.last(), Some(&Err(TransportError::Closed)), "{after}");
        assert!(connection.is_broken());
    }
}

#[test]
fn seeded_cuts_leave_a_server_that_serves() {
    let server = start(Toy::new());
    let (proxy, through) = proxied(&loopback(), &server.local_addrs()[1], 42);
    let mut cut = 0;
    for _ in 0..20 {
        proxy.set(Faults::default());
        let mut connection = connect(&through);
        proxy.set(Faults { cut_one_in: 20, ..Faults::default() });
        for _ in 0..20 {
            let mut room = vec![0; 50_000];
            match call(&mut connection, &read_request(9, 50_000), &[], &mut [IoSliceMut::new(&mut room)]) {
                Ok(_) => assert!(room == patterned(9, 50_000)),
                Err(error) => {
                    assert_eq!(error, TransportError::Closed);
                    cut += 1;
                    break;
                }
            }
        }
    }
    assert!(cut > 5, "{cut}");
    eventually("the server lets go of them", || server.connections() == 0);
    check_read(&mut connect(&server.local_addrs()[0]), 0, 100);
}
