"""Data over TCP, 64 KiB and 1 MiB, against plain sockets that move the same between as many processes and tmpfs files."""

import statistics

import harness

TARGET = 3
WAYS = ("copy", "kernel")


def measure(bench):
    seconds = 0.4 if bench.quick else 1
    size = 128 << 20
    raw = bench.tool("raw.c")
    combinations = [
        (f"{mode} {word} {procs} processes", mode, block, word, procs)
        for block, word in ((64 << 10, "64k"), (1 << 20, "1m"))
        for procs in (2, 4)
        for mode in ("write", "read")
    ]
    with bench.deployment() as deployment, bench.directory() as tmpfs:
        inside = f"{deployment.mount}/fio"
        deployment.run(["mkdir", inside])
        own = [f"{inside}/own.{i}" for i in range(4)]
        harness.prepare_files(deployment, own, [f"{tmpfs}/raw.{i}" for i in range(4)], size)
        jobs = [(name, harness.fio_job(inside, mode, size, word, procs, False, seconds)) for name, mode, _, word, procs in combinations]

        def subject():
            rates = harness.fio(inside, jobs, lambda c: deployment.command(c, remote=True))
            return {(name, way): rates[name, "rate"] / 2**20 for name, *_ in combinations for way in WAYS}

        def limit():
            return {
                (name, way): float(harness.run([raw, "move", mode, "tcp", str(block), str(procs), str(seconds), tmpfs, way]))
                for name, mode, block, _, procs in combinations
                for way in WAYS
            }

        pairs = bench.in_turns(subject, limit)
    for name, *_ in combinations:
        # The limit is what the better way of the two does.
        best = max(WAYS, key=lambda way: statistics.median(pairs[name, way][1]))
        bench.judge(TARGET, name, pairs[name, best], "MiB/s", at_least=0.85, note=f"limit by {best}")
