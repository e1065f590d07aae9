"""fio through the preload library, data on the own node, against the same fio on tmpfs: 64 KiB, 512 KiB, 1 MiB."""

import statistics

import harness

TARGET = 1
BLOCKS = ("64k", "512k", "1m")
BOUND = 0.90


def matrix(bench, blocks, seconds):
    """Each combination with its name; fewer in a quick run."""
    procs = (2,) if bench.quick else (2, 4)
    for block in blocks:
        for count in procs:
            for shared in (True, False):
                for mode in ("write", "read", "randwrite", "randread"):
                    name = f"{mode} {block} {'shared file' if shared else 'file per process'} {count} processes"
                    yield name, mode, block, count, shared


def measure(bench, target=TARGET, blocks=BLOCKS, at_least=BOUND):
    seconds = 0.3 if bench.quick else 0.5
    size = 128 << 20
    combinations = list(matrix(bench, blocks, seconds))

    def jobs(directory):
        return [
            (name, harness.fio_job(directory, mode, size, block, procs, shared, seconds))
            for name, mode, block, procs, shared in combinations
        ]

    with bench.deployment() as deployment, bench.directory() as tmpfs:
        inside = f"{deployment.mount}/fio"
        harness.fio_files(deployment, inside, tmpfs, 4, size)
        pairs = bench.in_turns(
            lambda: harness.fio(inside, jobs(inside), deployment.command),
            lambda: harness.fio(tmpfs, jobs(tmpfs)),
        )
    for name, *_ in combinations:
        rates = tuple([value / 2**20 for value in side] for side in pairs[name, "rate"])
        figures, limits = (statistics.median(side) for side in pairs[name, "cpu"])
        note = f"for the same processor time {figures / limits:.2f}"
        bench.judge(target, name, rates, "MiB/s", at_least=at_least, note=note)
