#!/bin/sh
# Installs the Debian packages that are missing, and nothing if none is. Usage: setup.sh PACKAGE...
set -eu

missing=
for package in "$@"; do
    case $(dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null || true) in
        ii*) ;;
        *) missing="$missing $package" ;;
    esac
done
if [ -n "$missing" ]; then
    echo "installing:$missing"
    if [ "$(id -u)" != 0 ]; then
        echo "setup: run this as root: apt-get install$missing" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet=2
    # shellcheck disable=SC2086 # a list of words
    apt-get install --quiet=2 --no-install-recommends $missing > /dev/null
fi
if ! command -v cargo > /dev/null 2>&1; then
    echo "setup: there is no Rust toolchain: see https://rustup.rs (rust-version in Cargo.toml says which)" >&2
    exit 1
fi
