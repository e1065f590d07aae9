#!/usr/bin/env python3
"""Runs test programs, some at a time: tests wait more than they compute. What a program prints is shown when it has ended, and how long
that took. Whatever hangs is ended (after BIVOUAC_TEST_LIMIT seconds, 15 minutes if that is not set), and the others still run. Fails if
one fails, or if cargo could not build them. Usage: cargo test --no-run --message-format json ... | run-tests.py AT-ONCE"""

import concurrent.futures
import json
import os
import subprocess
import sys
import time

LIMIT = int(os.environ.get("BIVOUAC_TEST_LIMIT", "900"))
# What takes less is not worth a line.
SHORT = 5


def programs(lines):
    """Each test program with its package's directory."""
    for line in lines:
        message = json.loads(line)
        if message["reason"] == "compiler-message":
            print(message["message"]["rendered"], end="", file=sys.stderr)
        elif message["reason"] == "build-finished" and not message["success"]:
            sys.exit("the tests could not be built")
        elif message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            yield message["executable"], os.path.dirname(message["manifest_path"])


def run(program, directory):
    """Whether it succeeds. What it has started ends with it, because `timeout` gives it a process group of its own."""
    name = os.path.basename(program).rpartition("-")[0]
    begin = time.monotonic()
    command = ["timeout", "--kill-after=10", str(LIMIT), program, "--quiet"]
    done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    took = time.monotonic() - begin
    note = f"{name}: {took:.0f} s\n" if took >= SHORT else ""
    # scripts/test-totals.sh counts these lines, because such a program has not said how many of its tests have failed.
    if done.returncode in (124, 137):
        note = f"PROGRAM FAILED: {name} had not ended after {LIMIT} s, and was ended\n"
    elif done.returncode and b"\ntest result: FAILED" not in done.stdout:
        note = f"PROGRAM FAILED: {name} ended in the middle, with {done.returncode}\n"
    sys.stdout.buffer.write(done.stdout + note.encode())
    sys.stdout.flush()
    return done.returncode == 0


def main(at_once):
    found = sorted(programs(sys.stdin))
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(lambda one: run(*one), found))
    return 0 if found and all(results) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
