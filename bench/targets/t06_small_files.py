"""Create, write 3,901 bytes and close; open, read and close: how many round trips with nothing in them each takes."""

import harness

TARGET = 6
OPS = ("create", "read")


def measure(bench):
    # As many as a directory has before it is split: its server is that of the round trips.
    files = 1500
    with bench.deployment() as deployment:
        for sockets, remote in (("unix", False), ("tcp", True)):
            phases = {}

            def subject():
                options = ["--files", files, "--size", 3901, "--ops", "create,read,unlink"]
                phases.update(harness.generator(f"{deployment.mount}/b", options, deployment, remote))
                return {op: phases[op]["latency_us"]["mean"] for op in OPS}

            def limit():
                mean = harness.round_trips(sockets, files)["latency_us"]["mean"]
                return {op: mean for op in OPS}

            for op, pair in bench.in_turns(subject, limit).items():
                cost = phases[op]["cpu_us"]
                bench.judge(
                    TARGET,
                    f"{'create, write, close' if op == 'create' else 'open, read, close'} of 3,901 bytes, {sockets}",
                    pair,
                    "µs",
                    at_most=2.5,
                    note=f"cpu {cost['own']:.1f} + {cost['servers']:.1f} µs",
                )
