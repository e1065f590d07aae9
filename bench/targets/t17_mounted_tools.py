"""The same tools in a mount, and with the library beside it: against bindfs over tmpfs, and against each other."""

import contextlib
import os

import harness
import tools
from targets import t15_mount

TARGET = 17
BOUND = 3
# Whether the library beside a mount makes it slower: within what such commands vary here.
NOT_SLOWER = 1.1


@contextlib.contextmanager
def mounted(deployment):
    """A mount of the deployment at its mount path, as a user's."""
    made = not os.path.isdir(deployment.mount)
    if made:
        os.mkdir(deployment.mount)
    harness.run([harness.BIVOUAC, "mount", deployment.name, deployment.mount, "--daemon"])
    try:
        yield deployment.mount
    finally:
        harness.run(["umount", "-l", deployment.mount], check=False)
        if made:
            os.rmdir(deployment.mount)


def measure(bench):
    files = 1000 if bench.quick else tools.FILES
    with bench.deployment() as deployment, bench.directory("source") as source, bench.directory() as tmpfs:
        commands = tools.prepare(source, files)
        status = [harness.BIVOUAC, "status", deployment.name, "--json"]
        bound = os.path.join(bench.home, "bindfs-tools")
        with t15_mount.passed_through(tmpfs, bound), mounted(deployment) as mount:
            inside = f"{mount}/work"

            def both(command):
                return deployment.command(command, access="both")

            ways = {"mount": lambda c: c, "both": both}
            notes = {way: tools.requests_note(tools.timed(inside, commands, wrap, status), files) for way, wrap in ways.items()}

            def measured(way):
                return lambda: tools.seconds(tools.timed(inside, commands, ways[way]))

            def limit():
                return tools.seconds(tools.timed(f"{bound}/work", commands))

            for name, pair in bench.in_turns(measured("mount"), limit).items():
                bench.judge(TARGET, f"{name}, mount / bindfs", pair, "s", at_most=BOUND, note=notes["mount"][name])
            for name, pair in bench.in_turns(measured("both"), measured("mount")).items():
                bench.judge(TARGET, f"{name}, both / mount", pair, "s", at_most=NOT_SLOWER, note=notes["both"][name])
