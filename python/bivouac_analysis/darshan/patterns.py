"""`patterns-from LOG [--output FILE]`: a patterns file, which `bivouac explore run` repeats, from a Darshan log.

Phases of different numbers of processes become different patterns, because a pattern has one number. Whatever a log does not say is
assumed in the way that stderr names.
"""

import argparse
import json
import os
import sys
import tempfile

from ..errors import Unusable, printable
from .errors import LogError
from .log import LogSummary, read_log
from .phases import Phase, direction_of, phases_of

MOST_ON_A_NODE = 64
"""Where a log does not name its nodes, as few are assumed as have no more processes than this on each."""


def words_about(phases: list[Phase], summary: LogSummary) -> list[str]:
    """What a patterns file has in another way than the program did it."""
    words = []
    untraced = [phase for phase in phases if direction_of(phase).median_gap is None]
    if untraced:
        words.append(
            "Think time is not in the log without DXT: it is set to 0, so the explorer issues requests one after the other."
            if not summary.traced
            else "Think time is unknown for phases in which no process makes two requests in a row: it is set to 0."
        )
    bursts = [
        phase
        for phase in phases
        if (d := direction_of(phase)).mean_gap is not None and d.mean_gap > 10 * max(d.median_gap or 0.0, 1e-3)
    ]
    if bursts:
        words.append(
            "Some requests come in bursts with long pauses between them: a patterns file has one think time for all, "
            "and it is that of the bursts."
        )
    if len(phases) > 1:
        words.append(
            "The order of the phases is that of their first requests"
            + (
                "."
                if summary.traced
                else ", by Darshan's time stamps; without DXT nothing is known of what is between "
                "the first request of a phase and the last."
            )
        )
    times = [(phase.start, phase.end) for phase in phases if phase.start is not None and phase.end is not None]
    if any(before[1] > after[0] for before, after in zip(times, times[1:])):
        words.append("Phases overlap in time: a patterns file has them one after the other.")
    for phase in phases:
        where = phase.group.path or "the files"
        if phase.layout == "shared" and phase.group.files > 1:
            words.append(f"{phase.group.files} shared files in {where} become one.")
        exact = phase.group.bytes if phase.operation == "mixed" else direction_of(phase).bytes
        if abs(phase.total - exact) > 0.01 * exact:
            words.append(
                f"The total of {where} is {phase.total} instead of {exact} bytes, so that each process makes the same "
                f"number of whole requests."
            )
    if summary.stdio.read_bytes + summary.stdio.written_bytes:
        words.append(
            f"STDIO read {summary.stdio.read_bytes} and wrote {summary.stdio.written_bytes} bytes: Darshan has no "
            f"request sizes for it, so it is not in the patterns."
        )
    words.append('Darshan does not record O_DIRECT: "direct" is set to false.')
    return words


def nodes_for(processes: int, summary: LogSummary) -> tuple[int, bool]:
    """The number of nodes for a pattern, which has to divide that of its processes; and whether the log has it."""
    if summary.job.nodes is not None and processes == summary.job.processes and processes % summary.job.nodes == 0:
        return summary.job.nodes, True
    fewest = next(n for n in range(1, processes + 1) if processes % n == 0 and processes // n <= MOST_ON_A_NODE)
    return fewest, processes == 1


def patterns_of(summary: LogSummary, nodes: int | None = None) -> tuple[dict, list[str]]:
    """A patterns file as plain data, and what could not be derived."""
    phases, words = phases_of(summary)
    if not phases:
        raise LogError(
            f"{summary.log} has no reads or writes by POSIX calls to derive a pattern from: "
            f"use the log of a run that reads or writes files"
        )
    words += words_about(phases, summary)
    by_processes: dict[int, list[Phase]] = {}
    for phase in phases:
        by_processes.setdefault(phase.processes, []).append(phase)
    name = name_of(summary)
    patterns: list[dict] = []
    for processes, some in sorted(by_processes.items(), key=lambda item: -sum(phase.total for phase in item[1])):
        on, known = nodes_for(processes, summary)
        if nodes is not None:
            if processes % nodes == 0:
                on, known = nodes, True
            else:
                words.append(f"{processes} processes cannot be spread evenly over {nodes} nodes.")
        if not known:
            words.append(
                f'The log does not say on how many nodes {processes} processes ran: "nodes" is set to {on}. Correct it.'
            )
        patterns.append(
            {
                "name": name if not patterns else f"{name}-{processes}",
                "nodes": on,
                "processes": processes,
                "phases": [phase.plain() for phase in some],
            }
        )
    if len(patterns) > 1:
        words.append(
            "Phases of different numbers of processes are different patterns: the explorer runs them separately."
        )
    return {"version": 1, "patterns": patterns}, words


def name_of(summary: LogSummary) -> str:
    program = os.path.basename(summary.job.command.split()[0]) if summary.job.command else ""
    name = "".join(c for c in program if c.isascii() and (c.isalnum() or c in "-_."))[:40].strip(".")
    return name or f"job-{summary.job.job_id}"


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bivouac_analysis patterns-from",
        description="Derives a patterns file for `bivouac explore run` from a Darshan log.",
    )
    parser.add_argument("log", metavar="LOG", help="a Darshan log of version 3")
    parser.add_argument("--output", metavar="FILE", help="where to write the patterns file (default: standard output)")
    parser.add_argument(
        "--nodes", metavar="N", type=int, help="on how many nodes the program ran, if the log does not say"
    )
    try:
        options = parser.parse_args(args)
        if options.nodes is not None and options.nodes < 1:
            parser.error("--nodes has to be 1 or more")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    patterns, words = patterns_of(read_log(options.log), options.nodes)
    text = json.dumps(patterns, indent=2) + "\n"
    for word in words:
        print(f"note: {printable(word)}", file=sys.stderr)
    try:
        if options.output is None:
            print(text, end="", flush=True)
        else:
            write_whole(options.output, text)
    except BrokenPipeError:
        return 1
    except OSError as error:
        where = options.output or "the standard output"
        raise Unusable(f"{where} cannot be written: {error.strerror}: name another file with --output") from error
    return 0


def write_whole(path: str, text: str) -> None:
    """Writes the file under another name first, so that nobody sees half of it."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".patterns-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
