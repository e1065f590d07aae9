"""Puts the repetitions of a characterization together, and finds which storage is best at what.

Measurements that the page cache may have served are doubtful. They are shown, but a storage is never called the best for what the
machine's memory did. Writes with fsync reach the storage whatever is cached, and a file system in memory has no other storage, so
neither is doubtful.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..quantities import plural, size
from ..statistics.growth import Growth, fit
from .results import Characterization, Flood, Metadata, Transfer

# File systems whose storage is the machine's memory.
IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True, order=True)
class Kind:
    """A kind of transfer, which gets figures of its own."""

    operation: str
    access: str
    fsync: bool

    def words(self) -> str:
        """The kind in words, as "random writes with fsync"."""
        return f"{self.access} {self.operation}s" + " with fsync" * self.fsync


@dataclass(frozen=True)
class Spot:
    """Where a transfer was measured: the size of its requests, and by how many."""

    request: int
    nodes: int
    processes: int


@dataclass(frozen=True)
class Measured:
    """The repetitions of one transfer on one storage."""

    storage: str
    kind: Kind
    spot: Spot
    bandwidths: tuple[float, ...]
    cached: bool  # the file of a repetition fitted into the page cache
    doubtful: bool  # so that memory may have been measured instead of the storage

    @property
    def median(self) -> float:
        """The median bandwidth."""
        return float(np.median(self.bandwidths))


def transfers(found: Characterization) -> list[Measured]:
    """All transfers, with their repetitions together, by storage, kind, request, nodes and processes."""
    groups: dict[tuple[str, Kind, Spot], list[Transfer]] = defaultdict(list)
    for each in found.transfers:
        key = each.storage, Kind(each.operation, each.access, each.fsync), Spot(each.request, each.nodes, each.processes)
        groups[key].append(each)
    order = list(found.storages)
    measured = []
    for (storage, kind, spot), group in groups.items():
        cached = any(each.cached for each in group)
        reaches = (kind.operation == "write" and kind.fsync) or found.storages[storage].file_system in IN_MEMORY
        bandwidths = tuple(each.bandwidth for each in group)
        measured.append(Measured(storage, kind, spot, bandwidths, cached, doubtful=cached and not reaches))
    return sorted(measured, key=lambda m: (m.kind, order.index(m.storage), m.spot.request, m.spot.nodes, m.spot.processes))


@dataclass(frozen=True)
class Best:
    """The storage with the greatest median at one thing."""

    name: str
    median: float
    second: str | None  # the next one, if there is any
    second_median: float
    clear: bool  # no repetition of any other storage reaches the least of the best one


def best(candidates: dict[str, tuple[float, ...]]) -> Best | None:
    """The best of several storages by the median of their measurements, or None if there is none."""
    if not candidates:
        return None
    ranked = sorted(candidates, key=lambda name: -float(np.median(candidates[name])))
    first = ranked[0]
    second = ranked[1] if len(ranked) > 1 else None
    clear = all(max(candidates[name]) < min(candidates[first]) for name in ranked[1:])
    second_median = float(np.median(candidates[second])) if second else 0.0
    return Best(first, float(np.median(candidates[first])), second, second_median, clear)


def best_at(measured: Iterable[Measured], kind: Kind, spot: Spot) -> tuple[Best | None, list[str]]:
    """The best storage for a transfer, and the storages that were left out because they may have measured memory."""
    there = [each for each in measured if each.kind == kind and each.spot == spot]
    doubtful = [each.storage for each in there if each.doubtful]
    return best({each.storage: each.bandwidths for each in there if not each.doubtful}), doubtful


class Varies(Enum):
    """What a figure has on its horizontal axis."""

    REQUEST = "request"
    PROCESSES = "processes"
    NODES = "nodes"


@dataclass(frozen=True)
class Cut:
    """A line through the measurements of a kind: one thing varies, and the rest stays the same.

    Where requests vary, `fixed` is the number of nodes and of processes; where processes vary, the request and the number of nodes;
    where nodes vary, the request and the number of processes on each.
    """

    varies: Varies
    fixed: tuple[int, int]

    def value(self, spot: Spot) -> int:
        """The place on the horizontal axis."""
        return {Varies.REQUEST: spot.request, Varies.PROCESSES: spot.processes, Varies.NODES: spot.nodes}[self.varies]

    def through(self, measured: Iterable[Measured]) -> list[Measured]:
        """The measurements on the line, in its order."""
        return sorted(
            (each for each in measured if _rest(self.varies, each.spot) == self.fixed), key=lambda each: self.value(each.spot)
        )

    def words(self) -> str:
        """What stays the same, in words."""
        one, other = self.fixed
        if self.varies is Varies.REQUEST:
            return f"{plural(other, 'process', 'processes')} on {plural(one, 'node')}"
        if self.varies is Varies.PROCESSES:
            return f"requests of {size(one)}, {plural(other, 'node')}"
        return f"requests of {size(one)}, {plural(other, 'process', 'processes')} on each node"


def _rest(varies: Varies, spot: Spot) -> tuple[int, int]:
    if varies is Varies.REQUEST:
        return spot.nodes, spot.processes
    if varies is Varies.PROCESSES:
        return spot.request, spot.nodes
    return spot.request, spot.processes // spot.nodes


def cut(measured: Iterable[Measured], varies: Varies) -> Cut | None:
    """The line on which the most different values were measured, or None if there is no line with two.

    Of lines that are equal in that, it is the one with most measurements, and then the one with the greater fixed values.
    """
    values: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in measured:
        values[_rest(varies, each.spot)].append(Cut(varies, (0, 0)).value(each.spot))
    longest = max(values, key=lambda rest: (len(set(values[rest])), len(values[rest]), rest), default=None)
    return Cut(varies, longest) if longest and len(set(values[longest])) > 1 else None


@dataclass(frozen=True)
class FsyncCost:
    """How much slower writes of a storage are with fsync."""

    storage: str
    access: str
    spot: Spot
    without: float
    doubtful: bool  # the writes without fsync may have measured memory
    with_fsync: float


def fsync_costs(measured: list[Measured]) -> list[FsyncCost]:
    """The cost of fsync wherever writes were measured with and without it."""
    plain = {(m.storage, m.kind.access, m.spot): m for m in measured if m.kind.operation == "write" and not m.kind.fsync}
    costs = []
    for each in measured:
        other = plain.get((each.storage, each.kind.access, each.spot))
        if each.kind.operation == "write" and each.kind.fsync and other is not None:
            costs.append(FsyncCost(each.storage, each.kind.access, each.spot, other.median, other.doubtful, each.median))
    return costs


@dataclass(frozen=True)
class Floods:
    """The floods of one storage with files of one size from the same number of processes."""

    storage: str
    size: int
    processes: int
    floods: tuple[Flood, ...]
    create: Growth | None
    read: Growth | None

    @property
    def lost(self) -> tuple[int, int]:
        """How many files were missing afterwards, and how many were there without their contents."""
        return sum(each.files - each.present for each in self.floods), sum(each.present - each.whole for each in self.floods)


def floods(found: Characterization) -> list[Floods]:
    """All floods, by storage, size and processes."""
    groups: dict[tuple[int, int, int], list[Flood]] = defaultdict(list)
    order = list(found.storages)
    for each in sorted(found.floods, key=lambda flood: flood.files):
        groups[order.index(each.storage), each.size, each.processes].append(each)
    result = []
    for (storage, bytes_each, processes), group in sorted(groups.items()):
        files = [each.files for each in group]
        create, read = fit(files, [each.create_seconds for each in group]), fit(files, [each.read_seconds for each in group])
        result.append(Floods(order[storage], bytes_each, processes, tuple(group), create, read))
    return result


def rates(found: Characterization) -> dict[tuple[str, str, int], tuple[float, ...]]:
    """The rates of metadata operations, by operation, storage and processes."""
    groups: dict[tuple[str, str, int], list[Metadata]] = defaultdict(list)
    for each in found.metadata:
        groups[each.operation, each.storage, each.processes].append(each)
    return {key: tuple(each.rate for each in group) for key, group in groups.items()}
