"""What the Spark tests have in common: a session with two executors, and what its event log says. `scripts/spark-test.sh` sets the environment:
BIVOUAC, the program; BIVOUAC_JAR, the jar under test; SPARK_EXTRA, jars that come before Spark's own (another Hadoop)."""

import json
import os
import subprocess

from pyspark.sql import SparkSession

BIVOUAC = os.environ.get("BIVOUAC")

MANIFEST = "org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitter"
FILE_OUTPUT = "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"
# What makes Spark use each committer.
COMMITTERS = {
    "v1": {FILE_OUTPUT: 1},
    "v2": {FILE_OUTPUT: 2},
    "manifest": {
        "spark.hadoop.mapreduce.outputcommitter.factory.scheme.bivouac": f"{MANIFEST}Factory",
        "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
        "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
    },
}


def start(name, master="local-cluster[2,1,1024]", hadoop=True, **settings):
    """`hadoop`: with the Hadoop that the jar is compiled for; otherwise with the one that Spark brings."""
    classes = os.environ["BIVOUAC_JAR"] + (":" + os.environ["SPARK_EXTRA"] if hadoop else "")
    builder = SparkSession.builder.master(master).appName(name)
    defaults = {
        "spark.driver.extraClassPath": classes,
        "spark.executor.extraClassPath": classes,
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": 4,
        "spark.ui.enabled": "false",
    }
    for key, value in (defaults | settings).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def inside(deployment, *command):
    """What a command prints that sees the deployment below /bivouac."""
    return subprocess.run([BIVOUAC, "exec", deployment, "--", *command], check=True, capture_output=True, text=True).stdout


def events(deployment, directory, application):
    """The events of an application that has ended, from its log in the deployment."""
    lines = inside(deployment, "cat", f"/bivouac/{directory}/{application}").splitlines()
    found = [json.loads(line) for line in lines]
    assert found[0]["Event"] == "SparkListenerLogStart" and found[-1]["Event"] == "SparkListenerApplicationEnd", found[-1]
    return found
