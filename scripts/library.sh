#!/bin/sh
# Makes the C library of the static one that cargo has built: gives its symbols their version (crates/capi/bivouac.map) and puts
# it with its header and its pkg-config file into a directory that can be moved as a whole.
# Usage: library.sh TARGET (where cargo builds, for example target)
set -eu
target=$1
root=$(cd "$(dirname "$0")/.." && pwd)
static=$target/release/libbivouac_capi.a
into=$target/library
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -1)
shared=$into/lib/libbivouac.so.1
map=$root/crates/capi/bivouac.map
header=$root/crates/capi/include/bivouac.h

# Nothing to do?
[ "$shared" -nt "$static" ] && [ "$shared" -nt "$map" ] && [ "$into/include/bivouac.h" -nt "$header" ] && exit 0

mkdir -p "$into/lib/pkgconfig" "$into/include"
${CC:-cc} -shared -o "$shared.new" -Wl,-soname,libbivouac.so.1 "-Wl,--version-script=$map" -Wl,--no-undefined-version \
    -Wl,--gc-sections -Wl,-z,relro,-z,now -Wl,--whole-archive "$static" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc
mv "$shared.new" "$shared"
ln -sf libbivouac.so.1 "$into/lib/libbivouac.so"
cp "$header" "$into/include/bivouac.h"
cat > "$into/lib/pkgconfig/bivouac.pc" <<EOF
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: bivouac
Description: A parallel file system for the length of a job, for programs that are linked with it
Version: $version
Libs: -L\${libdir} -lbivouac
Cflags: -I\${includedir}
EOF
