"""The tables of an exploration's report."""

import pandas as pd

from ..quantities import bandwidth, probability, seconds, size, three
from ..tables import Table, whole
from .choices import Choice, Overall
from .results import Exploration, Pattern


def spread(values: tuple[float, ...]) -> tuple[float, float]:
    """The first and the third quartile."""
    series = pd.Series(values, dtype=float)
    return float(series.quantile(0.25)), float(series.quantile(0.75))


def describe(pattern: Pattern) -> str:
    """The phases of a pattern in words."""
    layouts = {"own": "a file per process", "shared": "a shared file"}
    spatialities = {"contiguous": "contiguous", "strided": "1D-strided", "random": "random"}
    phases = []
    for phase in pattern.phases:
        extras = ", O_DIRECT" * phase.direct + ", fsync" * phase.fsync
        phases.append(
            f"{phase.operation} {layouts[phase.layout]}, {spatialities[phase.spatiality]}, {size(phase.request)}{extras}"
        )
    return "; then ".join(phases)


def patterns(exploration: Exploration) -> Table:
    """What each pattern does."""
    there = exploration.patterns.values()
    frame = pd.DataFrame(
        {
            "pattern": [pattern.name for pattern in there],
            "nodes": [pattern.nodes for pattern in there],
            "processes": [pattern.processes for pattern in there],
            "phases": [describe(pattern) for pattern in there],
        }
    )
    return Table("patterns", "The access patterns.", frame)


def bandwidths(choices: list[Choice]) -> Table:
    """The bandwidth of each pattern with each number of I/O nodes, and what the I/O nodes made of its requests."""
    rows = []
    for choice in choices:
        for group in choice.groups:
            low, high = spread(group.bandwidths)
            rows.append(
                {
                    "pattern": choice.pattern,
                    "io_nodes": group.io_nodes,
                    "runs": len(group.bandwidths),
                    "median": group.median,
                    "mean": group.mean,
                    "least": min(group.bandwidths),
                    "quartile_1": low,
                    "quartile_3": high,
                    "greatest": max(group.bandwidths),
                    "requests_in": group.requests_in,
                    "requests_out": group.requests_out,
                    "merge_factor": group.merge,
                }
            )
    rates = dict.fromkeys(("median", "mean", "least", "quartile_1", "quartile_3", "greatest"), bandwidth)
    frame = pd.DataFrame(rows).astype({"requests_in": float, "requests_out": float, "merge_factor": float})
    return Table(
        "bandwidth",
        "Bandwidth by the number of I/O nodes (0: directly), and requests: how many came to the I/O nodes, and how many they issued.",
        frame,
        shown={**rates, "requests_in": lambda n: f"{n:,.0f}", "requests_out": lambda n: f"{n:,.0f}", "merge_factor": three},
        titles={"io_nodes": "I/O nodes", "merge_factor": "mean merge factor"},
    )


def choices_table(choices: list[Choice]) -> Table:
    """The number of I/O nodes to choose for each pattern."""
    there = [choice.comparison for choice in choices]
    frame = pd.DataFrame(
        {
            "pattern": [choice.pattern for choice in choices],
            "best_by_median": [choice.best for choice in choices],
            "smallest_not_worse": [choice.smallest for choice in choices],
            "distinct_choices": [len(choice.distinct) for choice in choices],
            "distinct": [" ".join(map(str, choice.distinct)) for choice in choices],
            "kruskal_wallis_h": [each.h if each else float("nan") for each in there],
            "kruskal_wallis_p": [each.p if each else float("nan") for each in there],
            "pairs_by": [each.method.value if each and each.differs else None for each in there],
            "repetitions": [min(len(group.bandwidths) for group in choice.groups) for choice in choices],
            "can_separate_all": [each.can_separate if each else None for each in there],
        }
    )
    return Table(
        "choices",
        "The choice for each pattern: the best by median, and the smallest number of I/O nodes that is not significantly worse.",
        frame,
        shown={"kruskal_wallis_h": three, "kruskal_wallis_p": probability},
        titles={
            "kruskal_wallis_h": "Kruskal-Wallis H",
            "kruskal_wallis_p": "p",
            "pairs_by": "pairs compared by",
            "repetitions": "repetitions (the least)",
            "can_separate_all": "enough repetitions to tell all apart",
        },
    )


def pairs(choices: list[Choice]) -> Table:
    """The comparison of each pair of numbers of I/O nodes, for patterns where there is any difference."""
    rows = []
    for choice in choices:
        if choice.comparison is None:
            continue
        for (one, other), p in choice.comparison.pair_p.items():
            first, second = choice.groups[one], choice.groups[other]
            rows.append(
                (
                    choice.pattern,
                    first.io_nodes,
                    second.io_nodes,
                    first.median,
                    second.median,
                    p,
                    choice.comparison.distinct(one, other),
                    choice.comparison.method.value,
                )
            )
    columns = ["pattern", "io_nodes_1", "io_nodes_2", "median_1", "median_2", "p", "different", "by"]
    return Table(
        "pairs",
        "Pairs of numbers of I/O nodes, with p-values after Holm's correction.",
        pd.DataFrame(rows, columns=columns),
        shown={"median_1": bandwidth, "median_2": bandwidth, "p": probability},
        titles={"io_nodes_1": "I/O nodes", "io_nodes_2": "compared with", "median_1": "median", "median_2": "its median"},
    )


def overall_table(ranking: list[Overall]) -> Table:
    """How well each number of I/O nodes serves all patterns."""
    frame = pd.DataFrame(
        [(each.io_nodes, each.share, each.worst, each.worst_pattern) for each in ranking],
        columns=["io_nodes", "mean_share", "least_share", "pattern_of_least"],
    )

    def percent(share: float) -> str:
        return f"{100 * share:.0f} %"

    return Table(
        "overall",
        "One number of I/O nodes for all patterns: the share of each pattern's best median bandwidth (geometric mean), the best first.",
        frame,
        shown={"mean_share": percent, "least_share": percent},
        titles={"io_nodes": "I/O nodes"},
    )


def runs(exploration: Exploration) -> Table:
    """All runs, as they were read."""
    there = exploration.runs
    frame = pd.DataFrame(
        {
            "pattern": [run.pattern for run in there],
            "io_nodes": [run.io_nodes for run in there],
            "repetition": [run.repetition for run in there],
            "seconds": [run.seconds for run in there],
            "bytes": [run.bytes for run in there],
            "requests": [run.requests for run in there],
            "bandwidth": [run.bandwidth for run in there],
            "requests_in": whole([run.requests_in for run in there]),
            "requests_out": whole([run.requests_out for run in there]),
            "verified": [run.verified for run in there],
        }
    )
    return Table("runs", "All runs that ended.", frame, shown={"seconds": seconds, "bandwidth": bandwidth})


def failures(exploration: Exploration) -> Table:
    """Runs that failed, and runs whose data was not right."""
    rows = [(each.pattern, each.io_nodes, each.repetition, each.error) for each in exploration.failures]
    rows += [(run.pattern, run.io_nodes, run.repetition, "the data was not right afterwards") for run in exploration.unverified()]
    frame = pd.DataFrame(rows, columns=["pattern", "io_nodes", "repetition", "error"])
    return Table("failures", "Runs that do not count.", frame, titles={"io_nodes": "I/O nodes"})
