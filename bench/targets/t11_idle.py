"""Idle deployments of 4 daemons with their heartbeats, one of which forwards a directory: processor time of each daemon."""

import time

import harness

TARGET = 11


def measure(bench):
    seconds = 15 if bench.quick else 60
    with bench.directory() as tmpfs:
        for word, options in (("", ()), (", forwarding", ("--forward", tmpfs))):
            with bench.deployment(options=options) as deployment:
                shares = idle(deployment, seconds)
            what = f"busiest of {len(shares)} idle daemons in {seconds} s{word}"
            bench.row(TARGET, what, max(shares), "% CPU", at_most=0.1, note=" ".join(f"{share:.3f}" for share in shares))


def idle(deployment, seconds):
    """The share of a processor that each daemon takes, percent."""
    time.sleep(5)
    pids = deployment.daemons()
    before, start = [harness.cpu(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - start
    return [(harness.cpu(pid) - b) / passed * 100 for pid, b in zip(pids, before)]
