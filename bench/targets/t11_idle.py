"""An idle deployment of 4 daemons with its heartbeats: processor time of each."""

import time

import harness

TARGET = 11


def measure(bench):
    seconds = 15 if bench.quick else 60
    with bench.deployment() as deployment:
        time.sleep(2)
        pids = deployment.daemons()
        before, start = [harness.cpu(pid) for pid in pids], time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - start
        shares = [(harness.cpu(pid) - b) / passed * 100 for pid, b in zip(pids, before)]
    what = f"busiest of {len(shares)} idle daemons in {seconds} s"
    bench.row(TARGET, what, max(shares), "% CPU", at_most=0.1, note=" ".join(f"{share:.3f}" for share in shares))
