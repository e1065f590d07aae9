//! Telling participants of decisions a moment later.
//!
//! A request that removes a name can be answered as soon as the decision is logged. The participants only
//! have to drop the inode that the name led to. Until they hear of the decision they keep it locked
//! ([`crate::shard::Key::Leaving`]), and requests that look at it wait. A new directory exists at its
//! participant, without a name, from when it was prepared. So removals and mkdir need not wait until the
//! participants have heard. Their decisions are collected for [`LINGER`] and sent in one message to each
//! server.
//!
//! Nothing depends on this queue: decisions are in the log, and the keeper tells participants again that have
//! not heard.

use crate::shard::Shard;
use crate::store::{Core, lock};
use bivouac_layout::{ServerId, ShardId};
use bivouac_proto::peer::{IntentId, PeerRequest, Step};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long decisions are collected. A request that looks at something that was just removed may have to wait
/// so long.
const LINGER: Duration = Duration::from_millis(1);

/// What participants have to be told. Its mutex is held only for moments, and never taken while another lock
/// is held.
#[derive(Debug, Default)]
pub(crate) struct Teller {
    news: Mutex<News>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct News {
    /// Intents, each with a shard that takes part.
    due: Vec<(IntentId, ShardId)>,
    stop: bool,
}

impl Teller {
    pub(crate) fn stop(&self) {
        lock(&self.news).stop = true;
        self.wake.notify_one();
    }

    fn add(&self, intent: IntentId, participants: &[ShardId]) {
        let mut news = lock(&self.news);
        let wake = news.due.is_empty();
        news.due.extend(participants.iter().map(|shard| (intent, *shard)));
        drop(news);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Waits until there is something to tell, and returns it. `None`: stop.
    fn next(&self) -> Option<Vec<(IntentId, ShardId)>> {
        let mut news = lock(&self.news);
        while news.due.is_empty() && !news.stop {
            news = self.wake.wait(news).unwrap_or_else(PoisonError::into_inner);
        }
        if !news.stop {
            drop(news);
            std::thread::sleep(LINGER);
            news = lock(&self.news);
        }
        let due = std::mem::take(&mut news.due);
        (!due.is_empty()).then_some(due)
    }
}

/// Whether the participant of such a step may be told of the decision later.
pub(crate) fn can_wait(step: &Step) -> bool {
    matches!(
        step,
        Step::RemoveEntry { .. }
            | Step::RemoveDirectory { .. }
            | Step::RemoveParts { .. }
            | Step::DropLink { .. }
            | Step::MakeDirectory { .. }
    )
}

impl Core {
    /// Tells participants of a decision that [can wait](can_wait): shards of this server at once, others soon.
    pub(crate) fn tell_later(&self, id: IntentId, participants: &[ShardId]) {
        let (own, others): (Vec<ShardId>, Vec<ShardId>) =
            participants.iter().partition(|shard| self.is_mine(**shard));
        if !own.is_empty() {
            self.tell_commit(id, &own);
        }
        if !others.is_empty() {
            self.teller.add(id, &others);
        }
    }

    /// Tells participants of decisions until the store is closed.
    pub(crate) fn tell_always(&self) {
        while let Some(due) = self.teller.next() {
            self.tell(&due);
        }
    }

    /// Tells participants of decisions of this server's shards, with one message to each server. Says whether all
    /// heard them; if not, the keeper goes on.
    pub(crate) fn tell(&self, decided: &[(IntentId, ShardId)]) -> bool {
        let map = self.outside.map();
        let mut by_server: BTreeMap<ServerId, Vec<(IntentId, ShardId)>> = BTreeMap::new();
        for (intent, participant) in decided {
            by_server.entry(map.primary(*participant)).or_default().push((*intent, *participant));
        }
        let mut all = true;
        for (server, intents) in by_server {
            let request = PeerRequest::Commit { intents };
            let heard = self.ask(server, &request).is_ok();
            all &= heard;
            let PeerRequest::Commit { intents } = request else { continue };
            for (intent, participant) in intents.into_iter().filter(|_| heard) {
                let _ = self.partitions.with(intent.shard, |locked| {
                    heard_by(locked.shard, intent.number, participant);
                    Ok(())
                });
            }
        }
        if !all {
            self.keeper.watch();
        }
        all
    }
}

fn heard_by(shard: &mut Shard, number: u64, participant: ShardId) {
    if let Some(deaf) = shard.untold.get_mut(&number) {
        deaf.retain(|other| *other != participant);
        if deaf.is_empty() {
            shard.untold.remove(&number);
            shard.concluded.push(number);
        }
    }
}
