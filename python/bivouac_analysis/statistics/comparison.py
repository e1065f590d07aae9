"""The comparison of several groups: Kruskal-Wallis first, then pairs, with the test that suits the number of repetitions."""

from dataclasses import dataclass
from enum import Enum

from .ranks import Groups, dunn, holm, kruskal_wallis, mann_whitney_pairs, pairs
from .repetitions import SIGNIFICANCE, Needed, needed


class Method(Enum):
    """How pairs are compared. The value is its name in reports and tables."""

    DUNN = "Dunn, Holm"
    MANN_WHITNEY = "exact Mann-Whitney, Holm"


@dataclass(frozen=True)
class Comparison:
    """What a comparison of two or more groups found. Pairs are indices of groups, the smaller one first."""

    h: float
    p: float
    method: Method
    pair_p: dict[tuple[int, int], float]  # after Holm's correction; empty if there is no difference at all
    repetitions: int  # of the smallest group
    needed: Needed
    significance: float

    @property
    def differs(self) -> bool:
        """Whether there is any difference between the groups."""
        return self.p <= self.significance

    @property
    def can_separate(self) -> bool:
        """Whether there are enough repetitions to tell all groups apart, if no two of them overlap."""
        least = self.needed.dunn_all if self.method is Method.DUNN else self.needed.mann_whitney_all
        return self.repetitions >= least

    def distinct(self, one: int, other: int) -> bool:
        """Whether two groups differ significantly."""
        return self.pair_p.get((min(one, other), max(one, other)), 1.0) <= self.significance


def method_for(repetitions: int, need: Needed) -> Method:
    """The test for pairs that can tell most groups apart with so few repetitions.

    Dunn's test is the usual one after Kruskal-Wallis. It compares with the ranks of all groups, for which it needs many repetitions
    where groups are neighbours. The Mann-Whitney test needs fewer, but below its limit it can find nothing at all, and then Dunn's
    can at least tell groups apart that have others between them. With two groups there are no others: the exact test decides,
    because Dunn's approximation finds differences between three and three values that the exact distribution does not bear out.
    """
    if need.groups == 2:
        return Method.MANN_WHITNEY
    if repetitions < need.dunn_all and repetitions >= need.mann_whitney_all:
        return Method.MANN_WHITNEY
    return Method.DUNN


def compare(groups: Groups, significance: float = SIGNIFICANCE) -> Comparison:
    """Compares two or more groups, none of which is empty."""
    need = needed(len(groups), significance)
    repetitions = min(len(group) for group in groups)
    method = method_for(repetitions, need)
    h, p = kruskal_wallis(groups)
    pair_p: dict[tuple[int, int], float] = {}
    if p <= significance:
        p_values = dunn(groups) if method is Method.DUNN else mann_whitney_pairs(groups)
        pair_p = dict(zip(pairs(len(groups)), map(float, holm(p_values)), strict=True))
    return Comparison(h, p, method, pair_p, repetitions, need, significance)
