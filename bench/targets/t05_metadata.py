"""create, stat, open and close, unlink of empty files, against round trips of the same transport with nothing in them."""

import harness

TARGET = 5
OPS = ("create", "stat", "open", "unlink")


def measure(bench):
    files = 1500 if bench.quick else 5000
    with bench.deployment() as deployment:
        for sockets, remote in (("unix", False), ("tcp", True)):
            for clients in (1, 4):
                requests = {}

                def subject():
                    options = ["--procs", clients, "--files", files, "--ops", ",".join(OPS)]
                    phases = harness.generator(f"{deployment.mount}/b", options, deployment, remote)
                    requests.update(phases)
                    return {op: phases[op]["rate"] for op in OPS}

                def limit():
                    options = ["--null", sockets, "--procs", clients, "--null-servers", 4, "--files", files * 2]
                    rate = harness.generator(None, options)["rate"]
                    return {op: rate for op in OPS}

                for op, pair in bench.in_turns(subject, limit).items():
                    cost = requests[op]["cpu_us"]
                    bench.judge(
                        TARGET,
                        f"{op}, {clients} client{'s' if clients > 1 else ''}, {sockets}",
                        pair,
                        "1/s",
                        at_least=0.6,
                        note=f"cpu {cost['own']:.1f} + {cost['servers']:.1f} µs",
                    )
