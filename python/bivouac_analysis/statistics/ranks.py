"""Rank tests: Kruskal-Wallis, Dunn, the exact Mann-Whitney test, and Holm's correction.

Bandwidths are not normally distributed (others use the storage, too), so groups are compared by ranks. Kruskal-Wallis says whether
any of several groups differs. Dunn's test and the Mann-Whitney test then say which pairs differ. Many pairs are compared at once, so
Holm's correction keeps the probability of even one false difference below the level of significance.

All p-values are two-sided. FORGE's paper uses the one-sided p-values of Dunn's test and rejects at half the level, which is the same.
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
from scipy import stats

Group = Sequence[float] | np.ndarray
Groups = Sequence[Group]

# The exact distribution is computed over all ways to divide the values of two groups, if some are equal. Up to this many.
MOST_DIVISIONS = 20_000
# Above so many values in a group the exact distribution takes long, and nobody could tell it from the normal one.
MOST_EXACT = 100


def pairs(count: int) -> list[tuple[int, int]]:
    """All pairs of so many groups, by their indices, in the order in which the tests below return their p-values."""
    return list(combinations(range(count), 2))


def kruskal_wallis(groups: Groups) -> tuple[float, float]:
    """The statistic H, corrected for ties, and its p-value after the chi-square distribution."""
    values = np.concatenate([np.asarray(group, dtype=float) for group in groups])
    if np.all(values == values[0]):
        return 0.0, 1.0  # There is no difference, and H would be 0/0.
    h, p = stats.kruskal(*groups)
    return float(h), float(p)


def dunn(groups: Groups) -> np.ndarray:
    """The p-values of Dunn's test for all pairs, corrected for ties but not for their number (see `holm`)."""
    sizes = np.array([len(group) for group in groups])
    total = int(sizes.sum())
    values = np.concatenate([np.asarray(group, dtype=float) for group in groups])
    ranks = stats.rankdata(values)
    means = np.array([part.mean() for part in np.split(ranks, np.cumsum(sizes)[:-1])])
    _, equal = np.unique(values, return_counts=True)
    ties = float((equal.astype(float) ** 3 - equal).sum()) / (12 * (total - 1)) if total > 1 else 0.0
    variance = total * (total + 1) / 12 - ties
    if variance <= 0:
        return np.ones(comb(len(groups), 2))  # All values are equal.
    first, second = np.array(pairs(len(groups))).T
    z = np.abs(means[first] - means[second]) / np.sqrt(variance * (1 / sizes[first] + 1 / sizes[second]))
    return np.asarray(2 * stats.norm.sf(z))


def mann_whitney(one: Group, other: Group) -> float:
    """The exact p-value of the Mann-Whitney test, also where values are equal.

    Groups that are too large for that (see the limits above) are compared with the normal approximation, which is corrected for ties.
    """
    values = np.concatenate([one, other])
    if np.all(values == values[0]):
        return 1.0
    if len(np.unique(values)) == len(values) and max(len(one), len(other)) <= MOST_EXACT:
        method: object = "exact"
    elif comb(len(values), len(one)) <= MOST_DIVISIONS:
        # It takes each division once, if there are no more than that.
        method = stats.PermutationMethod(n_resamples=MOST_DIVISIONS)
    else:
        method = "asymptotic"
    return min(1.0, float(stats.mannwhitneyu(one, other, alternative="two-sided", method=method).pvalue))


def mann_whitney_pairs(groups: Groups) -> np.ndarray:
    """The p-values of the exact Mann-Whitney test for all pairs, not corrected for their number (see `holm`)."""
    return np.array([mann_whitney(groups[one], groups[other]) for one, other in pairs(len(groups))])


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's correction: p-values that can be compared with the level of significance although there are many."""
    count = len(p_values)
    order = np.argsort(p_values, kind="stable")
    stepped = p_values[order] * np.arange(count, 0, -1)
    corrected = np.empty(count)
    corrected[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return corrected
