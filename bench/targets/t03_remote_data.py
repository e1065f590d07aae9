"""Data over TCP, 64 KiB and 1 MiB, against plain sockets that move the same between as many processes and tmpfs files."""

import harness

TARGET = 3


def measure(bench):
    with bench.deployment() as deployment, bench.directory() as tmpfs:
        inside = f"{deployment.mount}/fio"
        deployment.run(["mkdir", inside])
        harness.moves(bench, TARGET, deployment, inside, tmpfs, "")
