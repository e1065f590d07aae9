"""How many repetitions a comparison needs before it can find anything.

A rank test on few values cannot be significant, whatever the values are. So what "no significant difference" means depends on the
number of repetitions. The numbers here are derived from the tests themselves: they are run on k groups of n values that are
separated completely (each value of a group is greater than all of the group before), for growing n, until they are significant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .ranks import dunn, holm, kruskal_wallis, mann_whitney, pairs

SIGNIFICANCE = 0.05

# Where the search ends. No comparison of this package's needs so many.
MOST = 1 << 16


@dataclass(frozen=True)
class Needed:
    """The smallest numbers of repetitions at which completely separated groups are told apart."""

    groups: int
    kruskal_wallis: int  # that there is any difference
    dunn_any: int  # Dunn's test with Holm's correction: the two groups that are farthest apart
    dunn_all: int  # the same: each pair of groups
    dunn_all_uncorrected: int  # Dunn's test of each pair, without any correction for their number
    mann_whitney_all: int  # the exact Mann-Whitney test with Holm's correction: each pair (and any)


def separated(groups: int, size: int) -> list[np.ndarray]:
    """So many groups of that size, of which each is above the one before."""
    return np.split(np.arange(groups * size, dtype=float), groups)


def smallest(holds: Callable[[int], bool]) -> int:
    """The smallest positive number for which something holds that holds for all greater ones, too."""
    above = 1
    while not holds(above):
        above *= 2
        if above > MOST:
            raise ValueError("no number of repetitions is enough")
    below = above // 2  # It does not hold for this one, or this is 0.
    while above - below > 1:
        middle = (below + above) // 2
        if holds(middle):
            above = middle
        else:
            below = middle
    return above


@lru_cache(maxsize=64)
def needed(groups: int, significance: float = SIGNIFICANCE) -> Needed:
    """How many repetitions the comparison of so many groups (two or more) needs. Pairs count only if Kruskal-Wallis finds a difference."""

    def differs(size: int) -> bool:
        return kruskal_wallis(separated(groups, size))[1] <= significance

    def dunn_finds(size: int, which: Callable[[np.ndarray], float], correct: Callable[[np.ndarray], np.ndarray]) -> bool:
        return differs(size) and which(correct(dunn(separated(groups, size)))) <= significance

    def mann_whitney_finds(size: int) -> bool:
        # All pairs are separated in the same way, so one is computed.
        p = mann_whitney(*separated(2, size))
        return differs(size) and holm(np.full(len(pairs(groups)), p)).max() <= significance

    return Needed(
        groups=groups,
        kruskal_wallis=smallest(differs),
        dunn_any=smallest(lambda size: dunn_finds(size, np.min, holm)),
        dunn_all=smallest(lambda size: dunn_finds(size, np.max, holm)),
        dunn_all_uncorrected=smallest(lambda size: dunn_finds(size, np.max, lambda p: p)),
        mann_whitney_all=smallest(mann_whitney_finds),
    )
