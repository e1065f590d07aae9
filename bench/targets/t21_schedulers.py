"""Every scheduler with patterns through one I/O node into GlusterFS: `auto` against the best of the others, where it matters which one it is."""

import json
import os
import random
import statistics

import gluster

TARGET = 21
COMPUTE = 4
# Mbit/s of each compute node's link.
RATE = 100
# How many requests the backend gets at once. With as many as there are processes, it hardly matters who is next.
DISPATCHERS = 2
# A scheduler that tells the backend's servers apart is told that there are two.
FIXED = ("fifo", "to", "sjf", "aioli", "mlf", "hbrr", "twins,servers=2", "sw", "wfq")
AUTO = "auto"
# It matters where the best of the others is so many times as fast as the worst.
MATTERS = 1.2
SECONDS = 0.6

# Operation, layout, order and size of the requests, all of them with O_DIRECT, and the number of processes.
PATTERNS = {
    "reads a shared file in turns, 4 KiB": ("read", "shared", "strided", 4 << 10, 16),
    "reads a shared file in turns, 8 KiB": ("read", "shared", "strided", 8 << 10, 16),
    "reads a shared file in turns, 16 KiB": ("read", "shared", "strided", 16 << 10, 16),
    "32 read a shared file in turns, 4 KiB": ("read", "shared", "strided", 4 << 10, 32),
    "32 read a shared file in turns, 8 KiB": ("read", "shared", "strided", 8 << 10, 32),
    "reads parts of a shared file, 16 KiB": ("read", "shared", "contiguous", 16 << 10, 16),
    "reads own files, 4 KiB": ("read", "own", "contiguous", 4 << 10, 16),
    "reads own files, 16 KiB": ("read", "own", "contiguous", 16 << 10, 16),
    "writes a shared file in turns, 4 KiB": ("write", "shared", "strided", 4 << 10, 16),
    "writes a shared file in turns, 32 KiB": ("write", "shared", "strided", 32 << 10, 16),
    "writes own files, 16 KiB": ("write", "own", "contiguous", 16 << 10, 16),
}


def patterns():
    """What `bivouac explore` takes."""
    made = []
    for name, (operation, layout, spatiality, request, processes) in PATTERNS.items():
        phase = {"operation": operation, "layout": layout, "spatiality": spatiality, "request": request, "direct": True}
        # A read's file is written before: not more than is read in the time.
        total = 1 << 30 if operation == "write" else 24 << 20
        phase |= {"total": total, "stonewall": SECONDS, "fsync": operation == "write"}
        made.append({"name": name, "nodes": COMPUTE, "processes": processes, "phases": [phase]})
    return {"version": 1, "patterns": made}


def measure(bench):
    with gluster.beside(bench, COMPUTE, RATE) as (network, computes, io_node, site):
        options = ("--forward", site.mount(io_node), "--io-nodes", io_node, "--assign", "file")
        with network.deployment(bench, options=options, nodes=[io_node, *computes]) as deployment:
            judge(bench, explored(bench, deployment, computes))


def explored(bench, deployment, computes):
    """The bandwidths of each pattern by scheduler, MiB/s; all of them in each repetition, in random order."""
    given = os.path.join(bench.work, "patterns.json")
    with open(given, "w", encoding="utf-8") as file:
        json.dump(patterns(), file)
    order = random.Random(21)
    found = {name: {} for name in PATTERNS}
    for repetition in range(bench.repetitions):
        for scheduler in order.sample((*FIXED, AUTO), len(FIXED) + 1):
            out = os.path.join(bench.work, f"{scheduler}-{repetition}.jsonl")
            deployment.bivouac("forward", deployment.name, "--scheduler", f"{scheduler},dispatchers={DISPATCHERS}")
            words = ["--io-nodes", "1", "--repetitions", "1", "--seed", repetition, "--hosts", ",".join(computes), "--no-verify", "--out", out]
            deployment.bivouac("explore", "run", deployment.name, given, *map(str, words))
            with open(out, encoding="utf-8") as file:
                runs = [line for line in map(json.loads, file) if line["kind"] == "run"]
            for run in runs:
                found[run["pattern"]].setdefault(scheduler, []).append(run["bandwidth"] / 2**20)
    return found


def judge(bench, found):
    ratios = []
    for pattern, rates in found.items():
        medians = {scheduler: statistics.median(rates[scheduler]) for scheduler in FIXED}
        best, worst = max(medians, key=medians.get), min(medians, key=medians.get)
        matters = medians[best] >= MATTERS * medians[worst]
        others = ", ".join(f"{scheduler.partition(',')[0]} {median:.1f}" for scheduler, median in medians.items())
        note = f"limit: {best}, {medians[best] / medians[worst]:.1f} × {worst}; {others}"
        bench.judge(TARGET, f"auto: {pattern}", (rates[AUTO], rates[best]), "MiB/s", at_least=0.85 if matters else None, note=note)
        if matters:
            ratios.append(statistics.median(rates[AUTO]) / medians[best])
    if ratios:
        mean = statistics.geometric_mean(ratios)
        bench.row(TARGET, f"auto: all {len(ratios)} patterns where it matters", mean, "of the best", at_least=0.95)
