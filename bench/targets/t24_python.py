"""Python: `readinto` of 1 MiB and 10,000 small files at once, against plain Python on tmpfs. `make wheel` comes first: both sides run in its virtual environment."""

import os
import shutil

import harness

TARGET = 24
PYTHON = os.path.join(harness.TARGET, "wheel-venv", "bin", "python")
PROGRAM = os.path.join(harness.ROOT, "bench", "reads.py")


def python(*words):
    # The package's own program is not used: this one has been measured by all other rows, too.
    out = harness.run([PYTHON, PROGRAM, *map(str, words)], env={"BIVOUAC": harness.BIVOUAC}).strip()
    return {"": float(out)} if out else None


def measure(bench):
    if not os.path.exists(PYTHON):
        raise harness.Failed(f"{PYTHON} is not there: make wheel")
    with bench.deployment(1) as deployment, bench.directory() as tmpfs:
        pieces(bench, deployment, tmpfs)
        for size in (1_000, 10_000):
            small(bench, deployment, tmpfs, size)


def pieces(bench, deployment, tmpfs):
    seconds = 0.5 if bench.quick else 2
    harness.prepare_files(deployment, [f"{deployment.mount}/large"], [f"{tmpfs}/large"], (64 if bench.quick else 256) << 20)
    pair = bench.in_turns(
        lambda: python("pieces", "api", deployment.name, "large", seconds),
        lambda: python("pieces", "plain", tmpfs, "large", seconds),
    )[""]
    bench.judge(TARGET, "readinto of 1 MiB, file on the own node; limit: a plain file on tmpfs", pair, "MiB/s", at_least=0.9)


def small(bench, deployment, tmpfs, size):
    files = 2_000 if bench.quick else 10_000
    python("make", deployment.name, tmpfs, files, size)
    for how, call in (("cat", "fs.cat"), ("read_files", "Deployment.read_files")):
        pair = bench.in_turns(
            lambda: python("small", how, deployment.name, files, size),  # noqa: B023
            lambda: python("small", "plain", tmpfs, files, size),
        )[""]
        what = f"{files:,} files of {size // 1000} KB by {call}; limit: open, read, close of each on tmpfs"
        bench.judge(TARGET, what, pair, "files/s", at_least=0.5)
    shutil.rmtree(f"{tmpfs}/small")
    deployment.run(["rm", "-r", f"{deployment.mount}/small"])
