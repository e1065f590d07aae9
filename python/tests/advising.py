"""What tests of advice share: results as `explore run` and `characterize` write them, and the advice that comes of them."""

import json
import random
from pathlib import Path

from bivouac_analysis.advice.command import main


def phase(operation="write", layout="shared", spatiality="contiguous", request=65536, **more) -> dict:
    return {
        "operation": operation,
        "layout": layout,
        "spatiality": spatiality,
        "request": request,
        "total": 1 << 30,
        "direct": True,
        "fsync": False,
        "think": 0.0,
    } | more


def pattern(name="A", processes=4, nodes=2, phases=None) -> dict:
    return {"name": name, "nodes": nodes, "processes": processes, "phases": phases or [phase()]}


def exploration(
    path: Path, patterns: list[dict], bandwidths: dict[tuple[str, int], list[float] | list[list[float]]], **head
) -> Path:
    """`bandwidths`: for a pattern and a number of I/O nodes those of the repetitions, each a number or one for each phase."""
    lines = [
        {
            "kind": "exploration",
            "version": 1,
            "deployment": "job",
            "directory": "/scratch/me",
            "file_system": "lustre",
            "nodes": ["n1", "n2"],
            "io_nodes": sorted({n for _, n in bandwidths}),
            "repetitions": 5,
            "seed": 7,
            "started": 1795708582.1,
            "scheduler": "to",
            "assign": "file",
            "patterns": patterns,
        }
        | head
    ]
    for (name, io_nodes), repetitions in bandwidths.items():
        phases = next(p["phases"] for p in patterns if p["name"] == name)
        for i, values in enumerate(repetitions):
            values = values if isinstance(values, list) else [values] * len(phases)
            lines.append(
                {
                    "kind": "run",
                    "pattern": name,
                    "io_nodes": io_nodes,
                    "repetition": i,
                    "order": i,
                    "begun": 1.0,
                    "load": 0.5,
                    "seconds": 1.0,
                    "bytes": 1,
                    "requests": 1,
                    "bandwidth": 1.0,
                    "phases": [
                        {"operation": p["operation"], "seconds": 1.0, "bytes": 1, "requests": 1, "bandwidth": value}
                        for p, value in zip(phases, values)
                    ],
                    "verified": True,
                }
            )
    return write_lines(path, lines)


def write_lines(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def characterization(path: Path, lines: list[dict], *, free=1 << 40) -> Path:
    storages = [
        {"name": name, "directory": directory, "file_system": kind, "capacity": 1 << 42, "free": free}
        for name, directory, kind in (
            ("site", "/scratch", "lustre"),
            ("node", "/local", "xfs"),
            ("memory", "/dev/shm", "tmpfs"),
            ("job", "/bivouac", "fuse.bivouac"),
        )
    ]
    return write_lines(
        path,
        [
            {
                "kind": "characterization",
                "version": 1,
                "started": 1.0,
                "memory": 1 << 34,
                "cores": 2,
                "seed": 1,
                "storages": storages,
            }
        ]
        + lines,
    )


def transfers(storage: str, bandwidth: float, *, count=5, **more) -> list[dict]:
    chance = random.Random(storage)
    return [
        {
            "kind": "transfer",
            "storage": storage,
            "operation": "write",
            "access": "sequential",
            "fsync": False,
            "request": 65536,
            "nodes": 1,
            "processes": 4,
            "bytes": 1,
            "requests": 1,
            "seconds": 1.0,
            "repetition": i,
            "cached": False,
            "bandwidth": bandwidth * chance.uniform(0.97, 1.03),
        }
        | more
        for i in range(count)
    ]


def around(value: float, count=7, spread=0.02) -> list[float]:
    chance = random.Random(value)
    return [value * chance.uniform(1 - spread, 1 + spread) for _ in range(count)]


def advice(capsys, log, *results) -> dict:
    assert main([str(log), "--json", *(arg for path in results for arg in ("--with", str(path)))]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    found = json.loads(output.out)
    assert found["kind"] == "advice" and found["version"] == 1
    return found


def cautions(found: dict) -> str:
    return "\n".join(found["cautions"])


# Lines of an exploration, for what is not as it should be.
HEAD = {
    "kind": "exploration",
    "version": 1,
    "directory": "/d",
    "file_system": "lustre",
    "nodes": ["a"],
    "io_nodes": [0],
    "repetitions": 1,
    "seed": 1,
    "started": 1.0,
    "scheduler": "to",
    "assign": "file",
    "patterns": [pattern()],
}
RUN = {
    "kind": "run",
    "pattern": "A",
    "io_nodes": 0,
    "repetition": 0,
    "seconds": 1.0,
    "bytes": 1,
    "requests": 1,
    "bandwidth": 1.0,
    "phases": [{"bandwidth": 1.0}],
    "verified": True,
}
