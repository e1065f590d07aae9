//! Decisions that participants hear a moment later.
//!
//! What removes a name is over for its caller once the decision is logged: the participants only have to
//! forget what the name was for, and hold it until they hear of it ([`crate::shard::Key::Leaving`]: whoever
//! looks at it there waits). A directory that is made is there, nameless, since it was promised. So removals
//! and mkdir do not wait for that hop; their decisions are collected for [`LINGER`] and go out in one message
//! for each participant.
//!
//! Nothing depends on the queue: decisions are in the log, and the keeper tells again what was not heard.

use crate::shard::Shard;
use crate::store::{Core, Outside, lock};
use bivouac_layout::ServerId;
use bivouac_proto::peer::{IntentId, PeerRequest, Step};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long decisions are collected: as long as somebody may have to wait who looks at what was removed.
const LINGER: Duration = Duration::from_millis(1);

/// What is to be told. Its mutex is taken for moments, under no other lock.
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

    /// What is due, once there is something; `None`: stop.
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

/// Whether a participant may hear of the decision about such a step later.
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

    /// Tells what is due until the store is closed.
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
