"""Reads the results of an exploration, which may be spread over several files.

All files have to be of the same exploration: the same patterns on the same storage, through the same kind of I/O nodes. Seeds, numbers
of I/O nodes, repetitions and the names of the nodes may differ, so that an exploration can be done in several jobs and on several days.
A file without a first line that describes the exploration continues the file that was given before it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Unusable
from ..fields import Fields
from ..jsonlines import read, warn

VERSION = 1


@dataclass(frozen=True)
class Phase:
    """One phase of a pattern, as it is described in the patterns file."""

    operation: str
    layout: str
    spatiality: str
    request: int
    total: int | None
    direct: bool
    fsync: bool


@dataclass(frozen=True)
class Pattern:
    """An access pattern."""

    name: str
    nodes: int
    processes: int
    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class Run:
    """One run that ended well. Counts of the I/O nodes are None without I/O nodes. `bandwidths` are those of the phases."""

    pattern: str
    io_nodes: int
    repetition: int
    seconds: float
    bytes: int
    requests: int
    bandwidth: float
    bandwidths: tuple[float, ...]
    requests_in: int | None
    requests_out: int | None
    bytes_in: int | None
    bytes_out: int | None
    verified: bool
    load: float | None


@dataclass(frozen=True)
class Failure:
    """One run that failed."""

    pattern: str
    io_nodes: int
    repetition: int
    error: str


@dataclass(frozen=True)
class Setting:
    """How an exploration was run: what must be equal in files that are read together."""

    directory: str
    file_system: str
    scheduler: str
    assign: str


@dataclass
class Exploration:
    """The results of an exploration."""

    source: str  # the file, or the first of several
    setting: Setting
    nodes: list[str]  # of all jobs, each once
    patterns: dict[str, Pattern]
    io_nodes: list[int]  # that were to be tried, in ascending order
    repetitions: int  # that were asked for, of each pattern and number of I/O nodes
    seeds: list[int]
    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)  # that were not repeated with success
    repeated: int = 0  # runs that were given more than once, in the same file or in several

    def usable(self) -> list[Run]:
        """The runs whose bandwidth counts. What a run read or wrote that was not right afterwards is no measurement."""
        return [run for run in self.runs if run.verified]

    def unverified(self) -> list[Run]:
        """The runs whose data was not right."""
        return [run for run in self.runs if not run.verified]


def read_exploration(paths: Iterable[Path]) -> Exploration:
    """Reads the files of one exploration. Lines that are left out are named on the standard error."""
    return exploration_of(((path, read(path)) for path in paths), warn)


def exploration_of(files: Iterable[tuple[Path, Iterable[Fields]]], say: Callable[[str], None]) -> Exploration:
    """Makes one exploration of the lines of its files. `say` gets what is left out."""
    exploration: Exploration | None = None
    sitting: tuple[Any, ...] = ()
    seen: set[tuple[Any, ...]] = set()
    failures: dict[tuple[Any, ...], Failure] = {}  # until the explorer has repeated them
    for path, lines in files:
        for number, line in enumerate(lines):
            kind = line.text("kind")
            if kind == "exploration" and number == 0:
                line.version(VERSION)
                exploration = _begin(path, line, exploration)
                sitting = (line.count("seed"), line.number("started"))
            elif exploration is None:
                raise Unusable(
                    f"{line.place}: this is not the first line of an exploration: name a file that `bivouac explore run` wrote"
                )
            elif kind in ("run", "failed"):
                outcome = _run(line, exploration) if kind == "run" else _failure(line, exploration)
                key = (*sitting, outcome.pattern, outcome.io_nodes, outcome.repetition)
                if isinstance(outcome, Failure):
                    failures[key] = outcome
                elif key in seen:
                    exploration.repeated += 1
                else:
                    exploration.runs.append(outcome)
                    seen.add(key)
            elif kind != "continued":
                raise line.refuse(f"a line of the kind {kind[:40]!r} does not belong here")
    if exploration is None:
        raise Unusable("no file was given: name a file that `bivouac explore run` wrote")
    exploration.failures = [failure for key, failure in failures.items() if key not in seen]
    _check(exploration, say)
    return exploration


def _begin(path: Path, line: Fields, before: Exploration | None) -> Exploration:
    """Takes the first line of a file, which has to agree with those of the files before it."""
    setting = Setting(
        directory=line.text("directory"),
        file_system=line.text("file_system"),
        scheduler=line.text("scheduler"),
        assign=line.text("assign"),
    )
    patterns: dict[str, Pattern] = {}
    for fields in line.objects("patterns"):
        pattern = _pattern(fields)
        if pattern.name in patterns:
            raise fields.refuse(f"the pattern {pattern.name!r} is there twice")
        patterns[pattern.name] = pattern
    io_nodes = {Fields(line.place, {"io_nodes": value}).count("io_nodes") for value in line.many("io_nodes")}
    repetitions, seed = line.count("repetitions", least=1), line.count("seed")
    nodes = line.texts("nodes")
    if before is None:
        return Exploration(str(path), setting, nodes, patterns, sorted(io_nodes), repetitions, [seed])
    for name in Setting.__dataclass_fields__:
        if getattr(setting, name) != getattr(before.setting, name):
            raise Unusable(f'{line.place}: "{name}" differs from that of the file before: make a report for each exploration')
    for name, pattern in patterns.items():
        if before.patterns.get(name, pattern) != pattern:
            raise Unusable(
                f"{line.place}: the pattern {name!r} differs from that of the file before: make a report for each exploration"
            )
    before.patterns.update(patterns)
    before.nodes += [node for node in nodes if node not in before.nodes]
    before.io_nodes = sorted(io_nodes.union(before.io_nodes))
    before.repetitions = max(before.repetitions, repetitions)
    if seed not in before.seeds:
        before.seeds.append(seed)
    return before


def _pattern(fields: Fields) -> Pattern:
    phases = tuple(
        Phase(
            operation=phase.text("operation", among=("write", "read", "mixed")),
            layout=phase.text("layout", among=("own", "shared")),
            spatiality=phase.text("spatiality", among=("contiguous", "strided", "random")),
            request=phase.count("request", least=1),
            total=phase.count("total", least=1) if phase.has("total") else None,
            direct=phase.flag("direct", otherwise=False),
            fsync=phase.flag("fsync", otherwise=False),
        )
        for phase in fields.objects("phases")
    )
    return Pattern(fields.text("name"), fields.count("nodes", least=1), fields.count("processes", least=1), phases)


def _known(line: Fields, exploration: Exploration) -> tuple[str, int, int]:
    """The pattern, the number of I/O nodes and the repetition of a run."""
    pattern, io_nodes = line.text("pattern"), line.count("io_nodes")
    if pattern not in exploration.patterns:
        raise line.refuse(f"the pattern {pattern[:40]!r} is not among those of the first line")
    if io_nodes not in exploration.io_nodes:
        raise line.refuse(f"{io_nodes} I/O nodes are not among the numbers of the first line")
    return pattern, io_nodes, line.count("repetition")


def _run(line: Fields, exploration: Exploration) -> Run:
    pattern, io_nodes, repetition = _known(line, exploration)

    def optional(name: str) -> int | None:
        return line.count(name) if line.has(name) else None

    phases = line.objects("phases")
    expected = len(exploration.patterns[pattern].phases)
    if len(phases) != expected:
        raise line.refuse(f'"phases" has {len(phases)} entries, and the pattern has {expected}')
    return Run(
        pattern=pattern,
        io_nodes=io_nodes,
        repetition=repetition,
        seconds=line.number("seconds", above=True),
        bytes=line.count("bytes"),
        requests=line.count("requests"),
        bandwidth=line.number("bandwidth"),
        bandwidths=tuple(phase.number("bandwidth") for phase in phases),
        requests_in=optional("requests_in"),
        requests_out=optional("requests_out"),
        bytes_in=optional("bytes_in"),
        bytes_out=optional("bytes_out"),
        verified=line.flag("verified"),
        load=line.number("load") if line.has("load") else None,
    )


def _failure(line: Fields, exploration: Exploration) -> Failure:
    pattern, io_nodes, repetition = _known(line, exploration)
    return Failure(pattern, io_nodes, repetition, line.text("error"))


def _check(exploration: Exploration, say: Callable[[str], None]) -> None:
    """Refuses results from which nothing can be learnt."""
    if exploration.repeated:
        say(f"{exploration.repeated} runs were given more than once; the first of each counts")
    if not exploration.usable():
        failed, wrong = len(exploration.failures), len(exploration.unverified())
        raise Unusable(
            f"{exploration.source}: there is no usable run ({failed} failed, {wrong} with wrong data): see the errors in the results, "
            "and continue the exploration with `bivouac explore run`"
        )
