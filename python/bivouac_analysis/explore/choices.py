"""Compares the numbers of I/O nodes for each pattern, and chooses one for each.

Three answers are given for a pattern, because they differ where measurements scatter:
- the best by median: the number of I/O nodes with the greatest median bandwidth;
- the smallest that is not significantly worse than that: I/O nodes cost nodes that could compute, so a difference that may be chance
  is not worth them;
- how many distinct choices there are (Figure 3a in FORGE's paper): going up from the smallest number, those that differ significantly
  from each that was counted before.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..statistics.comparison import Comparison, compare
from ..statistics.repetitions import SIGNIFICANCE
from .results import Exploration, Run


@dataclass(frozen=True)
class Group:
    """The runs of a pattern with one number of I/O nodes."""

    io_nodes: int
    bandwidths: tuple[float, ...]
    requests_in: float | None  # the mean of the runs, where they say it
    requests_out: float | None
    merge: float | None  # the mean of requests in divided by requests out

    @property
    def median(self) -> float:
        """The median bandwidth."""
        return float(np.median(self.bandwidths))

    @property
    def mean(self) -> float:
        """The mean bandwidth."""
        return float(np.mean(self.bandwidths))


@dataclass(frozen=True)
class Choice:
    """What the runs of one pattern say."""

    pattern: str
    groups: tuple[Group, ...]  # by the number of I/O nodes, in ascending order
    comparison: Comparison | None  # None if there is only one group
    best: int  # by median
    smallest: int  # the smallest number that is not significantly worse than `best`
    distinct: tuple[int, ...]  # the choices that differ significantly

    def group(self, io_nodes: int) -> Group | None:
        """The runs with so many I/O nodes."""
        return next((group for group in self.groups if group.io_nodes == io_nodes), None)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there."""
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def merge_factor(run: Run) -> float | None:
    """How many requests that came in were issued as one."""
    if run.requests_in is None or not run.requests_out:
        return None
    return run.requests_in / run.requests_out


def choose(pattern: str, runs: list[Run], significance: float = SIGNIFICANCE) -> Choice:
    """Compares the runs of one pattern, of which there is at least one."""
    groups = []
    for io_nodes in sorted({run.io_nodes for run in runs}):
        of_group = [run for run in runs if run.io_nodes == io_nodes]
        groups.append(
            Group(
                io_nodes=io_nodes,
                bandwidths=tuple(run.bandwidth for run in of_group),
                requests_in=mean_of(run.requests_in for run in of_group),
                requests_out=mean_of(run.requests_out for run in of_group),
                merge=mean_of(map(merge_factor, of_group)),
            )
        )
    # Of equal medians, the smaller number is better; `max` takes the first.
    best = max(range(len(groups)), key=lambda at: groups[at].median)
    comparison = compare([group.bandwidths for group in groups], significance) if len(groups) > 1 else None

    def differ(one: int, other: int) -> bool:
        return comparison is not None and comparison.distinct(one, other)

    smallest = next(at for at in range(len(groups)) if at == best or not differ(at, best))
    distinct: list[int] = []
    for at in range(len(groups)):
        if all(differ(at, other) for other in distinct):
            distinct.append(at)
    number = [group.io_nodes for group in groups]
    return Choice(pattern, tuple(groups), comparison, number[best], number[smallest], tuple(number[at] for at in distinct))


def choose_all(exploration: Exploration) -> list[Choice]:
    """The choices of all patterns that have usable runs, in the order of the patterns."""
    usable = exploration.usable()
    by_pattern = {name: [run for run in usable if run.pattern == name] for name in exploration.patterns}
    return [choose(name, runs) for name, runs in by_pattern.items() if runs]


@dataclass(frozen=True)
class Overall:
    """How well one number of I/O nodes serves all patterns: the mean share of each pattern's best median bandwidth."""

    io_nodes: int
    share: float  # the geometric mean over the patterns
    worst: float  # the share of the pattern that it serves worst
    worst_pattern: str


def overall(choices: list[Choice]) -> list[Overall]:
    """All numbers of I/O nodes that every pattern has been run with, the best first."""
    if not choices:
        return []
    common = set.intersection(*({group.io_nodes for group in choice.groups} for choice in choices))
    found = []
    for io_nodes in sorted(common):
        shares = []
        for choice in choices:
            medians = {group.io_nodes: group.median for group in choice.groups}
            shares.append(medians[io_nodes] / medians[choice.best] if medians[choice.best] > 0 else 1.0)
        worst = int(np.argmin(shares))
        mean = float(np.exp(np.mean(np.log(shares)))) if min(shares) > 0 else 0.0
        found.append(Overall(io_nodes, mean, shares[worst], choices[worst].pattern))
    return sorted(found, key=lambda each: -each.share)
