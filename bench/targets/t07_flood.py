"""A flood of 8-byte files from 36 processes, 1 to 32,000 files each: a straight line, no file lost, little memory; then list and remove."""

import os

import harness

TARGET = 7
PROCS = 36


def measure(bench):
    steps = (1, 100, 500, 1000, 2000) if bench.quick else (1, 1000, 2000, 4000, 8000, 16000, 32000)
    with bench.deployment() as deployment:
        pids = deployment.daemons()
        base = sum(harness.resident(pid) for pid in pids)
        points = []
        for number, files in enumerate(steps):
            last = number == len(steps) - 1
            directory = f"{deployment.mount}/flood{files}"
            options = ["--procs", PROCS, "--files", files, "--size", 8]
            if not last:
                phases = harness.generator(directory, options + ["--ops", "create,unlink"], deployment)
            else:
                phases = harness.generator(directory, options + ["--ops", "create", "--keep"], deployment)
            points.append((files * PROCS, phases["create"]["seconds"]))
        total = steps[-1] * PROCS
        resident = sum(harness.resident(pid) for pid in pids) - base
        stored = {"log": 0, "snapshot": 0}
        for pid in deployment.status()["servers"]:
            for storage in pid["storage"]:
                for entry in os.scandir(os.path.join(storage, "meta")):
                    stored["snapshot" if "snap" in entry.name else "log"] += entry.stat().st_blocks * 512
        # generator() fails if a file is missing, empty or another's.
        checked = harness.generator(directory, options + ["--ops", "stat,read,liststat,unlink"], deployment)
        cost = phases["create"]["cpu_us"]
        bench.row(
            TARGET,
            f"{total:,} files created by {PROCS} processes: R² of time over files",
            r_squared(points),
            "",
            at_least=0.99,
            repetitions=len(points),
            note=f"{phases['create']['rate']:,.0f} files/s, cpu {cost['own']:.0f} + {cost['servers']:.0f} µs a file",
        )
        bench.row(
            TARGET,
            "resident memory of the servers for each file",
            resident / total,
            "bytes",
            at_most=400,
            note=f"log {stored['log'] / total:.0f}, snapshots {stored['snapshot'] / total:.0f} bytes a file",
        )
        for op in ("stat", "read", "liststat", "unlink"):
            rate = checked[op]["entries"] / checked[op]["seconds"] if op == "liststat" else checked[op]["rate"]
            bench.row(TARGET, f"{op} of all of them", rate, "1/s", note="none lost, none empty")


def r_squared(points):
    """Of the straight line through the points that fits best."""
    n = len(points)
    mean_x, mean_y = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    return xy * xy / (xx * yy) if xx and yy else 1.0
