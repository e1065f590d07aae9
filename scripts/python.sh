#!/bin/sh
# Makes a virtual environment with the Python package of python/, in editable form, and with what it and its tests need in the
# pinned versions. Usage: python.sh [DIRECTORY], which is target/python unless it is given. Does nothing, and says nothing, if the
# environment is complete and what it was made from has not changed since. PYTHON is the interpreter (3.11 or newer).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
directory=${1:-$root/target/python}
python=${PYTHON:-python3}
package=$root/python

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
    echo "python.sh: $python is missing or older than 3.11: name another one with PYTHON=" >&2
    exit 1
fi

# What the environment is made from. The package's own sources are not in it, because it is installed in editable form.
wanted=$(cat "$package/pyproject.toml" "$package/requirements.txt" "$package/requirements-test.txt" "$0" | sha256sum
    "$python" --version
    echo "$package")
stamp=$directory/made-from
if [ "$(cat "$stamp" 2> /dev/null || true)" = "$wanted" ] && "$directory/bin/python" -c '' 2> /dev/null; then
    exit 0
fi

rm -f "$stamp"
"$python" -m venv --clear "$directory"
pip() {
    "$directory/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@"
}
pip install --no-warn-script-location -r "$package/requirements-test.txt"
# Everything that it needs is there already, in the right versions. To resolve it again would take long.
pip install --no-warn-script-location --no-deps --editable "$package"
pip check > /dev/null || {
    echo "python.sh: the pinned versions do not fit together: $directory/bin/python -m pip check" >&2
    exit 1
}
printf '%s\n' "$wanted" > "$stamp"
