//! A deployment of several daemons in this process, and a client of it.

#![allow(dead_code, missing_docs)] // each test file uses a part of it

use bivouac_client::host::Plain;
use bivouac_client::{Client, Fail, Handle};
use bivouac_daemon::config::{DaemonConfig, ServerConfig};
use bivouac_daemon::controller::ControlLink;
use bivouac_daemon::{Running, start};
use bivouac_layout::map::{Node, Server, ServerState};
use bivouac_layout::{Founding, Ino, Map, News, NodeId, ServerId};
use bivouac_node::Environment;
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_testing::{HANG, eventually};
use bivouac_transport::Endpoint;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;

const BLOCK: u32 = 64 << 10;
const KEY: Key = Key([7; 32]);

pub struct Cluster {
    pub daemons: Vec<Running>,
    pub map: Map,
    pub key: Key,
    pub environment: Environment,
    pub client: Arc<Client>,
    _storage: tempfile::TempDir,
}

pub fn cluster(name: &str, servers: u16) -> Cluster {
    cluster_of_copies(name, servers, 1)
}

/// The same with so many copies of everything.
pub fn cluster_of_copies(name: &str, servers: u16, copies: u8) -> Cluster {
    cluster_announced(name, servers, copies, |_, address| address)
}

/// The same, where others are told other addresses than where servers listen.
pub fn cluster_announced(
    name: &str,
    servers: u16,
    copies: u8,
    mut announced: impl FnMut(ServerId, SocketAddr) -> SocketAddr,
) -> Cluster {
    cluster_begun(name, servers, |mut founding, controller| {
        founding.servers.iter_mut().for_each(|server| server.address = announced(server.id, server.address));
        let founding = Founding { replicas: copies, metadata_replicas: copies, ..founding };
        let map = founding.clone().map().expect("a map");
        controller.tell(ControlRequest::Found { founding: Box::new(founding) }).expect("founded");
        eventually("all serve", || match controller.request(ControlRequest::Beginning) {
            Ok(Some(ControlReply::Beginning { pending, failed })) => {
                assert_eq!(failed, []);
                pending == 0
            }
            other => panic!("no answer: {other:?}"),
        });
        map
    })
}

/// The same with another map than usual, and without a controller.
pub fn cluster_with(name: &str, servers: u16, change: impl FnOnce(&mut Map)) -> Cluster {
    cluster_begun(name, servers, |founding, _| {
        let mut map = founding.map().expect("a map");
        change(&mut map);
        map.numbers = map.servers.last().map_or(0, |last| last.id.0 + 1);
        for server in map.servers.iter().take(servers.into()) {
            ControlLink::connect(&Endpoint::Tcp(server.address), &KEY, 99, HANG)
                .and_then(|mut link| {
                    link.tell(ControlRequest::Install { news: News::Whole(Box::new(map.clone())) })
                })
                .expect("installed");
        }
        map
    })
}

/// Starts daemons and has them `begin`, which is given a link to the first.
fn cluster_begun(name: &str, servers: u16, begin: impl FnOnce(Founding, &mut ControlLink) -> Map) -> Cluster {
    let name = format!("test-{name}-{}", std::process::id());
    let uid = rustix::process::getuid().as_raw();
    let storage = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mut daemons = Vec::new();
    for id in 0..servers {
        let directory = storage.path().join(id.to_string());
        std::fs::create_dir(&directory).expect("a directory");
        daemons.push(
            start(DaemonConfig {
                name: name.clone(),
                uid,
                deployment: 99,
                key: KEY,
                node: NodeId(0),
                host: "here".into(),
                server: Some(ServerConfig {
                    id: ServerId(id),
                    succession: 0,
                    storage: vec![directory],
                    created_storage: true,
                }),
                listen: "127.0.0.1:0".parse().expect("an address"),
                agent: id == 0,
                mount: "/bivouac".into(),
                block_size: BLOCK,
                ephemeral: false,
                closed: false,
                restarts: 0,
                deployment_dir: storage.path().into(),
                log_file: storage.path().join("log"),
                log_level: "info".into(),
            })
            .expect("a daemon"),
        );
    }
    let server = |(id, daemon): (u16, &Running)| Server {
        id: ServerId(id),
        node: NodeId(0),
        address: daemon.address.expect("a server"),
        state: ServerState::Up,
        joined: 0,
        former: Vec::new(),
    };
    let agent = daemons[0].address.expect("it listens");
    let nodes = vec![Node { id: NodeId(0), host: "here".into(), agent, domain: 0 }];
    let founding = Founding::new(99, "/bivouac", nodes, (0..servers).zip(&daemons).map(server).collect());
    let first = Endpoint::Tcp(founding.servers[0].address);
    let mut link = ControlLink::connect(&first, &KEY, 99, HANG).expect("connected");
    let map = begin(Founding { block_size: BLOCK, ..founding }, &mut link);
    let environment = Environment {
        key_path: bivouac_node::key_path(&bivouac_node::place::find(uid, &name).expect("made")),
        mounted: None,
        forwarded: None,
        job: None,
        name,
        mount: "/bivouac".into(),
    };
    let client = Client::attach(&environment, &Plain).expect("attached");
    Cluster { daemons, map, key: KEY, environment, client, _storage: storage }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.drain(..) {
            daemon.stop(false);
            daemon.wait();
        }
    }
}

impl Cluster {
    /// Operations on metadata, and on blocks, that all servers have carried out.
    pub fn operations(&self) -> (u64, u64) {
        let of = |server: &Server| {
            let endpoint = Endpoint::Tcp(server.address);
            let mut link = ControlLink::connect(&endpoint, &self.key, 99, HANG).expect("connected");
            match link.request(ControlRequest::Stats) {
                Ok(Some(ControlReply::Stats(stats))) => (stats.meta_operations, stats.data_operations),
                other => panic!("no answer: {other:?}"),
            }
        };
        let each = self.map.servers.iter().map(of);
        each.fold((0, 0), |(meta, data), (more_meta, more_data)| (meta + more_meta, data + more_data))
    }

    pub fn open(&self, path: &str, flags: i32) -> Result<Arc<Handle>, Fail> {
        self.client.open(Ino::ROOT, path.as_bytes(), flags, 0o644)
    }

    pub fn write(&self, path: &str, data: &[u8]) {
        let handle = self.open(path, libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC).expect("created");
        assert_eq!(handle.write(&[IoSlice::new(data)]), Ok(data.len()));
        self.client.closed(handle.id());
    }

    pub fn read(&self, path: &str) -> Vec<u8> {
        let handle = self.open(path, libc::O_RDONLY).expect("opened");
        let mut all = Vec::new();
        let mut buffer = vec![0; 300_000];
        loop {
            let count = handle.read(&mut [IoSliceMut::new(&mut buffer)]).expect("read");
            if count == 0 {
                break;
            }
            all.extend_from_slice(&buffer[..count]);
        }
        self.client.closed(handle.id());
        all
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let handle = self.open(path, libc::O_RDONLY | libc::O_DIRECTORY).expect("opened");
        let mut names = Vec::new();
        loop {
            let entries = handle.list(1000).expect("listed").entries;
            if entries.is_empty() {
                break;
            }
            names.extend(entries.into_iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()));
        }
        self.client.closed(handle.id());
        names.sort();
        names
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}
