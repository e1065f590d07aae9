#!/bin/sh
# Runs Spark on a deployment that is made for it, with two executors. `jar.sh TARGET` has made the jar.
# Usage: spark-test.sh TARGET [wordcount|committers|speculation|shuffle|terasort]...
set -eu
target=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- wordcount committers speculation shuffle terasort
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/spark-setup.sh" "$target"
venv=$target/spark
log=$venv/log
work=$venv/work
BIVOUAC=$target/portable/release/bivouac
BIVOUAC_JAR=$(ls "$target"/java/bivouac-hadoop-*.jar)
SPARK_EXTRA=$(ls "$venv"/extra/*.jar | paste -sd :)
PYSPARK_PYTHON=$venv/bin/python
SPARK_HOME=$("$venv/bin/python" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
JAVA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")
export BIVOUAC BIVOUAC_JAR SPARK_EXTRA PYSPARK_PYTHON SPARK_HOME JAVA_HOME
name=spark-test-$$
daemons=
"$BIVOUAC" up "$name" --servers 3 > /dev/null
finish() {
    # A worker ends its executors; it may have ended by itself.
    [ -z "$daemons" ] || kill $daemons 2> /dev/null || true
    wait
    "$BIVOUAC" down "$name" > /dev/null
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM
rm -rf "$work"
mkdir -p "$work"
# What Spark works in, event logs and local directories where nothing else is said.
SPARK_LOCAL_DIRS=$work
export SPARK_LOCAL_DIRS

failed() {
    echo "spark-test.sh: $1 failed" >&2
    tail -40 "$log" >&2
    exit 1
}

python() {
    test=$1
    shift
    "$venv/bin/python" "$root/java/src/test/spark/$test.py" "$@" 2> "$log" || failed "$test"
}

# A cluster with workers on two hosts, which are two of this machine's loopback addresses; $master is its address.
cluster() {
    "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master --host 127.0.0.1 --port 0 --webui-port 0 > "$work/master" 2>&1 &
    daemons=$!
    master=
    for _ in $(seq 120); do
        master=$(sed -n 's/.*Starting Spark master at \(spark:[^ ]*\).*/\1/p' "$work/master")
        [ -z "$master" ] || break
        sleep 0.5
    done
    [ -n "$master" ] || { cat "$work/master" >&2; exit 1; }
    for host in 127.0.0.1 127.0.0.2; do
        "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker "$master" --host $host --cores 1 --memory 1g --webui-port 0 \
            --work-dir "$work/$host" > "$work/worker-$host" 2>&1 &
        daemons="$daemons $!"
    done
}

# Each test says how many have passed, in the form that scripts/test-totals.sh counts.
for test in "$@"; do
    case $test in
        speculation)
            cluster
            python speculation "$name" "$master"
            ;;
        shuffle)
            # Spark, its executors and Python run with the preload library.
            "$BIVOUAC" exec "$name" -- "$venv/bin/python" "$root/java/src/test/spark/shuffle.py" "$name" /bivouac/local 2> "$log" || failed shuffle
            ;;
        terasort)
            hadoop="$JAVA_HOME/bin/java -Xmx512m -cp $BIVOUAC_JAR:$SPARK_EXTRA:$(ls "$SPARK_HOME"/jars/*slf4j*.jar "$SPARK_HOME"/jars/log4j*.jar | paste -sd :)"
            examples=org.apache.hadoop.examples.terasort
            $hadoop $examples.TeraGen 200000 "bivouac://$name/tera" > "$log" 2>&1 || failed TeraGen
            echo "terasort bivouac://$name/tera bivouac://$name/sorted" | "$SPARK_HOME/bin/spark-submit" --master 'local-cluster[2,1,1024]' \
                --class org.bivouac.spark.Jobs --conf spark.executor.memory=512m --conf spark.ui.enabled=false \
                --conf spark.hadoop.mapreduce.input.fileinputformat.split.maxsize=3000000 \
                --conf "spark.driver.extraClassPath=$BIVOUAC_JAR:$SPARK_EXTRA" --conf "spark.executor.extraClassPath=$BIVOUAC_JAR:$SPARK_EXTRA" \
                "$venv/jobs.jar" 2 > "$work/jobs" 2> "$log" || failed terasort
            $hadoop $examples.TeraValidate "bivouac://$name/sorted" "bivouac://$name/report" > "$log" 2>&1 || failed TeraValidate
            $hadoop $examples.TeraChecksum "bivouac://$name/tera" "bivouac://$name/checksum" > "$log" 2>&1 || failed TeraChecksum
            report=$("$BIVOUAC" exec "$name" -- sh -c 'cat /bivouac/report/part-*')
            checksum=$("$BIVOUAC" exec "$name" -- sh -c 'cat /bivouac/checksum/part-*')
            [ "$(echo $report)" = "checksum $(echo $checksum)" ] || { echo "TeraValidate: $report; TeraChecksum: $checksum" >&2; exit 1; }
            parts=$(grep -c '^split' "$work/jobs")
            [ "$parts" -ge 7 ] || { cat "$work/jobs" >&2; exit 1; }
            echo "1 passed in 0s"
            ;;
        *)
            python "$test" "$name"
            ;;
    esac
done
