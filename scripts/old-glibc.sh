# For scripts that link for old systems, to be read with `.`: programs and libraries that are built after this need no glibc newer than
# $glibc. They are linked by zig, which knows what each version had. Wants $target, an absolute path, and $root.
python=${PYTHON:-python3}
tools=$target/wheel-tools
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
mkdir -p "$target/old-glibc"
printf '%s\n' '#include <sys/syscall.h>' '#include <unistd.h>' \
    '__attribute__((visibility("hidden"))) pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }' > "$target/old-glibc/gettid.c"
"$tools/bin/python" -m ziglang cc -target "${triple%%-*}-linux-gnu.$glibc" -O1 -fPIC -c "$target/old-glibc/gettid.c" \
    -o "$target/old-glibc/gettid.o"
RUSTFLAGS="-C link-arg=$target/old-glibc/gettid.o"
export RUSTFLAGS

# What cargo builds for such a system: zigbuild -p CRATE...
zigbuild() {
    (cd "$root" && CARGO_TARGET_DIR=$target BIVOUAC_INITFIRST=later cargo-zigbuild zigbuild --quiet --release --target "$triple.$glibc" "$@")
}
# Where it is then.
built=$target/$triple/release
