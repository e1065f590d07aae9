"""create, stat, open and close, unlink of empty files, against round trips of the same transport with nothing in them.

Each client works in a directory of its own: one that stays within one server, and one that is split over all of them because it has
had thousands of entries. The round trips go as the requests do: to one server, and to all servers in no order.
"""

import time

import harness

TARGET = 5
OPS = ("create", "stat", "open", "unlink")
# Directories with more entries than this are split.
SPLIT_AT = 2000


def measure(bench):
    with bench.deployment() as deployment:
        for sockets, remote in (("unix", False), ("tcp", True)):
            for clients in (1, 4):
                for shape, files in (("", 1500), (", split directory", 1500 if bench.quick else 5000)):
                    rows(bench, deployment, sockets, remote, clients, shape, files)


def wait_for_split(deployment, directory):
    """Returns when new files of a directory go to all servers: else it would be judged by what it is not."""
    names = [f"{directory}/probe.{n}" for n in range(64)]
    for _ in range(20):
        before = held(deployment)
        deployment.run(["touch", *names])
        after = held(deployment)
        deployment.run(["rm", *names])
        if all(b < a for b, a in zip(before, after)):
            return
        time.sleep(0.5)
    raise harness.Failed(f"{directory} was not split")


def held(deployment):
    return [server["inodes"] for server in deployment.status()["servers"]]


def rows(bench, deployment, sockets, remote, clients, shape, files):
    directory = f"{deployment.mount}/{sockets}{clients}{'split' if shape else ''}"
    requests = {}

    def load(count, ops, *more):
        options = ["--procs", clients, "--files", count, "--ops", ",".join(ops), *more]
        return harness.generator(directory, options, deployment, remote)

    if shape:
        # Once split, a directory stays so; with something in it, the load leaves it there.
        for client in range(clients):
            deployment.run(["mkdir", "-p", f"{directory}/bench.{client}/stays"])
        load(SPLIT_AT + 500, ["create"], "--keep")
        for client in range(clients):
            wait_for_split(deployment, f"{directory}/bench.{client}")
        load(SPLIT_AT + 500, ["unlink"])

    def subject():
        phases = load(files, OPS)
        requests.update(phases)
        return {op: phases[op]["rate"] for op in OPS}

    def limit():
        rate = harness.round_trips(sockets, files, clients, spread=bool(shape))["rate"]
        return {op: rate for op in OPS}

    for op, pair in bench.in_turns(subject, limit).items():
        cost = requests[op]["cpu_us"]
        bench.judge(
            TARGET,
            f"{op}, {clients} client{'s' if clients > 1 else ''}, {sockets}{shape}",
            pair,
            "1/s",
            at_least=0.6,
            note=f"cpu {cost['own']:.1f} + {cost['servers']:.1f} µs",
        )
