"""`ls -l` of 100,000 files; `find` and `rm -r` over 10,000 directories: against tmpfs."""

import time

import harness

TARGET = 12


def measure(bench):
    files = 10_000 if bench.quick else 100_000
    dirs = 1_000 if bench.quick else 10_000
    repetitions, bench.repetitions = bench.repetitions, min(bench.repetitions, 3)
    make = f"""import os
os.makedirs('flat'); os.makedirs('tree')
for i in range({files}): os.close(os.open(f'flat/file-{{i}}', os.O_CREAT | os.O_WRONLY))
"""
    tree = f"""import os
os.makedirs('tree', exist_ok=True)
for i in range({dirs}):
    if i % 100 == 0: os.mkdir(f'tree/{{i // 100}}')
    os.mkdir(f'tree/{{i // 100}}/{{i}}'); os.close(os.open(f'tree/{{i // 100}}/{{i}}/file', os.O_CREAT | os.O_WRONLY))
"""
    python = "/usr/bin/python3"
    with bench.deployment() as deployment, bench.directory() as tmpfs:
        inside = f"{deployment.mount}/t"
        places = {inside: deployment.command, tmpfs: lambda c: c}
        deployment.run(["mkdir", inside])
        for place, command in places.items():
            harness.run(command(["sh", "-c", f'cd {place} && {python} -c "{make}"']))

        def timed(place, script):
            start = time.monotonic()
            harness.run(places[place](["sh", "-c", f"cd {place} && {script}"]))
            return time.monotonic() - start

        def measured(place):
            harness.run(places[place](["sh", "-c", f'cd {place} && {python} -c "{tree}"']))
            return {
                f"ls -l of {files:,} files": timed(place, f"test $(ls -l flat | wc -l) = {files + 1}"),
                f"find over {dirs:,} directories": timed(place, f"test $(find tree -type f | wc -l) = {dirs}"),
                f"find -size over {dirs:,} directories": timed(place, "find tree -type f -size +1 | wc -l"),
                f"rm -r of {dirs:,} directories": timed(place, "rm -r tree"),
            }

        try:
            for what, pair in bench.in_turns(lambda: measured(inside), lambda: measured(tmpfs)).items():
                bench.judge(TARGET, what, pair, "s", at_most=5)
        finally:
            bench.repetitions = repetitions
