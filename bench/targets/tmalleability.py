"""Servers that come and leave, on 8 shaped links: how long files take to go where they are to be, and what programs feel of it.

The shape of figures 1.4.1 and 1.4.2 of expand-final-evaluation.000, scaled to one machine: 1 GiB in files of several sizes, three block
sizes, 2 to 4 to 8 servers and back, the three ways to rebuild.
"""

import json
import os
import re
import subprocess
import time

import harness
import nets
from harness import BIVOUAC, Failed, run

TARGET = "malleability"
# Only where it is asked for: it takes an hour.
ALONE = True
NODES = 8
# Mbit/s: as much as this machine's processors carry on all of them at once.
RATE = 100
# Sizes of files, and how many of each: 1 GiB.
FILES = [(128 << 20, 2), (16 << 20, 16), (1 << 20, 256), (128 << 10, 1024), (64 << 10, 2048)]
BLOCKS = (64 << 10, 512 << 10, 4 << 20)
STEPS = {1: (2, 4, 8, 4, 2), 2: (2, 4, 8, 4, 2), 4: (4, 8, 4)}

# Seconds that the direct way took, by copies, blocks, and servers before and after.
DIRECT = {}

# Writes files of several sizes: of all of them, every `NODES`th.
WRITER = """
import os, sys
where, part, parts, kinds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
os.makedirs(where, exist_ok=True)
number = 0
for kind in kinds:
    size, count = map(int, kind.split("x"))
    data = os.urandom(min(size, 4 << 20))
    for _ in range(count):
        number += 1
        if number % parts == part:
            with open(f"{where}/{number}", "wb", buffering=0) as file:
                for begin in range(0, size, len(data)):
                    file.write(data[: size - begin])
"""

# Changes files of many shards all the while, and says how long the longest call took.
TOUCHER = """
import os, sys, time
where = sys.argv[1]
os.makedirs(where, exist_ok=True)
names = [f"{where}/{number}" for number in range(512)]
for name in names:
    open(name, "w").close()
print("ready", flush=True)
longest, last = 0, time.monotonic()
while not os.path.exists(sys.argv[2]):
    for name in names:
        os.utime(name)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
print(longest)
"""


def measure(bench):
    network = nets.Network(NODES, RATE)
    try:
        for copies in (1, 2) if bench.quick else (1, 2, 4):
            for block in BLOCKS[1:2] if bench.quick else BLOCKS:
                for rule in ("direct", "metadata"):
                    chain(bench, network, copies, block, rule)
            through_backend(bench, network, copies, 512 << 10)
    finally:
        network.close()


def kinds(bench):
    """The files: all of them, or those of a short run."""
    return [(size, max(count // 8, 1) if bench.quick else count) for size, count in FILES]


def words(files):
    return [f"{size}x{count}" for size, count in files]


def filled(bench, network, found, servers, where):
    """Writes the files, each node of a server its part."""
    nodes = network.nodes[:servers]
    parts = [
        subprocess.Popen(
            network.within(node, found.command(["python3", "-c", WRITER, f"{found.mount}/{where}", str(part), str(servers), *words(kinds(bench))]))
        )
        for part, node in enumerate(nodes)
    ]
    if any(part.wait() != 0 for part in parts):
        raise Failed("files could not be written")


def formula(bench, block, copies, before, after, rule):
    """What has to move, by the layouts alone."""
    program = bench.example("moves")
    arguments = [str(block), str(copies), str(before), str(after), rule, *words(kinds(bench))]
    return json.loads(run([program, *arguments]))


def changed(network, found, arguments):
    """Runs `expand` or `shrink`. What it says, with the seconds after which it says it, and in all."""
    begun = time.monotonic()
    process = subprocess.Popen(network.within(network.head, [BIVOUAC, *arguments]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [(line.strip(), time.monotonic() - begun) for line in process.stdout]
    errors = process.stderr.read()
    if process.wait() != 0:
        raise Failed(f"{' '.join(arguments)}: {errors}")
    return lines, time.monotonic() - begun


def moved(lines):
    """Bytes that moved, and the second at which they had."""
    for line, at in lines:
        found = re.search(r"^([\d.,]+) (B|bytes?|KiB|MiB|GiB) of ", line)
        if found:
            unit = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}.get(found[2], 1)
            return float(found[1].replace(",", "")) * unit, at
    return 0.0, 0.0


def chain(bench, network, copies, block, rule):
    """Servers come and leave again, one step after the other."""
    steps = STEPS[copies]
    options = ["--block-size", str(block), "--replicas", str(copies), "--heal-after", "never"]
    size, what = f"blocks of {block >> 10} KiB", f"{rule}, R = {copies}"
    with network.deployment(bench, options, nodes=network.nodes[: steps[0]]) as found:
        filled(bench, network, found, steps[0], "a")
        for before, after in zip(steps, steps[1:]):
            carried = network.carries(1.0)
            grows = after > before
            if rule == "metadata" and not grows:
                # Nothing has gone to the servers that came but what was written since.
                run(network.within(network.head, found.command(["rm", "-r", f"{found.mount}/a"])))
                filled(bench, network, found, before, "a")
            must = formula(bench, block, copies, before, after, rule)
            hosts = ",".join(network.nodes[before:after] if grows else network.nodes[after:before])
            command = ["expand" if grows else "shrink", found.name, "--hosts", hosts, "--rebuild", rule]
            command += ["--launcher", "netns"] if grows else []
            stop = os.path.join(bench.home, f"stop-{found.name}")
            toucher = subprocess.Popen(
                network.within(network.head, found.command(["python3", "-c", TOUCHER, f"{found.mount}/touched-{before}-{after}", stop])),
                stdout=subprocess.PIPE,
                text=True,
            )
            toucher.stdout.readline()
            sent = network.sent()
            lines, took = changed(network, found, command)
            sent = sum(network.sent()) - sum(sent)
            open(stop, "w").close()
            waited = float(toucher.stdout.readline() or "nan")
            toucher.wait()
            os.unlink(stop)
            bytes_moved, at = moved(lines)
            in_force = lines[0][1] if grows else None
            busiest = max([0, *must["given"].values(), *must["taken"].values()])
            name = f"{before} → {after}, {what}, {size}"
            if busiest:
                rebuilding = at - (in_force or 0)
                note = (
                    f"{rebuilding:.1f} s; {bytes_moved / 2**20:.0f} MiB moved, by the formula {must['moved'] / 2**20:.0f} of {must['stored'] / 2**20:.0f}; "
                    f"{sent / 2**20:.0f} MiB on all links"
                )
                pair = ([busiest / rebuilding / 2**20], [carried / 2**20])
                bench.judge(TARGET, f"{name}: on the busiest link", pair, "MiB/s", at_least=0.8, note=note)
            if rule == "direct":
                DIRECT[(copies, block, before, after)] = took
            if grows:
                bench.row(TARGET, f"{name}: until the new servers have new files", in_force, "s", at_most=1, note=f"{took:.1f} s in all")
            else:
                bench.row(TARGET, f"{name}: until they have stopped, after their files had left", took - at, "s", note=f"{took:.1f} s in all")
            bench.row(TARGET, f"{name}: longest wait of a program that changes files all the while", waited * 1000, "ms", at_most=100)


def through_backend(bench, network, copies, block):
    """The same with a backend in memory, that carries as much as the links of the deployment's servers together."""
    steps = STEPS[copies]
    options = ["--block-size", str(block), "--replicas", str(copies), "--heal-after", "never"]
    with network.deployment(bench, options, nodes=network.nodes[: steps[0]]) as found, bench.directory("backend") as backend:
        filled(bench, network, found, steps[0], "a")
        for before, after in zip(steps, steps[1:]):
            carried = int(network.carries(1.0))
            hosts = ",".join(network.nodes[before:after] if after > before else network.nodes[after:before])
            command = ["expand" if after > before else "shrink", found.name, "--hosts", hosts, "--rebuild", "backend"]
            command += ["--backend", backend, "--max-rate", str(carried)]
            command += ["--launcher", "netns"] if after > before else []
            lines, took = changed(network, found, command)
            phases = re.search(r"flush ([\d.]+) s, restart ([\d.]+) s, preload ([\d.]+) s", lines[-1][0])
            note = f"flush {phases[1]} s, restart {phases[2]} s, preload {phases[3]} s" if phases else None
            what = f"{before} → {after}, backend, R = {copies}, blocks of {block >> 10} KiB: in all"
            bench.row(TARGET, what, took, "s", note=note)
            direct = DIRECT.get((copies, block, before, after))
            if direct:
                what = f"{before} → {after}, direct, R = {copies}, blocks of {block >> 10} KiB: as many times as fast as backend"
                bench.row(TARGET, what, took / direct, "", at_least=2)
