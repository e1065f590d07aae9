#!/bin/sh
# Runs Spark, from PyPI, on a deployment that is made for it. `jar.sh TARGET` has made the jar. Usage: spark-test.sh TARGET
set -eu
target=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$target/spark
wanted=pyspark==3.5.7
if [ "$(cat "$venv/made-from" 2> /dev/null || true)" != "$wanted" ]; then
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/python" -m pip --quiet --disable-pip-version-check install "$wanted"
    printf '%s\n' "$wanted" > "$venv/made-from"
fi
bivouac=$target/release/bivouac
name=spark-test-$$
"$bivouac" up "$name" --servers 3 > /dev/null
trap '"$bivouac" down "$name" > /dev/null' EXIT
trap 'exit 130' INT TERM
PYSPARK_PYTHON=$venv/bin/python
export PYSPARK_PYTHON
JAVA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")
export JAVA_HOME
"$venv/bin/python" "$root/java/src/test/spark/wordcount.py" "$name" "$target"/java/bivouac-hadoop-*.jar 2> "$venv/log" || {
    tail -40 "$venv/log" >&2
    exit 1
}
