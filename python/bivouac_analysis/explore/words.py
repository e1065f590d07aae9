"""The findings of an exploration in sentences."""

from collections import Counter

from ..quantities import bandwidth, listed, plural, probability, three, times
from ..statistics.comparison import Method
from ..statistics.repetitions import Needed
from .choices import Choice, Overall
from .results import Exploration


def io_nodes(count: int) -> str:
    """A number of I/O nodes in words."""
    return "direct access" if count == 0 else plural(count, "I/O node")


def share(count: int, of: int) -> str:
    """A count and its share."""
    return f"{count} of {of} ({100 * count / of:.1f} %)"


def what_was_run(exploration: Exploration) -> list[str]:
    """How the exploration was made."""
    setting = exploration.setting
    planned = len(exploration.patterns) * len(exploration.io_nodes) * exploration.repetitions
    numbers = listed([str(number) for number in exploration.io_nodes])
    seeds = listed([str(seed) for seed in exploration.seeds])
    names = exploration.nodes
    nodes = listed(names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"])
    loads = [run.load for run in exploration.runs if run.load is not None]
    sentences = [
        f"{plural(len(exploration.patterns), 'access pattern')} ran in {setting.directory} ({setting.file_system}) "
        f"on {plural(len(names), 'node')}: {nodes}.",
        f"The numbers of I/O nodes were {numbers}. The I/O nodes used the scheduler “{setting.scheduler}”; "
        f"requests were assigned to them by {setting.assign}.",
        f"{plural(exploration.repetitions, 'repetition')} of each were asked for, in random order (seed {seeds}): {planned:,} runs. "
        f"{len(exploration.usable()):,} runs ended well and count.",
    ]
    if loads:
        sentences.append(f"The load average at the beginning of runs was between {min(loads):.1f} and {max(loads):.1f}.")
    return sentences


def what_went_wrong(exploration: Exploration, choices: list[Choice]) -> list[str]:
    """What readers must know before they believe the rest."""
    warnings = []
    if exploration.failures:
        warnings.append(f"{plural(len(exploration.failures), 'run')} failed: see “Runs that do not count”.")
    if wrong := exploration.unverified():
        warnings.append(
            f"After {plural(len(wrong), 'run')} the data was not right. Such runs do not count, and what caused them is worse than any bandwidth: "
            "see “Runs that do not count”."
        )
    lost = [
        run
        for run in exploration.runs
        if run.bytes_in is not None and run.bytes_out is not None and run.bytes_in != run.bytes_out
    ]
    if lost:
        warnings.append(f"In {plural(len(lost), 'run')} the I/O nodes issued another number of bytes than they were sent.")
    missing = [name for name in exploration.patterns if name not in {choice.pattern for choice in choices}]
    if missing:
        warnings.append(f"There is no usable run of {plural(len(missing), 'pattern')}: {listed(missing)}.")
    partly = [choice.pattern for choice in choices if len(choice.groups) < len(exploration.io_nodes)]
    if partly:
        warnings.append(f"Some numbers of I/O nodes have no usable run for {plural(len(partly), 'pattern')}: {listed(partly)}.")
    return warnings


def findings(choices: list[Choice], ranking: list[Overall]) -> list[str]:
    """The main findings over all patterns."""
    count = len(choices)
    by_median = Counter(choice.best for choice in choices)
    after_ties = Counter(choice.smallest for choice in choices)
    sentences = []
    if all(choice.group(0) for choice in choices):
        sentences.append(
            f"Direct access, without I/O nodes, has the greatest median for {share(by_median[0], count)} patterns. If the smallest number "
            f"that is not significantly worse than the best is chosen instead, it is direct access for {share(after_ties[0], count)}."
        )
    for counted, what in ((by_median, "By median, the best"), (after_ties, "After ties, the choice")):
        parts = [f"{io_nodes(number)} for {plural(times, 'pattern')}" for number, times in sorted(counted.items())]
        sentences.append(f"{what} is {listed(parts)}.")
    options = Counter(len(choice.distinct) for choice in choices)
    parts = [f"{plural(number, 'choice')} for {plural(times, 'pattern')}" for number, times in sorted(options.items())]
    sentences.append(f"Numbers of I/O nodes that make a significant difference: {listed(parts)}.")
    if ranking:
        best = ranking[0]
        sentences.append(
            f"If one number has to serve all patterns, it is {io_nodes(best.io_nodes)}: patterns get {100 * best.share:.0f} % of their best "
            f"median bandwidth on average (geometric mean), and the worst served, {best.worst_pattern}, gets {100 * best.worst:.0f} %."
        )
    merging = [
        (group.merge, choice.pattern, group.io_nodes) for choice in choices for group in choice.groups if group.merge is not None
    ]
    if merging:
        most = max(merging)
        sentences.append(
            f"I/O nodes merged most requests of {most[1]} with {io_nodes(most[2])}: {three(most[0])} into one on average."
            if most[0] > 1
            else "I/O nodes merged no requests."
        )
    return sentences


def of_pattern(choice: Choice) -> str:
    """The findings for one pattern, in a sentence or two."""
    best = choice.group(choice.best)
    assert best is not None  # `best` is one of the groups.
    begin = f"{choice.pattern}: the best by median is {io_nodes(choice.best)} ({bandwidth(best.median)})"
    comparison = choice.comparison
    if comparison is None:
        return begin + "; there is nothing to compare it with."
    direct = choice.group(0)
    if direct is not None and choice.best != 0 and direct.median > 0:
        begin += f", {times(best.median / direct.median)} the bandwidth of direct access"
    if not comparison.differs:
        return f"{begin}. No difference is significant (Kruskal-Wallis, p = {probability(comparison.p)}), so {io_nodes(choice.smallest)} will do."
    p = probability(comparison.p)
    because = f"Numbers of I/O nodes differ (Kruskal-Wallis, p {p if p.startswith('<') else '= ' + p})"
    if choice.best == choice.groups[0].io_nodes:
        return f"{begin}. {because}, and the smallest number that was tried is also the best."
    if choice.smallest == choice.best:
        return f"{begin}. {because}, and each smaller number is significantly worse."
    return f"{begin}. {because}, but {io_nodes(choice.smallest)} is not significantly worse."


def of_repetitions(choices: list[Choice]) -> list[str]:
    """What the numbers of repetitions allow to find, for each number of groups and repetitions that occurs."""
    sentences = []
    kinds = Counter((choice.comparison.needed, choice.comparison.repetitions) for choice in choices if choice.comparison)
    for (need, repetitions), count in sorted(kinds.items(), key=lambda item: (item[0][0].groups, item[0][1])):
        sentences.append(f"{plural(count, 'pattern')}: {_of_groups(need, repetitions, choices)}")
    return sentences


def _of_groups(need: Needed, repetitions: int, choices: list[Choice]) -> str:
    method = next(
        choice.comparison.method
        for choice in choices
        if choice.comparison and choice.comparison.needed == need and choice.comparison.repetitions == repetitions
    )
    words = (
        f"{need.groups} numbers of I/O nodes with {plural(repetitions, 'repetition')} or more each. Even if no two of their ranges overlap, "
        f"Kruskal-Wallis needs {need.kruskal_wallis} repetitions to see a difference; "
    )
    if need.groups > 2:
        words += (
            f"Dunn's test with Holm's correction needs {need.dunn_any} to tell the extremes apart and {need.dunn_all} to tell all apart "
            f"({need.dunn_all_uncorrected} if pairs were not corrected for their number); "
        )
    words += f"the exact Mann-Whitney test with Holm's correction needs {need.mann_whitney_all}. "
    least = need.mann_whitney_all if method is Method.MANN_WHITNEY else need.dunn_all
    name = "the exact Mann-Whitney test" if method is Method.MANN_WHITNEY else "Dunn's test"
    if repetitions >= least:
        return words + f"There are enough for {name}, which is used here."
    smallest = min(need.mann_whitney_all, need.dunn_all) if need.groups > 2 else need.mann_whitney_all
    return words + (
        f"There are too few to tell all apart, so that “not significantly worse” says little: repeat the exploration until there are {smallest}. "
        f"Pairs are compared by {name}."
    )
