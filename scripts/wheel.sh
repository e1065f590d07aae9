#!/bin/sh
# Makes the wheel `bivouac-fs`: the Python package with its extension, the program and the preload library. What is in it needs no
# glibc newer than 2.28: it is linked by zig, which knows what each version had. Usage: wheel.sh TARGET (where cargo builds)
set -eu
target=$(mkdir -p "$1" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
package=$root/crates/python
. "$root/scripts/old-glibc.sh"

cd "$root"
scripts/portable.sh "$target"
mkdir -p "$package/python/bivouac/bin"
for file in bivouac libbivouac_preload.so; do
    strip -o "$package/python/bivouac/bin/$file.new" "$built/$file"
    mv "$package/python/bivouac/bin/$file.new" "$package/python/bivouac/bin/$file"
done
rm -rf "$target/wheels"
# In a directory of its own: maturin gives the compiler other flags than cargo-zigbuild, and each would build again what the other has built.
CARGO_TARGET_DIR=$target/wheel-build maturin build --quiet --release --zig --compatibility "manylinux_$(echo $glibc | tr . _)" \
    --manifest-path "$package/Cargo.toml" --out "$target/wheels"
