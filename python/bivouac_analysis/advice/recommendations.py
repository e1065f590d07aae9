"""What is recommended to a program, as plain data with the words that go with it."""

from dataclasses import dataclass, field

from ..characterize.results import Storage
from ..explore.results import Pattern
from .gain import Ratio
from .nearest import Distance, counted, size


@dataclass(frozen=True, order=True)
class Way:
    io_nodes: int
    scheduler: str | None = None
    assign: str | None = None

    @property
    def words(self) -> str:
        if not self.io_nodes:
            return "no I/O nodes"
        return f"{counted(self.io_nodes, 'I/O node')} (scheduler {self.scheduler}, assigned by {self.assign})"


@dataclass(frozen=True)
class Near:
    """A measured phase, and how far it is from a phase of the program."""

    pattern: Pattern
    phase: int
    distance: Distance
    source: str

    @property
    def words(self) -> str:
        what = self.pattern.phases[self.phase]
        part = f", phase {self.phase + 1}" if len(self.pattern.phases) > 1 else ""
        return (
            f"pattern {self.pattern.name}{part} ({self.source}): {what.operation}, {what.layout}, {what.spatiality}, requests of "
            f"{size(what.request)}, {counted(self.pattern.processes, 'process')} on {counted(self.pattern.nodes, 'node')}"
        )


@dataclass
class ForwardingAdvice:
    measured: bool
    """False: nothing was measured on this machine that is near enough, and what is said is from a paper."""
    way: Way | None = None
    """None: no recommendation."""
    gain: Ratio | None = None
    """Against no I/O nodes. None if that was not measured."""
    covered: float = 0.0
    """The share of the program's bytes that near patterns stand for."""
    nearest: list[list[Near]] = field(default_factory=list)
    """For each phase of the program, the nearest measured ones."""
    ways: list[tuple[Way, float, Ratio | None]] = field(default_factory=list)
    """Each way with the seconds that the covered bytes take, and how much faster it is than no I/O nodes."""
    words: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)



@dataclass
class StorageAdvice:
    measured: bool
    storage: Storage | None = None
    """None: no recommendation."""
    kind: str | None = None
    """"backend", "deployment", "node-local" or "unknown"."""
    gain: Ratio | None = None
    over: Storage | None = None
    """The storage that the gain is against: the one that the program used."""
    ranking: list[tuple[Storage, float, str]] = field(default_factory=list)
    """Storages with the seconds that the program's bytes, or files, take; and what was measured."""
    words: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
