"""Nodes that are network namespaces of this machine, with links as slow as they should be.

Each node has one link to a bridge, shaped (htb) in both directions, with a buffer of 10 ms like a switch's: with deeper
ones, small requests wait behind whole transfers, and what is measured is the buffer. Congestion control is Reno, which every kernel lets
namespaces have. CPUs and memory are shared by all nodes, so that what is measured is how well the links are used. Needs root.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import harness
from harness import BIVOUAC, Failed, run


# How long a link's buffer is, at its rate.
BUFFER_SECONDS = 0.010
# Bytes that pass a link in one piece at most: two segments, where the kernel would make 64 KiB of them.
SEGMENTS = 3000


class Reached(harness.Deployment):
    """A deployment on a network's nodes, which other nodes do not reach."""

    def __init__(self, bench, name, network):
        super().__init__(bench, name)
        self.network = network

    def bivouac(self, *arguments):
        return run(self.network.within(self.network.head, [BIVOUAC, *arguments]))

    def status(self):
        return json.loads(self.bivouac("status", self.name, "--json"))["deployments"][0]


class Network:
    """Nodes `names`, and `head`, from which deployments are started: it is no server unless it is asked to be."""

    def __init__(self, nodes, rate, head_rate=None):
        """`rate`: Mbit/s of each node's link; `head_rate`: of the head's (None: not shaped)."""
        if os.geteuid() != 0:
            raise Failed("network namespaces need root")
        number = os.getpid() % 10_000
        self.subnet = f"10.{128 + number // 250 % 64}.{number % 250}"
        self.bridge = f"bvn{number}"
        self.head = f"bvn{number}h"
        self.nodes = [f"bvn{number}n{i}" for i in range(nodes)]
        self.names = []
        try:
            ip(f"link add {self.bridge} type bridge")
            ip(f"link set {self.bridge} up")
            self.add(self.head, 1, head_rate)
            for i, name in enumerate(self.nodes):
                self.add(name, i + 2, rate)
        except Failed:
            self.close()
            raise

    def add(self, name, address, rate):
        ip(f"netns add {name}")
        self.names.append(name)
        ip(f"link add {name} type veth peer name eth0 netns {name}")
        ip(f"link set {name} master {self.bridge} up")
        ip(f"-n {name} addr add {self.subnet}.{address}/24 dev eth0")
        ip(f"-n {name} link set eth0 up")
        ip(f"-n {name} link set lo up")
        run(self.within(name, ["sysctl", "-q", "-w", "net.ipv4.tcp_congestion_control=reno"]))
        if rate:
            shape([], name, rate)
            shape(["ip", "netns", "exec", name], "eth0", rate)

    def close(self):
        for name in self.names:
            run(["ip", "netns", "del", name], check=False)
        run(["ip", "link", "del", self.bridge], check=False)

    def address(self, name):
        return f"{self.subnet}.{1 if name == self.head else self.nodes.index(name) + 2}"

    def within(self, name, command):
        """A command as it is run on a node."""
        return ["ip", "netns", "exec", name, *command]

    def sent(self, names=None):
        """Bytes that each node has sent over its link so far."""
        counts = []
        for name in names or self.nodes:
            link = json.loads(run(["ip", "-n", name, "-s", "-j", "link", "show", "eth0"]))[0]
            counts.append(link["stats64"]["tx"]["bytes"])
        return counts

    def carries(self, seconds=2.0):
        """What one link is measured to carry: bytes a second on it while one connection sends all it can."""
        source, sink = self.nodes[0], self.nodes[1]
        program = [sys.executable, os.path.abspath(__file__)]
        taker = subprocess.Popen(self.within(sink, program + ["take", self.address(sink)]), stdout=subprocess.PIPE, text=True)
        port = taker.stdout.readline().strip()
        sender = subprocess.Popen(self.within(source, program + ["send", self.address(sink), port]))
        try:
            time.sleep(0.7)
            before, start = self.sent([source])[0], time.monotonic()
            time.sleep(seconds)
            return (self.sent([source])[0] - before) / (time.monotonic() - start)
        finally:
            for process in (sender, taker):
                process.kill()
                process.wait()

    @contextlib.contextmanager
    def deployment(self, bench, options=(), nodes=None):
        """A deployment with a server on each node, or on each of these."""
        name = f"bench-{os.getpid()}-n{len(bench.names)}"
        bench.names.append(name)
        hosts = ",".join(nodes or self.nodes)
        run(self.within(self.head, [BIVOUAC, "up", name, "--hosts", hosts, "--launcher", "netns", *options]))
        try:
            yield Reached(bench, name, self)
        finally:
            run(self.within(self.head, [BIVOUAC, "down", name]), check=False)
            bench.names.remove(name)

    def via(self, deployment, node):
        """What `bivouac bench --via` puts before a worker's command to have it run on a node."""
        return f"ip netns exec {node} {BIVOUAC} exec {deployment.name} --"


def ip(line):
    run(["ip", *line.split()])


def shape(before, device, rate):
    """Limits what leaves through a device to `rate` Mbit/s. The burst is what a tick's worth needs, no more."""
    tc = before + ["tc"]
    bytes_a_second = rate * 1e6 / 8
    burst = max(int(bytes_a_second / 250), 16 << 10)
    limit = max(int(bytes_a_second * BUFFER_SECONDS), 8 * SEGMENTS)
    run(tc + ["qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1", "r2q", "100"])
    htb = f"parent 1: classid 1:1 htb rate {rate}mbit ceil {rate}mbit burst {burst} cburst {burst}"
    run(tc + ["class", "add", "dev", device, *htb.split()])
    run(tc + ["qdisc", "add", "dev", device, "parent", "1:1", "handle", "2:", "bfifo", "limit", str(limit)])
    run(before + ["ip", "link", "set", device, "gso_max_size", str(SEGMENTS)])


def take(address):
    """Takes one connection and all that comes."""
    listener = socket.create_server((address, 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    buffer = bytearray(1 << 20)
    while connection.recv_into(buffer):
        pass


def send(address, port):
    """Sends until the other end has had enough, for 60 s at most."""
    connection = socket.create_connection((address, int(port)))
    data = b"x" * (256 << 10)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        connection.sendall(data)


if __name__ == "__main__":
    {"take": take, "send": send}[sys.argv[1]](*sys.argv[2:])
