#!/bin/bash
# The demonstration: a job of unmodified programs on four servers, checked against the same job on a local directory.
#
# Preloads real trees that every Debian machine has and one large generated file, runs a parallel job over them, flushes its
# results, and compares them with those of the same job on a local directory. Prints, for each phase, files, bytes, seconds and
# MiB/s, and how evenly the servers were used. Exits with 0 only if all results are the same.
#
# Environment: BIVOUAC, the program (default: target/release/bivouac); DEMO_MIB, the large file's size.
set -euo pipefail
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd)
bivouac=${BIVOUAC:-$root/target/release/bivouac}
servers=4
name=demo-$$
work=$(mktemp -d "${TMPDIR:-/tmp}/bivouac-demo-XXXXXX")
export BIVOUAC_HOME=$work/home

cleanup() {
    "$bivouac" down "$name" > /dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# --- the report ---------------------------------------------------------------------------------------------

now() { date +%s.%N; }

phase() { # WHAT FILES BYTES SECONDS
    awk -v what="$1" -v files="$2" -v bytes="$3" -v seconds="$4" 'BEGIN {
        mib = bytes / 1048576
        printf "%-34s %8d files %9.1f MiB %8.2f s %9.1f MiB/s\n", what, files, mib, seconds, (seconds > 0 ? mib / seconds : 0)
    }'
}

count() { # PATH...: files and bytes, on one line
    find "$@" -type f -printf '%s\n' | awk '{ n++; b += $1 } END { print n + 0, b + 0 }'
}

timed() { # COMMAND...: its seconds in $seconds
    local start
    start=$(now)
    "$@"
    seconds=$(awk -v a="$start" -v b="$(now)" 'BEGIN { print b - a }')
}

# --- the input ----------------------------------------------------------------------------------------------

# The large file needs its own space locally, in the deployment, and for the job's results beside both.
free=$(df --output=avail -B1M /dev/shm | tail -1)
local_free=$(df --output=avail -B1M "$work" | tail -1)
mib=${DEMO_MIB:-1024}
while [ "$mib" -gt 64 ] && { [ "$free" -lt $((mib * 4)) ] || [ "$local_free" -lt $((mib * 4)) ]; }; do
    mib=$((mib / 2))
done

mkdir "$work/input"
for tree in /usr/include /usr/share/doc; do
    [ -d "$tree" ] && cp -a "$tree" "$work/input/"
done
# Lines of text that compress and sort like real ones, the same in every run.
awk 'BEGIN { srand(1); for (i = 0; i < 40000; i++) printf "%08x record %d of the run, value %.6f\n", rand() * 4294967295, i, rand() }' > "$work/piece"
pieces=$((mib * 1048576 / $(stat -c %s "$work/piece")))
for ((i = 0; i < pieces; i++)); do echo "piece $i"; cat "$work/piece"; done > "$work/input/large"
rm "$work/piece"

# --- the job ------------------------------------------------------------------------------------------------

# Runs with the tree to work on as $1; everything that it leaves in $1/results is compared. Two phases, so that each can be timed.
cat > "$work/many-small.sh" <<'JOB'
set -euo pipefail
cd "$1"
mkdir -p results/objects results/src
# Four processes at a time, each writes a file of its own.
each() { # RESULT COUNT COMMAND...
    result=$1 many=$2
    shift 2
    mkdir results/parts.d
    xargs -0 -P4 -n"$many" sh -c 'out=$1; shift; exec "$@" > "$out/$$"' sh "$(pwd)/results/parts.d" "$@"
    cat results/parts.d/* | sort > "$result"
    rm -r results/parts.d
}
find include doc -type f -print0 | each results/sums 200 sha256sum
find include -name '*.h' -print0 | each results/defines 100 grep -c '#define' /dev/null
find include doc -type f -print0 | sort -z | each results/lines 500 awk 'FNR == 1 { files++ } END { print files, NR }'
find include doc -type l -printf '%p -> %l\n' | sort > results/links
ls -lR --time-style=+%s include | grep '^-' | awk '{ print $1, $5, $6, $7 }' > results/listing
# Write as many: a tree packed and unpacked, programs compiled and linked in parallel, and run.
tar -cf results/include.tar --sort=name include/linux
tar -xf results/include.tar -C results/src
for i in $(seq 1 24); do
    printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint part%d(int x) { return x * %d + (int)strlen("x"); }\n' "$i" "$i" > "results/src/part$i.c"
done
{
    for i in $(seq 1 24); do echo "int part$i(int);"; done
    echo '#include <stdio.h>'
    echo 'int main(void) { int s = 0;'
    for i in $(seq 1 24); do echo "s += part$i($i);"; done
    echo 'printf("%d\n", s); return 0; }'
} > results/src/main.c
find results/src -maxdepth 1 -name '*.c' | sort | xargs -P4 -I{} sh -c 'gcc -O1 -g0 -c "$1" -o results/objects/$(basename "$1" .c).o' sh {}
gcc results/objects/*.o -o results/program
results/program > results/program.out
cp -r include/linux results/copy
mv results/copy results/moved
rm -r results/src/include
JOB
cat > "$work/one-large.sh" <<'JOB'
set -euo pipefail
cd "$1"
mkdir -p results/tmp results/parts
wc -l large > results/lines-of-large
sha256sum large > results/large.sum
size=$(stat -c %s large)
part=$(((size / 4 / 1048576 + 1)))
# Four processes, each reads its own stretch of one file and writes a file.
seq 0 3 | xargs -P4 -I{} sh -c 'dd if=large of=results/parts/{} bs=1M skip=$(({} * '"$part"')) count='"$part"' status=none'
cat results/parts/0 results/parts/1 results/parts/2 results/parts/3 | cmp - large
# Four writers in one file, each at its own offset.
seq 0 3 | xargs -P4 -I{} sh -c 'dd if=results/parts/{} of=results/rebuilt bs=1M seek=$(({} * '"$part"')) conv=notrunc status=none'
cmp results/rebuilt large
rm results/parts/2 results/parts/3 results/rebuilt
for i in 0 1; do truncate -s 32M results/parts/$i; done
seq 0 1 | xargs -P2 -I{} gzip -1 -n results/parts/{}
head -c 50000000 large | sort -S 8M -T results/tmp --parallel=4 -k1,1 | uniq > results/sorted
grep -c piece large > results/pieces
rmdir results/tmp
JOB

# Everything that can be compared, of the tree $1.
judge() {
    (cd "$1/results" && find . -mindepth 1 \( -type d -printf '%P %m\n' -o -type l -printf '%P -> %l\n' -o -printf '%P %m %s\n' \) | sort &&
        find . -type f ! -name '*.tar' -print0 | sort -z | xargs -0 sha256sum && tar -tf include.tar | sha256sum)
}

# --- the run ------------------------------------------------------------------------------------------------

read -r files bytes < <(count "$work/input")
read -r small_files small_bytes < <(count "$work"/input/*/)
large_bytes=$(stat -c %s "$work/input/large")
echo "Bivouac demonstration: $servers servers on $(hostname), $(nproc) processors, $files files, $((bytes / 1048576)) MiB"
echo

timed "$bivouac" up "$name" --servers "$servers" > /dev/null
phase "up" 0 0 "$seconds"
timed "$bivouac" preload "$name" "$work/input" / 2> "$work/log" || { cat "$work/log"; exit 1; }
phase "preload" "$files" "$bytes" "$seconds"
timed "$bivouac" exec "$name" -- bash "$work/many-small.sh" /bivouac
phase "job: many small files" "$small_files" "$small_bytes" "$seconds"
small_seconds=$seconds
timed "$bivouac" exec "$name" -- bash "$work/one-large.sh" /bivouac
phase "job: one large file" 1 "$large_bytes" "$seconds"
large_seconds=$seconds
timed "$bivouac" flush "$name" /results "$work/flushed" 2> "$work/log" || { cat "$work/log"; exit 1; }
read -r out_files out_bytes < <(count "$work/flushed")
phase "flush" "$out_files" "$out_bytes" "$seconds"
"$bivouac" status "$name" > "$work/status"
"$bivouac" status "$name" --json > "$work/status.json"
timed "$bivouac" down "$name"
phase "down" 0 0 "$seconds"
echo

mkdir "$work/result"
mv "$work/flushed" "$work/result/results"
timed bash "$work/many-small.sh" "$work/input"
phase "the same locally: many small files" "$small_files" "$small_bytes" "$seconds"
local_small=$seconds
timed bash "$work/one-large.sh" "$work/input"
phase "the same locally: one large file" 1 "$large_bytes" "$seconds"
local_large=$seconds
awk -v a="$small_seconds" -v b="$local_small" -v c="$large_seconds" -v d="$local_large" \
    'BEGIN { printf "time inside against local: small files %.2f, large file %.2f\n\n", a / b, c / d }'

sed 1d "$work/status"
python3 - "$work/status.json" <<'PYTHON'
import json, sys

servers = json.load(open(sys.argv[1]))["deployments"][0]["servers"]
print("how evenly the servers were used (least / most of the mean):")
for what, of in (
    ("files and directories", lambda s: s["inodes"]),
    ("bytes stored", lambda s: s["stored"]),
    ("operations", lambda s: s["meta_operations"] + s["data_operations"]),
):
    shares = [of(s) for s in servers]
    mean = sum(shares) / len(shares) or 1
    print(f"  {what:24} {min(shares) / mean:5.2f} / {max(shares) / mean:5.2f}")
PYTHON
echo

judge "$work/input" > "$work/expected"
judge "$work/result" > "$work/actual"
if cmp -s "$work/expected" "$work/actual"; then
    echo "checked: all $out_files results, $((out_bytes / 1048576)) MiB, are the same as those of the local job"
else
    echo "NOT THE SAME as the local job:"
    diff "$work/expected" "$work/actual" | head -20
    exit 1
fi
