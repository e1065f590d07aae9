"""Makes results as `bivouac explore run` and `bivouac characterize` write them, with known properties, for the tests."""

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def write(path: Path, lines: Iterable[Line | str]) -> Path:
    """Writes lines of JSON; texts are written as they are, without anything at the end of the last one."""
    texts = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines]
    path.write_text("".join(texts))
    return path


def pattern(name: str, request: int = 32768, layout: str = "shared", spatiality: str = "contiguous") -> Line:
    """A pattern of one phase."""
    phase = {
        "operation": "write",
        "layout": layout,
        "spatiality": spatiality,
        "request": request,
        "total": 1 << 32,
        "stonewall": None,
        "read_share": None,
        "direct": True,
        "fsync": False,
        "think": 0.0,
    }
    return {"name": name, "nodes": 8, "processes": 128, "phases": [phase]}


def header(patterns: list[Line], io_nodes: list[int], repetitions: int, **more: Any) -> Line:
    """The first line of an exploration."""
    line = {
        "kind": "exploration",
        "version": 1,
        "deployment": "job",
        "directory": "/lustre/me",
        "file_system": "lustre",
        "nodes": ["n1", "n2"],
        "io_nodes": io_nodes,
        "repetitions": repetitions,
        "seed": 7,
        "started": 1795708582.1,
        "scheduler": "to",
        "assign": "file",
        "patterns": patterns,
    }
    return line | more


def run(name: str, io_nodes: int, repetition: int, bandwidth: float, merge: float = 4.0, **more: Any) -> Line:
    """A run that ended well."""
    forwarded = io_nodes > 0
    line = {
        "kind": "run",
        "pattern": name,
        "io_nodes": io_nodes,
        "repetition": repetition,
        "order": 0,
        "begun": 1795708590.0,
        "load": 1.2,
        "seconds": 2.0,
        "bytes": int(2 * bandwidth),
        "requests": 1200,
        "bandwidth": bandwidth,
        "phases": [{"operation": "write", "seconds": 2.0, "bytes": int(2 * bandwidth), "requests": 1200, "bandwidth": bandwidth}],
        "requests_in": 1200 if forwarded else None,
        "requests_out": int(1200 / merge) if forwarded else None,
        "bytes_in": int(2 * bandwidth) if forwarded else None,
        "bytes_out": int(2 * bandwidth) if forwarded else None,
        "verified": True,
    }
    return line | more


def failed(name: str, io_nodes: int, repetition: int, error: str = "no space") -> Line:
    """A run that failed."""
    return {
        "kind": "failed",
        "pattern": name,
        "io_nodes": io_nodes,
        "repetition": repetition,
        "order": 0,
        "begun": 1.0,
        "error": error,
    }


def exploration(
    medians: dict[str, dict[int, float]], repetitions: int = 6, spread: float = 0.02, seed: int = 1, **more: Any
) -> list[Line]:
    """A whole exploration. `medians` says, for each pattern and number of I/O nodes, around which bandwidth its runs are."""
    rng = random.Random(seed)
    io_nodes = sorted({number for of_pattern in medians.values() for number in of_pattern})
    lines = [header([pattern(name) for name in medians], io_nodes, repetitions, **more)]
    for name, of_pattern in medians.items():
        for number, middle in of_pattern.items():
            for repetition in range(repetitions):
                lines.append(run(name, number, repetition, middle * (1 + spread * rng.uniform(-1, 1))))
    return lines


def storage(name: str, **more: Any) -> Line:
    """A storage of a characterization."""
    return {"name": name, "directory": f"/{name}", "file_system": "ext4", "capacity": 1 << 40, "free": 1 << 39} | more


def characterization(storages: list[Line], lines: Iterable[Line] = (), **more: Any) -> list[Line]:
    """A characterization with these measurements."""
    first = {
        "kind": "characterization",
        "version": 1,
        "started": 1.0,
        "memory": 1 << 34,
        "cores": 8,
        "seed": 3,
        "storages": storages,
    }
    return [first | more, *lines]


def transfer(name: str, bandwidth: float, **more: Any) -> Line:
    """One measurement of a transfer."""
    line = {
        "kind": "transfer",
        "storage": name,
        "operation": "read",
        "access": "random",
        "fsync": False,
        "request": 4096,
        "nodes": 1,
        "processes": 2,
        "bytes": 1 << 30,
        "requests": 1 << 18,
        "seconds": (1 << 30) / bandwidth if bandwidth else 1.0,
        "bandwidth": bandwidth,
        "repetition": 0,
        "cached": False,
    }
    return line | more


def transfers(name: str, speed: Callable[[str, str, bool, int, int], float], repetitions: int = 3, seed: int = 1) -> list[Line]:
    """A storage's transfers over request sizes and processes. `speed` gets operation, access, fsync, request and processes."""
    rng = random.Random(seed)
    lines = []
    sweep = [(request, 2) for request in (4096, 65536, 1 << 20)] + [(65536, processes) for processes in (1, 4)]
    for operation, fsync in (("write", False), ("write", True), ("read", False)):
        for access in ("sequential", "random"):
            for request, processes in sweep:
                for repetition in range(repetitions):
                    middle = speed(operation, access, fsync, request, processes)
                    more = {"operation": operation, "access": access, "fsync": fsync, "request": request, "processes": processes}
                    lines.append(transfer(name, middle * rng.uniform(0.97, 1.03), repetition=repetition, **more))
    return lines


def flood(name: str, files: int, seconds: float, **more: Any) -> Line:
    """One flood of files."""
    line = {
        "kind": "flood",
        "storage": name,
        "files": files,
        "size": 8,
        "processes": 36,
        "create_seconds": seconds,
        "read_seconds": seconds / 4,
        "present": files,
        "whole": files,
        "repetition": 0,
    }
    return line | more


def metadata(name: str, operation: str, rate: float, **more: Any) -> Line:
    """One measurement of a rate of metadata operations."""
    line = {
        "kind": "metadata",
        "storage": name,
        "operation": operation,
        "processes": 2,
        "count": 1000,
        "seconds": 1000 / rate,
        "rate": rate,
    }
    return line | {"repetition": 0} | more
