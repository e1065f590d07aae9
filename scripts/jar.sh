#!/bin/sh
# Makes the jar with the Hadoop file system, and the native library in it, for glibc 2.28 and later. Usage: jar.sh TARGET [test]
# `test`: also runs its tests, Hadoop's contract tests among them, on a deployment that is made for it and taken down after it.
set -eu
target=$(mkdir -p "$1" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/old-glibc.sh"
into=$target/java
command -v javac > /dev/null && command -v mvn > /dev/null || { echo "jar.sh: a JDK and Maven are needed: make setup" >&2; exit 1; }
javac=$(readlink -f "$(command -v javac)")
java=$(dirname "$(dirname "$javac")")
# As Java's property os.arch has it.
arch=$(uname -m | sed 's/x86_64/amd64/')

"$root/scripts/portable.sh" "$target"
mkdir -p "$into/native/$arch"
"$tools/bin/python" -m ziglang cc -target "${triple%%-*}-linux-gnu.$glibc" -shared -fPIC -O2 -s -Wall -Wextra -Werror \
    -I"$java/include" -I"$java/include/linux" -I"$root/crates/capi/include" "$root/java/src/main/c/bivouac_jni.c" \
    -o "$into/native/$arch/libbivouac_jni.so" "-Wl,--version-script=$root/java/src/main/c/jni.map" -Wl,--gc-sections \
    "$built/libbivouac_capi.a" "$target/old-glibc/gettid.o" -lunwind -lpthread -lm -ldl

maven() {
    mvn --quiet --batch-mode -f "$root/java/pom.xml" "-Doutput.directory=$into" "-Dnative.directory=$into/native" "$@"
}
maven package -DskipTests
[ "${2:-}" = test ] || exit 0

bivouac=$built/bivouac
name=hadoop-contract-$$
"$bivouac" up "$name" --servers 3 --block-size 64K > /dev/null
trap '"$bivouac" down "$name" > /dev/null' EXIT
trap 'exit 130' INT TERM
rm -rf "$into/surefire-reports"
set -- "-Dbivouac.deployment=$name" "-Dbivouac.program=$bivouac" "-Dbivouac.manual=$root/docs/hadoop.md"
set -- "$@" "-Dbivouac.jar=$(ls "$into"/bivouac-hadoop-*.jar)"
# What the manual shows of Spark runs where scripts/spark-test.sh has installed it.
[ ! -x "$target/spark/bin/spark-submit" ] || set -- "$@" "-Dbivouac.spark=$target/spark/bin"
maven surefire:test "$@" && status=0 || status=$?
"$root/scripts/surefire-totals.py" "$into/surefire-reports" || status=1
exit "$status"
