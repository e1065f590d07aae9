//! One request, one answer: both kinds of sockets, all sizes, descriptors, refusals.

mod common;

use bivouac_layout::{Epoch, Ino};
use bivouac_proto::auth::Role;
use bivouac_proto::data::{Access, DataReply, DataRequest, Share};
use bivouac_proto::header::{MAX_BODY, MAX_PAYLOAD};
use bivouac_proto::{Errno, Reply, Status};
use bivouac_transport::{ConnectOptions, Connection, Endpoint, Outgoing, PeerInfo, TransportError};
use common::*;
use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn request_and_answer_pass_on_both_kinds_of_sockets() {
    let toy = Toy::new();
    let server = start(toy.clone());
    for address in server.local_addrs() {
        let (mut connection, welcome) =
            Connection::connect(address, &key(1), DEPLOYMENT, Role::Agent(3), &options()).unwrap();
        assert_eq!((welcome.epoch, welcome.namespace), (Epoch(5), 6));
        assert_eq!(connection.role(), &Role::Agent(3));
        let body = encoded(DataRequest::Extent { ino: Ino(0) });
        let answer = connection
            .call(&Outgoing { before: &[], header: header(), body: &body, payload: &[] }, &mut [])
            .unwrap();
        assert_eq!(answer.header.status, Status::OK);
        assert_eq!(
            (answer.header.epoch, answer.header.namespace, answer.header.id),
            (Epoch(5), 6, header().id)
        );
        assert_eq!(bivouac_proto::decode::<Reply>(answer.body), Ok(Reply::Done));
        match (address, *toy.last_peer.lock().unwrap()) {
            (Endpoint::Unix(_), Some(PeerInfo::Unix { pid, .. })) => assert_eq!(pid, std::process::id()),
            (Endpoint::Tcp(_), Some(PeerInfo::Tcp(from))) => assert!(from.ip().is_loopback()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn payloads_of_all_sizes_arrive_whole_both_ways() {
    let server = start(Toy::new());
    for address in server.local_addrs() {
        let mut connection = connect(address);
        let max = MAX_PAYLOAD as usize;
        for len in [0, 1, 63, 4096, 16 << 10, (16 << 10) + 1, 65_536, 300_000, max - 1, max] {
            check_read(&mut connection, len as u64, len);
            let data = patterned(9, len);
            let (status, reply, _) =
                call(&mut connection, &write_request(9), &[IoSlice::new(&data)], &mut []).unwrap();
            assert_eq!(status, Status::OK, "{len}");
            assert_eq!(
                reply,
                Some(Reply::Data(DataReply::Written { count: len as u32, before: 0, undo: 0 }))
            );
        }
    }
}

#[test]
fn payloads_gather_from_and_scatter_into_many_slices() {
    let server = start(Toy::new());
    for address in server.local_addrs() {
        let mut connection = connect(address);
        for piece in [1usize, 7, 1000, 70_000] {
            let pieces = 41;
            let data = patterned(3, piece * pieces);
            let slices: Vec<_> = data.chunks(piece).map(IoSlice::new).collect();
            let (status, ..) = call(&mut connection, &write_request(3), &slices, &mut []).unwrap();
            assert_eq!(status, Status::OK);

            // Also an answer that is shorter than the room for it: no byte beyond it may be touched.
            for short in [0, 1, piece / 2 + 1] {
                let mut room = vec![0xee; piece * pieces];
                let mut into: Vec<_> = room.chunks_mut(piece).map(IoSliceMut::new).collect();
                let len = piece * pieces - short;
                let (_, _, n) = call(&mut connection, &read_request(3, len), &[], &mut into).unwrap();
                assert_eq!(n, len);
                assert!(room[..len] == data[..len] && room[len..].iter().all(|b| *b == 0xee));
            }
        }
    }
}

#[test]
fn payloads_arrive_whole_whatever_body_comes_before_them() {
    let server = start(Toy::new());
    for endpoint in server.local_addrs() {
        let mut connection = connect(endpoint);
        // From one byte to ten, and back; with payloads of one receive, of several, and errors in between.
        let offsets = [0, 1 << 60, 5, 5, 1 << 20, 1 << 40, 300, 1 << 60, 0, 0];
        for (round, offset) in offsets.iter().cycle().take(60).enumerate() {
            let len = [100, 20_000, 300_000, 17_000, 0][round % 5];
            let mut first = vec![1; len / 3];
            let mut second = vec![1; len + 1000 - first.len()];
            let into = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            let (status, reply, n) = call(&mut connection, &read_request(*offset, len), &[], into).unwrap();
            assert_eq!((status, n), (Status::OK, len), "{offset} {len}");
            assert_eq!(reply, Some(Reply::Data(DataReply::Read { length: *offset })));
            assert_eq!([first, second].concat()[..len], patterned(*offset, len), "{offset} {len}");
            if round % 7 == 0 {
                let mut into = vec![1; 100_000];
                let wrong = encoded(DataRequest::Write { ino: Ino(1), offset: 1, sync: false });
                let answer =
                    call(&mut connection, &wrong, &[IoSlice::new(&[0])], &mut [IoSliceMut::new(&mut into)]);
                assert_eq!(answer.unwrap().0, Errno::IO.into());
            }
        }
    }
}

#[test]
fn file_ranges_are_sent_and_a_truncated_file_reads_as_zeros() {
    let server = start(Toy::new());
    for address in server.local_addrs() {
        let mut connection = connect(address);
        for (offset, len) in [
            (0, 100),
            (5, 20_000),
            (4096, 32 << 10),
            (77, 4 << 20),
            (FILE_LEN - 50, 200_000),
            (FILE_LEN - 5, 10),
        ] {
            let share = Share { block_size: 4096, width: 1, turn: 0 };
            let (ino, wanted) = (Ino(offset as u64), len as u64);
            let body = encoded(DataRequest::Seek { ino, offset: wanted, end: wanted, hole: false, share });
            let mut into = vec![1; len];
            let (status, _, n) =
                call(&mut connection, &body, &[], &mut [IoSliceMut::new(&mut into)]).unwrap();
            assert_eq!((status, n), (Status::OK, len));
            let real = len.min(FILE_LEN - offset);
            assert!(into[..real] == patterned(offset as u64, real) && into[real..].iter().all(|b| *b == 0));
        }
    }
}

#[test]
fn descriptors_pass_over_unix_sockets_and_are_refused_over_tcp() {
    let server = start(Toy::new());
    let [unix, tcp] = server.local_addrs() else { panic!() };
    let options = ConnectOptions { fd_floor: 300, ..options() };
    let (mut connection, _) =
        Connection::connect(unix, &key(1), DEPLOYMENT, Role::Control, &options).unwrap();
    assert!(connection.fd() >= 300);
    let body = encoded(DataRequest::Pass { ino: Ino(1), access: Access::Read });
    let request = Outgoing { before: &[], header: header(), body: &body, payload: &[] };
    let fd = connection.call(&request, &mut []).unwrap().fd.expect("a descriptor");
    assert!(fd.as_raw_fd() >= 300);
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let mut file = std::fs::File::from(OwnedFd::from(fd));
    let mut start = [0; 10];
    file.seek(SeekFrom::Start(20)).unwrap();
    file.read_exact(&mut start).unwrap();
    assert_eq!(start[..], patterned(20, 10));

    let mut connection = connect(tcp);
    let answer = connection.call(&request, &mut []).unwrap();
    assert_eq!(answer.header.status, Errno::OPNOTSUPP.into());
    assert!(answer.fd.is_none());
}

#[test]
fn posts_are_served_in_order_and_unanswered() {
    let toy = Toy::new();
    let server = start(toy.clone());
    for address in server.local_addrs() {
        let mut connection = connect(address);
        let before = toy.served.load(Ordering::SeqCst);
        let data = patterned(0, 3000);
        for _ in 0..100 {
            let slices = [IoSlice::new(&data)];
            let request =
                Outgoing { before: &[], header: header(), body: &write_request(0), payload: &slices };
            connection.post(&request).unwrap();
        }
        // The answer to this call is the first that comes: all before it were served without one.
        check_read(&mut connection, 0, 5000);
        assert_eq!(toy.served.load(Ordering::SeqCst) - before, 101);
    }
}

#[test]
fn forgotten_answers_become_errors_and_panics_end_only_their_connection() {
    let server = start(Toy::new());
    let address = &server.local_addrs()[0];
    let mut other = connect(address);
    let mut connection = connect(address);
    let (status, ..) =
        call(&mut connection, &encoded(DataRequest::Remove { ino: Ino(1) }), &[], &mut []).unwrap();
    assert_eq!(status, Errno::IO.into());
    let panicked = call(&mut connection, &encoded(DataRequest::Sync { ino: Ino(1) }), &[], &mut []);
    assert_eq!(panicked, Err(TransportError::Closed));
    assert!(connection.is_broken());
    assert_eq!(call(&mut connection, &read_request(0, 0), &[], &mut []), Err(TransportError::Closed));
    let role = Role::Agent(667);
    let panicked = Connection::connect(address, &key(1), DEPLOYMENT, role, &options());
    assert_eq!(panicked.map(|_| ()), Err(TransportError::Closed));
    check_read(&mut other, 0, 10);
    eventually("all of them are gone", || server.connections() == 1);
    check_read(&mut connect(address), 0, 10);
}

#[test]
fn requests_and_answers_beyond_the_bounds_are_refused() {
    let server = start(Toy::new());
    let mut connection = connect(&server.local_addrs()[0]);
    let body = vec![0; MAX_BODY as usize + 1];
    let error = call(&mut connection, &body, &[], &mut []).unwrap_err();
    assert_eq!(error, TransportError::TooLong { body: body.len(), payload: 0 });
    let data = vec![0; MAX_PAYLOAD as usize];
    let error = call(&mut connection, b"", &[IoSlice::new(&data), IoSlice::new(b"x")], &mut []).unwrap_err();
    assert!(matches!(error, TransportError::TooLong { .. }));
    // Nothing was sent, so the connection is still good.
    check_read(&mut connection, 0, 10);
    // The largest body passes.
    let (status, ..) = call(&mut connection, &body[1..], &[], &mut []).unwrap();
    assert_eq!(status, Errno::INVAL.into());

    let mut small = [0; 10];
    let error =
        call(&mut connection, &read_request(0, 11), &[], &mut [IoSliceMut::new(&mut small)]).unwrap_err();
    assert!(matches!(error, TransportError::Protocol(_)));
    assert!(connection.is_broken());
}

#[test]
fn silence_ends_a_call_and_breaks_the_connection() {
    let toy = Toy::new();
    let server = start(toy.clone());
    for address in server.local_addrs() {
        let mut connection = connect(address);
        connection.set_silence(Duration::from_millis(100)).unwrap();
        let result = call(&mut connection, &encoded(DataRequest::Extent { ino: HELD }), &[], &mut []);
        assert_eq!(result, Err(TransportError::TimedOut));
        assert!(connection.is_broken());
    }
    toy.let_go();
}

#[test]
fn nobody_listening_is_refused() {
    let Endpoint::Tcp(free) = ({
        let server = start(Toy::new());
        server.local_addrs()[1].clone()
    }) else {
        panic!()
    };
    for address in [unix_endpoint(), Endpoint::Tcp(free)] {
        let result = Connection::connect(&address, &key(1), DEPLOYMENT, Role::Control, &options());
        assert_eq!(result.map(|_| ()), Err(TransportError::Refused));
    }
    let long = Endpoint::Unix("x".repeat(200));
    let result = Connection::connect(&long, &key(1), DEPLOYMENT, Role::Control, &options());
    assert_eq!(result.map(|_| ()), Err(TransportError::System(Errno::NAMETOOLONG)));
}
