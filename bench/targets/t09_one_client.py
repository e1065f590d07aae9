"""One client with a link of 400 Mbit/s reads and writes one file on 8 nodes with links of 50 Mbit/s."""

import harness
import nets

TARGET = 9


def measure(bench):
    network = nets.Network(8, 50, head_rate=400)
    try:
        with network.deployment(bench) as deployment:
            size = (64 if bench.quick else 160) << 20
            figures = {"pwrite": [], "pread": []}
            for _ in range(bench.repetitions):
                for op in figures:
                    options = ["--size", size, "--transfer", "16M", "--keep", "--ops", op]
                    options += ["--via", network.via(deployment, network.head)]
                    phase = harness.generator(f"{deployment.mount}/one", options)[op]
                    figures[op].append(phase["bytes_per_second"] * 8 / 1e6)
            for op, word in (("pwrite", "writes"), ("pread", "reads")):
                limit = [400.0] * len(figures[op])
                bench.judge(TARGET, f"one client {word} one file over 8 nodes, 16 MiB at a time", (figures[op], limit), "Mbit/s", at_least=0.9)
    finally:
        network.close()
