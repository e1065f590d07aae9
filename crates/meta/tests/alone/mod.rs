//! A deployment of one server without data: for what is about one store alone.
#![allow(missing_docs)]

use bivouac_layout::{Founding, Group, Map, Node, NodeId, Server, ServerId, ServerState};
use bivouac_meta::{MetaStore, OpenError, Options, Outside, Standing};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::lazy::{FetchReply, FetchRequest};
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::restripe::{RestripeReply, RestripeRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply, Time};
use std::path::Path;
use std::sync::Arc;

struct Alone(Arc<Map>);

/// Opens the store in `dir`; at its first start it takes all shards.
pub fn open(dir: &Path, options: Options) -> Result<MetaStore, OpenError> {
    let map = map(options.deployment);
    let shards: Vec<_> = map.shards_of(ServerId(0)).collect();
    bivouac_meta::make_directory(dir)?;
    let store = MetaStore::open(dir, options, Alone(Arc::new(map)))?;
    store.adopt(shards).expect("the shards are adopted");
    Ok(store)
}

fn map(deployment: u64) -> Map {
    let (address, node) = (([127, 0, 0, 1], 1).into(), NodeId(0));
    let nodes = vec![Node { id: node, host: "here".into(), agent: address, domain: 0 }];
    let servers = vec![Server {
        id: ServerId(0),
        node,
        address,
        state: ServerState::Up,
        joined: 0,
        former: Vec::new(),
    }];
    Founding::new(deployment, "/m", nodes, servers).map().expect("a map")
}

impl Outside for Alone {
    fn map(&self) -> Arc<Map> {
        self.0.clone()
    }
    fn me(&self) -> ServerId {
        ServerId(0)
    }
    fn peer(&self, _: ServerId, _: &PeerRequest<'_>) -> Result<Reply, Failure> {
        Err(Errno::IO.into())
    }
    fn data(
        &self,
        _: Option<Standing>,
        _: (ServerId, u32),
        _: &DataRequest,
        _: &[u8],
        _: &mut [u8],
    ) -> Result<DataReply, Errno> {
        Err(Errno::IO)
    }
    fn copied(&self, _: Standing, _: (Group, u32), _: &DataRequest, _: &[u8]) -> Result<DataReply, Errno> {
        Err(Errno::IO)
    }
    fn restripe(
        &self,
        _: Standing,
        servers: &[ServerId],
        _: &RestripeRequest,
    ) -> Vec<Result<RestripeReply, Failure>> {
        servers.iter().map(|_| Err(Errno::IO.into())).collect()
    }
    fn fetch(&self, _: Standing, servers: &[ServerId], _: &FetchRequest) -> Vec<Result<FetchReply, Failure>> {
        servers.iter().map(|_| Err(Errno::IO.into())).collect()
    }
    fn now(&self) -> Time {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as Time
    }
}
