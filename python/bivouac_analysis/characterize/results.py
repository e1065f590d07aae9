"""Reads the results of a characterization."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import Unusable
from ..fields import Fields
from ..jsonlines import read

VERSION = 1
OPERATIONS = ("mkdir", "create", "stat", "readdir", "rename", "unlink")


@dataclass(frozen=True)
class Storage:
    """A storage that was measured."""

    name: str
    directory: str
    file_system: str
    capacity: int
    free: int


@dataclass(frozen=True)
class Transfer:
    """One measurement of reading or writing."""

    storage: str
    operation: str  # read or write
    access: str  # sequential or random
    fsync: bool
    request: int
    nodes: int
    processes: int
    bandwidth: float
    repetition: int
    cached: bool  # the file fitted into the page cache, so this may have measured memory


@dataclass(frozen=True)
class Flood:
    """One flood of small files: how long they took, how many there were afterwards, and how many had their contents."""

    storage: str
    files: int
    size: int
    processes: int
    create_seconds: float
    read_seconds: float
    present: int
    whole: int
    repetition: int


@dataclass(frozen=True)
class Metadata:
    """One measurement of a rate of metadata operations."""

    storage: str
    operation: str
    processes: int
    rate: float
    repetition: int


@dataclass
class Characterization:
    """The results of a characterization."""

    source: str  # the file
    storages: dict[str, Storage]
    memory: int
    cores: int
    seed: int
    transfers: list[Transfer] = field(default_factory=list)
    floods: list[Flood] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)


def read_characterization(path: Path) -> Characterization:
    """Reads the file of a characterization. Lines that are left out are named on the standard error."""
    return characterization_of(path, read(path))


def characterization_of(path: Path, lines: Iterable[Fields]) -> Characterization:
    """Makes a characterization of the lines of its file."""
    found: Characterization | None = None
    for line in lines:
        kind = line.text("kind")
        if found is None:
            if kind != "characterization":
                raise Unusable(
                    f"{line.place}: this is not the first line of a characterization: name a file that `bivouac characterize` wrote"
                )
            line.version(VERSION)
            found = _begin(path, line)
        elif kind == "transfer":
            found.transfers.append(_transfer(line, found))
        elif kind == "flood":
            found.floods.append(_flood(line, found))
        elif kind == "metadata":
            found.metadata.append(_metadata(line, found))
        elif kind != "continued":
            raise line.refuse(f"a line of the kind {kind[:40]!r} does not belong here")
    if found is None or not (found.transfers or found.floods or found.metadata):
        raise Unusable(f"{path} has no measurement: repeat `bivouac characterize`, and let it end")
    return found


def _begin(path: Path, line: Fields) -> Characterization:
    storages: dict[str, Storage] = {}
    for each in line.objects("storages"):
        storage = Storage(
            name=each.text("name"),
            directory=each.text("directory"),
            file_system=each.text("file_system"),
            capacity=each.count("capacity"),
            free=each.count("free"),
        )
        if storage.name in storages:
            raise each.refuse(f"the storage {storage.name!r} is there twice")
        storages[storage.name] = storage
    return Characterization(str(path), storages, line.count("memory"), line.count("cores"), line.count("seed"))


def _storage(line: Fields, found: Characterization) -> str:
    name = line.text("storage")
    if name not in found.storages:
        raise line.refuse(f"the storage {name[:40]!r} is not among those of the first line")
    return name


def _transfer(line: Fields, found: Characterization) -> Transfer:
    line.number("seconds", above=True)
    return Transfer(
        storage=_storage(line, found),
        operation=line.text("operation", among=("write", "read")),
        access=line.text("access", among=("sequential", "random")),
        fsync=line.flag("fsync"),
        request=line.count("request", least=1),
        nodes=line.count("nodes", least=1),
        processes=line.count("processes", least=1),
        bandwidth=line.number("bandwidth"),
        repetition=line.count("repetition"),
        cached=line.flag("cached"),
    )


def _flood(line: Fields, found: Characterization) -> Flood:
    flood = Flood(
        storage=_storage(line, found),
        files=line.count("files", least=1),
        size=line.count("size"),
        processes=line.count("processes", least=1),
        create_seconds=line.number("create_seconds", above=True),
        read_seconds=line.number("read_seconds", above=True),
        present=line.count("present"),
        whole=line.count("whole"),
        repetition=line.count("repetition"),
    )
    if not flood.whole <= flood.present <= flood.files:
        raise line.refuse('"whole" should be at most "present", and that at most "files"')
    return flood


def _metadata(line: Fields, found: Characterization) -> Metadata:
    return Metadata(
        storage=_storage(line, found),
        operation=line.text("operation", among=OPERATIONS),
        processes=line.count("processes", least=1),
        rate=line.number("rate"),
        repetition=line.count("repetition"),
    )
