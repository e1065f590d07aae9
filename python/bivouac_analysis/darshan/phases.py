"""Derives phases of a patterns file from the use of files.

Each group of files that a program used alike gives a phase for its writes and one for its reads, or one mixed phase if processes read
and wrote in turn. Groups that carry little are left out.
"""

from dataclasses import dataclass

from .groups import groups
from .log import LogSummary
from .use import Direction, FileUse

LITTLE = 0.01
"""Groups with a smaller share of the bytes of a log are left out."""


@dataclass(frozen=True)
class Phase:
    """A phase of a patterns file, and what it was derived from."""

    operation: str
    layout: str
    spatiality: str
    request: int
    total: int
    fsync: bool
    think: float
    read_share: float | None
    processes: int
    group: FileUse
    start: float | None
    end: float | None
    seconds: float
    exact_request: bool
    processes_known: bool

    def plain(self) -> dict:
        phase = {
            "operation": self.operation,
            "layout": self.layout,
            "spatiality": self.spatiality,
            "request": self.request,
            "total": self.total,
        }
        if self.read_share is not None:
            phase["read_share"] = round(self.read_share, 4)
        return phase | {"direct": False, "fsync": self.fsync, "think": self.think}


def phases_of(summary: LogSummary) -> tuple[list[Phase], list[str]]:
    """The phases, by the time when they began; and what is not sure about them, one sentence each."""
    found, words = [], []
    everything = summary.read_bytes + summary.written_bytes
    left_out = [group for group in groups(summary.files) if group.bytes < LITTLE * everything]
    for group in groups(summary.files):
        if group.bytes and group.bytes >= LITTLE * everything:
            found += phases_of_group(group, summary)
    if left_out:
        words.append(
            f"{sum(g.files for g in left_out)} files with less than {LITTLE:.0%} of the bytes for each manner of use are "
            f"left out; {sum(g.requests for g in left_out)} requests of {summary_requests(summary)} were theirs."
        )
    found.sort(key=lambda phase: (phase.start is None, phase.start or 0.0))
    for phase in found:
        where = phase.group.path or "the files"
        if not phase.exact_request:
            words.append(
                f"No size carries most of what is {past(phase.operation)} in {where}: the request size is the mean."
            )
        if not phase.processes_known:
            words.append(
                f"How many processes {verb(phase.operation)} {where} is not in the log: "
                f"{phase.processes} is the most that it can be."
            )
    return found, words


def summary_requests(summary: LogSummary) -> int:
    return sum(file.requests for file in summary.files)


def phases_of_group(group: FileUse, summary: LogSummary) -> list[Phase]:
    layout = "shared" if group.shared else "own"
    if group.mixed:
        larger = max((group.reads, group.writes), key=lambda direction: direction.bytes)
        starts = [d.start for d in (group.reads, group.writes) if d.start is not None]
        ends = [d.end for d in (group.reads, group.writes) if d.end is not None]
        return [
            phase_of(
                "mixed",
                layout,
                group,
                larger,
                group.bytes,
                group.reads.requests / group.requests,
                min(starts, default=None),
                max(ends, default=None),
                group.reads.seconds + group.writes.seconds,
            )
        ]
    return [
        phase_of(
            operation,
            layout,
            group,
            direction,
            direction.bytes,
            None,
            direction.start,
            direction.end,
            direction.seconds,
        )
        for operation, direction in (("write", group.writes), ("read", group.reads))
        if direction.bytes >= LITTLE * (summary.read_bytes + summary.written_bytes)
    ]


def phase_of(
    operation: str,
    layout: str,
    group: FileUse,
    direction: Direction,
    total: int,
    read_share: float | None,
    start: float | None,
    end: float | None,
    seconds: float,
) -> Phase:
    size = group.request_size(direction)
    processes = direction.participants
    if not direction.participants_known:
        # No more processes than large requests can have carried the bytes.
        processes = min(processes, size.requests)
    processes = max(1, processes)
    request = max(1, min(size.bytes, total))
    # Each process makes the same number of whole requests.
    step = request * processes
    rounded = max(step, round(total / step) * step)
    think = 0.0 if direction.median_gap is None else float(f"{direction.median_gap:.3g}")
    return Phase(
        operation,
        layout,
        direction.spatiality,
        request,
        rounded,
        operation != "read" and group.fsyncs > 0,
        think,
        read_share,
        processes,
        group,
        start,
        end,
        seconds,
        size.exact,
        direction.participants_known,
    )


def direction_of(phase: Phase) -> Direction:
    group = phase.group
    if phase.operation == "mixed":
        return max((group.reads, group.writes), key=lambda direction: direction.bytes)
    return group.reads if phase.operation == "read" else group.writes


def past(operation: str) -> str:
    return {"read": "read", "write": "written", "mixed": "read and written"}[operation]


def verb(operation: str) -> str:
    return {"read": "read", "write": "wrote", "mixed": "read and wrote"}[operation]
