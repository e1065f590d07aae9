"""4,000 connected idle clients: memory and threads of the servers for each connection."""

import subprocess
import time

import harness

TARGET = 14
CONNECTIONS = 4000


def threads(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def measure(bench):
    idle = bench.example("idle")
    with bench.deployment() as deployment:
        pids = deployment.daemons()
        addresses = [server["address"] for server in deployment.status()["servers"]]

        def state():
            return sum(map(harness.resident, pids)), sum(map(threads, pids))

        def hold(count):
            process = subprocess.Popen(
                deployment.command([idle, str(count), *addresses]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            if process.stdout.readline().strip() != "ready":
                raise harness.Failed(f"{count} connections could not be made")
            # Idle connections lose their threads after 20 ms, idle threads end after 10 s.
            time.sleep(12)
            return process

        # A few first, so that what the servers need once is not counted.
        for count in (40, CONNECTIONS):
            before = state()
            start = time.monotonic()
            process = hold(count)
            after = state()
            cost = [harness.cpu(pid) for pid in pids]
            time.sleep(5)
            busy = max(harness.cpu(pid) - c for pid, c in zip(pids, cost)) / 5 * 100
            process.stdin.close()
            process.wait()
            passed = time.monotonic() - start
        memory = (after[0] - before[0]) / CONNECTIONS
        bench.row(TARGET, f"resident memory of an idle connection, of {CONNECTIONS:,}", memory, "bytes", note=f"{passed:.0f} s")
        bench.row(TARGET, f"threads for {CONNECTIONS:,} idle connections", after[1] - before[1], "threads", at_most=0)
        bench.row(TARGET, "busiest daemon with them", busy, "% CPU")
