//! When a random deal counts as fair, for the tests of placement.

/// Bounds for a fair distribution: `n` things are dealt at random to `bins` bins, each of which gets a thing
/// with probability `p`. In all but 0.1 % of such deals, every bin has at least the first and at most the
/// second number of things. (These are exact binomial quantiles; the 0.1 % are divided among both tails of
/// all bins.)
pub(crate) fn bounds(n: u32, p: f64, bins: usize) -> (u32, u32) {
    let tail = 0.001 / (2.0 * bins as f64);
    if p >= 1.0 {
        return (n, n);
    }
    // Logarithms of the probabilities of 0, 1, 2... of n, each from the one before.
    let mut log = f64::from(n) * (-p).ln_1p();
    let mut cumulative = 0.0;
    let (mut least, mut most) = (None, n);
    for k in 0..=n {
        cumulative += log.exp();
        if cumulative > tail && least.is_none() {
            least = Some(k);
        }
        if cumulative >= 1.0 - tail {
            most = k;
            break;
        }
        log += (f64::from(n - k) / f64::from(k + 1)).ln() + p.ln() - (-p).ln_1p();
    }
    (least.unwrap_or(0), most)
}

/// Fails unless `counts`, of things dealt with the probabilities `shares`, are within the bounds of a fair
/// deal.
pub(crate) fn assert_fair(what: &str, counts: &[u32], shares: &[f64]) {
    let n = counts.iter().sum();
    for (bin, (count, share)) in counts.iter().zip(shares).enumerate() {
        let (least, most) = bounds(n, *share, counts.len());
        assert!(
            (least..=most).contains(count),
            "{what}: {bin} has {count} of {n}, fair is {least} to {most}"
        );
    }
}

#[test]
fn bounds_are_those_of_the_binomial_distribution() {
    // One coin, 10 throws: below 0.05 % are 0 (1/1024 is above), so all results are fair for one bin at 0.1
    // %...
    assert_eq!(bounds(10, 0.5, 1), (0, 10));
    // ...and with 12 throws 0 and 12 are not (1/4096 each).
    assert_eq!(bounds(12, 0.5, 1), (1, 11));
    // Large: near the normal distribution's 3.29 standard deviations (50 x 3.29 = 164.5).
    let (least, most) = bounds(10_000, 0.5, 1);
    assert!((5000 - least).abs_diff(165) <= 1 && (most - 5000).abs_diff(165) <= 1, "{least} {most}");
    assert_eq!(bounds(10_000, 1.0, 1), (10_000, 10_000));
}
