"""The figures of a characterization's report."""

from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ..figures import COLOURS, MARKERS, label, plain_numbers, style, svg
from ..quantities import bandwidth_unit, size
from .measures import Cut, Floods, Measured, Varies
from .results import OPERATIONS

AXES = {Varies.REQUEST: "size of a request", Varies.PROCESSES: "processes", Varies.NODES: "nodes"}


def _look(storages: list[str], storage: str) -> tuple[str, str]:
    """The colour and the marker of a storage, which are the same in all figures."""
    at = storages.index(storage)
    return COLOURS[at % len(COLOURS)], MARKERS[at % len(MARKERS)]


def transfer_figure(measured: list[Measured], line: Cut, storages: list[str]) -> str:
    """The bandwidth of one kind of transfer along a line, with a curve for each storage. Doubtful measurements are hollow."""
    points = line.through(measured)
    factor, unit = bandwidth_unit(max(max(each.bandwidths) for each in points))
    with style():
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        axis = figure.subplots()
        for storage in storages:
            own = [each for each in points if each.storage == storage]
            if own:
                _curve(axis, own, line, factor, storage, *_look(storages, storage))
        values = sorted({line.value(each.spot) for each in points})
        names = [size(value) if line.varies is Varies.REQUEST else str(value) for value in values]
        axis.set_xscale("log", base=2)
        axis.set_xticks(values, names, rotation=30 if len(values) > 7 else 0)
        axis.xaxis.set_minor_locator(NullLocator())
        _scale(axis, [value / factor for each in points for value in each.bandwidths])
        axis.set_xlabel(f"{AXES[line.varies]} ({line.words()})")
        axis.set_ylabel(unit)
        handles, names = axis.get_legend_handles_labels()
        if any(each.doubtful for each in points):
            handles += axis.plot([], [], "o", color="#444444", markerfacecolor="white")
            names.append("may be memory")
        figure.legend(handles, names, loc="outside right upper")
        return svg(figure)


def _curve(axis: Axes, own: list[Measured], line: Cut, factor: float, name: str, colour: str, marker: str) -> None:
    """Medians as a curve, and the least and the greatest repetition as whiskers."""
    at = [line.value(each.spot) for each in own]
    medians = [each.median / factor for each in own]
    below = [middle - min(each.bandwidths) / factor for middle, each in zip(medians, own, strict=True)]
    above = [max(each.bandwidths) / factor - middle for middle, each in zip(medians, own, strict=True)]
    axis.errorbar(
        at, medians, yerr=[below, above], color=colour, linewidth=1.4, capsize=2, label=label(name), marker=marker, markersize=5
    )
    for place, middle, each in zip(at, medians, own, strict=True):
        if each.doubtful:
            axis.plot(place, middle, marker, color=colour, markerfacecolor="white", markersize=5, zorder=4)


def _scale(axis: Axes, values: list[float]) -> None:
    """A logarithmic scale where storages are very different, as memory and disks are, and one from 0 otherwise."""
    if min(values) > 0 and max(values) / min(values) > 30:
        axis.set_yscale("log")
        plain_numbers(axis.yaxis)
    else:
        axis.set_ylim(bottom=0)


def floods_figure(flooded: list[Floods], storages: list[str]) -> str:
    """The time of floods over the number of files, with a dashed line that is linear from each storage's first flood."""
    with style():
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        create, read = figure.subplots(1, 2)
        for group in flooded:
            colour, marker = _look(storages, group.storage)
            files = [each.files for each in group.floods]
            name = f"{label(group.storage)}, {size(group.size)}, {group.processes} p."
            for axis, times in (
                (create, [f.create_seconds for f in group.floods]),
                (read, [f.read_seconds for f in group.floods]),
            ):
                axis.plot(files, times, marker, color=colour, markersize=4, alpha=0.8, label=name if axis is create else None)
                if files[0] != files[-1]:
                    axis.plot(
                        [files[0], files[-1]], [times[0], times[0] * files[-1] / files[0]], "--", color=colour, linewidth=0.9
                    )
        for axis, title in ((create, "creating"), (read, "reading")):
            axis.set_xscale("log")
            axis.set_yscale("log")
            plain_numbers(axis.xaxis)
            plain_numbers(axis.yaxis)
            axis.set_title(title, loc="left", fontweight="bold")
            axis.set_xlabel("files")
            axis.set_ylabel("seconds")
        figure.legend(loc="outside right upper")
        return svg(figure)


def metadata_figure(rates: dict[tuple[str, str, int], tuple[float, ...]], storages: list[str]) -> str:
    """The rates of metadata operations over processes, with a plot for each operation."""
    operations = [operation for operation in OPERATIONS if any(key[0] == operation for key in rates)]
    with style():
        figure = Figure(figsize=(9, 2.5 * ((len(operations) + 2) // 3)), layout="constrained")
        axes = figure.subplots((len(operations) + 2) // 3, 3, squeeze=False).ravel()
        named: set[str] = set()
        for axis, operation in zip(axes, operations, strict=False):
            for storage in storages:
                own = {key[2]: values for key, values in rates.items() if key[:2] == (operation, storage)}
                if not own:
                    continue
                colour, marker = _look(storages, storage)
                at = sorted(own)
                medians = [median(own[each]) for each in at]
                low = [middle - min(own[each]) for each, middle in zip(at, medians, strict=True)]
                high = [max(own[each]) - middle for each, middle in zip(at, medians, strict=True)]
                name = None if storage in named else label(storage)
                axis.errorbar(at, medians, yerr=[low, high], color=colour, marker=marker, markersize=4, capsize=2, label=name)
                named.add(storage)
            processes = sorted({key[2] for key in rates if key[0] == operation})
            axis.set_xscale("log", base=2)
            axis.set_xticks(processes, [str(each) for each in processes])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set_title(operation, loc="left", fontweight="bold")
            _scale(axis, [value for key, values in rates.items() if key[0] == operation for value in values])
        for axis in axes[len(operations) :]:
            axis.set_axis_off()
        figure.supxlabel("processes")
        figure.supylabel("operations a second")
        figure.legend(loc="outside right upper")
        return svg(figure)
