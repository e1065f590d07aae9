#!/usr/bin/env python3
"""The paper's 20 access patterns through 0, 1, 2, 4 and 8 I/O nodes, into a shared file system with contention of its own.

Usage: bench/explore_demo.py [--quick] [--repetitions N] [--stonewall SECONDS] [--minutes M] [--out FILE]

The storage is GlusterFS: two bricks, each file on both, on nodes of their own. Programs run on four nodes, I/O nodes are eight others. All are
network namespaces of this machine, and each node's link is shaped: what a compute node and an I/O node carry, and a brick four
times as much, so that the storage is the bottleneck when all of them use it. All nodes see the storage under the same path.
It takes hours with 17 repetitions, which five groups need for Dunn's test: with `--minutes` it stops after that time, and the same
command goes on later with what is missing in FILE. The report lies beside FILE. Needs root.
"""

import argparse
import os
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import gluster  # noqa: E402
import harness  # noqa: E402
import nets  # noqa: E402

COMPUTE, IO_NODES, BRICKS = 4, 8, 2
PROCESSES = 16
# Mbit/s of the link of a compute node and of an I/O node; that of a brick.
RATE, BRICK_RATE = 100, 400
NUMBERS = "0,1,2,4,8"
# `ip netns exec NODE` puts what lies in /etc/netns/NODE in the place of what has the same name in /etc.
NAME = "bivouac-explored"
SITE = f"/etc/{NAME}"


class Storage:
    """GlusterFS, which each node sees at SITE through a mount of its own."""

    def __init__(self, network, nodes, bricks, directory):
        self.nodes, self.places = nodes, []
        self.site = gluster.Gluster(network, bricks, directory)
        os.makedirs(SITE)
        for node in nodes:
            place = f"/etc/netns/{node}/{NAME}"
            os.makedirs(place)
            self.places.append(place)
            self.site.mount(node, place)

    def close(self):
        self.site.close()
        for place in self.places:
            os.rmdir(place)
            os.rmdir(os.path.dirname(place))
        os.rmdir(SITE)


def patterns(bivouac, options, path):
    total = "16M" if options.quick else "1G"
    words = ["--table2", "--nodes", COMPUTE, "--processes", PROCESSES, "--total", total, "--stonewall", options.stonewall, "--buffered"]
    harness.run([bivouac, "explore", "patterns", *map(str, words), "--output", path])


def explore(options, bench):
    network = nets.Network(COMPUTE + IO_NODES + BRICKS, None)
    computes, io_nodes, bricks = (
        network.nodes[:COMPUTE],
        network.nodes[COMPUTE : COMPUTE + IO_NODES],
        network.nodes[COMPUTE + IO_NODES :],
    )
    for nodes, rate in ((computes + io_nodes, RATE), (bricks, BRICK_RATE)):
        for node in nodes:
            nets.shape([], node, rate)
            nets.shape(["ip", "netns", "exec", node], "eth0", rate)
    storage = None
    try:
        with bench.directory() as tmpfs:
            storage = Storage(network, computes + io_nodes, bricks, tmpfs)
            # The first servers are made I/O nodes first. The others only have programs.
            with network.deployment(bench, options=("--forward", SITE), nodes=io_nodes + computes) as deployment:
                return run(options, network, deployment, computes)
    finally:
        if storage:
            storage.close()
        network.close()


def run(options, network, deployment, computes):
    """Explores; the exit code of the command."""
    given = f"{options.out}.patterns"
    patterns(harness.BIVOUAC, options, given)
    words = ["--io-nodes", NUMBERS, "--repetitions", options.repetitions, "--seed", 1, "--hosts", ",".join(computes), "--out", options.out]
    command = [harness.BIVOUAC, "explore", "run", deployment.name, given, *map(str, words), "--verbose"]
    process = subprocess.Popen(network.within(network.head, command))
    try:
        return process.wait(options.minutes * 60 if options.minutes else None)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        # It removes its files, and what it has measured stays.
        process.send_signal(signal.SIGINT)
        process.wait(120)
        return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two repetitions of short runs")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--stonewall", type=float, help="seconds of a run at most")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--out", default=os.path.join(harness.TARGET, "explored.jsonl"))
    options = parser.parse_args()
    options.repetitions = options.repetitions or (2 if options.quick else 17)
    options.stonewall = options.stonewall or (0.5 if options.quick else 2)
    # Who ends it, ends all that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = harness.Bench(options.quick, options.out)
    try:
        code = explore(options, bench)
    finally:
        bench.close()
    report = os.path.splitext(options.out)[0] + ".html"
    if subprocess.run([harness.BIVOUAC, "explore", "report", options.out, "--html", report], check=False).returncode == 0:
        print(f"the report is {report}")
    return code


if __name__ == "__main__":
    sys.exit(main())
