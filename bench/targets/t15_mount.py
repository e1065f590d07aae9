"""fio through the mount: alone against bindfs over tmpfs, and with the library beside it against the library alone."""

import contextlib
import os
import statistics

import harness

TARGET = 15
BOUND = 0.90
SIZE = 64 << 20


@contextlib.contextmanager
def passed_through(directory, at):
    """A directory behind a plain FUSE file system, which does not cache file data either."""
    os.makedirs(at)
    harness.run(["bindfs", "--multithreaded", "--no-allow-other", "-o", "direct_io", directory, at])
    try:
        yield at
    finally:
        harness.run(["umount", "-l", at], check=False)


def measure(bench):
    seconds = 0.3 if bench.quick else 0.5
    combinations = [
        (f"{mode} {block} {'shared file' if shared else 'file per process'} 2 processes", mode, block, shared)
        for block in ("4k", "1m")
        for shared in (True, False)
        for mode in ("write", "read", "randwrite", "randread")
    ]

    def jobs(directory):
        return [(name, harness.fio_job(directory, mode, SIZE, block, 2, shared, seconds)) for name, mode, block, shared in combinations]

    def through(access):
        return lambda: harness.fio(inside, jobs(inside), lambda command: deployment.command(command, access=access))

    def judge(what, pairs):
        for name, *_ in combinations:
            rates = tuple([value / 2**20 for value in side] for side in pairs[name, "rate"])
            figures, limits = (statistics.median(side) for side in pairs[name, "cpu"])
            note = f"for the same processor time of the client {figures / limits:.2f}"
            bench.judge(TARGET, f"{what}, {name}", rates, "MiB/s", at_least=BOUND, note=note)

    with bench.deployment() as deployment, bench.directory() as tmpfs:
        inside = f"{deployment.mount}/fio"
        harness.fio_files(deployment, inside, tmpfs, 2, SIZE)
        judge("both / preload", bench.in_turns(through("both"), through("preload")))
        with passed_through(tmpfs, os.path.join(bench.home, "bindfs")) as bound:
            judge("fuse / bindfs", bench.in_turns(through("fuse"), lambda: harness.fio(bound, jobs(bound))))
