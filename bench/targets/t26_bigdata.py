"""WordCount and TeraSort on Spark, 1, 2 and 4 nodes: preload, job and flush against the same job directly on GlusterFS; and which tasks read from their own node."""

import collections
import os
import random
import statistics
import time

import gluster
import harness
import nets
import spark
from harness import BIVOUAC, Failed, run

TARGET = 26
# It needs Spark (300 MB) and GlusterFS, and some minutes.
ALONE = True
NODES = (1, 2, 4)
# Mbit/s of the link of each of the two bricks, in each direction: the same for any number of nodes. The nodes' own links are not shaped.
RATE = 400
# What a task reads: a block of the deployment, so that it lies on one node.
SPLIT = 2 << 20
# Where each node sees the site's file system, by its own link.
SITE = "/etc/bivouac-bench-site"
# Of WordCount's input.
FILES = 16


def measure(bench):
    text, records = (32, 160_000) if bench.quick else (128, 640_000)
    # An even number, so that each file system is measured first equally often.
    repetitions = 2 if bench.quick else 4
    software = spark.Software()
    network = nets.Network(max(NODES) + 2, None)
    computes, bricks = network.nodes[:-2], network.nodes[-2:]
    try:
        for brick in bricks:
            nets.shape([], brick, RATE)
            nets.shape(["ip", "netns", "exec", brick], "eth0", RATE)
        with bench.directory() as tmpfs, spark.own_files(network, SITE) as sites:
            site = gluster.Gluster(network, bricks, tmpfs)
            try:
                for node in computes:
                    site.mount(node, sites[node])
                data = Data(network, computes[0], sites[computes[0]], software, text << 20, records)
                results = {}
                for count in NODES:
                    results[count] = on_nodes(bench, network, computes[:count], software, data, tmpfs, repetitions)
                    report(bench, data, count, results[count])
                speed_up(bench, data, results)
            finally:
                site.close()
    finally:
        network.close()


class Data:
    """What the jobs read, in the site's file system, and how their results are checked."""

    def __init__(self, network, node, site, software, text, records):
        self.network, self.node, self.site, self.software = network, node, site, software
        self.sizes = {"wordcount": text, "terasort": records * 100}
        self.counts = self.write_text(f"{site}/wordcount", text)
        self.generate(f"{SITE}/terasort", records)

    def write_text(self, directory, size):
        """Lines of words, some frequent and most rare; how often each is there."""
        source = random.Random(26)
        words = [f"word{n}" for n in range(20_000)]
        weights = [1 / (n + 10) for n in range(len(words))]
        piece = source.choices(words, weights, k=100_000)
        lines = "\n".join(" ".join(piece[at : at + 10]) for at in range(0, len(piece), 10)) + "\n"
        times = size // len(lines) // FILES
        os.mkdir(directory)
        for number in range(FILES):
            with open(f"{directory}/text-{number}", "w", encoding="ascii") as file:
                for _ in range(times):
                    file.write(lines)
        return {word: count * times * FILES for word, count in collections.Counter(piece).items()}

    def hadoop(self, *arguments):
        return run(self.network.within(self.node, self.software.hadoop(*arguments)))

    def generate(self, directory, records):
        self.hadoop("TeraGen", str(records), f"file://{directory}")
        # Hadoop's sums of local files: neither side is to check them.
        for name in os.listdir(f"{self.site}/{os.path.basename(directory)}"):
            if name.endswith(".crc"):
                os.unlink(f"{self.site}/{os.path.basename(directory)}/{name}")

    def check(self, kind, directory):
        """Whether a job's output, in a directory of the site, is what it should be."""
        where = f"{self.site}/{directory}"
        if kind == "wordcount":
            found = {}
            for name in os.listdir(where):
                if name.startswith("part-"):
                    with open(f"{where}/{name}", encoding="ascii") as file:
                        found.update((word, int(count)) for word, count in map(str.split, file))
            if found != self.counts:
                raise Failed(f"{directory}: the counts are wrong")
            return
        length = sum(os.path.getsize(f"{where}/{name}") for name in os.listdir(where) if name.startswith("part-"))
        if length != self.sizes[kind]:
            raise Failed(f"{directory}: {length} bytes")
        self.hadoop("TeraValidate", f"file://{SITE}/{directory}", f"file://{SITE}/report")
        said = run(["sh", "-c", f"cat {self.site}/report/part-*"])
        run(["rm", "-r", f"{self.site}/report"])
        if not said.startswith("checksum"):
            raise Failed(f"TeraValidate: {said[:500]}")


def on_nodes(bench, network, nodes, software, data, tmpfs, repetitions):
    """Both jobs on some nodes, from the deployment and from the site, in turns. By kind: seconds of each part, by repetition, and locality."""
    own = os.path.join(tmpfs, f"spark-{len(nodes)}")
    os.mkdir(own)
    with network.deployment(bench, ["--block-size", str(SPLIT)], nodes=nodes) as deployment:
        cluster = spark.Cluster(software, network, nodes, own)
        try:
            settings = {
                "spark.hadoop.fs.bivouac.block.size": str(SPLIT),
                "spark.hadoop.mapreduce.input.fileinputformat.split.maxsize": str(SPLIT),
            }
            jobs = Jobs(spark.Application(cluster, settings), network, deployment, nodes, data)
            for kind in data.sizes:
                # The first ones do not count: Java still compiles the code, and would favour whichever side comes later.
                for repetition in range(1 + repetitions):
                    sides = (jobs.staged, jobs.direct)
                    for side in sides[:: -1 if repetition % 2 else 1]:
                        side(kind, last=repetition == repetitions)
                for seconds in jobs.seconds[kind].values():
                    del seconds[0]
            events = jobs.application.close()
            return {kind: (jobs.seconds[kind], jobs.locality(events, kind)) for kind in data.sizes}
        finally:
            cluster.close()
            run(["rm", "-rf", own])


class Jobs:
    """Jobs of an application, timed part by part."""

    def __init__(self, application, network, deployment, nodes, data):
        self.application, self.network, self.deployment, self.nodes, self.data = application, network, deployment, nodes, data
        self.seconds = collections.defaultdict(lambda: collections.defaultdict(list))
        self.placed = {}

    def on_first(self, *words):
        return run(self.network.within(self.nodes[0], [BIVOUAC, *words]))

    def timed(self, *words):
        begin = time.monotonic()
        self.on_first(*words)
        return time.monotonic() - begin

    def forget(self):
        """What the site's file system has is not in this machine's memory. The programs that the jobs use are: no disk of this machine's is
        measured."""
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
        self.on_first("status", self.deployment.name)

    def staged(self, kind, last):
        """Preload, job, flush."""
        name, seconds = self.deployment.name, self.seconds[kind]
        self.forget()
        seconds["preload"].append(self.timed("preload", name, f"{SITE}/{kind}", f"/{kind}"))
        before = self.network.sent(self.nodes)
        took, number, splits = self.application.job(kind, f"bivouac://{name}/{kind}", f"bivouac://{name}/{kind}-out")
        sent = sum(self.network.sent(self.nodes)) - sum(before)
        seconds["job"].append(took)
        seconds["flush"].append(self.timed("flush", name, f"/{kind}-out", f"{SITE}/{kind}-staged"))
        self.placed[kind] = (number, splits, [self.present(split) for split in splits], sent)
        if last:
            self.data.check(kind, f"{kind}-staged")
        run(["rm", "-r", f"{self.data.site}/{kind}-staged"])
        self.on_first("exec", name, "--", "rm", "-r", f"{self.deployment.mount}/{kind}", f"{self.deployment.mount}/{kind}-out")

    def direct(self, kind, last):
        """The job on the site's file system."""
        self.forget()
        took, _, _ = self.application.job(kind, f"file://{SITE}/{kind}", f"file://{SITE}/{kind}-direct")
        self.seconds[kind]["direct"].append(took)
        if last:
            self.data.check(kind, f"{kind}-direct")
        run(["rm", "-r", f"{self.data.site}/{kind}-direct"])

    def present(self, split):
        """Bytes of a split that are in the storage of each host, as the kernel has them there: no word of Bivouac's is taken for it."""
        path, start, length, _ = split
        inode = int(self.on_first("exec", self.deployment.name, "--", "stat", "-c", "%i", self.deployment.mount + path))
        found = collections.Counter()
        for server in self.deployment.status()["servers"]:
            for storage in server["storage"]:
                for file in sub_files(storage, inode):
                    found[server["host"]] += data_between(file, start, start + length)
        return found

    def locality(self, events, kind):
        """Of the last job: tasks that read input, those that Spark calls local, those that also had all their bytes in their node's storage,
        and bytes that crossed the nodes' links."""
        number, splits, present, sent = self.placed[kind]
        tasks = spark.reading_tasks(events, number)
        called = [t for t in tasks if t.locality in ("NODE_LOCAL", "PROCESS_LOCAL")]
        local = [t for t in called if present[t.partition][t.host] >= splits[t.partition][2]]
        return len(tasks), len(called), len(local), sent


def sub_files(storage, inode):
    """What a server stores of a file in blocks."""
    name = f"{inode:016x}"
    return [os.path.join(at, n) for at, _, names in os.walk(os.path.join(storage, "sub")) for n in names if n.startswith(name)]


def data_between(path, start, end):
    """Bytes of a sparse file that are no hole."""
    total = 0
    with open(path, "rb") as file:
        end = min(end, os.fstat(file.fileno()).st_size)
        while start < end:
            try:
                start = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError:
                break
            stop = min(os.lseek(file.fileno(), start, os.SEEK_HOLE), end)
            total += max(stop - start, 0)
            start = stop
    return total


def wholes(seconds):
    """Preload, job and flush together, of each repetition."""
    return [sum(parts) for parts in zip(seconds["preload"], seconds["job"], seconds["flush"])]


def report(bench, data, count, result):
    for kind, size in data.sizes.items():
        seconds, (tasks, called, local, sent) = result[kind]
        what = f"{kind} of {size >> 20} MiB, {count} node{'s' * (count > 1)}"
        note = ", ".join(f"{part} {harness.number(statistics.median(seconds[part]))} s" for part in ("preload", "job", "flush"))
        most = 1.0 if count > 1 else None
        bench.judge(TARGET, f"{what}: preload, job and flush; limit: GlusterFS", (wholes(seconds), seconds["direct"]), "s", at_most=most, note=note)
        bench.judge(TARGET, f"{what}: the job alone; limit: GlusterFS", (seconds["job"], seconds["direct"]), "s")
        if count > 1:
            note = f"{called} of {tasks} local by the event log, {sent / 2**20:.1f} MiB sent by the nodes meanwhile"
            what += ": tasks that read their input from their own node's storage"
            bench.row(TARGET, what, local / tasks, "", at_least=0.8, note=note)


def speed_up(bench, data, results):
    """Time on one node divided by time on several: of each side by itself."""
    parts = {
        "with preload and flush": wholes,
        "without preload": lambda seconds: [sum(parts) for parts in zip(seconds["job"], seconds["flush"])],
        "without preload and flush": lambda seconds: seconds["job"],
    }
    for kind in data.sizes:
        seconds = {count: result[kind][0] for count, result in results.items()}
        for count in seconds:
            for words, part in parts.items() if count > 1 else ():
                ratio = lambda of: [statistics.median(of(seconds[1])) / statistics.median(of(seconds[count]))]
                pair = (ratio(part), ratio(lambda some: some["direct"]))
                bench.judge(TARGET, f"{kind}: speed-up with {count} nodes, {words}; limit: GlusterFS", pair, "times")
