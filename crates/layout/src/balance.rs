//! Assigning shards to servers.
//!
//! Each of `n` servers holds `SHARDS / n` shards, or one more. When the list of servers changes, shards move
//! only from servers that left or hold too many to servers that hold too few: the fewest that balance asks
//! for.

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn servers(numbers: impl IntoIterator<Item = u16>) -> Vec<ServerId> {
        numbers.into_iter().map(ServerId).collect()
    }

    fn held(dealt: &[ServerId], server: ServerId) -> usize {
        dealt.iter().filter(|owner| **owner == server).count()
    }

    /// Complete, only to `servers`, and within one of each other.
    fn check_balance(dealt: &[ServerId], servers: &[ServerId]) {
        assert_eq!(dealt.len(), usize::from(SHARDS));
        let loads: Vec<usize> = servers.iter().map(|s| held(dealt, *s)).collect();
        assert_eq!(loads.iter().sum::<usize>(), dealt.len());
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least <= 1, "{least} to {most}");
    }

    fn moved(before: &[ServerId], after: &[ServerId]) -> usize {
        before.iter().zip(after).filter(|(b, a)| b != a).count()
    }

    /// Sizes of interest: all small ones, and some that do not divide, or exceed, the number of shards.
    fn sizes() -> impl Iterator<Item = u16> {
        (1..70).chain([127, 128, 129, 1000, 2047, 2048, 3000, 4095, 4096, 4097, 5000])
    }

    #[test]
    fn a_first_deal_is_balanced_and_mixes_neighbours() {
        for n in sizes() {
            let all = servers(0..n);
            let dealt = deal(&[], &all);
            check_balance(&dealt, &all);
            if n > 1 {
                assert!(dealt.windows(2).all(|w| w[0] != w[1]), "{n} servers");
            }
        }
    }

    #[test]
    fn a_new_server_gets_its_share_and_nothing_else_moves() {
        for n in sizes() {
            let before = deal(&[], &servers(0..n));
            let all = servers(0..=n);
            let after = deal(&before, &all);
            check_balance(&after, &all);
            let share = held(&after, ServerId(n));
            assert_eq!(share, usize::from(SHARDS / (n + 1)), "no more than balance asks for");
            assert_eq!(moved(&before, &after), share);
        }
    }

    #[test]
    fn a_leaving_servers_shards_move_and_no_others() {
        for n in sizes().filter(|n| *n > 1) {
            let before = deal(&[], &servers(0..n));
            for gone in [0, n / 2, n - 1] {
                let rest = servers((0..n).filter(|s| *s != gone));
                let after = deal(&before, &rest);
                check_balance(&after, &rest);
                assert_eq!(moved(&before, &after), held(&before, ServerId(gone)), "{gone} leaves {n}");
            }
        }
    }

    #[test]
    fn nothing_moves_when_nothing_changes() {
        for n in sizes() {
            let all = servers(0..n);
            let before = deal(&[], &all);
            let reversed: Vec<ServerId> = all.iter().rev().copied().collect();
            assert_eq!(deal(&before, &all), before);
            assert_eq!(deal(&before, &reversed), before, "nor when they are listed in another order");
        }
    }

    #[test]
    fn without_servers_nothing_is_dealt() {
        assert!(deal(&[], &[]).is_empty());
        assert!(deal(&deal(&[], &servers(0..3)), &[]).is_empty());
    }

    #[test]
    fn values_never_change() {
        let dealt = deal(&deal(&[], &servers(0..3)), &servers(1..5));
        let summary: u64 = dealt.iter().fold(0, |sum, s| sum.wrapping_mul(31).wrapping_add(u64::from(s.0)));
        assert_eq!(summary, 13_210_740_586_937_014);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        #[test]
        fn any_history_ends_balanced_with_the_fewest_moves(
            steps in prop::collection::vec(prop::collection::btree_set(0u16..40, 1..40), 1..8),
        ) {
            let mut dealt = Vec::new();
            for step in steps {
                let all = servers(step);
                let after = deal(&dealt, &all);
                check_balance(&after, &all);
                if !dealt.is_empty() {
                    // No balanced deal can keep more: each server keeps what it has, up to a share (and as
                    // many as possible up to one more).
                    let floor = usize::from(SHARDS) / all.len();
                    let loads: Vec<usize> = all.iter().map(|s| held(&dealt, *s)).collect();
                    let above = loads.iter().filter(|load| **load > floor).count();
                    let extra = (usize::from(SHARDS) % all.len()).min(above);
                    let keep = loads.iter().map(|load| load.min(&floor)).sum::<usize>() + extra;
                    prop_assert_eq!(moved(&dealt, &after), usize::from(SHARDS) - keep);
                }
                dealt = after;
            }
        }

        #[test]
        fn odd_input_does_not_panic(
            current in prop::collection::vec(any::<u16>(), 0..9000),
            all in prop::collection::vec(0u16..20, 0..30),
        ) {
            let dealt = deal(&servers(current), &servers(all.iter().copied()));
            prop_assert!(dealt.iter().all(|s| all.contains(&s.0)));
        }
    }
}
