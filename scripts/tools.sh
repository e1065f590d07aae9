#!/bin/sh
# Builds tools from crates.io that are missing. They run for seconds, so they are built for a quick build, and what they have in
# common is built once. Usage: tools.sh DIRECTORY NAME@VERSION...
set -eu
into=$1
shift
export CARGO_TARGET_DIR=$into/build CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=0
for tool in "$@"; do
    [ -x "$into/bin/${tool%@*}" ] || "${CARGO:-cargo}" install --quiet --locked --debug --root "$into" "$tool"
done
rm -rf "$into/build"
