"""DLIO, the benchmark of training's reading: samples in directories of the nodes that read them against each node's tmpfs, and spread beside a shared file system.

One process of MPI on each node, and readers that it forks. The nodes are namespaces of this machine's network, and MPI's own messages go through
memory that they share: what goes over the links is what is read. Nothing is computed, so that an epoch takes as long as its reading.
"""

import json
import os
import shutil
import statistics
import tempfile
from dataclasses import dataclass

import gluster
import harness
from harness import BIVOUAC, Failed

TARGET = 27
# Mbit/s of a node's link.
RATE = 100
EPOCHS = 5
VENV = os.path.join(harness.TARGET, "torch-venv")
PYTHON = os.path.join(VENV, "bin", "python")
PROGRAMS = os.path.join(harness.ROOT, "bench", "dlio")


@dataclass
class Shape:
    """Training that DLIO knows: its name there, the format in which PyTorch's loader reads it, and how large it is here, on each node."""

    workload: str
    format: str
    files: int
    samples: int
    size: int
    deviation: int
    batch: int
    readers: int

    def of(self, quick):
        return Shape(**{**vars(self), "files": self.files // 2}) if quick else self


# DLIO's own: 168 volumes of 140 MiB; 1,024 files of 1,251 images; 524,288 files of 2.7 MiB; 500 files of 313,532 texts.
SHAPES = {
    "unet3d": Shape("unet3d_a100", "npz", 12, 1, 8 << 20, 2 << 20, 2, 2),
    "resnet50": Shape("resnet50_a100", "indexed_binary", 4, 64, 114_660, 0, 16, 2),
    "cosmoflow": Shape("cosmoflow_a100", "hdf5", 24, 1, 2_828_486, 71_311, 1, 2),
    "bert": Shape("bert_v100", "indexed_binary", 2, 384, 2_500, 0, 48, 1),
}


def measure(bench):
    harness.run([os.path.join(harness.ROOT, "scripts", "torch-venv.sh"), harness.TARGET], limit=1800)
    with gluster.beside(bench, 2 if bench.quick else 4, RATE) as (network, nodes, _, site):
        with network.deployment(bench, nodes=nodes) as deployment:
            for name, shape in SHAPES.items():
                shape = shape.of(bench.quick)
                own_nodes(bench, network, nodes, deployment, name, shape)
                if name == "unet3d":
                    spread(bench, network, nodes, deployment, name, shape)
        backend(bench, network, nodes, site, "unet3d", SHAPES["unet3d"].of(bench.quick))


class Set:
    """The samples of a shape in a directory that all nodes see: `within` gives the command that runs one on a node there."""

    def __init__(self, shape, nodes, directory, within):
        self.shape, self.nodes, self.directory, self.within = shape, nodes, directory, within
        # The first node makes files 0 to `files`, and DLIO gives its process these: they have a directory for each node.
        self.bytes = 0
        for rank, node in enumerate(nodes):
            self.bytes += self.made(rank, node)

    def made(self, rank, node):
        s = self.shape
        words = [f"{self.directory}/train/{rank}", s.format, rank * s.files, (rank + 1) * s.files, len(self.nodes) * s.files]
        words += [s.samples, s.size, s.deviation]
        return int(harness.run(self.within(node, [PYTHON, f"{PROGRAMS}/samples.py", *map(str, words)])))

    def read(self, epochs=EPOCHS, checked=False):
        """Has DLIO read it; seconds of each epoch."""
        s, nodes = self.shape, len(self.nodes)
        out = tempfile.mkdtemp(prefix="dlio-")
        dataset = {"data_folder": self.directory, "format": s.format, "num_files_train": nodes * s.files, "num_subfolders_train": nodes}
        dataset |= {"num_samples_per_file": s.samples, "record_length": s.size, "record_length_stdev": s.deviation, "record_length_resize": 4096}
        reader = {"data_loader": "pytorch", "batch_size": s.batch, "read_threads": s.readers, "sample_shuffle": "seed"}
        if checked:
            reader["reader_classname"] = f"samples.Checked{s.format}"
        parts = {
            "dataset": dataset,
            "reader": reader,
            "train": {"epochs": epochs, "computation_time": 0, "total_training_steps": -1},
            "workflow": {"generate_data": False, "train": True, "checkpoint": False},
            # The model is made even if it is never written.
            "checkpoint": {"model_size": 4096},
            "output": {"folder": out},
        }
        settings = [f"++workload.{part}.{key}={value}" for part, values in parts.items() for key, value in values.items()]
        program = [PYTHON, f"{PROGRAMS}/run.py", f"workload={s.workload}", "++workload.framework=pytorch", f"hydra.run.dir={out}", *settings]
        command = ["mpiexec.mpich"]
        for node in self.nodes:
            command += [*([":"] if node != self.nodes[0] else []), "-n", "1", *self.within(node, program)]
        environment = {
            "LD_LIBRARY_PATH": os.path.join(VENV, "mpi"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": PROGRAMS,
            "DLIO_SAMPLES_SHAPE": f"{s.size} {s.deviation}",
            "DLIO_SAMPLES_JOURNAL": f"{out}/journal",
        }
        try:
            harness.run(command, env=environment, limit=900)
            if checked:
                self.compare(f"{out}/journal", epochs)
            return self.seconds(out, epochs)
        finally:
            shutil.rmtree(out)

    def compare(self, journal, epochs):
        """Every sample has to have been compared, once in each epoch."""
        with open(journal, encoding="ascii") as file:
            found = sorted(tuple(map(int, line.split())) for line in file)
        s = self.shape
        wanted = [(file, number) for file in range(len(self.nodes) * s.files) for number in range(s.samples)]
        if found != sorted(wanted * epochs):
            raise Failed(f"{len(found)} samples were read, {len(set(found))} of them different: {len(wanted)} in {epochs} epochs should have been")

    def seconds(self, out, epochs):
        """How long each epoch took, and whether each process had as many steps as it should have."""
        steps = self.shape.files * self.shape.samples // self.shape.batch
        for rank in range(len(self.nodes)):
            with open(f"{out}/{rank}_output.json", encoding="utf-8") as file:
                ran = json.load(file)
            done = [len(ran[str(epoch)]["proc"]["block1"]) for epoch in range(1, epochs + 1)]
            if done != [steps] * epochs:
                raise Failed(f"process {rank} has gone through {done} batches, and not {steps} in each epoch")
        with open(f"{out}/per_epoch_stats.json", encoding="utf-8") as file:
            told = json.load(file)
        return [lasted(told[str(epoch)]["block1"]) for epoch in range(1, epochs + 1)]

    def rates(self):
        """MiB/s of all nodes together in each epoch."""
        return {epoch: self.bytes / took / 2**20 for epoch, took in enumerate(self.read(), 1)}


def lasted(block):
    from datetime import datetime

    return (datetime.fromisoformat(block["end"]) - datetime.fromisoformat(block["start"])).total_seconds()


def described(shape, nodes):
    size = f"{shape.size / 2**20:.3g} MiB" if shape.size >= 1 << 20 else f"{shape.size:,} bytes"
    return f"{nodes * shape.files} {shape.format} files of {shape.samples} x {size}"


def all_epochs(rates):
    return ", ".join(f"{statistics.median(r[epoch] for r in rates):.0f}" for epoch in rates[0])


def own_nodes(bench, network, nodes, deployment, name, shape):
    """Every node reads what it has written itself, where it is: on its own server, or on its tmpfs."""
    inside = lambda access: lambda node, command: network.within(node, deployment.command(command, access=access))  # noqa: E731
    directory = f"{deployment.mount}/{name}"
    layout = "import os, sys; os.makedirs(sys.argv[1]); os.setxattr(sys.argv[1], 'user.bivouac.layout', b'width=1 first=local')"
    harness.run(inside("preload")(nodes[0], ["/usr/bin/python3", "-c", layout, f"{directory}/train"]))
    with bench.directory(name) as tmpfs:
        # What is on the nodes' tmpfs lies in one directory for each of them.
        plain = Set(shape, nodes, tmpfs, network.within)
        own = Set(shape, nodes, directory, inside("preload"))
        own.read(epochs=1, checked=True)
        # A target is there for unet3d. The others are stated.
        judged = name == "unet3d"
        pairs = bench.in_turns(own.rates, plain.rates, most=None if judged else 2)
        ratios = {epoch: statistics.median(f) / statistics.median(l) for epoch, (f, l) in pairs.items()}
        worst = min(ratios, key=ratios.get)
        what = f"{name}, {len(nodes)} nodes, {described(shape, len(nodes))}, on the own node; limit: the same from tmpfs"
        note = f"the slowest epoch against tmpfs, the {worst}.; all: {', '.join(f'{ratios[e]:.2f}' for e in ratios)}"
        bench.judge(TARGET, what, pairs[worst], "MiB/s", at_least=0.8 if judged else None, note=note)
        if judged:
            own.within = inside("fuse")
            own.read(epochs=1, checked=True)
            rates = [own.rates()]
            limit = statistics.median(statistics.median(l) for _, l in pairs.values())
            figure = statistics.median(rates[0].values())
            bench.row(TARGET, f"{name}, the same through a mount", figure, "MiB/s", limit=limit, ratio=figure / limit, note=f"epochs: {all_epochs(rates)}")
    harness.run(inside("preload")(nodes[0], ["rm", "-r", directory]))


def spread(bench, network, nodes, deployment, name, shape):
    """The same with blocks on all servers."""
    inside = lambda node, command: network.within(node, deployment.command(command))  # noqa: E731
    directory = f"{deployment.mount}/{name}-spread"
    samples = Set(shape, nodes, directory, inside)
    samples.read(epochs=1, checked=True)
    stated(bench, f"{name}, spread over all {len(nodes)} nodes, links of {RATE} Mbit/s", samples)
    harness.run(inside(nodes[0], ["rm", "-r", directory]))


def backend(bench, network, nodes, site, name, shape):
    """The same from a shared file system: two bricks that hold the same, with links that are twice as fast as all nodes' together."""
    mounts = {node: site.mount(node) for node in nodes}
    # A command that runs on a node sees the file system of that node at the same place as those of other nodes.
    where = os.path.join(site.directory, "seen")
    os.mkdir(where)
    script = f'mount --bind "$0" {where} && exec "$@"'

    def inside(node, command):
        return ["nsenter", f"--net=/run/netns/{node}", "unshare", "--mount", "sh", "-c", script, mounts[node], *command]

    samples = Set(shape, nodes, f"{where}/{name}", inside)
    samples.read(epochs=1, checked=True)
    stated(bench, f"{name}, from GlusterFS over the same links", samples)


def stated(bench, what, samples):
    """How fast all epochs together are, the first without anything in the kernel's page cache."""
    rates = []
    for _ in range(1 if bench.quick else 3):
        harness.drop_caches()
        rates.append(samples.rates())
    figure = statistics.median(len(run) / sum(1 / rate for rate in run.values()) for run in rates)
    bench.row(TARGET, what, figure, "MiB/s", repetitions=len(rates), note=f"epochs: {all_epochs(rates)}")
