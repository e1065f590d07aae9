"""cp, tar, git, rsync, find, grep, make, sqlite over a tree of headers, with the library: against tmpfs."""

import harness
import tools

TARGET = 16
BOUND = 6


def measure(bench):
    files = 1000 if bench.quick else tools.FILES
    with bench.deployment() as deployment, bench.directory("source") as source, bench.directory() as tmpfs:
        commands = tools.prepare(source, files)
        inside = f"{deployment.mount}/work"
        status = [harness.BIVOUAC, "status", deployment.name, "--json"]
        notes = tools.requests_note(tools.timed(inside, commands, deployment.command, status), files)

        def subject():
            return tools.seconds(tools.timed(inside, commands, deployment.command))

        def limit():
            return tools.seconds(tools.timed(f"{tmpfs}/work", commands))

        for name, pair in bench.in_turns(subject, limit).items():
            bench.judge(TARGET, f"{name}, library / tmpfs", pair, "s", at_most=BOUND, note=notes[name])
