//! What was answered before: a request is carried out once, however often it is sent.

use crate::error::{Op, Stop};
use crate::mutation::Mutation;
use crate::shard::Shard;
use crate::store::{Caller, Core};
use bivouac_layout::ShardId;
use bivouac_proto::header::RequestId;
use bivouac_proto::status::Failure;
use bivouac_proto::{Refusal, Reply};

impl Core {
    /// Does something once for each request identity: repeated, it is answered again; under way, waited for.
    /// (Operations that run under one lock from end to end need only [`repeated`].)
    pub(crate) fn once(
        &self,
        caller: &Caller,
        shard: ShardId,
        work: impl FnOnce() -> Result<Reply, Failure>,
    ) -> Result<Reply, Failure> {
        let slot = (caller.id.session, caller.id.slot);
        if caller.id.session == 0 {
            return work();
        }
        let before = self.partitions.with(shard, |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                return Ok(Some(reply));
            }
            locked.shard.running.insert(slot);
            Ok(None)
        })?;
        if let Some(reply) = before {
            return Ok(reply);
        }
        let result = work();
        self.partitions.with(shard, |locked| {
            locked.shard.running.remove(&slot);
            locked.changed();
            Ok(())
        })?;
        result
    }
}

/// The answer to a request that was done before. Waits while it is being done.
pub(crate) fn repeated(shard: &Shard, id: &RequestId) -> Op<Option<Reply>> {
    if id.session == 0 {
        return Ok(None);
    }
    let slot = (id.session, id.slot);
    if !shard.running.is_empty() && shard.running.contains(&slot) {
        return Err(Stop::Wait);
    }
    match shard.answers.get(&slot) {
        Some(answer) if answer.sequence == id.sequence => Ok(Some(answer.reply()?)),
        // The client has gone on to a later request: nobody waits for this answer, and the request must not
        // be carried out.
        Some(answer) if answer.sequence > id.sequence => Err(Refusal::Busy.into()),
        _ => Ok(None),
    }
}

impl Shard {
    /// Whether this is the answer to a request that was answered already, or to one before that.
    pub(crate) fn has_answered_as_late(&self, mutation: &Mutation) -> bool {
        let Mutation::PutAnswer(session, slot, answer) = mutation else { return false };
        self.answers.get(&(*session, *slot)).is_some_and(|known| known.sequence >= answer.sequence)
    }
}
