"""Files through Hadoop's classes: a deployment with one server on this node, against RawLocalFileSystem on tmpfs, in one virtual machine."""

import glob
import os
import subprocess

import harness

TARGET = 25
# What, the operation on both sides, unit, and the least ratio.
OPERATIONS = (
    ("write 1 MiB", "write", "write", "MiB/s", 0.8),
    ("read 1 MiB", "read", "read", "MiB/s", 0.8),
    ("read 1 MiB into direct buffers", "read-direct", "read", "MiB/s", None),
    ("listStatus of a directory", "list", "list", "files/s", 0.8),
    ("open, read, close files of 10 KB", "small", "small", "files/s", 0.5),
)


def class_path():
    """The jar, and Hadoop as Maven resolves it for the jar's own build."""
    jars = glob.glob(os.path.join(harness.TARGET, "java", "bivouac-hadoop-*.jar"))
    if len(jars) != 1:
        raise harness.Failed("one jar has to be there: make jar")
    out = os.path.join(harness.TARGET, "java", "class-path")
    pom = os.path.join(harness.ROOT, "java", "pom.xml")
    harness.run(["mvn", "--quiet", "--batch-mode", "-f", pom, "dependency:build-classpath", f"-Dmdep.outputFile={out}", "-Dmdep.includeScope=provided"])
    with open(out) as file:
        return f"{jars[0]}:{file.read().strip()}"


class Machine:
    """A Java virtual machine with HadoopFiles in it, that is asked for one figure after the other."""

    def __init__(self, deployment, directory, bench):
        mib, files = ("128", "2000") if bench.quick else ("512", "10000")
        source = os.path.join(harness.ROOT, "bench", "HadoopFiles.java")
        command = ["java", "-Xmx1g", "-cp", class_path(), source, deployment.name, directory, mib, files]
        self.log = open(os.path.join(bench.home, "hadoop.log"), "w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise harness.Failed(f"HadoopFiles: {self.log.read().strip()[-2000:]}")
        return line.strip()

    def ask(self, side, operation):
        self.process.stdin.write(f"{side} {operation}\n")
        self.process.stdin.flush()
        return float(self.answer())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def measure(bench):
    # One server, so that all of a file is on this node, in one place.
    with bench.deployment(1) as deployment, bench.directory() as directory, Machine(deployment, directory, bench) as machine:
        for what, operation, beside, unit, least in OPERATIONS:
            subject = lambda: {"": machine.ask("bivouac", operation)}  # noqa: B023, E731
            limit = lambda: {"": machine.ask("local", beside)}  # noqa: B023, E731
            note = "limit: RawLocalFileSystem" if operation == beside else "limit: into an array (it has no other way)"
            bench.judge(TARGET, f"Hadoop, {what}", bench.in_turns(subject, limit)[""], unit, at_least=least, note=note)
