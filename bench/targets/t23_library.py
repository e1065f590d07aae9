"""Reads and writes of data on the own node through the C library, against the same with the preload library."""

import os

import harness

TARGET = 23
SIZES = (4 << 10, 64 << 10, 1 << 20)


def built(bench):
    library = os.path.join(harness.TARGET, "library")
    program = os.path.join(bench.home, "library")
    source = os.path.join(harness.ROOT, "bench", "library.c")
    lib = os.path.join(library, "lib")
    harness.run(
        ["cc", "-O2", "-Wall", f"-I{library}/include", "-o", program, source, f"-L{lib}", "-lbivouac", f"-Wl,-rpath,{lib}"]
    )
    return program


def measure(bench):
    program = built(bench)
    seconds = "0.5" if bench.quick else "2"
    # One server, so that all of the file is on this node, in one place.
    with bench.deployment(1) as deployment:
        for operation in ("read", "write"):
            for size in SIZES:
                words = [operation, str(size), seconds]
                subject = lambda: {"": float(harness.run([program, "api", deployment.name, *words]))}  # noqa: B023, E731
                limit = lambda: {"": float(deployment.run([program, "posix", f"{deployment.mount}/posix", *words]))}  # noqa: B023, E731
                pair = bench.in_turns(subject, limit)[""]
                bench.judge(TARGET, f"C library, {operation}s of {size >> 10} KiB", pair, "MiB/s", at_least=1.0, note="limit: preload library")
