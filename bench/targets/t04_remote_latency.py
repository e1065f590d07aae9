"""Reads and writes of 4 KiB over TCP, one process: median time, against 64 bytes there and back and the same call on tmpfs."""

import harness

TARGET = 4


def measure(bench):
    raw = bench.tool("raw.c")
    count = 5000 if bench.quick else 20000
    with bench.deployment() as deployment, bench.directory() as tmpfs:
        inside = f"{deployment.mount}/b"
        deployment.run(["mkdir", inside])
        harness.run(["sh", "-c", f"head -c 64M /dev/zero > {tmpfs}/own.0"])

        def subject():
            options = ["--size", count * 4096, "--transfer", "4K", "--one-file", "--random", "--ops", "pwrite,pread"]
            phases = harness.generator(inside, options, deployment, remote=True)
            return {op: phases[op]["latency_us"]["p50"] for op in ("pread", "pwrite")}

        def limit():
            trip = float(harness.run([raw, "ping", "tcp", str(count)]))
            calls = {"pread": "read", "pwrite": "write"}
            return {op: trip + float(harness.run([raw, "file", calls[op], str(count), f"{tmpfs}/own.0"])) for op in calls}

        for op, pair in bench.in_turns(subject, limit).items():
            bench.judge(TARGET, f"4 KiB {op[1:]}, remote", pair, "µs", at_most=1.5)
