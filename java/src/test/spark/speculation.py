"""Speculative tasks: one task is slow, Spark starts it again on the other host, and the output has each record once, with each committer.
Usage: speculation.py DEPLOYMENT MASTER, a cluster whose workers have different host names: Spark wants another host for it."""

import sys
import time

import session
from pyspark import TaskContext

RECORDS = 1000
# How many seconds the slow attempt would take.
SLOW = 300
# Which partition is slow. Not the first one: before PySpark writes pairs it looks at one of them, in a stage of one task, which is never repeated.
PARTITION = 2


def slow(index, records):
    """Passes records on; the first attempt at one of the partitions stops in the middle of it."""
    for number, record in enumerate(records):
        if index == PARTITION and number == 100 and TaskContext.get().attemptNumber() == 0:
            time.sleep(SLOW)
        yield record


def main(deployment, master):
    for committer, settings in session.COMMITTERS.items():
        base = f"speculation-{committer}"
        session.inside(deployment, "mkdir", "-p", f"/bivouac/{base}/events")
        url = f"bivouac://{deployment}/{base}"
        speculation = {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "500ms",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"{url}/events",
            "spark.cores.max": 2,
            "spark.executor.cores": 1,
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        }
        spark = session.start(f"speculation {committer}", master, **settings, **speculation)
        application = spark.sparkContext.applicationId
        pairs = spark.sparkContext.parallelize([(f"k{n}", n) for n in range(RECORDS)], 4).mapPartitionsWithIndex(slow)
        output = "org.apache.hadoop.mapreduce.lib.output.TextOutputFormat"
        begin = time.monotonic()
        pairs.saveAsNewAPIHadoopFile(f"{url}/pairs", output, "org.apache.hadoop.io.Text", "org.apache.hadoop.io.IntWritable")
        took = time.monotonic() - begin
        assert took < SLOW, f"{took:.0f} s: the slow attempt was waited for"
        lines = spark.sparkContext.textFile(f"{url}/pairs").collect()
        assert sorted(lines) == sorted(f"k{n}\t{n}" for n in range(RECORDS))
        spark.stop()

        ended = [e for e in session.events(deployment, f"{base}/events", application) if e["Event"] == "SparkListenerTaskEnd"]
        again = [e for e in ended if e["Task Info"]["Speculative"] and e["Task Info"]["Index"] == PARTITION]
        assert [e["Task End Reason"]["Reason"] for e in again] == ["Success"], again
        names = session.inside(deployment, "ls", "-A", f"/bivouac/{base}/pairs").split()
        assert sorted(names) == ["_SUCCESS"] + [f"part-r-0000{n}" for n in range(4)], names
    print(f"{len(session.COMMITTERS)} passed in 0s")


main(*sys.argv[1:])
