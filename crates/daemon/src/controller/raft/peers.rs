//! Connections to the other voters: a thread for each, with one message under way at a time.
//!
//! openraft waits for an answer for a short time only, and then sends again. A message that nobody waits for any more
//! is not sent; one that is on its way is waited for by the thread, which then takes the next. So a slow voter gets
//! no more than one message at a time, and the asynchronous runtime never blocks.

use super::Types;
use bivouac_proto::raft::RaftRequest;
use openraft::error::{InstallSnapshotError, PayloadTooLarge, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, EmptyNode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Time before a voter that could not be reached is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// Longest message with several entries, bytes: one that is longer goes entry by entry.
const LONGEST: usize = 4 << 20;

/// Carries messages to one voter, blocking.
pub(crate) trait Carrier: Send {
    /// Sends a message and takes the answer, within `limit`. Why not, if not.
    fn carry(&mut self, kind: RaftRequest, message: &[u8], limit: Duration) -> Result<Vec<u8>, String>;
}

/// Makes carriers for voters, by their numbers.
pub(crate) type Carriers = dyn Fn(u64) -> Box<dyn Carrier> + Send + Sync;

struct Letter {
    kind: RaftRequest,
    message: Vec<u8>,
    until: Instant,
    answer: oneshot::Sender<Result<Vec<u8>, String>>,
}

struct Peer {
    letters: mpsc::Sender<Letter>,
    answered: Arc<Mutex<Option<Instant>>>,
}

/// The threads.
#[derive(Clone)]
pub(crate) struct Peers {
    shared: Arc<Shared>,
}

struct Shared {
    carriers: Box<Carriers>,
    peers: Mutex<Option<HashMap<u64, Peer>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    pub(crate) fn new(carriers: Box<Carriers>) -> Peers {
        let peers = Mutex::new(Some(HashMap::new()));
        Peers { shared: Arc::new(Shared { carriers, peers, threads: Mutex::default() }) }
    }

    /// When a voter has last answered anything.
    pub(crate) fn answered(&self, voter: u64) -> Option<Instant> {
        let peers = lock(&self.shared.peers);
        *lock(&peers.as_ref()?.get(&voter)?.answered)
    }

    /// Ends the threads; what is under way is waited for.
    pub(crate) fn stop(&self) {
        *lock(&self.shared.peers) = None;
        let threads = std::mem::take(&mut *lock(&self.shared.threads));
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// How many of these voters would vote for a new leader, as they say within `limit`.
    pub(crate) async fn canvass(&self, voters: &[u64], limit: Duration) -> usize {
        let until = Instant::now() + limit;
        let mut asked = Vec::new();
        for voter in voters {
            let (answer, answered) = oneshot::channel();
            let letter = Letter { kind: RaftRequest::Canvass, message: Vec::new(), until, answer };
            if self.send(*voter, letter).is_ok() {
                asked.push(answered);
            }
        }
        let mut yes = 0;
        for answered in asked {
            let answer = tokio::time::timeout_at(until.into(), answered).await;
            yes += usize::from(matches!(answer, Ok(Ok(Ok(said))) if said == [1]));
        }
        yes
    }

    /// Hands a letter to the thread of a voter, which is started if there is none.
    fn send(&self, voter: u64, letter: Letter) -> std::io::Result<()> {
        let mut peers = lock(&self.shared.peers);
        let peers = peers.as_mut().ok_or_else(|| std::io::Error::other("this voter stops"))?;
        let peer = match peers.entry(voter) {
            Slot::Occupied(peer) => peer.into_mut(),
            Slot::Vacant(slot) => {
                let (letters, given) = mpsc::channel::<Letter>();
                let answered = Arc::<Mutex<Option<Instant>>>::default();
                let (note, mut carrier) = (answered.clone(), (self.shared.carriers)(voter));
                let work = move || given.iter().for_each(|letter| deliver(&mut *carrier, letter, &note));
                let thread = std::thread::Builder::new().name(format!("raft-{voter}"));
                lock(&self.shared.threads).push(thread.stack_size(512 << 10).spawn(work)?);
                slot.insert(Peer { letters, answered })
            }
        };
        peer.letters.send(letter).map_err(|_| std::io::Error::other("this voter stops"))
    }
}

fn deliver(carrier: &mut dyn Carrier, letter: Letter, answered: &Mutex<Option<Instant>>) {
    let left = letter.until.saturating_duration_since(Instant::now());
    if left.is_zero() || letter.answer.is_closed() {
        return;
    }
    let answer = carrier.carry(letter.kind, &letter.message, left);
    if answer.is_ok() {
        *lock(answered) = Some(Instant::now());
    }
    let _ = letter.answer.send(answer);
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Line;

    async fn new_client(&mut self, target: u64, _: &EmptyNode) -> Line {
        Line { peers: self.clone(), target }
    }
}

/// The way to one voter.
pub(crate) struct Line {
    peers: Peers,
    target: u64,
}

type Failed<E> = RPCError<u64, EmptyNode, RaftError<u64, E>>;

impl Line {
    /// One message, one answer.
    async fn ask<Q, A, E>(&self, kind: RaftRequest, request: Q, option: RPCOption) -> Result<A, Failed<E>>
    where
        Q: Serialize,
        A: DeserializeOwned,
        E: DeserializeOwned + std::error::Error,
    {
        let mut message = Vec::new();
        bivouac_proto::encode(&request, &mut message);
        let (answer, answered) = oneshot::channel();
        let until = Instant::now() + option.hard_ttl();
        // Of all errors this one has openraft wait a moment before it tries again.
        let lost = |cause: String| RPCError::Unreachable(Unreachable::new(&AnyError::error(cause)));
        let letter = Letter { kind, message, until, answer };
        self.peers.send(self.target, letter).map_err(|e| lost(e.to_string()))?;
        let answer = answered.await.map_err(|_| lost("nobody answered in time".into()))?.map_err(lost)?;
        let answer: Result<A, RaftError<u64, E>> =
            bivouac_proto::decode(&answer).map_err(|e| lost(e.to_string()))?;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }
}

fn length(message: &impl Serialize) -> usize {
    let mut bytes = Vec::new();
    bivouac_proto::encode(message, &mut bytes);
    bytes.len()
}

impl RaftNetwork<Types> for Line {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, EmptyNode, RaftError<u64>>> {
        if rpc.entries.len() > 1 && length(&rpc) > LONGEST {
            return Err(RPCError::PayloadTooLarge(PayloadTooLarge::new_entries_hint(1)));
        }
        self.ask(RaftRequest::Append, rpc, option).await
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RPCError<u64, EmptyNode, RaftError<u64, InstallSnapshotError>>>
    {
        self.ask(RaftRequest::Snapshot, rpc, option).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, EmptyNode, RaftError<u64>>> {
        self.ask(RaftRequest::Vote, rpc, option).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(AGAIN))
    }
}
