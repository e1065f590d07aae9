//! What a policy does: a pure function from what was seen, the limits, and what is remembered to an action.
//!
//! It promises that
//! - the number of servers never leaves the limits by an action;
//! - nothing is done while anything else is under way, nor before things have been quiet for the settling time since;
//! - under a constant load it comes to rest: servers are taken away only if those that stay would then be halfway at
//!   most between the limit below which it shrinks and the one above which it grows, so that it does not grow again.
//!
//! It grows because of the fullest storage, not because of the mean: where one server is full, programs get ENOSPC. If
//! growing has not helped that server (all of it is one file of one server), it does not grow again for the same reason.

use bivouac_layout::ServerId;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::time::Duration;

/// A learned limit of a server's bandwidth counts from here on, bytes per second: who only ever saw little does not know
/// the limit. It is what a link of 1 Gbit/s carries, roughly.
pub const LEARNED_LEAST: u64 = 100 << 20;
/// A growth has helped the fullest storage if that is so many thousandths less full afterwards.
const HELPED: u64 = 10;

/// What may be done, and when.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Limits {
    /// It grows when a storage is so full or fuller, percent.
    pub grow_above: u8,
    /// It shrinks when everything together is less full and less busy than this, percent; `None`: it never shrinks.
    pub shrink_below: Option<u8>,
    /// It grows when a server transfers so much of what it can, percent; `None`: it does not grow for that.
    pub busy_above: Option<u8>,
    /// What a server can transfer in each direction, bytes per second; `None`: the most that any was seen to transfer.
    pub link: Option<u64>,
    /// Fewest servers.
    pub min: u16,
    /// Most servers.
    pub max: u16,
    /// Most servers that are added at a time.
    pub step: u16,
    /// So long servers have to be busy, seconds.
    pub busy_for: u64,
    /// So long there have to be too many servers, seconds.
    pub idle_for: u64,
    /// So long it waits after anything was changed, seconds.
    pub settle: u64,
}

/// One server, as it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// Which.
    pub id: ServerId,
    /// Its storage: an index into [`Sample::pools`].
    pub pool: usize,
    /// Bytes of blocks that it stores.
    pub stored: u64,
    /// What went through it in the busier direction, bytes per second.
    pub rate: u64,
    /// What processes of its node transferred directly likewise.
    pub direct: u64,
    /// It runs on one of the hosts to grow onto.
    pub on_spare: bool,
}

/// A storage: servers of one node may share one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool {
    /// Bytes that can still be stored.
    pub available: u64,
}

/// Something that is under way, or wrong, and that is not disturbed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnderWay {
    /// A server is down, and not given up.
    Down(ServerId),
    /// A server is up by the map, and does not answer.
    Silent(ServerId),
    /// Servers are arriving.
    Arriving,
    /// Servers are leaving.
    Departing,
    /// Files are moving.
    Rebuild,
    /// Shards of the metadata are moving.
    Shards,
    /// Something has too few copies: it is being healed, or a server catches up.
    Copies,
    /// Another command changes the deployment.
    Command,
}

/// What was seen at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// When, since the policy's process began.
    pub at: Duration,
    /// Servers that take part, by number.
    pub servers: Vec<Load>,
    /// Their storages.
    pub pools: Vec<Pool>,
    /// What is not disturbed.
    pub under_way: Option<UnderWay>,
    /// A server was given up, and may come back.
    pub given_up: bool,
    /// How many hosts could get a server now.
    pub spares: usize,
    /// How many copies there are: so many servers have to stay.
    pub copies: u8,
}

/// What is remembered from sample to sample. What is written to a file is what a new process has to know, too.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct State {
    /// The most that any server was seen to transfer in one direction, bytes per second.
    pub most: u64,
    /// How full the fullest storage was, in thousandths, when servers were added for its sake.
    pub grown_for: Option<u64>,
    /// The servers of the last sample.
    #[serde(skip)]
    servers: Vec<ServerId>,
    /// When something was last under way, or the servers others than before.
    #[serde(skip)]
    changed: Duration,
    /// Since when servers are busy.
    #[serde(skip)]
    busy_since: Option<Duration>,
    /// Since when there are too many of them.
    #[serde(skip)]
    idle_since: Option<Duration>,
}

/// Why servers are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The storage of this server is too full.
    Full(ServerId),
    /// This server has been transferring nearly all that it can.
    Busy(ServerId),
}

/// Why servers are not added, although there is a cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// Something else is under way.
    UnderWay(UnderWay),
    /// There are as many servers as there may be.
    Most,
    /// No host is left that could get one.
    NoSpare,
    /// More servers have not helped this one, which is full.
    Uneven(ServerId),
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Servers would be added, and cannot be.
    Blocked(Cause, Obstacle),
    /// So many servers are added.
    Grow {
        /// How many.
        count: usize,
        /// Why.
        cause: Cause,
    },
    /// This server leaves.
    Shrink(ServerId),
}

impl State {
    /// What was decided could not be done: things settle again before it is tried again.
    pub fn failed(&mut self, at: Duration) {
        (self.changed, self.grown_for) = (at, None);
        (self.busy_since, self.idle_since) = (None, None);
    }

    /// What a server can transfer in each direction, bytes per second.
    pub fn link(&self, limits: &Limits) -> u64 {
        limits.link.unwrap_or(self.most.max(LEARNED_LEAST))
    }
}

impl Sample {
    /// The fullest storage, by a server on it, and how full it is, in thousandths.
    pub fn fullest(&self) -> Option<(ServerId, u64)> {
        let full = |pool: usize| {
            let stored = self.stored_on(pool);
            share(stored, stored.saturating_add(self.pools.get(pool).map_or(0, |pool| pool.available)))
        };
        let all = self.servers.iter().map(|server| (server.id, full(server.pool)));
        all.max_by_key(|(server, full)| (*full, Reverse(*server)))
    }

    /// How full all storages are together, in thousandths.
    pub fn together(&self) -> u64 {
        let stored: u64 = self.servers.iter().map(|server| server.stored).sum();
        let available: u64 = self.pools.iter().map(|pool| pool.available).sum();
        share(stored, stored.saturating_add(available))
    }

    /// The server through which most goes.
    pub fn busiest(&self) -> Option<&Load> {
        self.servers.iter().max_by_key(|server| (server.rate, Reverse(server.id)))
    }

    /// The server that leaves first: one that was added lately.
    fn last(&self) -> Option<&Load> {
        self.servers.iter().max_by_key(|server| (server.on_spare, server.id))
    }

    fn stored_on(&self, pool: usize) -> u64 {
        self.servers.iter().filter(|server| server.pool == pool).map(|server| server.stored).sum()
    }

    /// How full the fullest storage would be without a server, in thousandths, if those that stay got equal parts of what
    /// it has.
    fn fullest_without(&self, leaving: &Load) -> u64 {
        let staying = self.servers.len().saturating_sub(1).max(1) as u64;
        let of_pool = |(number, pool): (usize, &Pool)| {
            let stays = |server: &&Load| server.pool == number && server.id != leaving.id;
            let count = self.servers.iter().filter(stays).count() as u64;
            let kept: u64 = self.servers.iter().filter(stays).map(|server| server.stored).sum();
            let gets = leaving.stored.saturating_mul(count).div_ceil(staying);
            let all = self.stored_on(number).saturating_add(pool.available);
            (count > 0).then(|| share(kept.saturating_add(gets), all))
        };
        self.pools.iter().enumerate().filter_map(of_pool).max().unwrap_or(1000)
    }
}

/// A part of a whole in thousandths; of nothing, all.
fn share(part: u64, whole: u64) -> u64 {
    match whole {
        0 => 1000,
        _ => (u128::from(part) * 1000 / u128::from(whole)) as u64,
    }
}

/// Decides.
pub fn decide(limits: &Limits, mut state: State, sample: &Sample) -> (State, Action) {
    let numbers: Vec<ServerId> = sample.servers.iter().map(|server| server.id).collect();
    let is_full = sample.fullest().filter(|(_, full)| *full >= permille(limits.grow_above));
    if sample.under_way.is_some() || state.servers != numbers {
        (state.servers, state.changed) = (numbers, sample.at);
        (state.busy_since, state.idle_since) = (None, None);
        let action = match (is_full, &sample.under_way) {
            (Some((server, _)), Some(other)) => {
                Action::Blocked(Cause::Full(server), Obstacle::UnderWay(other.clone()))
            }
            _ => Action::Nothing,
        };
        return (state, action);
    }
    state.most = state.most.max(sample.busiest().map_or(0, |server| server.rate));
    let link = state.link(limits);
    let is_busy = |above: u8| {
        let busiest = sample.busiest()?;
        (share(busiest.rate, link) >= permille(above)).then_some(busiest.id)
    };
    let busy = limits.busy_above.and_then(is_busy);
    state.busy_since = busy.and(state.busy_since.or(Some(sample.at)));
    let leaving = limits.shrink_below.and_then(|below| too_many(limits, below, link, sample));
    state.idle_since = leaving.and(state.idle_since.or(Some(sample.at)));
    if is_full.is_none() {
        state.grown_for = None;
    }
    let for_long = |since: Option<Duration>, least: u64| {
        since.is_some_and(|since| sample.at.saturating_sub(since) >= Duration::from_secs(least))
    };
    if !for_long(Some(state.changed), limits.settle) {
        return (state, Action::Nothing);
    }
    let busy = busy.filter(|_| for_long(state.busy_since, limits.busy_for));
    let cause = is_full.map(|(server, _)| Cause::Full(server)).or(busy.map(Cause::Busy));
    let action = match (cause, leaving) {
        (Some(cause), _) => grow(limits, &mut state, sample, cause),
        (None, Some(server)) if for_long(state.idle_since, limits.idle_for) => Action::Shrink(server),
        _ => Action::Nothing,
    };
    (state, action)
}

fn permille(percent: u8) -> u64 {
    u64::from(percent) * 10
}

/// Servers are added, if that is possible.
fn grow(limits: &Limits, state: &mut State, sample: &Sample, cause: Cause) -> Action {
    let room = usize::from(limits.max).saturating_sub(sample.servers.len());
    let count = room.min(sample.spares).min(usize::from(limits.step));
    let full = sample.fullest().map_or(0, |(_, full)| full);
    // If all are as full as that together, more of them help.
    let is_uneven = sample.together() < permille(limits.grow_above);
    let has_not_helped = state.grown_for.is_some_and(|before| full + HELPED > before);
    match cause {
        _ if room == 0 => Action::Blocked(cause, Obstacle::Most),
        Cause::Full(server) if is_uneven && has_not_helped => {
            Action::Blocked(cause, Obstacle::Uneven(server))
        }
        _ if count == 0 => Action::Blocked(cause, Obstacle::NoSpare),
        _ => {
            state.grown_for = matches!(cause, Cause::Full(_)).then_some(full);
            Action::Grow { count, cause }
        }
    }
}

/// The server that can be done without, if there is one.
fn too_many(limits: &Limits, below: u8, link: u64, sample: &Sample) -> Option<ServerId> {
    let leaving = sample.last()?;
    let staying = sample.servers.len() - 1;
    if staying < usize::from(limits.min.max(sample.copies.into()).max(1)) || sample.given_up {
        return None;
    }
    let below_limit = permille(below);
    let transfers = |server: &Load| share(server.rate.saturating_add(server.direct), link);
    let is_little = sample.together() < below_limit
        && sample.servers.iter().all(|server| transfers(server) < below_limit);
    // Halfway between the limits, so that it does not grow again.
    let halfway = |above: u8| (permille(above) + below_limit) / 2;
    let rates = sample.servers.iter().map(|server| server.rate).sum::<u64>();
    let rate = rates.saturating_add(leaving.direct) / staying as u64;
    let would_do = sample.fullest_without(leaving) <= halfway(limits.grow_above)
        && limits.busy_above.is_none_or(|above| share(rate, link) <= halfway(above));
    (is_little && would_do).then_some(leaving.id)
}

#[cfg(test)]
mod tests;
