"""Copies and dead servers, on 8 nodes with links of 50 Mbit/s: what copies cost, what is left without some servers, how long a failover and healing take.

As in expand-final-evaluation.000, figures 1.3.1 and 1.3.2: a shared file, several transfer sizes, R = 1, 2, 4, then R = 2 without one
server and R = 4 without three. Neither healing (`--heal-after never`) nor agents that start servers again (`--restarts 0`) are
beside any row but healing's own.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import time

import harness
import nets
from harness import BIVOUAC, run

TARGET = "faults"
NODES = 8
RATE = 50
# By the number of copies: which servers die, spread over the nodes.
VICTIMS = {2: [3], 4: [1, 4, 6]}
META = ("create", "open", "stat", "rename", "unlink")


def measure(bench):
    network = nets.Network(NODES, RATE)
    try:
        data(bench, network)
        metadata(bench, network)
        failover(bench, network)
        healing(bench, network)
    finally:
        network.close()


@contextlib.contextmanager
def deployment(bench, network, copies, *options):
    with network.deployment(bench, ["--replicas", str(copies), "--heal-after", "never", "--restarts", "0", *options]) as found:
        yield found


def server(found, number):
    return found.status()["servers"][number]


def kill(found, numbers):
    """Kills servers, and waits until the map says so."""
    for number in numbers:
        os.kill(server(found, number)["pid"], signal.SIGKILL)
    while any(server(found, number)["state"] != "down" for number in numbers):
        time.sleep(0.1)


def transfer_rates(bench, network, found, nodes, transfer, seconds, procs=16):
    """Bytes a second that processes on these nodes write to a shared file together, and then read."""
    via = [word for node in nodes for word in ("--via", network.via(found, node))]
    size = max(int(RATE * 1e6 / 8 * seconds * len(nodes) / procs), transfer) // transfer * transfer
    options = ["--procs", procs, "--size", size, "--transfer", transfer, "--keep", "--one-file", *via]
    directory = f"{found.mount}/t{transfer}"
    write = harness.generator(directory, options + ["--ops", "pwrite"])["pwrite"]["bytes_per_second"]
    read = harness.generator(directory, options + ["--ops", "pread", "--shift", "1"])["pread"]["bytes_per_second"]
    return write, read


def data(bench, network):
    seconds = 1.0 if bench.quick else 2.0
    transfers = (1 << 20,) if bench.quick else (64 << 10, 512 << 10, 1 << 20)
    alone_in = {}
    for copies in (1, 2, 4):
        with deployment(bench, network, copies) as found:
            whole = {}
            for transfer in transfers:
                rates, limits, alone, link = [], [], [], []
                reads = []
                for _ in range(bench.repetitions):
                    carried = network.carries(1.0)
                    write, read = transfer_rates(bench, network, found, network.nodes, transfer, seconds / copies)
                    rates.append(write / 2**20)
                    reads.append(read / 2**20)
                    limits.append(NODES * carried / copies / 2**20)
                    single, _ = transfer_rates(bench, network, found, network.nodes[:1], transfer, seconds, procs=1)
                    alone.append(single / 2**20)
                    link.append(carried / 2**20)
                whole[transfer] = (rates, reads)
                alone_in.setdefault(transfer, rates)
                size = f"{transfer >> 10} KiB"
                bench.judge(TARGET, f"write, R = {copies}, {size}, 16 clients", (rates, limits), "MiB/s", at_least=0.9)
                if copies > 1:
                    pair = (rates, [rate / copies for rate in alone_in[transfer]])
                    bench.judge(TARGET, f"write, R = {copies}, {size}, 16 clients, beside R = 1 divided by {copies}", pair, "MiB/s")
                bench.judge(TARGET, f"write, R = {copies}, {size}, one client", (alone, link), "MiB/s", at_least=0.9)
                bench.judge(TARGET, f"read, R = {copies}, {size}, 16 clients", (reads, [limit * copies for limit in limits]), "MiB/s")
            if copies not in VICTIMS:
                continue
            dead = VICTIMS[copies]
            living = [node for number, node in enumerate(network.nodes) if number not in dead]
            share = len(living) / NODES
            kill(found, dead)
            for transfer in transfers:
                rates, reads = [], []
                for _ in range(bench.repetitions):
                    write, read = transfer_rates(bench, network, found, living, transfer, seconds / copies)
                    rates.append(write / 2**20)
                    reads.append(read / 2**20)
                size, note = f"{transfer >> 10} KiB", f"{len(dead)} of {NODES} servers are dead; beside the same without failures, times living/all"
                for op, found_rates, before in (("write", rates, whole[transfer][0]), ("read", reads, whole[transfer][1])):
                    pair = (found_rates, [rate * share for rate in before])
                    bench.judge(TARGET, f"{op}, R = {copies}, {size}, without {len(dead)}", pair, "MiB/s", at_least=0.9, note=note)


def metadata(bench, network):
    """Rates with two copies beside those with one, in turns."""
    files = 300 if bench.quick else 1000
    with deployment(bench, network, 1) as one, deployment(bench, network, 2) as two:
        for procs in (1, 16):

            def rates(found):
                via = [word for node in network.nodes[:procs] for word in ("--via", network.via(found, node))]
                options = ["--procs", procs, "--files", files if procs == 1 else files // 4, "--ops", ",".join(META), *via]
                phases = harness.generator(f"{found.mount}/m{procs}", options)
                return {op: phases[op]["rate"] for op in META if op in phases}

            def empty(chained):
                return {"rate": harness.round_trips("tcp", files, procs, chained=chained, servers=NODES)["rate"]}

            # What a server that asks another one costs on this machine, whatever it asks.
            pair = bench.in_turns(lambda: empty(True), lambda: empty(False))["rate"]
            bench.judge(TARGET, f"empty requests, two servers each beside one, {procs} clients", pair, "1/s")
            for op, pair in bench.in_turns(lambda: rates(two), lambda: rates(one)).items():
                least = 0.9 if op in ("open", "stat") else 0.5
                bench.judge(TARGET, f"{op}, R = 2 beside R = 1, {procs} clients", pair, "1/s", at_least=least)


def failover(bench, network):
    """From kill -9 to the first operation on what the dead server had, with the defaults and with the shortest lease."""
    for words, longest in ([], 3), (["--lease", "0.4"], 1):
        with deployment(bench, network, 2, *words) as found:
            times = []
            names = " ".join(f"f{n}" for n in range(64))

            def within(script):
                run(network.within(network.head, found.command(["sh", "-c", f"cd {found.mount} && {script}"])))

            within(f"for f in {names}; do head -c 1M /dev/urandom > $f; done")
            for number in range(bench.repetitions):
                victim = number % NODES
                begun = time.monotonic()
                os.kill(server(found, victim)["pid"], signal.SIGKILL)
                # Each file has blocks on all servers.
                within(f"cat f{number} > /dev/null && echo x >> f{number}")
                times.append(time.monotonic() - begun)
                found.bivouac("restart", found.name, str(victim))
                while found.status()["incomplete"]:
                    time.sleep(0.1)
            what = " ".join(["from kill -9 to the first read and change", *words])
            bench.row(TARGET, what, statistics.median(times), "s", at_most=longest, repetitions=len(times), spread=(min(times), max(times)))


def healing(bench, network):
    """As fast as the links allow, as fast as a cap allows, and what it leaves to programs."""
    size = (256 if bench.quick else 1024) << 20
    carried = network.carries(1.0)

    @contextlib.contextmanager
    def without_one(*words):
        """A deployment with so much in it, one of whose servers is dead; and how much that had."""
        with deployment(bench, network, 2, *words) as found:
            via = [word for node in network.nodes for word in ("--via", network.via(found, node))]
            options = ["--procs", NODES, "--size", size // NODES, "--ops", "pwrite", "--keep", *via]
            harness.generator(f"{found.mount}/h", options)
            lost = server(found, 5)["stored"]
            kill(found, [5])
            yield found, lost

    # Every living server takes its part over its own link.
    for words, limit in ([], carried), (["--heal-rate", "2M"], 2 << 20):
        with without_one(*words) as (found, lost):
            begun = time.monotonic()
            found.bivouac("heal", found.name)
            took = time.monotonic() - begun
            pair = ([lost / took / 2**20], [(NODES - 1) * limit / 2**20])
            what = " ".join([f"healing {size >> 20} MiB in two copies", *words])
            bench.judge(TARGET, what, pair, "MiB/s", at_least=0.7, note=f"{lost >> 20} MiB in {took:.1f} s")
    with without_one() as (found, lost):
        living = [node for number, node in enumerate(network.nodes) if number != 5]
        seconds = 0.5 if bench.quick else 1.0

        def rate():
            return transfer_rates(bench, network, found, living, 1 << 20, seconds, procs=7)[0] / 2**20

        before = [rate() for _ in range(3)]
        healer = subprocess.Popen(network.within(network.head, [BIVOUAC, "heal", found.name]), stdout=subprocess.DEVNULL)
        time.sleep(0.3)
        during = []
        while healer.poll() is None:
            during.append(rate())
        healer.wait()
        bench.judge(TARGET, "write beside healing, 7 clients", (during, before), "MiB/s", at_least=0.5, note="for as long as healing lasts")
