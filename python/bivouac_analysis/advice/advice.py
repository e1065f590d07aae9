"""The advice for a program: from its Darshan log and from measured results, as plain data and as text.

The log says what the program does. Results of `explore run` say how many I/O nodes suit such a pattern on this machine, and results of
`characterize` which storage does. Where there are none, or none near enough, there is a word from published measurements, marked as
such. Everything that weakens the advice is listed with it.
"""

from ..characterize.results import Characterization
from ..darshan.log import LogSummary
from ..darshan.phases import Phase, phases_of
from ..errors import printable
from ..explore.results import Exploration
from .forwarding import advise_forwarding
from .nearest import FAR
from .options import forwarded_directory, options_for
from .program import io_share, program_words
from .recommendations import Near
from .storage import advise_storage


def advise(
    summary: LogSummary, explorations: list[Exploration], characterizations: list[Characterization], left_out: list[str]
) -> dict:
    """The advice as plain data, from which both forms of output are made. `left_out` says what of the results was left out."""
    phases, derived = phases_of(summary)
    phases = sorted(phases, key=lambda phase: -phase.total)
    forwarding = advise_forwarding(phases, explorations)
    storage = advise_storage(summary, phases, characterizations)
    cautions = []
    if not explorations and not characterizations:
        cautions.append(
            "No results were given (--with): everything below is from published measurements on other machines."
        )
    cautions += forwarding.cautions + storage.cautions + left_out
    if forwarding.measured and storage.measured and forwarding.way and forwarding.way.io_nodes and storage.storage:
        if storage.kind in ("deployment", "node-local"):
            cautions.append(
                "Forwarding and the other storage are alternatives. They were measured by different benchmarks, so which "
                "of the two is better for this program is not known. Try both."
            )
    directory, outside = forwarded_directory(phases, summary)
    if outside and forwarding.way and forwarding.way.io_nodes:
        cautions.append(
            f"One directory is forwarded, {directory}; files in {', '.join(outside[:3])}"
            f"{' and others' if len(outside) > 3 else ''} are used as before."
        )
    share = io_share(summary)
    saved = None
    if (
        share is not None
        and forwarding.gain
        and forwarding.way
        and forwarding.way.io_nodes
        and forwarding.gain.value > 1
    ):
        seconds = summary.data_seconds / summary.job.processes
        saved = seconds * (1 - 1 / forwarding.gain.value) * forwarding.covered
        forwarding.words.append(
            f"A process spent {seconds:.3g} s of {summary.job.run_time:g} s reading and writing, so the run can become "
            f"shorter by about {saved:.3g} s."
        )
    return {
        "kind": "advice",
        "version": 1,
        "log": summary.log,
        "program": {
            "command": summary.job.command,
            "processes": summary.job.processes,
            "nodes": summary.job.nodes,
            "run_time": summary.job.run_time,
            "io_share": share,
            "bytes_read": summary.read_bytes,
            "bytes_written": summary.written_bytes,
            "files": len(summary.files),
            "stdio_bytes_read": summary.stdio.read_bytes,
            "stdio_bytes_written": summary.stdio.written_bytes,
            "traced": summary.traced,
            "words": program_words(summary, phases),
        },
        "phases": [phase_plain(phase, near) for phase, near in zip(phases, forwarding.nearest or [[] for _ in phases])],
        "forwarding": {
            "measured": forwarding.measured,
            "io_nodes": forwarding.way.io_nodes if forwarding.way else None,
            "scheduler": forwarding.way.scheduler if forwarding.way else None,
            "assign": forwarding.way.assign if forwarding.way else None,
            "gain": forwarding.gain.plain() if forwarding.gain else None,
            "covered": forwarding.covered,
            "seconds_saved": saved,
            "ways": [
                {
                    "io_nodes": way.io_nodes,
                    "scheduler": way.scheduler,
                    "assign": way.assign,
                    "seconds": seconds,
                    "gain": ratio.plain() if ratio else None,
                }
                for way, seconds, ratio in forwarding.ways
            ],
            "words": forwarding.words,
        },
        "storage": {
            "measured": storage.measured,
            "name": storage.storage.name if storage.storage else None,
            "directory": storage.storage.directory if storage.storage else None,
            "kind": storage.kind,
            "gain": storage.gain.plain() if storage.gain else None,
            "over": storage.over.name if storage.over else None,
            "ranking": [{"name": one.name, "kind": kind, "seconds": seconds} for one, seconds, kind in storage.ranking],
            "words": storage.words,
        },
        "options": options_for(phases, forwarding, storage, directory),
        "unknown": list(dict.fromkeys([*summary.notes, *derived])),
        "cautions": list(dict.fromkeys(cautions)),
    }


def phase_plain(phase: Phase, near: list[Near]) -> dict:
    return phase.plain() | {
        "processes": phase.processes,
        "path": phase.group.path,
        "files": phase.group.files,
        "nearest": [
            {
                "pattern": one.pattern.name,
                "phase": one.phase + 1,
                "source": one.source,
                "distance": one.distance.value,
                "far": one.distance.far,
                "words": one.words,
                "terms": [{"what": what, "amount": amount} for what, amount in one.distance.terms],
            }
            for one in near
        ],
    }


def as_text(advice: dict) -> str:
    lines: list[str] = []

    def section(title: str, items: list[str]) -> None:
        if items:
            lines.append(title)
            lines.extend(f"  - {item}" for item in items)
            lines.append("")

    section("What the program does", advice["program"]["words"])
    nearest = []
    for number, phase in enumerate(advice["phases"], 1):
        # What is too far is shown only where nothing is nearer.
        for one in [one for one in phase["nearest"] if not one["far"]] or phase["nearest"][:1]:
            terms = "; ".join(f"{term['what']} ({term['amount']:.2f})" for term in one["terms"]) or "no difference"
            nearest.append(
                f"Phase {number}: {one['words']}. Distance {one['distance']:.2f}"
                f"{f', too far (more than {FAR:g})' if one['far'] else ''}: {terms}."
            )
    section("Nearest measured patterns", nearest)
    forwarding, storage = advice["forwarding"], advice["storage"]
    section("Forwarding" + ("" if forwarding["measured"] else " (not measured here)"), forwarding["words"])
    section("Storage" + ("" if storage["measured"] else " (not measured here)"), storage["words"])
    if advice["options"]:
        lines.append("For the batch script")
        for option in advice["options"]:
            lines += [f"  # {option['for']}", f"  {option['command']}"]
        lines.append("")
    section("What weakens this advice", advice["cautions"])
    section("What the log does not say", advice["unknown"])
    return "\n".join(map(printable, lines))
