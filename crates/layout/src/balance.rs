//! Dealing shards to servers.
//!
//! Each of `n` servers holds `SHARDS / n` shards, or one more. When the list of servers changes, shards move only
//! from servers that left or hold too many to servers that hold too few: the fewest that balance asks for.

use crate::ids::{SHARDS, ServerId};

/// Deals all shards to `servers`, keeping each where `current` has it as far as balance allows. `current` is
/// empty, or has one entry a shard. The result has one entry a shard, or is empty when there are no servers.
pub fn deal(current: &[ServerId], servers: &[ServerId]) -> Vec<ServerId> {
    if servers.is_empty() {
        return Vec::new();
    }
    let floor = SHARDS as usize / servers.len();
    let mut extra = SHARDS as usize % servers.len();
    let mut held: Vec<Vec<usize>> = vec![Vec::new(); servers.len()];
    let mut homeless: Vec<usize> = Vec::new();
    for shard in 0..SHARDS as usize {
        match current.get(shard).and_then(|owner| servers.iter().position(|s| s == owner)) {
            Some(position) => held[position].push(shard),
            None => homeless.push(shard),
        }
    }
    // Those that hold the most keep the one more that not everybody can have: that moves the fewest.
    let mut by_load: Vec<usize> = (0..servers.len()).collect();
    by_load.sort_by_key(|&i| std::cmp::Reverse(held[i].len()));
    let mut quota = vec![floor; servers.len()];
    for &i in &by_load {
        if extra > 0 {
            quota[i] += 1;
            extra -= 1;
        }
        let keep = quota[i].min(held[i].len());
        homeless.extend(held[i].drain(keep..));
    }
    let mut dealt = vec![servers[0]; SHARDS as usize];
    let mut homeless = homeless.into_iter();
    // Round by round, so that a first deal gives neighbouring shards to different servers.
    while homeless.len() > 0 {
        for i in 0..servers.len() {
            if held[i].len() < quota[i] {
                held[i].extend(homeless.next());
            }
        }
    }
    for (i, shards) in held.iter().enumerate() {
        for &shard in shards {
            dealt[shard] = servers[i];
        }
    }
    dealt
}
