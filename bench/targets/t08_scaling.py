"""Nodes with links of 100 Mbit/s (fewer where many nodes would make the processors the limit): how well all links together are used."""

import harness
import nets

TARGET = 8
BLOCK = 512 << 10
# Mbit/s of each link, by the number of nodes.
RATES = {2: 100, 4: 100, 8: 100, 16: 25}


def measure(bench):
    seconds = 1.5 if bench.quick else 3
    for nodes in (2, 8) if bench.quick else (2, 4, 8, 16):
        network = nets.Network(nodes, RATES[nodes])
        try:
            one(bench, network, nodes, RATES[nodes], seconds)
        finally:
            network.close()


def one(bench, network, nodes, rate, seconds):
    procs = 2 * nodes
    # Of what a node writes, all but one part in `nodes` crosses its link.
    per_process = rate * 1e6 / 8 * seconds * nodes / (nodes - 1) / 2
    size = max(1 << 20, int(per_process) >> 20 << 20)
    with network.deployment(bench) as deployment:
        via = [word for node in network.nodes for word in ("--via", network.via(deployment, node))]
        for one_file in (True, False):
            # Every request has a block on each node: it meets all links alike.
            transfer = nodes * BLOCK
            options = ["--procs", procs, "--size", max(size // transfer, 2) * transfer, "--transfer", transfer, "--keep", *via]
            options += ["--one-file"] if one_file else []
            figures = {"pwrite": [], "pread": []}
            links = {"pwrite": [], "pread": []}
            useful = {"pwrite": [], "pread": []}
            for _ in range(bench.repetitions):
                for op, shift in (("pwrite", 0), ("pread", 1)):
                    carried = network.carries(1.0)
                    before = sum(network.sent())
                    more = ["--ops", op, "--shift", shift]
                    phase = harness.generator(f"{deployment.mount}/s{one_file}", options + more)[op]
                    crossed = sum(network.sent()) - before
                    figures[op].append(crossed / phase["seconds"] / 2**20)
                    links[op].append(nodes * carried / 2**20)
                    # What was asked for, without headers and what TCP sent again.
                    useful[op].append(phase["bytes_per_second"] * (nodes - 1) / nodes / (nodes * carried))
            for op, word in (("pwrite", "writes"), ("pread", "reads")):
                what = f"{nodes} nodes, links of {rate} Mbit/s, {'shared file' if one_file else 'file per process'}, {word}"
                middle = sorted(useful[op])[len(useful[op]) // 2]
                note = f"{procs} processes, transfers of {transfer >> 20} MiB; payload alone {middle:.2f}"
                bench.judge(TARGET, what, (figures[op], links[op]), "MiB/s", at_least=0.9, note=note)
