#!/bin/sh
# Builds what runs on every machine with glibc 2.28 or later: the program, the preload library and the C library. They are what the
# wheel and the jar hold, and what whole-system tests run. Usage: portable.sh TARGET (where cargo builds); after it, TARGET/portable has
# release/bivouac, release/libbivouac_preload.so and library/.
set -eu
target=$(mkdir -p "$1" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/old-glibc.sh"

zigbuild -p bivouac-cli -p bivouac-preload -p bivouac-capi
"$python" "$root/scripts/initfirst.py" "$built/libbivouac_preload.so"
ln -sfn "$triple" "$target/portable"
"$root/scripts/library.sh" "$target/portable"
