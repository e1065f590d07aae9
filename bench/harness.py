"""What the targets share: deployments that go away, measurements in turns, rows with a verdict.

A figure alone says little: the machine, what else runs on it and the day decide. So every figure of Bivouac stands beside a limit that is
measured in the same run, in turns with it, and what is judged is the ratio of the medians.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
BIVOUAC = os.environ.get("BIVOUAC") or os.path.join(TARGET, "release", "bivouac")


class Failed(Exception):
    """A measurement that could not be made."""


def run(command, env=None, limit=600, check=True, text_in=None):
    """Runs a command to its end; what it wrote to standard output."""
    whole = dict(os.environ, LC_ALL="C", **(env or {}))
    done = subprocess.run(command, env=whole, capture_output=True, text=True, timeout=limit, input=text_in)
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise Failed(f"{' '.join(command)[:300]}: exit code {done.returncode}\n{said}")
    return done.stdout


def load():
    """The load average of the last minute."""
    return os.getloadavg()[0]


def drop_caches():
    """Empties the kernel's page cache. Needs root."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def cpu(pid):
    """Processor seconds of a process so far, all threads: the kernel's clock of that process."""
    return time.clock_gettime((~pid << 3) | 2)


def resident(pid):
    """Resident memory of a process, bytes, without what it shares with others through /dev/shm."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")) * 1024


class Deployment:
    """A running deployment."""

    def __init__(self, bench, name):
        self.bench, self.name, self.mount = bench, name, "/bivouac"

    def command(self, command, remote=False, access="preload"):
        """A command as it is run inside; `remote`: without short cuts on the own node."""
        before = ["env", "BIVOUAC_LOCAL=0"] if remote else []
        return before + [BIVOUAC, "exec", self.name, "--access", access, "--"] + command

    def run(self, command, remote=False, **options):
        return run(self.command(command, remote), **options)

    def daemons(self):
        """Process numbers of its daemons on this machine."""
        with open(os.path.join(os.environ["BIVOUAC_HOME"], self.name, "daemons.json")) as record:
            return [d["process"]["pid"] for d in json.load(record)["daemons"] if d.get("process")]

    def status(self):
        return json.loads(run([BIVOUAC, "status", self.name, "--json"]))["deployments"][0]

    def requests(self):
        """Requests that the servers have served so far."""
        totals = self.status()["totals"]
        return totals["meta_operations"] + totals["data_operations"]


class Bench:
    """One run of the harness."""

    def __init__(self, quick, out):
        self.quick = quick
        self.repetitions = 2 if quick else 5
        self.out = out
        self.work = tempfile.mkdtemp(prefix="bivouac-bench-", dir="/dev/shm")
        self.home = tempfile.mkdtemp(prefix="bivouac-bench-home-")
        os.environ["BIVOUAC_HOME"] = self.home
        self.rows = []
        self.names = []
        self.tools = {}

    def close(self):
        for name in list(self.names):
            run([BIVOUAC, "down", name], check=False)
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)

    @contextlib.contextmanager
    def deployment(self, servers=4, options=()):
        """A deployment for the length of a block."""
        name = f"bench-{os.getpid()}-{len(self.names)}"
        self.names.append(name)
        run([BIVOUAC, "up", name, "--servers", str(servers), *options])
        try:
            yield Deployment(self, name)
        finally:
            run([BIVOUAC, "down", name], check=False)

    @contextlib.contextmanager
    def directory(self, name="tmpfs"):
        """A directory in memory for the length of a block."""
        path = os.path.join(self.work, name)
        os.makedirs(path)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def tool(self, source):
        """A C program of bench/, compiled."""
        if source not in self.tools:
            program = os.path.join(self.home, os.path.splitext(source)[0])
            run(["cc", "-O2", "-Wall", "-o", program, os.path.join(ROOT, "bench", source)])
            self.tools[source] = program
        return self.tools[source]

    def example(self, name):
        """A Rust program of crates/bench/examples; `make bench` has built it."""
        path = os.path.join(TARGET, "release", "examples", name)
        if not os.path.exists(path):
            run(["cargo", "build", "--quiet", "--release", "-p", "bivouac-bench", "--example", name], limit=1200)
        return path

    def in_turns(self, subject, limit, most=None):
        """Calls both in turns, as often as there are repetitions (`most`: at most so often); each returns figures by name. Figures of
        both by name."""
        subjects, limits = [], []
        for repetition in range(min(self.repetitions, most or self.repetitions)):
            # Who is first changes, so that neither always follows the other.
            for collect, measure in ((subjects, subject), (limits, limit))[:: -1 if repetition % 2 else 1]:
                collect.append(measure())
        return {
            name: ([s[name] for s in subjects], [l[name] for l in limits])
            for name in subjects[0]
            if name in limits[0]
        }

    def judge(self, target, what, pair, unit, at_least=None, at_most=None, note=None):
        """A row: figure and limit (lists of repetitions) and whether their ratio is as it must be."""
        figures, limits = pair
        ratio = statistics.median(figures) / statistics.median(limits)
        single = [f / l for f, l in zip(figures, limits)]
        self.row(
            target,
            what,
            statistics.median(figures),
            unit,
            limit=statistics.median(limits),
            ratio=ratio,
            at_least=at_least,
            at_most=at_most,
            repetitions=len(figures),
            spread=(min(single), max(single)),
            note=note,
        )

    def row(self, target, what, figure, unit, limit=None, ratio=None, at_least=None, at_most=None, repetitions=1, spread=None, note=None):
        """A row of the table. `ratio` is what is judged, or the figure itself where there is no limit."""
        judged = ratio if ratio is not None else figure
        met = None
        if at_least is not None:
            met = judged >= at_least
        elif at_most is not None:
            met = judged <= at_most
        row = {
            "target": target,
            "what": what,
            "figure": figure,
            "unit": unit,
            "limit": limit,
            "ratio": ratio,
            "at_least": at_least,
            "at_most": at_most,
            "met": met,
            "repetitions": repetitions,
            "spread": spread,
            "note": note,
            "load": round(load(), 2),
        }
        self.rows.append(row)
        self.out.write(json.dumps(row) + "\n")
        self.out.flush()
        print("  " + line(row), file=sys.stderr, flush=True)


def number(value):
    """A figure with as many digits as mean something."""
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def bound(row):
    if row["at_least"] is not None:
        return f"≥ {row['at_least']:g}"
    if row["at_most"] is not None:
        return f"≤ {row['at_most']:g}"
    return ""


def line(row):
    ratio = "" if row["ratio"] is None else f" ratio {row['ratio']:.2f}"
    met = {True: " met", False: " MISSED", None: ""}[row["met"]]
    limit = "" if row["limit"] is None else f" of {number(row['limit'])}"
    return f"{row['target']}: {row['what']}: {number(row['figure'])}{limit} {row['unit']}{ratio} {bound(row)}{met}"


# --- load generators -----------------------------------------------------------------------------------------


def generator(directory, options, inside=None, remote=False):
    """Runs `bivouac bench`; its phases by operation, or what came of --null."""
    command = [BIVOUAC, "bench", "--json", *(["--dir", directory] if directory else []), *map(str, options)]
    if inside:
        command = inside.command(command, remote)
    result = json.loads(run(command))
    if "phases" not in result:
        return result
    if result["errors"]:
        raise Failed(f"{' '.join(command)}: {result['errors']} operations failed")
    return {phase["op"]: phase for phase in result["phases"]}


def round_trips(sockets, files, clients=1, spread=False, chained=False, servers=4):
    """What came of round trips with nothing in them: as many for each client as there are files, and again. `chained`: each server
    asks another one before it answers."""
    options = ["--null", sockets, "--procs", clients, "--null-servers", servers, "--files", files * 2]
    return generator(None, options + (["--null-spread"] if spread else []) + (["--null-chain"] if chained else []))


def fio(directory, jobs, command=lambda c: c):
    """Runs fio with all jobs one after the other; bytes a second, and bytes for each second of processor time, by (name, which).

    `jobs` has a name and options for each. All work on `shared` or `own.0`, `own.1`, ..., which are there.
    """
    text = ["[global]", "ioengine=psync", "invalidate=0", "time_based=1", "group_reporting=1", "fallocate=none", "norandommap=1"]
    for name, options in jobs:
        text += [f"[{name}]", "stonewall", "new_group"] + [f"{k}={v}" for k, v in options.items()]
    with tempfile.NamedTemporaryFile("w", suffix=".fio", delete=False) as file:
        file.write("\n".join(text) + "\n")
    try:
        out = run(command(["fio", "--output-format=json", file.name]), limit=1200)
    finally:
        os.unlink(file.name)
    result = {}
    for job in json.loads(out[out.index("{") :])["jobs"]:
        if job["error"]:
            raise Failed(f"fio {job['jobname']}: error {job['error']}")
        moved = sum(job[way]["io_bytes"] for way in ("read", "write"))
        busy = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
        result[job["jobname"], "rate"] = sum(job[way]["bw_bytes"] for way in ("read", "write"))
        result[job["jobname"], "cpu"] = moved / max(busy, 1e-9)
    return result


FILL = """
import os, sys
data = bytes(range(256)) * 2048
size, sides = int(sys.argv[1]), (sys.argv[2].split(','), sys.argv[3].split(','))
for number, pair in enumerate(zip(*sides)):
    files = [os.open(path, os.O_WRONLY | os.O_CREAT, 0o600) for path in pair]
    for at in range(0, size, len(data)):
        for file in files[::-1 if at // len(data) % 2 else 1]:
            assert os.pwrite(file, data, at) == len(data)
"""


def prepare_files(deployment, inside, outside, size):
    """Files to be measured, in the deployment and on tmpfs, in turns of 512 KiB. It matters: memory that is taken later may be
    quicker by half than what was taken before (the host below may back it with other pages), and who is made first would lose."""
    run(deployment.command(["/usr/bin/python3", "-c", FILL, str(size), ",".join(inside), ",".join(outside)]))


def fio_files(deployment, inside, outside, procs, size):
    """The files that `fio` works on: `shared` with a stretch for each process, and one for each process."""
    deployment.run(["mkdir", inside])
    for names, each in ((["shared"], procs * size), ([f"own.{i}" for i in range(procs)], size)):
        prepare_files(deployment, [f"{inside}/{n}" for n in names], [f"{outside}/{n}" for n in names], each)


def fio_job(directory, mode, size, block, procs, shared, seconds):
    """Options of a job: `mode` is fio's rw."""
    options = {"rw": mode, "bs": block, "numjobs": procs, "size": size, "runtime": f"{int(seconds * 1000)}ms"}
    if shared:
        return options | {"filename": f"{directory}/shared", "offset_increment": size}
    return options | {"directory": directory, "filename_format": "own.$jobnum"}


def moves(bench, target, deployment, inside, tmpfs, word):
    """Data of files in a directory over TCP, 64 KiB and 1 MiB, against plain sockets that move the same between as many processes and
    tmpfs files. `word`: what each row begins with."""
    seconds = 0.4 if bench.quick else 1
    size = 128 << 20
    raw = bench.tool("raw.c")
    ways = ("copy", "kernel")
    combinations = [
        (f"{word}{mode} {name} {procs} processes", mode, block, name, procs)
        for block, name in ((64 << 10, "64k"), (1 << 20, "1m"))
        for procs in (2, 4)
        for mode in ("write", "read")
    ]
    prepare_files(deployment, [f"{inside}/own.{i}" for i in range(4)], [f"{tmpfs}/raw.{i}" for i in range(4)], size)
    jobs = [(what, fio_job(inside, mode, size, name, procs, False, seconds)) for what, mode, _, name, procs in combinations]

    def subject():
        rates = fio(inside, jobs, lambda c: deployment.command(c, remote=True))
        return {(what, way): rates[what, "rate"] / 2**20 for what, *_ in combinations for way in ways}

    def limit():
        return {
            (what, way): float(run([raw, "move", mode, "tcp", str(block), str(procs), str(seconds), tmpfs, way]))
            for what, mode, block, _, procs in combinations
            for way in ways
        }

    pairs = bench.in_turns(subject, limit)
    for what, *_ in combinations:
        # The limit is what the better way of the two does.
        best = max(ways, key=lambda way: statistics.median(pairs[what, way][1]))
        bench.judge(target, what, pairs[what, best], "MiB/s", at_least=0.85, note=f"limit by {best}")
