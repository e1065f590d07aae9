"""A forwarded directory on tmpfs: data through one I/O node against plain sockets, as row 3; a program without I/O nodes against one in a deployment that forwards nothing; and what programs feel when the number of I/O nodes changes."""

import os
import subprocess
import sys
import time

import harness

TARGET = 19


def measure(bench):
    seconds = 0.4 if bench.quick else 1
    size = 128 << 20
    with bench.directory() as tmpfs:
        backend = os.path.join(tmpfs, "backend")
        os.mkdir(backend)
        with bench.deployment(1, ("--forward", backend, "--io-nodes", "1")) as deployment:
            harness.moves(bench, TARGET, deployment, backend, tmpfs, "forwarded ")

            harness.run([harness.BIVOUAC, "forward", deployment.name, "--io-nodes", "0"])
            with bench.deployment(1) as plain:
                modes = ("write", "read", "randwrite", "randread")
                jobs = [(f"{mode} of {word}", harness.fio_job(backend, mode, size, word, 2, False, seconds)) for mode in modes for word in ("4k", "1m")]

                def through(inside):
                    rates = harness.fio(backend, jobs, inside.command)
                    return {name: rates[name, "rate"] / 2**20 for name, _ in jobs}

                pairs = bench.in_turns(lambda: through(deployment), lambda: through(plain))
                for name, _ in jobs:
                    note = "limit: a deployment that forwards nothing"
                    bench.judge(TARGET, f"without I/O nodes, {name}", pairs[name], "MiB/s", at_least=0.98, note=note)

        changes(bench, backend)


def changes(bench, backend):
    """Four programs write and read a file each, while the number of I/O nodes changes a hundred times."""
    rounds = 10 if bench.quick else 100
    stop = os.path.join(bench.work, "stop")
    program = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(harness.__file__)), "pauses.py")]
    pauses = []
    with bench.deployment(4, ("--forward", backend, "--io-nodes", "1")) as deployment:
        commands = [deployment.command([*program, f"{backend}/paused.{i}", stop]) for i in range(4)]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        time.sleep(1.0)
        begun = []
        for turn in range(rounds):
            begun.append(time.monotonic())
            harness.run([harness.BIVOUAC, "forward", deployment.name, "--io-nodes", ("4", "2", "3", "1")[turn % 4]])
            time.sleep(0.1)
        begun.append(time.monotonic())
        with open(stop, "w", encoding="ascii"):
            pass
        for process in running:
            slow = [line.split() for line in process.communicate()[0].splitlines()]
            if process.returncode:
                raise harness.Failed("a program found something wrong")
            for start, end in zip(begun, begun[1:]):
                took = [float(took) for at, took in slow if at != "calls" and start <= float(at) < end]
                pauses.append(1000 * max(took, default=0.0))
    os.unlink(stop)
    pauses.sort()
    note = f"{rounds} changes, four programs; 95 % up to {pauses[len(pauses) * 95 // 100]:.0f} ms, longest {pauses[-1]:.0f} ms; no error, no wrong byte"
    bench.row(TARGET, "longest call of a program while the number of I/O nodes changes", pauses[len(pauses) // 2], "ms", at_most=100, repetitions=rounds, note=note)
