"""A shared file system of a site, for what is measured against one: GlusterFS, with bricks on some of a network's nodes.

Its daemons get their graphs from files, so that nothing of the machine's own GlusterFS, should it have one, is touched. Each brick
lies in a directory of a tmpfs. The client has the translators that are usual: distribute, write-behind, read-ahead, io-cache.
"""

import contextlib
import os
import subprocess
import time

import nets
from harness import Failed, run

PORT = 24007

BRICK = """
volume posix
  type storage/posix
  option directory {directory}
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume pending
  type features/index
  option index-base {directory}/.glusterfs/indices
  subvolumes locks
end-volume
volume brick
  type performance/io-threads
  option thread-count 16
  subvolumes pending
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address {address}
  option transport.socket.listen-port {port}
  option auth.addr.brick.allow *
  subvolumes brick
end-volume
"""

REMOTE = """
volume remote{number}
  type protocol/client
  option transport-type tcp
  option remote-host {address}
  option remote-port {port}
  option remote-subvolume brick
end-volume
"""

CLIENT = """
volume copies
  type cluster/replicate
  option afr-pending-xattr {remotes_}
  option eager-lock on
  subvolumes {remotes}
end-volume
volume files
  type cluster/distribute
  subvolumes copies
end-volume
volume behind
  type performance/write-behind
  subvolumes files
end-volume
volume ahead
  type performance/read-ahead
  subvolumes behind
end-volume
volume cache
  type performance/io-cache
  subvolumes ahead
end-volume
"""


class Gluster:
    """Bricks on `nodes` of a network; what it writes lies below `directory`."""

    def __init__(self, network, nodes, directory):
        self.network = network
        self.directory = directory
        self.bricks, self.mounts = [], []
        remotes = ""
        for number, node in enumerate(nodes):
            brick = os.path.join(directory, f"brick{number}")
            os.makedirs(os.path.join(brick, ".glusterfs"))
            address = network.address(node)
            graph = self.write(f"brick{number}.vol", BRICK.format(directory=brick, address=address, port=PORT))
            command = ["glusterfsd", "-N", "-f", graph, "-l", os.path.join(directory, f"brick{number}.log")]
            self.bricks.append(subprocess.Popen(network.within(node, command)))
            remotes += REMOTE.format(number=number, address=address, port=PORT)
        names = " ".join(f"remote{number}" for number in range(len(nodes)))
        self.graph = self.write("client.vol", remotes + CLIENT.format(remotes=names, remotes_=names.replace(" ", ",")))

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def mount(self, node, where=None):
        """Where it is mounted for a node: seen by all, but its data goes over that node's link. `where`: a directory for it."""
        if where is None:
            where = os.path.join(self.directory, f"mount-{node}")
            os.mkdir(where)
        log = os.path.join(self.directory, f"{node}.log")
        # Another network, and the same mounts: `ip netns exec` would keep the mount to itself.
        enter = ["nsenter", f"--net=/run/netns/{node}"]
        run([*enter, "glusterfs", "-f", self.graph, "-l", log, where])
        self.mounts.append(where)
        end = time.monotonic() + 20
        while True:
            try:
                if os.path.ismount(where) and os.listdir(where) is not None:
                    return where
            except OSError:
                pass
            if time.monotonic() > end:
                raise Failed(f"GlusterFS is not there at {where}: see {log}")
            time.sleep(0.1)

    def close(self):
        for where in self.mounts:
            run(["umount", "-l", where], check=False)
        for brick in self.bricks:
            brick.terminate()
            brick.wait()


@contextlib.contextmanager
def beside(bench, compute, rate):
    """Nodes that compute, an I/O node and two bricks, for the length of a block: network, names of the computing nodes, the I/O node, and Gluster.

    `rate`: Mbit/s of a computing node's link. The I/O node's carries what all of them carry together, a brick's twice that.
    """
    network = nets.Network(compute + 3, None)
    computes, io_node, bricks = network.nodes[:compute], network.nodes[compute], network.nodes[compute + 1 :]
    site = None
    try:
        for nodes, mbits in ((computes, rate), ([io_node], compute * rate), (bricks, 2 * compute * rate)):
            for node in nodes:
                nets.shape([], node, mbits)
                nets.shape(["ip", "netns", "exec", node], "eth0", mbits)
        with bench.directory() as tmpfs:
            site = Gluster(network, bricks, tmpfs)
            yield network, computes, io_node, site
    finally:
        if site:
            site.close()
        network.close()
