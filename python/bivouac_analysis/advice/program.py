"""What a program does, in plain sentences."""

import posixpath

from ..darshan.log import LogSummary
from ..darshan.phases import Phase
from .nearest import counted, size

SHOWN_PHASES = 8


def program_words(summary: LogSummary, phases: list[Phase]) -> list[str]:
    """What the program does, in plain sentences."""
    job = summary.job
    name = posixpath.basename(job.command.split()[0]) if job.command else f"Job {job.job_id}"
    nodes = f" on {counted(job.nodes, 'node')}" if job.nodes else ""
    words = [
        f"{name} ran for {job.run_time:g} s with {counted(job.processes, 'process')}{nodes}. By POSIX calls it wrote "
        f"{size(summary.written_bytes)} and read {size(summary.read_bytes)} in {counted(len(summary.files), 'file')}."
    ]
    share = io_share(summary)
    if share is not None:
        meta = summary.metadata_seconds / max(summary.metadata_seconds + summary.data_seconds, 1e-9)
        words.append(
            f"A process spent {percent(share)} of the run time in these calls on average, {percent(meta)} of that on names and "
            f"attributes (open, stat, close)."
        )
    elif summary.job.run_time > 0:
        words.append(
            "The times of the calls add up to more than the run time, as with threads: they say nothing of its share."
        )
    for number, phase in enumerate(phases[:SHOWN_PHASES], 1):
        words.append(f"Phase {number}: {phase_words(phase, summary)}")
    if len(phases) > SHOWN_PHASES:
        words.append(
            f"There are {len(phases) - SHOWN_PHASES} more phases, with {size(sum(p.total for p in phases[SHOWN_PHASES:]))}."
        )
    stdio = summary.stdio
    if stdio.read_bytes + stdio.written_bytes:
        words.append(
            f"By STDIO it wrote {size(stdio.written_bytes)} and read {size(stdio.read_bytes)}; for these Darshan has no sizes "
            f"of requests, and they are not in the advice."
        )
    if not phases:
        words.append("There are no POSIX reads or writes to advise on.")
    return words


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 or share == 0 else "less than 1%"


def io_share(summary: LogSummary) -> float | None:
    """The share of the run time that a process spends in POSIX calls on average. None: the log's times cannot be that."""
    if summary.job.run_time <= 0:
        return None
    share = (summary.data_seconds + summary.metadata_seconds) / summary.job.processes / summary.job.run_time
    return share if share <= 1 else None


def phase_words(phase: Phase, summary: LogSummary) -> str:
    group, many = phase.group, phase.processes != 1
    verb = {
        "write": "write" if many else "writes",
        "read": "read" if many else "reads",
        "mixed": "read and write in turn" if many else "reads and writes in turn",
    }[phase.operation]
    who = ("" if phase.processes_known else "up to ") + counted(phase.processes, "process")
    if group.shared:
        what = "one shared file" if group.files == 1 else f"{group.files:,} shared files"
    else:
        what = "a file" if group.files == 1 else f"{counted(group.files, 'file')}, each by one process"
    kind = summary.file_system_of(group.path) if group.path else None
    if group.files == 1:
        where = f" ({group.path})"
    else:
        where = f" in {group.path}" if group.path.strip("/") else " in several directories"
    order = {
        "contiguous": "each process from one place on without gaps",
        "strided": "at increasing offsets with gaps between them",
        "random": "in no order",
    }[phase.spatiality]
    total = (
        group.bytes
        if phase.operation == "mixed"
        else (group.reads if phase.operation == "read" else group.writes).bytes
    )
    words = (
        f"{who} {verb} {what}{where}{f', {kind}' if kind else ''}: {size(total)} in requests of "
        f"{'' if phase.exact_request else 'about '}{size(phase.request)}, {order}"
    )
    if phase.fsync:
        words += f", with {counted(group.fsyncs, 'fsync')}"
    if group.collective:
        words += "; MPI-IO's aggregators issue them for collective calls"
    return words + "."
