#!/bin/sh
# Makes TARGET/torch-venv: Debian's PyTorch, which is much smaller than that of PyPI, with pytest, fsspec and the benchmark DLIO. Does nothing if it
# is there already. Usage: torch-venv.sh TARGET. As root, it installs the packages of Debian that are missing.
set -eu
target=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$target/torch-venv
# The interpreter for which Debian's package is.
python=/usr/bin/python3
if ! "$python" -c 'import torch' 2> /dev/null || ! command -v mpiexec.mpich > /dev/null; then
    apt-get install --quiet --quiet --yes --no-install-recommends python3-torch python3-venv mpich > /dev/null
fi
wanted=$(cat "$root/bench/dlio/requirements.txt" "$root/crates/python/requirements-test.txt" "$0" | sha256sum)
[ "$(cat "$venv/made-from" 2> /dev/null || true)" != "$wanted" ] || exit 0
"$python" -m venv --clear --system-site-packages "$venv"
pip() {
    "$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@"
}
pip install --no-deps dlio_benchmark==2.0.0
# pip names what DLIO asks for and does not get.
pip install -r "$root/bench/dlio/requirements.txt" 2> "$venv/pip.log" || { cat "$venv/pip.log" >&2; exit 1; }
grep -E '^(fsspec|pytest)==' "$root/crates/python/requirements-test.txt" > "$venv/tests.txt"
pip install -r "$venv/tests.txt"
# mpi4py's wheel looks for MPICH under the name that it has elsewhere: programs need LD_LIBRARY_PATH=TARGET/torch-venv/mpi.
mkdir -p "$venv/mpi"
ln -sf "$("$python" -c 'import ctypes.util; print(ctypes.util.find_library("mpich"))' | xargs -I{} find /usr/lib -name {} | head -1)" "$venv/mpi/libmpi.so.12"
printf '%s\n' "$wanted" > "$venv/made-from"
