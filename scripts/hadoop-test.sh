#!/bin/sh
# Runs MapReduce jobs on a deployment that is made for it: TeraSort and WordCount with each committer. `jar.sh TARGET` has made the jar.
# Usage: hadoop-test.sh TARGET
set -eu
target=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
into=$target/java/mapreduce
bivouac=$target/portable/release/bivouac
name=hadoop-test-$$
mkdir -p "$into/tmp"
"$bivouac" up "$name" --servers 3 > /dev/null
trap '"$bivouac" down "$name" > /dev/null; rm -rf "$into/tmp"' EXIT
trap 'exit 130' INT TERM
rm -rf "$into/surefire-reports"
mvn --quiet --batch-mode -f "$root/java/src/test/mapreduce/pom.xml" test "-Doutput.directory=$into" \
    "-Dbivouac.jar=$(ls "$target"/java/bivouac-hadoop-*.jar)" "-Dbivouac.deployment=$name" "-DargLine=-Xmx1g -Djava.io.tmpdir=$into/tmp" \
    > "$into/log" 2>&1 && status=0 || status=$?
[ "$status" = 0 ] || tail -60 "$into/log" >&2
"$root/scripts/surefire-totals.py" "$into/surefire-reports" || status=1
exit "$status"
