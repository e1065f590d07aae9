"""The tables of a characterization's report."""

import pandas as pd

from ..quantities import bandwidth, seconds, size, three
from ..tables import Table
from .measures import Floods, FsyncCost, Measured
from .results import Characterization


def storages(found: Characterization) -> Table:
    """The storages."""
    there = found.storages.values()
    frame = pd.DataFrame(
        [(each.name, each.directory, each.file_system, each.capacity, each.free) for each in there],
        columns=["storage", "directory", "file_system", "capacity", "free"],
    )
    return Table("storages", "The storages.", frame, shown={"capacity": size, "free": size})


def transfers(measured: list[Measured]) -> Table:
    """All transfers, with their repetitions together."""
    rows = [
        (
            each.storage,
            each.kind.operation,
            each.kind.access,
            each.kind.fsync,
            each.spot.request,
            each.spot.nodes,
            each.spot.processes,
            len(each.bandwidths),
            each.median,
            min(each.bandwidths),
            max(each.bandwidths),
            each.cached,
            each.doubtful,
        )
        for each in measured
    ]
    columns = [
        "storage",
        "operation",
        "access",
        "fsync",
        "request",
        "nodes",
        "processes",
        "repetitions",
        "median",
        "least",
        "greatest",
        "cached",
    ]
    columns.append("may_be_memory")
    return Table(
        "transfers",
        "Transfers. Cached: the file fitted into the page cache. Where it says so, memory may have been measured instead of the storage.",
        pd.DataFrame(rows, columns=columns),
        shown={"request": size, "median": bandwidth, "least": bandwidth, "greatest": bandwidth},
    )


def fsync(costs: list[FsyncCost]) -> Table:
    """What fsync costs."""
    rows = [
        (
            each.storage,
            each.access,
            each.spot.request,
            each.spot.nodes,
            each.spot.processes,
            each.without,
            each.doubtful,
            each.with_fsync,
            each.without / each.with_fsync if each.with_fsync > 0 else None,
        )
        for each in costs
    ]
    columns = ["storage", "access", "request", "nodes", "processes", "without", "without_may_be_memory", "with_fsync", "factor"]
    frame = pd.DataFrame(rows, columns=columns).astype({"factor": float})
    return Table(
        "fsync",
        "The median bandwidth of writes without and with fsync.",
        frame,
        shown={"request": size, "without": bandwidth, "with_fsync": bandwidth, "factor": three},
    )


def floods(flooded: list[Floods]) -> Table:
    """All floods."""
    rows = [
        (
            group.storage,
            group.size,
            group.processes,
            each.files,
            each.repetition,
            each.create_seconds,
            each.read_seconds,
            each.present,
            each.whole,
        )
        for group in flooded
        for each in group.floods
    ]
    columns = ["storage", "size", "processes", "files", "repetition", "create_seconds", "read_seconds", "present", "whole"]
    return Table(
        "floods",
        "Floods of small files: how many were there afterwards, and how many were whole.",
        pd.DataFrame(rows, columns=columns),
        shown={"size": size, "create_seconds": seconds, "read_seconds": seconds, "files": "{:,}".format},
        titles={"create_seconds": "time to create", "read_seconds": "time to read"},
    )


def growth(flooded: list[Floods]) -> Table:
    """How the time of floods grows with the number of files."""
    rows = []
    for each in flooded:
        for what, fitted in (("create", each.create), ("read", each.read)):
            if fitted is not None:
                numbers = (fitted.exponent, fitted.low, fitted.high, fitted.r_squared, fitted.shape.value)
                rows.append((each.storage, each.size, each.processes, what, *numbers))
    columns = ["storage", "size", "processes", "operation", "exponent", "low", "high", "r_squared", "growth"]
    return Table(
        "growth",
        "How the time of floods grows: time = c · filesᵉˣᵖᵒⁿᵉⁿᵗ, with the 95 % confidence interval of the exponent.",
        pd.DataFrame(rows, columns=columns),
        shown={
            "size": size,
            "exponent": "{:.2f}".format,
            "low": "{:.2f}".format,
            "high": "{:.2f}".format,
            "r_squared": "{:.4f}".format,
        },
        titles={"r_squared": "R² of a straight line"},
    )


def metadata(rates: dict[tuple[str, str, int], tuple[float, ...]]) -> Table:
    """The rates of metadata operations."""
    rows = [
        (operation, storage, processes, len(values), float(pd.Series(values).median()), min(values), max(values))
        for (operation, storage, processes), values in rates.items()
    ]
    columns = ["operation", "storage", "processes", "repetitions", "median", "least", "greatest"]
    return Table(
        "metadata",
        "Metadata operations in a second.",
        pd.DataFrame(rows, columns=columns),
        shown={"median": three, "least": three, "greatest": three},
    )
