//! Telling participants of decisions a moment later.
//!
//! A request that removes a name can be answered as soon as the decision is logged. The participants only
//! have to drop the inode that the name led to. Until they hear of the decision they keep it locked
//! ([`crate::shard::Key::Leaving`]), and requests that look at it wait. A new directory exists at its
//! participant, without a name, from when it was prepared. So removals and mkdir need not wait until the
//! participants have heard. Their decisions are collected for [`LINGER`] and sent in one message to each
//! participant.
//!
//! Nothing depends on this queue: decisions are in the log, and the keeper tells participants again that have
//! not heard.

use crate::shard::Shard;
use crate::store::{Core, Outside, lock};
use bivouac_layout::ServerId;
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
    due: BTreeMap<ServerId, Vec<IntentId>>,
    stop: bool,
}

impl Teller {
    pub(crate) fn stop(&self) {
        lock(&self.news).stop = true;
        self.wake.notify_one();
    }

    fn add(&self, intent: IntentId, servers: &[ServerId]) {
        let mut news = lock(&self.news);
        let wake = news.due.is_empty();
        for server in servers {
            news.due.entry(*server).or_default().push(intent);
        }
        drop(news);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Waits until there is something to tell, and returns it. `None`: stop.
    fn next(&self) -> Option<BTreeMap<ServerId, Vec<IntentId>>> {
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

impl<O: Outside> Core<O> {
    /// Tells participants of a decision that [can wait](can_wait): this server at once, others soon.
    pub(crate) fn tell_later(&self, id: IntentId, participants: &[ServerId]) {
        let me = self.outside.me();
        let others: Vec<ServerId> = participants.iter().copied().filter(|server| *server != me).collect();
        if others.len() < participants.len() {
            self.tell(me, &[id]);
        }
        if !others.is_empty() {
            self.teller.add(id, &others);
        }
    }

    /// Tells participants of decisions until the store is closed.
    pub(crate) fn tell_always(&self) {
        while let Some(due) = self.teller.next() {
            for (server, intents) in due {
                self.tell(server, &intents);
            }
        }
    }

    /// Tells one participant of decisions of this server. Says whether it heard them; if not, the keeper goes
    /// on.
    pub(crate) fn tell(&self, server: ServerId, intents: &[IntentId]) -> bool {
        let heard = self.ask(server, &PeerRequest::Commit { intents: intents.to_vec() }).is_ok();
        if heard {
            for id in intents {
                let _ = self.partitions.with(id.shard, |locked| {
                    heard_by(locked.shard, id.number, server);
                    Ok(())
                });
            }
        } else {
            self.keeper.watch();
        }
        heard
    }
}

fn heard_by(shard: &mut Shard, number: u64, server: ServerId) {
    if let Some(deaf) = shard.decisions.get_mut(&number) {
        deaf.retain(|other| *other != server);
        if deaf.is_empty() {
            shard.decisions.remove(&number);
            shard.concluded.push(number);
        }
    }
}
