"""Access patterns with O_DIRECT into ext4 on a disk that does so many operations a second: through one and two I/O nodes against directly."""

import json
import os

import disks
import harness

TARGET = 22
PROCESSES = 16
# What the disk does in each direction.
MOST, BYTES = 1000, 256 << 20
NUMBERS = (0, 1, 2)

# Layout, order and size of the requests.
PATTERNS = {
    "own files, 32 KiB": ("own", "contiguous", 32 << 10),
    "own files, 1 MiB": ("own", "contiguous", 1 << 20),
    "parts of a shared file, 32 KiB": ("shared", "contiguous", 32 << 10),
    "a shared file in turns, 4 KiB": ("shared", "strided", 4 << 10),
    "a shared file in turns, 32 KiB": ("shared", "strided", 32 << 10),
    "a shared file at random, 32 KiB": ("shared", "random", 32 << 10),
}
OPERATIONS = ("write", "read")


def patterns(quick):
    """What `bivouac explore` takes."""
    made = []
    for name, (layout, spatiality, request) in PATTERNS.items():
        for operation in OPERATIONS:
            phase = {"operation": operation, "layout": layout, "spatiality": spatiality, "request": request, "direct": True}
            # More than is done in the time, also if what is merged is eight times as fast. (A read's file is written before.)
            seconds = 0.5 if quick else 1.5
            most = min(BYTES, 8 * MOST * request) * 1.5 * seconds
            phase |= {"total": int(most) >> 20 << 20, "stonewall": seconds}
            made.append({"name": f"{operation}s {name}", "nodes": 1, "processes": PROCESSES, "phases": [phase]})
    return {"version": 1, "patterns": made}


def measure(bench):
    if os.geteuid() != 0:
        raise harness.Failed("mounting a file system needs root")
    with bench.directory() as tmpfs, disks.ext4(tmpfs, 2 << 30) as disk, disks.limited(disk, iops=MOST, bps=BYTES) as is_limited:
        if is_limited:
            with bench.deployment(2, ("--forward", disk, "--assign", "file")) as deployment:
                judge(bench, explored(bench, deployment))


def explored(bench, deployment):
    """The bandwidths of each pattern by the number of I/O nodes, MiB/s."""
    given, out = os.path.join(bench.work, "disk-patterns.json"), os.path.join(bench.work, "disk.jsonl")
    with open(given, "w", encoding="utf-8") as file:
        json.dump(patterns(bench.quick), file)
    words = ["--io-nodes", ",".join(map(str, NUMBERS)), "--repetitions", bench.repetitions, "--seed", TARGET, "--out", out]
    harness.run([harness.BIVOUAC, "explore", "run", deployment.name, given, *map(str, words)], limit=3600)
    found = {}
    with open(out, encoding="utf-8") as file:
        for run in map(json.loads, file):
            if run["kind"] == "run":
                rates = found.setdefault(run["pattern"], {number: [] for number in NUMBERS})
                rates[run["io_nodes"]].append(run["bandwidth"] / 2**20)
    return found


def judge(bench, found):
    for pattern, rates in found.items():
        for number in NUMBERS[1:]:
            what = f"{pattern}, {number} I/O node{'s' * (number > 1)}"
            bench.judge(TARGET, what, (rates[number], rates[0]), "MiB/s", note="limit: directly")
