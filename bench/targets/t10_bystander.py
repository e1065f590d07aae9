"""A program that never touches the mount, with the library loaded: its start, and 4 KiB reads on tmpfs in a loop."""

import subprocess
import time

import harness

TARGET = 10


def measure(bench):
    raw = bench.tool("raw.c")
    starts = 50 if bench.quick else 200
    with bench.deployment() as deployment, bench.directory() as tmpfs:
        harness.run(["sh", "-c", f"head -c 4M /dev/zero > {tmpfs}/own.0"])
        count = "300000" if bench.quick else "1000000"
        script = f"i=0; while [ $i -lt {starts} ]; do /bin/true; i=$((i + 1)); done"

        def timed(command):
            start = time.monotonic()
            subprocess.run(command, check=True)
            return (time.monotonic() - start) / starts * 1000

        def measured(command):
            return {
                "start": timed(command(["sh", "-c", script])),
                "reads": float(harness.run(command([raw, "loop", count, f"{tmpfs}/own.0"]))),
            }

        pairs = bench.in_turns(lambda: measured(deployment.command), lambda: measured(lambda c: c))
    with_library, without = pairs["start"]
    more = sorted(a - b for a, b in zip(with_library, without))
    median = more[len(more) // 2]
    bench.row(
        TARGET,
        "start of /bin/true: more than without the library",
        median,
        "ms",
        at_most=2.0,
        repetitions=len(more),
        note=f"{min(more):.2f} to {max(more):.2f} ms",
    )
    bench.judge(TARGET, "4 KiB reads on tmpfs in a loop", pairs["reads"], "1/s", at_least=0.98)
