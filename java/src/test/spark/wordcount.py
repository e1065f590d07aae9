"""Spark on a deployment, with the Hadoop that it brings: text, word count, CSV, Parquet. Usage: wordcount.py DEPLOYMENT"""

import sys

import session


def main(deployment):
    spark = session.start("wordcount", hadoop=False)
    url = f"bivouac://{deployment}/spark"
    words = [f"w{number % 100}" for number in range(100_000)]
    lines = [" ".join(words[at : at + 10]) for at in range(0, len(words), 10)]
    spark.sparkContext.parallelize(lines, 4).saveAsTextFile(f"{url}/text")
    text = spark.sparkContext.textFile(f"{url}/text")
    counts = text.flatMap(str.split).map(lambda word: (word, 1)).reduceByKey(lambda a, b: a + b)
    counts.saveAsTextFile(f"{url}/counts")
    found = dict(counts.collect())
    assert len(found) == 100 and set(found.values()) == {1000}, found

    table = spark.createDataFrame([(n, f"k{n % 7}", n * 0.5) for n in range(10_000)], ["id", "key", "value"])
    table.write.partitionBy("key").parquet(f"{url}/table")
    table.write.mode("overwrite").option("header", True).csv(f"{url}/csv")
    table.write.mode("overwrite").option("header", True).csv(f"{url}/csv")
    assert spark.read.parquet(f"{url}/table").where("key = 'k3'").count() == len(range(3, 10_000, 7))
    assert spark.read.option("header", True).csv(f"{url}/csv").groupBy("key").count().count() == 7
    spark.stop()
    print("1 passed in 0s")


main(*sys.argv[1:])
