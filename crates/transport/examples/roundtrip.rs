//! What a round trip costs: the smallest request through all layers, beside a bare ping-pong of 64 bytes on
//! the same kind of socket; then reads of a file in memory. Everything runs in this process, on loopback. Run
//! it with `--release`.

use bivouac_layout::{Epoch, Ino};
use bivouac_proto::auth::{Hello, Key, Role, Welcome};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::{Header, Kind, Reply, Request, decode, encode};
use bivouac_transport::{
    Call, ConnectOptions, Connection, Endpoint, Exchange, Outgoing, Parting, PeerInfo, Server, ServerOptions,
    Service, exchange,
};
use std::io::{IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FILE: usize = 8 << 20;

struct Files {
    key: Key,
    file: std::fs::File,
}

impl Service for Files {
    type Session = ();

    fn key(&self) -> &Key {
        &self.key
    }

    fn deployment(&self) -> u64 {
        1
    }

    fn versions(&self) -> (Epoch, u64) {
        (Epoch(1), 1)
    }

    fn accept(&self, _: &Hello, _: PeerInfo) -> Option<((), Welcome)> {
        Some(((), Welcome { epoch: Epoch(1), namespace: 1, process: 0 }))
    }

    fn serve(&self, _: &mut (), call: &mut Call) {
        let (_, body, _, reply) = call.parts();
        match decode(body) {
            Ok(Request::Data(DataRequest::Read { offset, len, .. })) => {
                let read = Reply::Data(DataReply::Read { length: FILE as u64 });
                reply.ok_file(&read, self.file.as_fd(), offset, len as usize).expect("the file is read");
            }
            _ => reply.ok(&Reply::Done),
        }
    }

    fn closed(&self, _: (), _: Parting) {}
}

/// Runs it for about half a second, and returns the microseconds that one of the quickest tenth of many
/// batches took: what it costs when nothing else wants the processors.
fn time(mut once: impl FnMut()) -> f64 {
    const BATCH: u32 = 50;
    let mut batches = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        let start = Instant::now();
        (0..BATCH).for_each(|_| once());
        batches.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(BATCH));
    }
    batches.sort_by(f64::total_cmp);
    batches.get(batches.len() / 10).copied().unwrap_or(f64::NAN)
}

/// A bare ping-pong of 64 bytes between two threads.
fn bare<S: Read + Write + Send + 'static>(mut near: S, mut far: S) -> f64 {
    let echo = std::thread::spawn(move || {
        let mut message = [0; 64];
        while far.read_exact(&mut message).is_ok() && far.write_all(&message).is_ok() {}
    });
    let mut message = [1; 64];
    let result = time(|| near.write_all(&message).and_then(|()| near.read_exact(&mut message)).unwrap_or(()));
    drop(near);
    let _ = echo.join();
    result
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut file =
        std::fs::File::from(rustix::fs::memfd_create("roundtrip", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(&vec![7; FILE])?;
    let service = Arc::new(Files { key: Key([1; 32]), file });
    let name = Endpoint::Unix(format!("bivouac-roundtrip-{}", std::process::id()));
    let endpoints = vec![name, "127.0.0.1:0".parse()?];
    let server = Server::start(service, endpoints, ServerOptions::default())?;
    let connect = |address| {
        Connection::connect(address, &Key([1; 32]), 1, Role::Control, &ConnectOptions::default()).map(|c| c.0)
    };

    let (near, far) = std::os::unix::net::UnixStream::pair()?;
    let bare_unix = bare(near, far);
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let near = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let bare_tcp = bare(near, far);

    for (address, kind, bare) in [(0, "unix", bare_unix), (1, "tcp", bare_tcp)] {
        let address = server.local_addrs().get(address).ok_or("no address")?;
        let mut connection = connect(address)?;
        let mut body = Vec::new();
        encode(&Request::Data(DataRequest::Extent { ino: Ino(1) }), &mut body);
        let request = Outgoing { before: &[], header: Header::new(Kind::Request), body: &body, payload: &[] };
        let call = time(|| {
            let _ = connection.call(&request, &mut []);
        });
        println!(
            "{kind:4}  round trip {call:7.2} µs   bare 64 bytes {bare:7.2} µs   ratio {:.2}",
            call / bare
        );

        for len in [4 << 10, 64 << 10, 1 << 20, 8 << 20] {
            let mut room = vec![0; len];
            let mut body = Vec::new();
            encode(&Request::Data(DataRequest::Read { ino: Ino(1), offset: 0, len: len as u32 }), &mut body);
            let request =
                Outgoing { before: &[], header: Header::new(Kind::Request), body: &body, payload: &[] };
            let read = time(|| {
                let _ = connection.call(&request, &mut [IoSliceMut::new(&mut room)]);
            });
            println!(
                "{kind:4}  read {:5} KiB {read:9.1} µs  {:8.0} MiB/s",
                len >> 10,
                len as f64 / read / 1.048_576
            );
        }

        let mut connections = (0..4).map(|_| connect(address)).collect::<Result<Vec<_>, _>>()?;
        let four = time(|| {
            let mut into: [[IoSliceMut<'_>; 0]; 4] = Default::default();
            let mut into = into.iter_mut();
            let mut calls: Vec<_> = connections
                .iter_mut()
                .filter_map(|c| Some(Exchange::new(c, request, into.next()?)))
                .collect();
            exchange(&mut calls);
        });
        println!("{kind:4}  exchange over 4 connections {four:7.2} µs");
    }
    Ok(())
}
