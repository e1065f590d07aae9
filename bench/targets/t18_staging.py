"""Preload and flush with 4 nodes: large files against parallel `dd` on the same backend, as it is and with its rate limited, a tree of small files against `cp -r` into the same deployment; caches dropped."""

import os
import shutil
import subprocess
import time

import disks
import harness
import nets
from harness import BIVOUAC

TARGET = 18
NODES = 4
STREAMS = 8
# Bytes per second that all processes together get of the limited backend, in each direction.
LIMIT = 128 << 20


def measure(bench):
    network = nets.Network(NODES, None)
    # The backend is a disk, whatever else is in memory.
    backend = os.path.join(harness.TARGET, f"bench-backend-{os.getpid()}")
    os.makedirs(backend)
    try:
        large(bench, network, backend)
        with disks.limited(backend, bps=LIMIT) as is_limited:
            if is_limited:
                slow(bench, network, backend)
        small(bench, network, backend)
    finally:
        network.close()
        shutil.rmtree(backend, ignore_errors=True)


def timed(commands):
    """Seconds until all of some commands have ended that run at the same time."""
    harness.drop_caches()
    start = time.monotonic()
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for command in commands]
    said = [process.communicate()[1] for process in running]
    took = time.monotonic() - start
    for process, words in zip(running, said):
        if process.returncode != 0:
            raise harness.Failed(f"{' '.join(process.args)[:200]}: exit code {process.returncode}\n{words[-1000:]}")
    return took


def large(bench, network, backend):
    size = (128 if bench.quick else 256) << 20
    files = make(f"{backend}/large", size)
    for blocks in ("512K", "4M"):
        for way, pair in staged(bench, network, files, blocks, STREAMS).items():
            what = f"{way}: {STREAMS} files of {size >> 20} MiB, blocks of {blocks}, {STREAMS} streams; limit: {STREAMS} dd"
            bench.judge(TARGET, what, pair, "MiB/s", at_least=0.9)


def slow(bench, network, backend):
    """A backend that is not faster for being used by many must not be slower."""
    size = (32 if bench.quick else 64) << 20
    files = make(f"{backend}/slow", size)
    for readers in (1, STREAMS):
        for way, pair in staged(bench, network, files, "512K", readers).items():
            what = f"{way}, backend limited to {LIMIT >> 20} MiB/s: {STREAMS} files of {size >> 20} MiB, {STREAMS} streams; limit: {readers} dd"
            bench.judge(TARGET, what, pair, "MiB/s", at_least=0.9)


def make(directory, size):
    os.makedirs(directory)
    files = [f"{directory}/{number}" for number in range(STREAMS)]
    for file in files:
        harness.run(["dd", "if=/dev/urandom", f"of={file}", "bs=4M", f"count={size >> 22}", "oflag=direct", "status=none"])
    return files


def staged(bench, network, files, blocks, readers):
    """Preload and flush of files, and so many `dd` at a time that copy as much."""
    directory = os.path.dirname(files[0])
    backend, size = os.path.dirname(directory), os.path.getsize(files[0])
    total = size * len(files)
    with network.deployment(bench, ["--block-size", blocks]) as deployment:
        stage = lambda *words: network.within(network.head, [BIVOUAC, *words, "--streams", str(STREAMS)])
        inside = lambda *words: harness.run(network.within(network.head, [BIVOUAC, "exec", deployment.name, "--", *words]))

        def bivouac():
            preload = timed([stage("preload", deployment.name, directory, "/large")])
            flush = timed([stage("flush", deployment.name, "/large", f"{backend}/out")])
            harness.run(["cmp", files[0], f"{backend}/out/0"])
            shutil.rmtree(f"{backend}/out")
            inside("rm", "-r", f"{deployment.mount}/large")
            return {"preload": total / preload / 2**20, "flush": total / flush / 2**20}

        def dd(from_to):
            """So many at a time, each copying its share of the files one after the other."""
            copies = [["dd", f"if={file}", f"of={to}", "bs=4M", f"count={size >> 22}", *flags, "status=none"] for file, to, flags in from_to]
            shares = [copies[first::readers] for first in range(readers)]
            return timed([["sh", "-c", " && ".join(" ".join(copy) for copy in share)] for share in shares])

        def copied():
            read = dd([(file, "/dev/null", ["iflag=direct"]) for file in files])
            os.makedirs(f"{backend}/dd")
            write = dd([("/dev/zero", f"{backend}/dd/{number}", ["oflag=direct"]) for number in range(len(files))])
            shutil.rmtree(f"{backend}/dd")
            return {"preload": total / read / 2**20, "flush": total / write / 2**20}

        return bench.in_turns(bivouac, copied)


def small(bench, network, backend):
    files, directories = (4_000, 40) if bench.quick else (20_000, 200)
    for number in range(files):
        if number % (files // directories) == 0:
            directory = f"{backend}/small/{number * directories // files}"
            os.makedirs(directory)
        with open(f"{directory}/file-{number}", "wb") as file:
            # From 1 to 16 KiB: some fit into their inodes.
            file.write(os.urandom(1024 * (1 + number % 16)))
    with network.deployment(bench) as deployment:
        exec_ = lambda *words: network.within(network.nodes[0], [BIVOUAC, "exec", deployment.name, "--", *words])
        at = f"{deployment.mount}/small"

        def rate(command):
            took = timed([command])
            found = harness.run(exec_("sh", "-c", f"find {at} -type f | wc -l"))
            if int(found) != files:
                raise harness.Failed(f"{found.strip()} of {files} files were copied")
            harness.run(exec_("rm", "-r", at))
            return {"small": files / took}

        preload = network.within(network.head, [BIVOUAC, "preload", deployment.name, f"{backend}/small", "/small"])
        pair = bench.in_turns(lambda: rate(preload), lambda: rate(exec_("cp", "-r", f"{backend}/small", at)))["small"]
        bench.judge(TARGET, f"preload: tree of {files:,} files of 1 to 16 KiB; limit: cp -r inside", pair, "files/s", at_least=2)
