"""The findings of a characterization in sentences."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from ..quantities import bandwidth, factor, listed, plural, seconds, size, three, times
from ..statistics.growth import Growth, Shape
from .measures import Best, Floods, FsyncCost, Kind, Measured, Spot, Varies, best, best_at, cut
from .results import OPERATIONS, Characterization


def what_was_measured(found: Characterization) -> list[str]:
    """The machine and the storages."""
    sentences = [
        f"The machine has {plural(found.cores, 'core')} and {size(found.memory)} of memory. The seed was {found.seed}.",
        f"There are {plural(len(found.transfers), 'measurement')} of transfers, {plural(len(found.floods), 'flood')} of small files, and "
        f"{plural(len(found.metadata), 'measurement')} of metadata.",
    ]
    for each in found.storages.values():
        room = f"{size(each.free)} of {size(each.capacity)} free"
        sentences.append(f"{each.name} is {each.directory} ({each.file_system}, {room}).")
    return sentences


def what_is_doubtful(measured: list[Measured], flooded: list[Floods]) -> list[str]:
    """What readers must know before they believe the rest."""
    warnings = []
    doubtful = sum(each.doubtful for each in measured)
    if doubtful:
        everything = "All" if doubtful == len(measured) else f"{doubtful} of {len(measured)}"
        warnings.append(
            f"{everything} kinds and sizes of transfers may have measured the machine's memory and not the storage, because their files fit "
            "into the page cache. They are hollow in figures, and no storage is called the best for them. To measure the storage, repeat them "
            "with files that are larger than the memory."
        )
    in_memory = sorted({each.storage for each in measured if each.cached and not each.doubtful and not each.kind.fsync})
    if in_memory:
        verb = "is a file system" if len(in_memory) == 1 else "are file systems"
        warnings.append(f"{listed(in_memory)} {verb} in memory: what is measured there is memory, and is meant to be.")
    for each in flooded:
        missing, broken = each.lost
        if missing or broken:
            warnings.append(f"{each.storage} lost data in floods of files of {size(each.size)}: {_lost(missing, broken)}.")
    return warnings


def _lost(missing: int, broken: int) -> str:
    """How many files were lost, in words."""
    parts = [f"{plural(missing, 'file')} missing"] * (missing > 0) + [f"{plural(broken, 'file')} without the right contents"] * (
        broken > 0
    )
    return listed(parts)


def of_transfers(measured: list[Measured]) -> list[str]:
    """Which storage is best at small and at large requests of each kind, and what processes change."""
    sentences = []
    for kind in sorted({each.kind for each in measured}):
        of_kind = [each for each in measured if each.kind == kind]
        for spot in _ends(of_kind):
            sentences.append(_best_at(of_kind, kind, spot))
        sentences += _of_processes(of_kind, kind)
    return [sentence for sentence in sentences if sentence]


def _ends(of_kind: list[Measured]) -> list[Spot]:
    """Where the smallest and where the greatest requests of a kind were measured."""
    line = cut(of_kind, Varies.REQUEST)
    on_line = line.through(of_kind) if line else sorted(of_kind, key=lambda each: each.spot.request)[:1]
    ends = [on_line[0].spot, on_line[-1].spot]
    return ends[:1] if ends[0] == ends[1] else ends


def _where(kind: Kind, spot: Spot) -> str:
    by = f"{plural(spot.processes, 'process', 'processes')} on {plural(spot.nodes, 'node')}"
    return f"{kind.access} {kind.operation}s of {size(spot.request)}{' with fsync' * kind.fsync} ({by})"


def _best_at(of_kind: list[Measured], kind: Kind, spot: Spot) -> str:
    first, doubtful = best_at(of_kind, kind, spot)
    where = _where(kind, spot)
    left_out = f" Not compared, because it may have been memory: {listed(doubtful)}." if doubtful else ""
    if first is None:
        return f"No storage can be called the best for {where}: all of these measurements may have measured memory ({listed(doubtful)})."
    return f"Best for {where}: {_best(first, bandwidth)}.{left_out}"


def _best(first: Best, shown: Callable[[float], str]) -> str:
    words = f"{first.name} with {shown(first.median)}"
    if first.second is None:
        return words + ", with nothing to compare it with"
    if first.second_median > 0:
        words += f", {times(first.median / first.second_median)} that of {first.second}"
    else:
        words += f"; {first.second} has {shown(first.second_median)}"
    return words if first.clear else words + " (but single repetitions overlap, so this may be chance)"


def _of_processes(of_kind: list[Measured], kind: Kind) -> list[str]:
    """What more processes change, on each storage."""
    line = cut(of_kind, Varies.PROCESSES)
    if line is None:
        return []
    parts = []
    for storage, points in _by_storage(line.through(of_kind)).items():
        few, many = points[0], points[-1]
        if few.median <= 0 or few.spot.processes == many.spot.processes:
            continue
        doubt = ", which may have been memory" if few.doubtful or many.doubtful else ""
        parts.append(
            f"{times(many.median / few.median)} on {storage} ({few.spot.processes} to {many.spot.processes} processes{doubt})"
        )
    words = kind.words().capitalize()
    return [f"{words}, bandwidth of many processes beside that of few ({line.words()}): {listed(parts)}."] if parts else []


def _by_storage(points: Iterable[Measured]) -> dict[str, list[Measured]]:
    lines: dict[str, list[Measured]] = defaultdict(list)
    for each in points:
        lines[each.storage].append(each)
    return lines


def of_fsync(costs: list[FsyncCost]) -> list[str]:
    """What fsync costs on each storage."""
    groups: dict[tuple[str, str], list[FsyncCost]] = defaultdict(list)
    for cost in costs:
        if cost.with_fsync > 0 and cost.without > 0:
            groups[cost.storage, cost.access].append(cost)
    sentences = []
    for (storage, access), group in groups.items():
        factors = [cost.without / cost.with_fsync for cost in group]
        words = f"Without fsync, {access} writes on {storage} are {times(float(np.median(factors)))} as fast as with it"
        if len(factors) > 1:
            words += f" (median of {len(factors)} comparisons, from {factor(min(factors))} to {factor(max(factors))})"
        if any(cost.doubtful for cost in group):
            words += "; those without it may have measured memory, those with it did not"
        sentences.append(words + ".")
    return sentences


def of_floods(flooded: list[Floods]) -> list[str]:
    """How floods of small files went on each storage."""
    sentences = []
    for each in flooded:
        most = each.floods[-1].files
        taken = float(np.median([flood.create_seconds for flood in each.floods if flood.files == most]))
        words = (
            f"{each.storage}, files of {size(each.size)} from {plural(each.processes, 'process', 'processes')}: "
            f"{plural(most, 'file')} took {seconds(taken)} to create. {_growth('Creating', each.create)} "
            f"{_growth('Reading', each.read)}"
        )
        missing, broken = each.lost
        if missing or broken:
            words += f" Lost: {_lost(missing, broken)}."
        else:
            words += " All files were there and whole."
        sentences.append(words)
    return sentences


def _growth(what: str, growth: Growth | None) -> str:
    if growth is None:
        return f"{what}: there are too few different numbers of files to say how the time grows."
    numbers = f"exponent {growth.exponent:.2f}, 95 % confidence {growth.low:.2f} to {growth.high:.2f}; R² of a straight line {growth.r_squared:.4f}"
    if growth.shape is Shape.UNCLEAR:
        return f"{what}: how the time grows is not clear ({numbers})."
    return f"{what}: time is {growth.shape.value} in the number of files ({numbers})."


def of_metadata(rates: dict[tuple[str, str, int], tuple[float, ...]]) -> list[str]:
    """Which storage is fastest at each metadata operation, with the most processes."""
    sentences = []
    for operation in OPERATIONS:
        processes = max((key[2] for key in rates if key[0] == operation), default=None)
        if processes is None:
            continue
        first = best({key[1]: values for key, values in rates.items() if key[0] == operation and key[2] == processes})
        if first is not None:
            by = plural(processes, "process", "processes")
            sentences.append(f"Fastest at {operation} ({by}): {_best(first, lambda rate: f'{three(rate)} a second')}.")
    return sentences
