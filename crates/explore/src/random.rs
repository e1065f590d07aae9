//! Numbers that look random and are the same everywhere for the same seed.

/// A number that looks random, different for each input (SplitMix64's last step, a bijection).
pub fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A number below 1 that looks random.
pub fn share(number: u64) -> f64 {
    (mix(number) >> 11) as f64 / (1u64 << 53) as f64
}

/// The place of `index` in a permutation of the numbers below `count`. `index` is one of these.
///
/// A Feistel network permutes the numbers below a power of four; what comes out above `count` goes in again, which
/// ends, because it goes round a cycle that has `index` in it.
pub fn permuted(index: u64, count: u64, seed: u64) -> u64 {
    let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
    let half = bits.div_ceil(2).max(1);
    let mask = (1u64 << half) - 1;
    let mut number = index;
    loop {
        let (mut left, mut right) = (number >> half, number & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mix(seed ^ (right << 3) ^ round) & mask));
        }
        number = left << half | right;
        if number < count || index >= count {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_number_comes_once(count in 1u64..3000, seed: u64) {
            let mut seen: Vec<u64> = (0..count).map(|index| permuted(index, count, seed)).collect();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..count));
        }

        #[test]
        fn large_counts_stay_in_their_range(count in 1u64..1 << 60, at: u64, seed: u64) {
            prop_assert!(permuted(at % count, count, seed) < count);
        }
    }
}
