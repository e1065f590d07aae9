"""Spark's shuffle on the servers' local storage, which the deployment shows as a directory whose files stay on the node that makes them.
Usage: shuffle.py DEPLOYMENT DIRECTORY, where DIRECTORY is one of the deployment as this process sees it (`bivouac exec`, or a mount)."""

import os
import random
import sys

import session

RECORDS = 200_000


def main(deployment, directory):
    os.makedirs(directory)
    os.setxattr(directory, "user.bivouac.layout", b"width=1 first=local")
    os.environ.pop("SPARK_LOCAL_DIRS", None)
    settings = {
        "spark.local.dir": directory,
        # So little memory for the sort that it spills, too.
        "spark.memory.fraction": "0.1",
        "spark.shuffle.spill.numElementsForceSpillThreshold": 20_000,
    }
    spark = session.start("shuffle", **settings)
    context = spark.sparkContext
    numbers = list(range(RECORDS))
    random.Random(15).shuffle(numbers)
    table = spark.createDataFrame([(n, f"value {n}") for n in numbers], ["id", "value"]).repartition(6)
    table.orderBy("id").write.csv(f"bivouac://{deployment}/shuffled")
    made = [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names if name.startswith("shuffle_")]
    data = [path for path in made if path.endswith(".data") and os.path.getsize(path)]
    assert data, made
    lines = context.textFile(f"bivouac://{deployment}/shuffled").collect()
    assert lines == [f"{n},value {n}" for n in range(RECORDS)]
    spark.stop()
    left = [path for path in made if os.path.exists(path)]
    assert not left, left
    print("1 passed in 0s")


main(*sys.argv[1:])
