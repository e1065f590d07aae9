#!/bin/sh
# Tests PyTorch over deployments, with the wheel as its users have it: `make wheel` comes first. Not in CI, because PyTorch is large. Usage:
# torch-test.sh TARGET [pytest's arguments]
set -eu
target=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/torch-venv.sh" "$target"
python=$target/torch-venv/bin/python
"$python" -m pip --quiet --disable-pip-version-check install --force-reinstall --no-deps "$target"/wheels/bivouac_fs-*.whl
cd "$root/crates/python"
PYTEST_ADDOPTS= exec "$python" -m pytest --quiet --color=no -p no:cacheprovider -W ignore tests/test_torch.py tests/test_manual.py "$@"
