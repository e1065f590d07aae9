#!/bin/sh
# Tests the wheel as its users have it: in a virtual environment with nothing else of this project. Usage: wheel-test.sh TARGET
set -eu
target=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$target/wheel-venv
wheel=$(ls "$target"/wheels/bivouac_fs-*.whl)
wanted=$(cat "$root/crates/python/requirements-test.txt" "$0" | sha256sum)
if [ "$(cat "$venv/made-from" 2> /dev/null || true)" != "$wanted" ]; then
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/python" -m pip --quiet --disable-pip-version-check install -r "$root/crates/python/requirements-test.txt"
    printf '%s\n' "$wanted" > "$venv/made-from"
fi
"$venv/bin/python" -m pip --quiet --disable-pip-version-check install --force-reinstall --no-deps "$wheel"

# Nothing in it may need a newer glibc than its name says.
need=$(for file in bin/bivouac bin/libbivouac_preload.so _bivouac.abi3.so; do
    objdump -T "$venv"/lib/python3.*/site-packages/bivouac/$file
done | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -1)
[ "$(printf '%s\n2.28\n' "$need" | sort -V | tail -1)" = 2.28 ] || { echo "the wheel needs glibc $need" >&2; exit 1; }

cd "$root/crates/python"
PYTEST_ADDOPTS= "$venv/bin/python" -m pytest --quiet --color=no -p no:cacheprovider -W ignore tests
