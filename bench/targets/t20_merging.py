"""Sixteen processes on four nodes share a file on GlusterFS, in turns of 32 KiB: through one I/O node, with and without merging, against directly."""

import json
import os
import subprocess
import time

import gluster
import harness

TARGET = 20
PROCESSES = 16
REQUEST = 32 << 10
COMPUTE = 4
# Mbit/s of each compute node's link.
RATE = 100
# Seconds that all of it may take, some ten times as many as it does.
LIMIT = 120
# `to` merges neighbours, `fifo` does not.
SCHEDULERS = ("to", "fifo")


def measure(bench):
    count = 64 if bench.quick else 256
    strided = bench.tool("strided.c")
    with gluster.beside(bench, COMPUTE, RATE) as (network, computes, io_node, site):
        mounts = {node: site.mount(node) for node in (*computes, io_node)}
        with network.deployment(bench, nodes=[io_node, *computes]) as deployment:
            compare(bench, Work(network, deployment, mounts, computes, io_node, strided, count))


class Work:
    """What the processes do, and where."""

    def __init__(self, network, deployment, mounts, computes, io_node, strided, count):
        self.network, self.deployment, self.mounts, self.computes = network, deployment, mounts, computes
        self.io_node, self.strided, self.count = io_node, strided, count
        self.merged = {}

    def forward(self, *options):
        return self.deployment.bivouac("forward", self.deployment.name, *options)

    def counts(self):
        node = json.loads(self.forward("--json"))["io_nodes"][0]
        return node["requests_in"], node["requests_out"]

    def forwarded(self):
        """All processes, through the I/O node."""
        rates = {}
        for scheduler in SCHEDULERS:
            self.forward(self.mounts[self.io_node], "--io-nodes", self.io_node, "--assign", "file", "--scheduler", scheduler)
            for mode in ("write", "read"):
                before = self.counts()
                rates[mode, scheduler] = self.together(mode, True)
                asked, issued = (after - earlier for after, earlier in zip(self.counts(), before))
                self.merged[mode, scheduler] = f"{asked} requests, {issued} at the backend"
        return rates

    def direct(self):
        """The same, each by its node's own mount."""
        rates = {mode: self.together(mode, False) for mode in ("write", "read")}
        return {(mode, scheduler): rate for mode, rate in rates.items() for scheduler in SCHEDULERS}

    def together(self, mode, forwarded):
        """MiB a second of all processes together, to or from the bricks: no cache has anything of it."""
        if mode == "write":
            with open(os.path.join(self.mounts[self.computes[0]], "shared"), "wb"):
                pass
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
        begin = time.time() + 1.5
        processes = []
        for process in range(PROCESSES):
            node = self.computes[process % COMPUTE]
            path = os.path.join(self.mounts[self.io_node if forwarded else node], "shared")
            command = [self.strided, mode, path, *map(str, (REQUEST, PROCESSES, process, self.count, begin))]
            if forwarded:
                command = [harness.BIVOUAC, "exec", self.deployment.name, "--", *command]
            processes.append(subprocess.Popen(self.network.within(node, command), stdout=subprocess.PIPE, text=True))
        try:
            outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
        except subprocess.TimeoutExpired as error:
            hang = [process.args for process in processes if process.poll() is None]
            for process in processes:
                process.kill()
            raise harness.Failed(f"{len(hang)} of {PROCESSES} processes hang: {hang[0]}") from error
        if any(process.returncode for process in processes):
            raise harness.Failed("a process failed")
        return PROCESSES * self.count * REQUEST / max(float(output) for output in outputs) / 2**20


def compare(bench, work):
    pairs = bench.in_turns(work.forwarded, work.direct)
    for (mode, scheduler), pair in pairs.items():
        least = 2.0 if (mode, scheduler) == ("write", "to") else None
        what = f"{mode}s in turns, 16 processes, 32 KiB, {scheduler}"
        bench.judge(TARGET, what, pair, "MiB/s", at_least=least, note=f"limit: directly; {work.merged[mode, scheduler]}")
