"""Spark with each of Hadoop's committers, and its event log in the deployment: RDDs, and tables as CSV and Parquet. Usage: committers.py DEPLOYMENT

Tables need spark-hadoop-cloud's commit protocol for the manifest committer: Spark SQL's own one knows FileOutputCommitter alone.
RDDs need nothing.
"""

import json
import sys

import session
from session import COMMITTERS, MANIFEST

ROWS = 10_000


def names(deployment, path):
    return sorted(session.inside(deployment, "ls", "-A", f"/bivouac/{path}").split())


def check_success(deployment, path, committer, files):
    """The mark of success is the committer's own: empty, or a report that names these files."""
    said = session.inside(deployment, "cat", f"/bivouac/{path}/_SUCCESS")
    if committer != "manifest":
        assert said == "", said
        return
    report = json.loads(said)
    assert report["success"] and report["committer"] == MANIFEST, report
    listed = sorted(name.rsplit("/", 1)[-1] for name in report["filenames"])
    assert listed == files, (listed, files)


def main(deployment):
    done = 0
    for committer, settings in COMMITTERS.items():
        base = f"committers-{committer}"
        session.inside(deployment, "mkdir", "-p", f"/bivouac/{base}/events")
        url = f"bivouac://{deployment}/{base}"
        log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"{url}/events"}
        spark = session.start(f"committer {committer}", **settings, **log)
        application = spark.sparkContext.applicationId

        pairs = spark.sparkContext.parallelize([(f"k{n}", n) for n in range(ROWS)], 5)
        output = "org.apache.hadoop.mapreduce.lib.output.TextOutputFormat"
        pairs.saveAsNewAPIHadoopFile(f"{url}/pairs", output, "org.apache.hadoop.io.Text", "org.apache.hadoop.io.IntWritable")
        files = [f"part-r-0000{n}" for n in range(5)]
        assert names(deployment, f"{base}/pairs") == ["_SUCCESS", *files]
        check_success(deployment, f"{base}/pairs", committer, files)
        lines = spark.sparkContext.textFile(f"{url}/pairs").collect()
        assert sorted(lines) == sorted(f"k{n}\t{n}" for n in range(ROWS))
        done += 1

        table = spark.range(ROWS).selectExpr("id", "concat('k', id) as name", "id * 0.5 as value").repartition(3)
        for form in ("csv", "parquet"):
            # Twice: what is overwritten is deleted when the job begins.
            for _ in range(2):
                table.write.mode("overwrite").format(form).save(f"{url}/{form}")
            found = names(deployment, f"{base}/{form}")
            files = [name for name in found if not name.startswith("_")]
            assert found == ["_SUCCESS", *files] and len(files) == 3, found
            check_success(deployment, f"{base}/{form}", committer, files)
            read = spark.read.schema(table.schema).format(form).load(f"{url}/{form}")
            assert read.count() == ROWS and read.exceptAll(table).count() == 0
            done += 1

        spark.stop()
        ended = [e for e in session.events(deployment, f"{base}/events", application) if e["Event"] == "SparkListenerTaskEnd"]
        assert len({e["Task Info"]["Executor ID"] for e in ended}) == 2
        done += 1
    print(f"{done} passed in 0s")


main(*sys.argv[1:])
