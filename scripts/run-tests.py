#!/usr/bin/env python3
"""Runs test programs, some at a time: tests of whole systems wait more than they compute. What a program prints is shown when it has
ended. Fails if one fails, or if cargo could not build them. Usage: cargo test --no-run --message-format json ... | run-tests.py AT-ONCE"""

import concurrent.futures
import json
import os
import subprocess
import sys

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run-test.sh")


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
    done = subprocess.run([RUN, program, "--quiet"], cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    return done.returncode == 0


def main(at_once):
    found = sorted(programs(sys.stdin))
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(lambda one: run(*one), found))
    return 0 if found and all(results) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
