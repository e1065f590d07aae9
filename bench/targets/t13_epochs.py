"""Each process reads its own file again and again, 8 shaped nodes: files on the writer's own node against its tmpfs, and spread beside it."""

import harness
import nets

TARGET = 13


def measure(bench):
    network = nets.Network(8, 100)
    size = (16 if bench.quick else 32) << 20
    passes = {"local": 10 if bench.quick else 30, "spread": 1}
    try:
        with network.deployment(bench) as deployment, bench.directory() as tmpfs:
            inside = network.within(network.nodes[0], [harness.BIVOUAC, "exec", deployment.name, "--"])
            local = f"{deployment.mount}/local"
            set_layout = f"import os; os.mkdir('{local}'); os.setxattr('{local}', 'user.bivouac.layout', b'width=1 first=local')"
            harness.run(inside + ["/usr/bin/python3", "-c", set_layout])
            via = [word for node in network.nodes for word in ("--via", network.via(deployment, node))]
            plain = [word for node in network.nodes for word in ("--via", f"ip netns exec {node}")]
            options = ["--procs", 8, "--size", size, "--transfer", "256K", "--ops", "pwrite,pread"]

            def reads(directory, where, times):
                phase = harness.generator(directory, options + ["--passes", times, *where])["pread"]
                return phase["bytes_per_second"] / 2**20

            pairs = bench.in_turns(
                lambda: {"local": reads(f"{local}/b", via, passes["local"])},
                lambda: {"local": reads(tmpfs, plain, passes["local"])},
            )
            bench.judge(TARGET, "own files on the own node (width=1 first=local)", pairs["local"], "MiB/s", at_least=0.8)
            spread = [reads(f"{deployment.mount}/spread", via, passes["spread"]) for _ in range(min(3, bench.repetitions))]
            figure = sorted(spread)[len(spread) // 2]
            bench.row(TARGET, "own files spread over all nodes", figure, "MiB/s", repetitions=len(spread), note="8 links of 100 Mbit/s")
    finally:
        network.close()
