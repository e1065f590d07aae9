"""Disks that do so many operations and bytes a second: a blkio throttle, which holds for direct and for synchronous access. Needs root."""

import contextlib
import os

from harness import run

BLKIO = "/sys/fs/cgroup/blkio"


@contextlib.contextmanager
def limited(path, **limits):
    """Has this process, and all that it starts, share what the disk below a path does in each direction; not where the kernel cannot.

    `limits`: `bps`, bytes a second, and `iops`, operations a second.
    """
    group = f"{BLKIO}/bivouac-bench-{os.getpid()}"
    if not os.path.exists(f"{BLKIO}/blkio.throttle.read_bps_device"):
        print("the disk cannot be limited: there is no blkio controller", flush=True)
        yield False
        return
    device = os.stat(path).st_dev
    os.mkdir(group)
    try:
        for way in ("read", "write"):
            for unit, most in limits.items():
                write(f"{group}/blkio.throttle.{way}_{unit}_device", f"{os.major(device)}:{os.minor(device)} {most}")
        write(f"{group}/cgroup.procs", str(os.getpid()))
        yield True
    finally:
        write(f"{BLKIO}/cgroup.procs", str(os.getpid()))
        with open(f"{group}/cgroup.procs", encoding="ascii") as file:
            for pid in file.read().split():
                with contextlib.suppress(OSError):
                    write(f"{BLKIO}/cgroup.procs", pid)
        os.rmdir(group)


@contextlib.contextmanager
def ext4(directory, size):
    """An ext4 in memory, below a directory: where it is mounted."""
    image, where = os.path.join(directory, "disk"), os.path.join(directory, "ext4")
    os.mkdir(where)
    with open(image, "wb") as file:
        file.truncate(size)
    run(["mkfs.ext4", "-q", image])
    run(["mount", "-o", "loop", image, where])
    try:
        yield where
    finally:
        run(["umount", where], check=False)


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
