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
# What maturin starts as `cargo` is a script that hands the build to cargo-zigbuild, as scripts/portable.sh does, so that what both need
# is built once: with another linker than before, or other flags, cargo would build all of it again.
mkdir -p "$tools/cargo"
cat > "$tools/cargo/cargo" << EOF
#!/bin/sh
export CARGO=$(command -v "${CARGO:-cargo}")
[ "\$1" = rustc ] || exec "\$CARGO" "\$@"
for argument; do
    shift
    [ "\$argument" != $triple ] || argument=$triple.$glibc
    set -- "\$@" "\$argument"
done
exec cargo-zigbuild "\$@"
EOF
chmod +x "$tools/cargo/cargo"
PATH=$tools/cargo:$PATH CARGO_TARGET_DIR=$target BIVOUAC_INITFIRST=later maturin build --quiet --release --target "$triple" \
    --compatibility "manylinux_$(echo $glibc | tr . _)" --manifest-path "$package/Cargo.toml" --out "$target/wheels"
