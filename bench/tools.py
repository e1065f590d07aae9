"""The tools that users run all day, over a tree of headers: one function times them all in a directory, and rows are made of that.

The tree is the first 5,000 files of /usr/include. It lies in memory outside of what is measured, also as an archive and as a repository.
Each command runs as a user's would, in a shell of its own; its start is in its time.
"""

import json
import os

import harness

PYTHON = "/usr/bin/python3"
FILES = 5000

# What is run, in this order: later commands work on what earlier ones have made. {tree}, {archive} and {repository} lie outside.
COMMANDS = {
    "cp -r": "cp -r {tree} copied",
    "tar x": "mkdir unpacked && tar xf {archive} -C unpacked",
    "git clone": "git clone -q {repository} cloned",
    "rsync -a": "rsync -a {tree}/ synced/",
    "ls -lR": "ls -lR copied > /dev/null",
    "find": "find copied -type f | wc -l > /dev/null",
    "du": "du -s copied > /dev/null",
    "grep -r": "grep -r include copied | wc -l > /dev/null",
    "tar c": "tar cf - copied | cat > /dev/null",
    "git status": "git -C cloned status --porcelain",
    "make": "cp -r {project} built && make -s -C built",
    "sqlite commits": "sqlite3 rows.db < {statements} > /dev/null",
    "rm -r": "rm -r copied unpacked cloned synced built rows.db",
}

# Runs in the directory that is measured, with the library where that is what is measured.
DRIVER = """
import json, os, subprocess, sys, time
commands, status = json.loads(sys.argv[1]), sys.argv[2:]
plain = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}
def requests():
    if not status: return 0, 0
    totals = json.loads(subprocess.run(status, env=plain, capture_output=True, check=True).stdout)['deployments'][0]['totals']
    return totals['meta_operations'], totals['data_operations']
figures, before = {}, requests()
for name, command in commands.items():
    begun = time.monotonic()
    subprocess.run(['sh', '-c', command], check=True)
    took = time.monotonic() - begun
    after = requests()
    figures[name] = took, after[0] - before[0], after[1] - before[1]
    before = after
print(json.dumps(figures))
"""


def prepare(directory, files):
    """Makes what the commands start from; the commands with its places filled in."""
    places = {name: os.path.join(directory, name) for name in ("tree", "archive", "repository", "project", "statements")}
    listed = harness.run(["sh", "-c", f"cd /usr/include && find . -type f | sort | head -n {files}"])
    harness.run(["rsync", "-a", "--files-from=-", "/usr/include/", places["tree"]], text_in=listed)
    harness.run(["tar", "cf", places["archive"], "-C", places["tree"], "."])
    git = ["git", "-C", places["tree"], "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for step in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "headers"]):
        harness.run(git + step)
    harness.run(["git", "clone", "-q", "--bare", places["tree"], places["repository"]])
    harness.run(["rm", "-rf", os.path.join(places["tree"], ".git")])
    os.mkdir(places["project"])
    sources = [f"part{i}" for i in range(40)]
    for number, name in enumerate(sources):
        with open(os.path.join(places["project"], f"{name}.c"), "w") as file:
            file.write(f"#include <stdio.h>\n#include <string.h>\nint {name}(int a) {{ return a * {number} + (int)strlen(\"{name}\"); }}\n")
    with open(os.path.join(places["project"], "Makefile"), "w") as file:
        objects = " ".join(f"{name}.o" for name in sources)
        file.write(f"all.a: {objects}\n\tar rcs all.a {objects}\n%.o: %.c\n\tcc -c -o $@ $<\n")
    with open(places["statements"], "w") as file:
        file.write("create table t (a integer primary key, b text);\n")
        file.writelines(f"insert into t values ({i}, 'row {i}');\n" for i in range(200))
    return {name: command.format(**places) for name, command in COMMANDS.items()}


def timed(directory, commands, wrap=lambda c: c, status=()):
    """Runs all commands in an empty directory; seconds, requests to the metadata and to the data, by command."""
    script = f'mkdir {directory} && cd {directory} && exec {PYTHON} -c "$0" "$@"'
    out = harness.run(wrap(["sh", "-c", script, DRIVER, json.dumps(commands), *status]), limit=1800)
    harness.run(wrap(["sh", "-c", f"rmdir {directory}"]))
    return json.loads(out)


def seconds(figures):
    return {name: took for name, (took, _, _) in figures.items()}


def requests_note(figures, files):
    """What a command asks of the servers for each file of the tree."""
    return {name: f"requests a file: {meta / files:.1f} + {data / files:.1f}" for name, (_, meta, data) in figures.items()}
