# Targets for people; `make help` lists them. Everything is incremental, and quiet when there is nothing to do.

# What a fresh Debian 12 needs besides a Rust toolchain: to build, for the demo, and for the whole-system tests.
PACKAGES := build-essential pkg-config git curl iproute2 openssh-client perl python3 python3-venv bc time \
            openjdk-17-jdk-headless maven fio bindfs rsync sqlite3 mpich libmpich-dev libhdf5-mpich-dev attr util-linux

# Suites of others that the tests run, and what checks what dependencies bring along (licences, versions, where they are from:
# deny.toml), with their versions on crates.io. They go beside what is built. Where the database of advisories can be reached
# (a git clone): make lint DENY="advisories bans licenses sources".
TOOLS := pjdfstest@0.2.2 fsx@0.3.2 cargo-deny@0.20.2
DENY ?= bans licenses sources

# What rows of the benchmarks compare with or run on.
BENCH_PACKAGES := glusterfs-server glusterfs-client python3-torch

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help build packages setup lint test unit portable system python wheel jar jar-test demo bench bench-faults bench-malleability explore-demo clean

help:
	@echo "make build   the programs: $(TARGET)/release/bivouac and libbivouac_preload.so beside it; the C library: $(TARGET)/library"
	@echo "make portable  the same for every machine with glibc 2.28 or later: $(TARGET)/portable"
	@echo "make demo    a real workload on four servers, checked against a local directory (under 2 minutes)"
	@echo "make bench   speed beside the machine's limits (some 80 minutes; bench/run --quick TARGET... for parts of it)"
	@echo "make bench-malleability  how fast files move when servers come and leave, and what programs feel of it, on 8 shaped links (some 60 minutes)"
	@echo "make bench-faults  what copies cost, and what is left without some servers, on 8 shaped links (some 10 minutes)"
	@echo "make explore-demo  20 access patterns through 0 to 8 I/O nodes into GlusterFS, and a report (hours; MINUTES=30 does a part, and goes on the next time)"
	@echo "make test    everything: what tests need is installed, lint, unit tests, whole-system tests, tests of the Python packages"
	@echo "make python  the Python package (reports and advice) in $(TARGET)/python, and its tests"
	@echo "make wheel   the Python wheel bivouac-fs in $(TARGET)/wheels, with the program and the preload library in it, and its tests"
	@echo "make jar     the Hadoop file system in $(TARGET)/java"
	@echo "make lint    formatting, clippy, and what dependencies bring along (cargo-deny)"
	@echo "make setup   installs with apt-get (as root) and cargo what is missing; make packages: without what only tests need"

build:
	@$(CARGO) build --quiet --release -p bivouac-cli -p bivouac-preload -p bivouac-capi
	@scripts/library.sh $(TARGET)

packages:
	@scripts/setup.sh $(PACKAGES)

setup: packages
	@scripts/tools.sh $(TARGET)/tools $(TOOLS)

lint:
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	@[ -x $(TARGET)/tools/bin/cargo-deny ] || { echo "lint: cargo-deny is missing: make setup" >&2; exit 1; }
	@$(TARGET)/tools/bin/cargo-deny --log-level warn --locked check $(DENY)

unit:
	@# Tests of the preload library load it as programs do; `cargo test` alone does not put it there.
	@$(CARGO) build --quiet -p bivouac-preload
	@$(CARGO) test --quiet --no-run --message-format json --workspace --exclude bivouac-tests | scripts/run-tests.py 2
	@$(CARGO) test --quiet --no-fail-fast --doc --workspace --exclude bivouac-tests

# What runs on every machine with glibc 2.28 or later, in $(TARGET)/portable: what is packed is what is tested.
portable:
	@scripts/portable.sh $(TARGET)

system: portable
	@$(CARGO) test --quiet --no-run --message-format json -p bivouac-tests | \
	    BIVOUAC_TEST_BINARY=$(abspath $(TARGET))/portable/release/bivouac scripts/run-tests.py 2

# pytest's options in the environment, or colours, would change the last line, from which scripts/test-totals.sh counts.
python:
	@scripts/python.sh $(TARGET)/python
	@cd python && PYTEST_ADDOPTS= $(abspath $(TARGET))/python/bin/python -m pytest --quiet --color=no

# The wheel: everything in one file that pip installs, for glibc 2.28 and later.
wheel:
	@scripts/wheel.sh $(TARGET)
	@scripts/wheel-test.sh $(TARGET)

# The Hadoop file system. jar-test: Hadoop's contract tests, and MapReduce jobs, on deployments of their own.
jar:
	@scripts/jar.sh $(TARGET)

jar-test:
	@scripts/jar.sh $(TARGET) test
	@scripts/hadoop-test.sh $(TARGET)

test: setup lint unit system python wheel jar-test

demo: packages build
	@BIVOUAC=$(abspath $(TARGET))/release/bivouac scripts/demo.sh

bench: packages build
	@scripts/setup.sh $(BENCH_PACKAGES)
	@scripts/wheel.sh $(TARGET)
	@scripts/wheel-test.sh $(TARGET)
	@scripts/jar.sh $(TARGET)
	@$(CARGO) build --quiet --release -p bivouac-bench --example idle
	@BIVOUAC=$(abspath $(TARGET))/release/bivouac bench/run

bench-faults: packages build
	@BIVOUAC=$(abspath $(TARGET))/release/bivouac bench/run --out $(TARGET)/bench-faults.jsonl faults

bench-malleability: packages build
	@$(CARGO) build --quiet --release -p bivouac-bench --example moves
	@BIVOUAC=$(abspath $(TARGET))/release/bivouac bench/run --out $(TARGET)/bench-malleability.jsonl application malleability

explore-demo: packages build
	@scripts/setup.sh $(BENCH_PACKAGES)
	@scripts/python.sh $(TARGET)/python
	@BIVOUAC=$(abspath $(TARGET))/release/bivouac BIVOUAC_PYTHON=$(abspath $(TARGET))/python/bin/python bench/explore_demo.py $(if $(MINUTES),--minutes $(MINUTES))

clean:
	@$(CARGO) clean --quiet
