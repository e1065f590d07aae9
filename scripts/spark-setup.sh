#!/bin/sh
# Fetches Spark, from PyPI, and what its tests and benchmarks need beside it, from Maven Central, into TARGET/spark, and compiles the
# jobs that are written in Java. Usage: spark-setup.sh TARGET
set -eu
target=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$target/spark
jars=$venv/extra
sources=$root/java/src/test/spark
wanted="pyspark==3.5.7 $(cat "$sources/pom.xml" "$0" | cksum)"
if [ "$(cat "$venv/made-from" 2> /dev/null || true)" != "$wanted" ]; then
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/python" -m pip --quiet --disable-pip-version-check install "${wanted%% *}"
    # Only what is named: the cloud connectors that Spark's artifact depends on would be 500 MB.
    mvn --quiet --batch-mode -f "$sources/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.7.1:copy-dependencies \
        "-DoutputDirectory=$jars" -DexcludeTransitive=true
    printf '%s\n' "$wanted" > "$venv/made-from"
fi
spark=$("$venv/bin/python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
rm -rf "$venv/classes"
mkdir "$venv/classes"
javac -nowarn -d "$venv/classes" -cp "$jars/*:$spark/jars/*" "$sources"/org/bivouac/spark/*.java
jar --create --file "$venv/jobs.jar" -C "$venv/classes" .
