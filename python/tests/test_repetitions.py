"""How many repetitions are needed: each number is checked against the tests themselves, on both of its sides."""

from math import comb, sqrt

import pytest
import scikit_posthocs
from scipy import stats

from bivouac_analysis.statistics.comparison import Method, compare
from bivouac_analysis.statistics.ranks import pairs
from bivouac_analysis.statistics.repetitions import needed, separated, smallest


@pytest.mark.parametrize("groups", [2, 3, 4, 5, 6])
def test_dunn_tells_separated_groups_apart_from_that_number_on(groups: int) -> None:
    need = needed(groups)
    if groups > 2:
        for size, expected in ((need.dunn_all - 1, False), (need.dunn_all, True), (need.dunn_all + 1, True)):
            p_values = scikit_posthocs.posthoc_dunn(separated(groups, size), p_adjust="holm").to_numpy()
            assert all(p_values[pair] <= 0.05 for pair in pairs(groups)) == expected
    for size, expected in ((need.dunn_any - 1, False), (need.dunn_any, True)):
        data = separated(groups, size)
        found = (
            stats.kruskal(*data).pvalue <= 0.05 and scikit_posthocs.posthoc_dunn(data, p_adjust="holm").to_numpy().min() <= 0.05
        )
        assert found == expected


@pytest.mark.parametrize("groups", [2, 3, 5, 9])
def test_dunn_agrees_with_the_formula(groups: int) -> None:
    """Neighbours' mean ranks differ by n. There are k - 1 such pairs, which have the largest p-values, so Holm multiplies by k - 1."""

    def holds(size: int, by: int) -> bool:
        z = size / sqrt(groups * (groups * size + 1) / 6)
        return by * 2 * stats.norm.sf(z) <= 0.05

    assert needed(groups).dunn_all == max(smallest(lambda size: holds(size, groups - 1)), needed(groups).kruskal_wallis)
    assert needed(groups).dunn_all_uncorrected == max(smallest(lambda size: holds(size, 1)), needed(groups).kruskal_wallis)


@pytest.mark.parametrize("groups", [2, 3, 5, 9])
def test_mann_whitney_agrees_with_the_formula(groups: int) -> None:
    """Two of the divisions of 2n values are the most extreme, and Holm multiplies the smallest p-value by the number of pairs."""
    expected = next(size for size in range(1, 50) if comb(groups, 2) * 2 / comb(2 * size, size) <= 0.05)
    assert needed(groups).mann_whitney_all == expected


def test_five_numbers_of_io_nodes() -> None:
    """FORGE's five numbers of I/O nodes. 17 is what Dunn's test needs if pairs are not corrected for their number."""
    need = needed(5)
    assert (need.dunn_all_uncorrected, need.dunn_all, need.mann_whitney_all, need.dunn_any) == (17, 27, 6, 3)


def test_a_stricter_level_needs_more() -> None:
    assert needed(5, 0.01).dunn_all > needed(5).dunn_all
    assert needed(5, 0.01).mann_whitney_all > needed(5).mann_whitney_all


def test_smallest_finds_the_border() -> None:
    for border in (1, 2, 3, 7, 8, 9, 1000):
        assert smallest(lambda size, border=border: size >= border) == border
    with pytest.raises(ValueError):
        smallest(lambda size: False)


@pytest.mark.parametrize(
    ("groups", "size", "method", "all_apart"),
    [
        (5, 5, Method.DUNN, False),  # too few for either; Dunn's test still tells the extremes apart
        (5, 6, Method.MANN_WHITNEY, True),
        (5, 26, Method.MANN_WHITNEY, True),
        (5, 27, Method.DUNN, True),
        (2, 3, Method.MANN_WHITNEY, False),
        (2, 4, Method.MANN_WHITNEY, True),
    ],
)
def test_the_method_suits_the_repetitions(groups: int, size: int, method: Method, all_apart: bool) -> None:
    comparison = compare(separated(groups, size))
    assert comparison.differs and comparison.method is method
    assert all(comparison.distinct(one, other) for one, other in comparison.pair_p) is all_apart
    assert comparison.can_separate is all_apart
    assert comparison.distinct(0, groups - 1) is (groups > 2 or all_apart)
    assert comparison.distinct(groups - 1, 0) == comparison.distinct(0, groups - 1)


def test_pairs_are_compared_only_if_there_is_any_difference() -> None:
    comparison = compare([[1.0, 2, 3, 4, 5, 6], [1.5, 2.5, 3.5, 4.5, 5.5, 6.5], [1.2, 2.2, 3.2, 4.2, 5.2, 6.2]])
    assert not comparison.differs and not comparison.pair_p and not comparison.distinct(0, 1)


def test_the_smallest_group_counts() -> None:
    groups = separated(5, 30)
    groups[2] = groups[2][:5]
    comparison = compare(groups)
    assert comparison.repetitions == 5 and not comparison.can_separate
