//! Signals that interrupt system calls: programs with timers and profilers.

mod common;

use bivouac_proto::data::DataRequest;
use bivouac_transport::{Exchange, Outgoing, TransportError, exchange};
use common::*;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn signals_neither_disturb_calls_nor_stretch_their_deadlines() {
    let toy = Toy::new();
    let server = start(toy.clone());
    // SAFETY: the action is fully initialised, its handler only counts, and the timer's argument is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        let often = libc::timeval { tv_sec: 0, tv_usec: 500 };
        let timer = libc::itimerval { it_interval: often, it_value: often };
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()), 0);
    }
    for address in server.local_addrs() {
        let mut connection = connect(address);
        let mut second = connect(address);
        let data = patterned(0, 8 << 20);
        for _ in 0..5 {
            call(&mut connection, &write_request(0), &[IoSlice::new(&data)], &mut []).unwrap();
            check_read(&mut connection, 3, 8 << 20);
        }
        let body = read_request(0, 1 << 20);
        let request = Outgoing { before: &[], header: header(), body: &body, payload: &[] };
        let mut rooms = vec![vec![0; 1 << 20]; 2];
        let mut into: Vec<_> = rooms.iter_mut().map(|r| [IoSliceMut::new(r)]).collect();
        let mut calls: Vec<_> = [&mut connection, &mut second]
            .into_iter()
            .zip(&mut into)
            .map(|(c, i)| Exchange::new(c, request, i))
            .collect();
        exchange(&mut calls);
        assert!(calls.iter().all(|c| matches!(c.result, Some(Ok(_)))));

        connection.set_silence(Duration::from_millis(150)).unwrap();
        // Had signals put the end off, there would be an answer.
        let result = call(&mut connection, &encoded(DataRequest::Extent { ino: HELD }), &[], &mut []);
        assert_eq!(result, Err(TransportError::TimedOut));
    }
    toy.let_go();
    assert!(SIGNALS.load(Ordering::Relaxed) > 100);
}
