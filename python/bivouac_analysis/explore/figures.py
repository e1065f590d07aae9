"""The figures of an exploration's report, after FORGE's Figures 2 and 4 (bandwidth of patterns) and 3 (choices)."""

from collections import Counter
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..figures import COLOURS, label, style, svg
from ..quantities import bandwidth_unit
from .choices import Choice

COLUMNS = 4
# More patterns go into further figures, so that each can be read.
PATTERNS = 20


def bandwidth_figures(choices: list[Choice]) -> list[str]:
    """Box plots of the bandwidth of each pattern over the numbers of I/O nodes, with up to `PATTERNS` patterns in a figure."""
    return [_boxes(choices[at : at + PATTERNS]) for at in range(0, len(choices), PATTERNS)]


def _boxes(choices: list[Choice]) -> str:
    columns = min(COLUMNS, len(choices))
    rows = ceil(len(choices) / columns)
    with style():
        figure = Figure(figsize=(max(2.6 * columns, 3.4), 2.1 * rows + 0.5), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis, choice in zip(axes, choices, strict=False):
            _box(axis, choice)
        for axis in axes[len(choices) :]:
            axis.set_axis_off()
        figure.supxlabel("I/O nodes (0: direct access)")
        return svg(figure)


def _box(axis: Axes, choice: Choice) -> None:
    factor, unit = bandwidth_unit(max(max(group.bandwidths) for group in choice.groups))
    values = [[value / factor for value in group.bandwidths] for group in choice.groups]
    axis.boxplot(
        values,
        tick_labels=[str(group.io_nodes) for group in choice.groups],
        widths=0.55,
        showmeans=True,
        patch_artist=True,
        boxprops={"facecolor": "#dbe9f4", "edgecolor": "#444444"},
        medianprops={"color": COLOURS[0], "linewidth": 1.8},
        meanprops={"marker": "D", "markersize": 4, "markerfacecolor": COLOURS[1], "markeredgecolor": "none"},
        flierprops={"marker": "o", "markersize": 2.5, "markerfacecolor": "#888888", "markeredgecolor": "none"},
    )
    axis.grid(axis="x", visible=False)
    axis.set_title(label(choice.pattern), loc="left", fontweight="bold")
    axis.set_ylabel(unit)
    axis.set_ylim(bottom=0)


def choices_figure(choices: list[Choice], io_nodes: list[int]) -> str:
    """How many choices patterns have (3a), and how many patterns want which number of I/O nodes (3b), before and after ties."""
    options = Counter(len(choice.distinct) for choice in choices)
    by_median = Counter(choice.best for choice in choices)
    after_ties = Counter(choice.smallest for choice in choices)
    with style():
        figure = Figure(figsize=(9, 3), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.6])
        numbers = list(range(1, len(io_nodes) + 1))
        bars = left.bar([str(number) for number in numbers], [options[number] for number in numbers], color="#888888", width=0.6)
        left.bar_label(bars)
        left.set_xlabel("choices that differ significantly")
        left.set_title("(a)", loc="left", fontweight="bold")
        for shift, counted, name, colour in (
            (-0.2, by_median, "best by median", COLOURS[0]),
            (0.2, after_ties, "smallest that is not significantly worse", COLOURS[1]),
        ):
            places = [at + shift for at in range(len(io_nodes))]
            right.bar_label(right.bar(places, [counted[number] for number in io_nodes], width=0.38, color=colour, label=name))
        right.set_xticks(range(len(io_nodes)), [str(number) for number in io_nodes])
        right.set_xlabel("I/O nodes (0: direct access)")
        right.set_title("(b)", loc="left", fontweight="bold")
        for axis in (left, right):
            axis.set_ylabel("patterns")
            axis.yaxis.set_major_locator(MaxNLocator(integer=True))
            axis.margins(y=0.15)
            axis.grid(axis="x", visible=False)
        figure.legend(loc="outside upper right", ncols=2)
        return svg(figure)
