"""What others reach on this kind of machine (4 servers in memory, 2 processes), in the same shapes: ours beside the best of them."""

import statistics

import harness

TARGET = "others"
# MiB/s written and read, or operations a second: the best that any of Expand 3.3.1, GekkoFS 0.9.3, GlusterFS 10.3,
# MooseFS 3.0 and NFS-Ganesha reached, on a machine of this kind, measured with IOR and mdtest.
BEST = {
    "shared file, 4 KiB, write": 117,
    "shared file, 4 KiB, read": 1173,
    "shared file, 1 MiB, write": 1251,
    "shared file, 1 MiB, read": 2256,
    "file per process, 1 MiB, write": 1621,
    "file per process, 1 MiB, read": 2088,
    "create, empty file": 40120,
    "create and write 3,901 bytes": 7923,
}
# The same shapes on tmpfs when those were measured: by it, other machines and busy ones can be compared.
TMPFS = {
    "shared file, 4 KiB, write": 1924,
    "shared file, 4 KiB, read": 4417,
    "shared file, 1 MiB, write": 2589,
    "shared file, 1 MiB, read": 7029,
    "file per process, 1 MiB, write": 5160,
    "file per process, 1 MiB, read": 7288,
    "create, empty file": 439678,
    "create and write 3,901 bytes": 335517,
}
# The best of those that go over the wire: their own short cuts on the node do not count. (Expand's are not among the small ones.)
BEST_WIRE = {
    "shared file, 4 KiB, write": 117,
    "shared file, 4 KiB, read": 483,
    "shared file, 1 MiB, write": 1251,
    "shared file, 1 MiB, read": 2256,
    "file per process, 1 MiB, write": 1621,
    "file per process, 1 MiB, read": 2088,
    "create, empty file": 6247,
    "create and write 3,901 bytes": 4125,
}
# At least three times ahead over the wire.
SMALL = ("shared file, 4 KiB", "create")


def shapes(bench, directory, inside=None, remote=False):
    """All rows, on fresh files: written, then read by the other process."""
    size = (32 if bench.quick else 128) << 20
    files = 1000 if bench.quick else 5000
    result = {}

    def run(options):
        return harness.generator(directory, ["--procs", 2, *options], inside, remote)

    for what, options in (
        ("shared file, 4 KiB", ["--one-file", "--transfer", "4K"]),
        ("shared file, 1 MiB", ["--one-file", "--transfer", "1M"]),
        ("file per process, 1 MiB", ["--transfer", "1M"]),
    ):
        phases = run([*options, "--size", size, "--ops", "pwrite,pread", "--shift", 1])
        for op, way in (("pwrite", "write"), ("pread", "read")):
            result[f"{what}, {way}"] = phases[op]["bytes_per_second"] / 2**20
    for what, bytes_each in (("create, empty file", 0), ("create and write 3,901 bytes", 3901)):
        phases = run(["--files", files, "--size", bytes_each, "--ops", "create,unlink"])
        result[what] = phases["create"]["rate"]
    return result


def measure(bench):
    with bench.deployment() as deployment, bench.directory() as tmpfs:
        inside = f"{deployment.mount}/o"
        measured = {"local": [], "wire": [], "tmpfs": []}
        for _ in range(bench.repetitions):
            measured["local"].append(shapes(bench, inside, deployment))
            measured["wire"].append(shapes(bench, inside, deployment, remote=True))
            measured["tmpfs"].append(shapes(bench, tmpfs))
        for what in BEST:
            middle = {who: statistics.median(m[what] for m in all_of) for who, all_of in measured.items()}
            unit = "1/s" if what.startswith("create") else "MiB/s"
            for who, best, times in (
                ("local", BEST[what], 1),
                ("wire", BEST_WIRE[what], 3 if what.startswith(SMALL) else 1),
            ):
                bench.row(
                    TARGET,
                    f"{what}, {'over TCP' if who == 'wire' else 'on the own node'}",
                    middle[who],
                    unit,
                    limit=best,
                    ratio=middle[who] / best,
                    at_least=times,
                    repetitions=bench.repetitions,
                    spread=(min(m[what] for m in measured[who]) / best, max(m[what] for m in measured[who]) / best),
                    note=f"tmpfs {harness.number(middle['tmpfs'])}; of tmpfs {middle[who] / middle['tmpfs']:.3f}, theirs {best / TMPFS[what]:.3f}",
                )
