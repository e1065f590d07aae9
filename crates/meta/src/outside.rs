//! What a store needs from outside itself, and whom it tells of changes.

use bivouac_layout::{Epoch, Group, Ino, Map, Piece, ServerId, ShardId};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::lazy::{FetchReply, FetchRequest};
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::restripe::{RestripeReply, RestripeRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply, Time};
use std::sync::Arc;

/// What a store needs from outside itself. Its methods are never called under a lock, and may block.
pub trait Outside: Send + Sync + 'static {
    /// The current map.
    fn map(&self) -> Arc<Map>;

    /// The server that the store belongs to.
    fn me(&self) -> ServerId;

    /// Asks another server; the answer is what [`crate::MetaStore::peer`] gave there, or EIO if there was none.
    /// (Never called for the store's own server.)
    fn peer(&self, server: ServerId, request: &PeerRequest<'_>) -> Result<Reply, Failure>;

    /// Asks several others the same, if possible in parallel; the answers in their order.
    fn peer_all(&self, servers: &[ServerId], request: &PeerRequest<'_>) -> Vec<Result<Reply, Failure>> {
        servers.iter().map(|server| self.peer(*server, request)).collect()
    }

    /// Asks several others something each, if possible in parallel; the answers in their order.
    fn peer_each(&self, requests: &[(ServerId, PeerRequest<'_>)]) -> Vec<Result<Reply, Failure>> {
        requests.iter().map(|(server, request)| self.peer(*server, request)).collect()
    }

    /// A data operation on any server, the own one included. `payload` is what a write sends, `into` what a
    /// read fills. `to`: with the version of the file's layout by which it is asked.
    fn data(
        &self,
        standing: Option<Standing>,
        to: (ServerId, u32),
        request: &DataRequest,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<DataReply, Errno>;

    /// A change of blocks that have copies, at the primary of their group, whoever that is; not if another server has
    /// answered for the file's shard since.
    fn copied(
        &self,
        standing: Standing,
        to: (Group, u32),
        request: &DataRequest,
        payload: &[u8],
    ) -> Result<DataReply, Errno>;

    /// A write of a piece of a file.
    fn write(
        &self,
        standing: Standing,
        (piece, layout): (&Piece, u32),
        request: &DataRequest,
        payload: &[u8],
    ) -> Result<DataReply, Errno> {
        match piece.group {
            Group::Blocks { copies: 2.., .. } => {
                self.copied(standing, (piece.group, layout), request, payload)
            }
            _ => self.data(Some(standing), (piece.server, layout), request, payload, &mut []),
        }
    }

    /// Waits for those of these servers that are not up, though the map names them: nobody can answer in their place. Whether there
    /// is a newer map now, by which to choose servers again. (Else, all are up, or one stays away.)
    fn wait_until_up(&self, _: &Map, _servers: &[ServerId]) -> bool {
        false
    }

    /// Data operations on several servers, if possible in parallel; the answers in their order. With a `standing`, what
    /// has not been sent when that ends is not sent.
    fn data_each(
        &self,
        standing: Option<Standing>,
        layout: u32,
        requests: &[(ServerId, DataRequest)],
    ) -> Vec<Result<DataReply, Errno>> {
        let ask = |(server, request): &(ServerId, DataRequest)| {
            self.data(standing, (*server, layout), request, &[], &mut [])
        };
        requests.iter().map(ask).collect()
    }

    /// Asks several servers, the own one perhaps included, for their parts in restriping a file; if possible in parallel. The
    /// answers in their order.
    fn restripe(
        &self,
        standing: Standing,
        servers: &[ServerId],
        request: &RestripeRequest,
    ) -> Vec<Result<RestripeReply, Failure>>;

    /// Asks several servers, the own one perhaps included, to read their parts of a range of a lazy file; if possible in
    /// parallel. The answers in their order; a refusal where a server has another map.
    fn fetch(
        &self,
        standing: Standing,
        servers: &[ServerId],
        request: &FetchRequest,
    ) -> Vec<Result<FetchReply, Failure>>;

    /// Whether the server still has this right, as far as it knows. What has failed because it ended was not done by who
    /// answers now.
    fn stands(&self, _standing: Standing) -> bool {
        true
    }

    /// A copy cannot be relied on, because its storage fails: the controller is to know.
    fn distrust(&self, _group: Group, _holder: ServerId) {}

    /// The clock.
    fn now(&self) -> Time;
}

/// Since when a server has answered for a group. It ends when another server answers for it, and does not begin anew when
/// this one does so again: what it had begun before must not change anything any more, however long it has waited for
/// something, because the other one may have done the same, and others have built on that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Which.
    pub group: Group,
    /// By the map of this epoch the server answered for it.
    pub since: Epoch,
}

/// Is told of changes, so that it can tell clients at once that what they have read may no longer be true.
pub trait Observer: Send + Sync + 'static {
    /// A shard is about to change. Called under its lock, before anybody can see the change. How many changes
    /// it has had then.
    fn changed(&self, shard: ShardId) -> u64;

    /// A directory moves, with this namespace version. Called before the move can be seen.
    fn moved(&self, directory: Ino, version: u64);

    /// The namespace has this version from now on; nothing that clients know from before is valid.
    fn namespace(&self, version: u64);
}
