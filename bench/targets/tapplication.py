"""An application reads files, and checks them, while servers come and leave: its bandwidth before, meanwhile and after.

The shape of figures 2.3.1 and 2.3.2 of expand-final-evaluation.000, scaled to one machine: 4 to 8 to 6 servers on 8 shaped links, and readers
on all 8 nodes. Writes a plot of the bandwidth over time beside the rows.
"""

import os
import subprocess
import time

import nets
import plot
from harness import BIVOUAC, Failed, run
from targets.tmalleability import NODES, RATE, WRITER

TARGET = "application"
ALONE = True

# Waits for a sign, reads files one after the other, again and again, checks them, and counts the bytes.
READER = """
import mmap, os, sys, zlib
where, number, counts, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.makedirs(where, exist_ok=True)
print("ready", flush=True)
sys.stdin.readline()
with open(counts, "r+b") as file:
    counted = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
names = sorted(os.listdir(where))
sums, buffer = {}, bytearray(4 << 20)
at = number * 7
while not os.path.exists(stop):
    name = names[at % len(names)]
    at += 1
    file, total, offset = os.open(f"{where}/{name}", os.O_RDONLY), 0, 0
    while got := os.preadv(file, [buffer], offset):
        total = zlib.crc32(memoryview(buffer)[:got], total)
        offset += got
        counted[number] += got
    os.close(file)
    if sums.setdefault(name, total) != total:
        sys.exit(f"{name} is not what it was")
"""

def measure(bench):
    network = nets.Network(NODES, RATE)
    try:
        application(bench, network)
    finally:
        network.close()


def application(bench, network):
    """An application on all nodes reads files while servers come and leave."""
    files, size = (32 if bench.quick else 64), 8 << 20
    counts, stop = os.path.join(bench.home, "counts"), os.path.join(bench.home, "stop-readers")
    readers = 2 * NODES
    with open(counts, "wb") as file:
        file.write(bytes(8 * readers))
    with network.deployment(bench, ["--block-size", str(512 << 10)]) as found:
        running = [
            subprocess.Popen(
                network.within(
                    network.nodes[number % NODES],
                    found.command(["python3", "-c", READER, f"{found.mount}/series", str(number), counts, stop]),
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(readers)
        ]
        for reader in running:
            reader.stdout.readline()
        # Programs run on all nodes, of which half have a server.
        found.bivouac("shrink", found.name, "--hosts", ",".join(network.nodes[4:]))
        program = found.command(["python3", "-c", WRITER, f"{found.mount}/series", "0", "1", f"{size}x{files}"])
        run(network.within(network.nodes[0], program))
        carried = network.carries(1.0)
        for reader in running:
            reader.stdin.write("go\n")
            reader.stdin.flush()
        samples, marks, begun = [], [], time.monotonic()

        def sample():
            with open(counts, "rb") as file:
                read = sum(memoryview(file.read()).cast("Q"))
            samples.append((time.monotonic() - begun, read, network.sent()))

        def watch(until):
            """Samples every 500 ms; from where to where in time."""
            first = time.monotonic() - begun
            while not until():
                sample()
                time.sleep(max(0.5 - (time.monotonic() - begun - samples[-1][0]), 0))
            return first, time.monotonic() - begun

        def rest(seconds):
            end = time.monotonic() + seconds
            return watch(lambda: time.monotonic() >= end)

        def change(words, *arguments):
            marks.append((time.monotonic() - begun, words))
            command = network.within(network.head, [BIVOUAC, *arguments])
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            span = watch(lambda: process.poll() is not None)
            if process.returncode != 0:
                raise Failed(process.stderr.read())
            marks.append((time.monotonic() - begun, "done"))
            return span

        def between(span, of):
            """Bytes a second of something in a span of time."""
            inside = [(at, of(read, sent)) for at, read, sent in samples if span[0] <= at <= span[1]]
            return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

        rest(3)
        alone = rest(8)
        growing = change("4 → 8", "expand", found.name, "--hosts", ",".join(network.nodes[4:]), "--launcher", "netns")
        rest(2)
        grown = rest(8)
        shrinking = change("8 → 6", "shrink", found.name, "--servers", "-2")
        rest(2)
        shrunk = rest(8)
        open(stop, "w").close()
        errors = [reader.communicate()[1] for reader in running]
        failed = [error for reader, error in zip(running, errors) if reader.returncode != 0]
        os.unlink(stop)
        read = lambda read, sent: read
        sent_by = lambda servers: lambda read, sent: sum(sent[number] for number in servers)
        rates = {name: between(span, read) / 2**20 for name, span in
                 [("alone", alone), ("growing", growing), ("grown", grown), ("shrinking", shrinking), ("shrunk", shrunk)]}
        bench.row(TARGET, "readers with an error", len(failed), "", at_most=0, note="; ".join(failed)[:200] or None)
        for name, what, before in (("growing", "4 → 8", "alone"), ("shrinking", "8 → 6", "grown")):
            span = growing if name == "growing" else shrinking
            note = f"{span[1] - span[0]:.1f} s"
            bench.judge(TARGET, f"while {what}: beside before", ([rates[name]], [rates[before]]), "MiB/s", at_least=0.7, note=note)
        pair = ([between(growing, sent_by(range(4))) / 2**20], [4 * carried / 2**20])
        bench.judge(TARGET, "while 4 → 8: both on the links of the servers that were there", pair, "MiB/s", at_least=0.85)
        pair = ([between(shrinking, sent_by(range(8))) / 2**20], [8 * carried / 2**20])
        bench.judge(TARGET, "while 8 → 6: both on the links of all servers", pair, "MiB/s", at_least=0.85)
        for name, what, servers in (("alone", "with 4 servers", 4), ("grown", "then with 8", 8), ("shrunk", "then with 6", 6)):
            # Of what is read, a server's node reads its own share by itself.
            links = servers * carried / (1 - 1 / NODES) / 2**20
            bench.judge(TARGET, f"{what}: beside what their links carry", ([rates[name]], [links]), "MiB/s")
        rate = [(b[0], (b[1] - a[1]) / (b[0] - a[0]) / 2**20) for a, b in zip(samples, samples[1:])]
        link = [(b[0], (sum(b[2]) - sum(a[2])) / (b[0] - a[0]) / 2**20) for a, b in zip(samples, samples[1:])]
        target = os.path.join(os.path.dirname(os.path.abspath(bench.out.name)), "malleability.svg")
        lines = [("read by the application", rate), ("sent over all links", link)]
        plot.over_time(target, "An application reads while servers come and leave", "MiB/s", lines, marks)
