"""The rank tests, compared with scipy and scikit-posthocs on the same numbers."""

from itertools import combinations

import numpy as np
import pytest
import scikit_posthocs
from scipy import stats

from bivouac_analysis.statistics.ranks import MOST_EXACT, dunn, holm, kruskal_wallis, mann_whitney, mann_whitney_pairs, pairs


def groups_with(ties: bool, seed: int) -> list[np.ndarray]:
    """Groups of different sizes, which are shifted against each other."""
    rng = np.random.default_rng(seed)
    sizes = (5, 9, 7, 12)
    draw = (lambda n, shift: rng.integers(0, 8, n) + shift) if ties else (lambda n, shift: rng.normal(shift, 2, n))
    return [np.asarray(draw(n, shift), dtype=float) for shift, n in zip((0, 3, 4, 8), sizes, strict=True)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("adjust", [None, "holm"])
def test_dunn_and_holm_agree_with_scikit_posthocs(ties: bool, seed: int, adjust: str | None) -> None:
    groups = groups_with(ties, seed)
    expected = scikit_posthocs.posthoc_dunn(groups, p_adjust=adjust).to_numpy()
    found = dunn(groups) if adjust is None else holm(dunn(groups))
    assert found == pytest.approx([expected[one, other] for one, other in combinations(range(4), 2)], rel=1e-9)
    assert found.min() < 0.05, "the numbers should show a difference, or the test says little"


@pytest.mark.parametrize("ties", [False, True])
def test_kruskal_wallis_agrees_with_scipy(ties: bool) -> None:
    groups = groups_with(ties, 1)
    h, p = stats.kruskal(*groups)
    assert kruskal_wallis(groups) == (pytest.approx(h), pytest.approx(p))


def test_equal_values_show_no_difference() -> None:
    groups = [[5.0] * 4] * 3
    assert kruskal_wallis(groups) == (0.0, 1.0)
    assert list(dunn(groups)) == [1.0] * 3
    assert list(mann_whitney_pairs(groups)) == [1.0] * 3
    assert list(dunn([[1.0], [1.0]])) == [1.0]


def test_mann_whitney_is_exact_without_ties() -> None:
    one, other = [1.0, 2.5, 3.0, 4.0], [3.5, 5.0, 6.0, 7.0, 8.0]
    assert mann_whitney(one, other) == stats.mannwhitneyu(one, other, method="exact").pvalue
    assert mann_whitney([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]) == pytest.approx(2 / 924)


def test_mann_whitney_is_exact_with_ties() -> None:
    one, other = [2.0, 3.0, 2.0, 2.0, 3.0], [4.0, 4.0, 3.0, 3.0, 5.0]
    # By counting: the share of all divisions whose rank sum is as far from its mean as the one that was found, doubled for two sides.
    ranks = stats.rankdata(one + other)
    sums = np.array([ranks[list(division)].sum() for division in combinations(range(10), 5)])
    found = ranks[:5].sum()
    expected = min(1.0, 2 * min((sums <= found + 1e-9).mean(), (sums >= found - 1e-9).mean()))
    assert mann_whitney(one, other) == pytest.approx(expected)
    assert mann_whitney(one, other) == mann_whitney(one, other), "nothing about it is random"
    assert mann_whitney(one, other) != pytest.approx(stats.mannwhitneyu(one, other, method="exact").pvalue), "which ignores ties"


def test_large_groups_use_the_normal_distribution() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.normal(0, 1, MOST_EXACT + 1), rng.normal(0.3, 1, MOST_EXACT + 1)
    assert mann_whitney(one, other) == pytest.approx(stats.mannwhitneyu(one, other, method="asymptotic").pvalue)


def test_holm_by_hand() -> None:
    # Sorted: 0.01 × 4, 0.02 × 3, 0.03 × 2 (which is no more than the one before), 0.5 × 1.
    assert list(holm(np.array([0.03, 0.01, 0.5, 0.02]))) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert list(holm(np.array([0.9, 0.8]))) == [1.0, 1.0]


def test_pairs_are_in_the_order_of_the_p_values() -> None:
    near, far = [1.0, 2, 3, 4, 5, 6], [101.0, 102, 103, 104, 105, 106]
    p_values = dict(zip(pairs(3), mann_whitney_pairs([near, near, far]), strict=True))
    assert p_values[0, 1] == 1.0 and p_values[0, 2] < 0.01 and p_values[1, 2] < 0.01
