#!/bin/sh
# Makes the wheel `bivouac-fs`: the Python package with its extension, the program and the preload library. What is in it needs no
# glibc newer than 2.28: it is linked by zig, which knows what each version had. Usage: wheel.sh TARGET (where cargo builds)
set -eu
target=$(mkdir -p "$1" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
package=$root/crates/python
tools=$target/wheel-tools
python=${PYTHON:-python3}
glibc=2.28
triple=$(rustc -vV | sed -n 's/^host: //p')

# The tools, in the versions that are pinned.
wanted="maturin==1.16.0 ziglang==0.17.1 cargo-zigbuild==0.24.1"
if [ "$(cat "$tools/made-from" 2> /dev/null || true)" != "$wanted" ]; then
    "$python" -m venv --clear "$tools"
    # shellcheck disable=SC2086
    "$tools/bin/python" -m pip --quiet --disable-pip-version-check install $wanted
    printf '%s\n' "$wanted" > "$tools/made-from"
fi
PATH=$tools/bin:$PATH
export PATH
unset CARGO_BUILD_TARGET

# Rust's standard library calls this function, which came with glibc 2.30.
mkdir -p "$target/wheel-build"
printf '%s\n' '#include <sys/syscall.h>' '#include <unistd.h>' \
    '__attribute__((visibility("hidden"))) pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }' > "$target/wheel-build/gettid.c"
"$tools/bin/python" -m ziglang cc -target "${triple%%-*}-linux-gnu.$glibc" -O1 -fPIC -c "$target/wheel-build/gettid.c" \
    -o "$target/wheel-build/gettid.o"
RUSTFLAGS="-C link-arg=$target/wheel-build/gettid.o"
export RUSTFLAGS

cd "$root"
CARGO_TARGET_DIR=$target BIVOUAC_INITFIRST=later cargo-zigbuild zigbuild --quiet --release --target "$triple.$glibc" -p bivouac-cli -p bivouac-preload
mkdir -p "$package/python/bivouac/bin"
for file in bivouac libbivouac_preload.so; do
    [ $file = bivouac ] || "$python" scripts/initfirst.py "$target/$triple/release/$file"
    strip -o "$package/python/bivouac/bin/$file.new" "$target/$triple/release/$file"
    mv "$package/python/bivouac/bin/$file.new" "$package/python/bivouac/bin/$file"
done
rm -rf "$target/wheels"
CARGO_TARGET_DIR=$target maturin build --quiet --release --zig --compatibility "manylinux_$(echo $glibc | tr . _)" \
    --manifest-path "$package/Cargo.toml" --out "$target/wheels"
