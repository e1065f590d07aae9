"""A Spark cluster (standalone) with one executor on each of some nodes of a network, and an application on it that does jobs as it is told.

The nodes know each other by the names that a deployment's block locations have, so that Spark can put tasks where their data is. What
Spark spills and shuffles lies below a directory that is given. `scripts/spark-setup.sh` fetches what it needs.
"""

import collections
import contextlib
import glob
import json
import os
import shutil
import subprocess
import time

import harness
from harness import Failed, run

PORT = 7077
# Of the JVM of each daemon, and of each executor.
DAEMON_MEMORY = "128m"
EXECUTOR_MEMORY = "640m"


def java_home():
    return os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("javac") or "javac")))


class Software:
    """Spark and what it needs, below TARGET/spark."""

    def __init__(self):
        script = os.path.join(harness.ROOT, "scripts", "spark-setup.sh")
        run([script, harness.TARGET], limit=1200)
        self.base = os.path.join(harness.TARGET, "spark")
        self.home = run([f"{self.base}/bin/python", "-c", "import os, pyspark; print(os.path.dirname(pyspark.__file__))"]).strip()
        found = glob.glob(os.path.join(harness.TARGET, "java", "bivouac-hadoop-*.jar"))
        if not found:
            raise Failed("the jar is not there: make jar")
        self.jar = found[0]
        # Hadoop's newer jars have to come before Spark's own.
        self.classes = ":".join([self.jar, *sorted(glob.glob(f"{self.base}/extra/*.jar"))])
        self.jobs = f"{self.base}/jobs.jar"

    def hadoop(self, tool, *arguments):
        """A MapReduce example as it is run in one process: `TeraGen`, `TeraValidate`, ..."""
        classes = [self.classes, *glob.glob(f"{self.home}/jars/*-client-*.jar")]
        logs = [j for j in glob.glob(f"{self.home}/jars/*.jar") if "log4j" in j or "slf4j" in j]
        java = [f"{java_home()}/bin/java", "-Xmx512m", "-cp", ":".join(classes + logs), f"org.apache.hadoop.examples.terasort.{tool}"]
        return [*java, "-Dmapreduce.framework.name=local", *arguments]


@contextlib.contextmanager
def own_files(network, shared):
    """Gives each node its own view of two paths for the length of a block: a file of hosts that has all nodes' names, and a directory
    `shared` below /etc, which on each node is the directory that is yielded for it. `ip netns exec` puts what lies in /etc/netns/NODE in
    the place of what has the same name in /etc."""
    hosts = ["127.0.0.1 localhost"] + [f"{network.address(name)} {name}" for name in network.names]
    os.makedirs(shared)
    own = {}
    try:
        for name in network.names:
            directory = os.path.join("/etc/netns", name)
            own[name] = os.path.join(directory, os.path.basename(shared))
            os.makedirs(own[name])
            with open(os.path.join(directory, "hosts"), "w", encoding="ascii") as file:
                # Java asks for the address of the machine's own name.
                file.write("\n".join([*hosts, f"{network.address(name)} {os.uname().nodename}"]) + "\n")
        yield own
    finally:
        for name in own:
            shutil.rmtree(os.path.join("/etc/netns", name), ignore_errors=True)
        os.rmdir(shared)


class Cluster:
    """A master on the first of some nodes, and a worker on each."""

    def __init__(self, software, network, nodes, directory):
        """`directory`: for what Spark stores on its nodes, and its logs."""
        self.software, self.network, self.nodes, self.directory = software, network, nodes, directory
        self.running = []
        self.url = f"spark://{nodes[0]}:{PORT}"
        try:
            self.start(nodes[0], "master", "deploy.master.Master", "--port", str(PORT), "--webui-port", "0")
            self.wait("master", "I have been elected leader")
            for node in nodes:
                options = ("--cores", "1", "--memory", EXECUTOR_MEMORY, "--webui-port", "0", "--work-dir", f"{directory}/work-{node}")
                self.start(node, f"worker-{node}", "deploy.worker.Worker", self.url, *options)
            for node in nodes:
                self.wait(f"worker-{node}", "Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def environment(self, node):
        return {
            "JAVA_HOME": java_home(),
            "SPARK_HOME": self.software.home,
            "SPARK_LOCAL_HOSTNAME": node,
            "SPARK_LOCAL_DIRS": f"{self.directory}/local-{node}",
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }

    def log(self, name):
        return os.path.join(self.directory, f"{name}.log")

    def start(self, node, name, what, *options):
        os.makedirs(f"{self.directory}/local-{node}", exist_ok=True)
        command = [f"{self.software.home}/bin/spark-class", f"org.apache.spark.{what}", "--host", node, *options]
        with open(self.log(name), "wb") as log:
            environment = dict(os.environ, **self.environment(node))
            process = subprocess.Popen(self.network.within(node, command), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running.append(process)

    def wait(self, name, words, seconds=300):
        end = time.monotonic() + seconds
        while True:
            with open(self.log(name), encoding="utf-8", errors="replace") as log:
                said = log.read()
            if words in said:
                return
            if time.monotonic() > end or any(process.poll() is not None for process in self.running):
                raise Failed(f"{name} of Spark did not start: {said[-2000:]}")
            time.sleep(0.2)

    def close(self):
        """The workers first: they end their executors."""
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Application:
    """The application `Jobs`, with its driver on the cluster's first node and its event log in a directory."""

    def __init__(self, cluster, settings):
        self.cluster = cluster
        node, software = cluster.nodes[0], cluster.software
        self.events = os.path.join(cluster.directory, "events")
        os.makedirs(self.events, exist_ok=True)
        settings = {
            "spark.driver.host": node,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.extraClassPath": software.classes,
            "spark.executor.extraClassPath": software.classes,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{self.events}",
            "spark.ui.enabled": "false",
            **settings,
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command = [f"{software.home}/bin/spark-submit", "--master", cluster.url, "--class", "org.bivouac.spark.Jobs", *options]
        self.said = open(cluster.log("driver"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            cluster.network.within(node, [*command, software.jobs, str(len(cluster.nodes))]),
            env=dict(os.environ, **cluster.environment(node)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )
        self.jobs = 0
        if self.process.stdout.readline().strip() != "ready":
            self.failed()

    def failed(self):
        self.process.kill()
        self.process.wait()
        self.said.seek(0)
        raise Failed(f"Spark: {self.said.read()[-3000:]}")

    def job(self, kind, source, target):
        """Does a job; seconds, its number, and its splits: path, offset, length, hosts."""
        self.process.stdin.write(f"{kind} {source} {target}\n")
        self.process.stdin.flush()
        splits = []
        for line in self.process.stdout:
            words = line.rstrip("\n").split(" ")
            if words[0] == "split":
                splits.append((words[2], int(words[3]), int(words[4]), [host for host in words[5].split(",") if host]))
            elif words[0] == "done":
                self.jobs += 1
                return float(words[1]), self.jobs - 1, splits
        return self.failed()

    def close(self):
        """Ends the application; its events, which are complete then."""
        self.process.stdin.close()
        try:
            if self.process.wait(120) != 0:
                self.failed()
        except subprocess.TimeoutExpired:
            self.failed()
        self.said.close()
        events = []
        for name in sorted(os.listdir(self.events)):
            with open(os.path.join(self.events, name), encoding="utf-8") as log:
                events += [json.loads(line) for line in log]
        return events


Task = collections.namedtuple("Task", "partition host locality")


def reading_tasks(events, number):
    """The tasks that read a job's input, as the event log has them. (Spark calls a task PROCESS_LOCAL, too, if no place is any better for it.)"""
    stages = set()
    for event in events:
        if event["Event"] == "SparkListenerJobStart" and event["Properties"].get("spark.jobGroup.id") == str(number):
            # The stages that begin with the input have no stage before them.
            stages |= {info["Stage ID"] for info in event["Stage Infos"] if not info["Parent IDs"]}
    tasks = []
    for event in events:
        if event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in stages and event["Task End Reason"]["Reason"] == "Success":
            info = event["Task Info"]
            tasks.append(Task(info["Partition ID"], info["Host"], info["Locality"]))
    return tasks
