# Targets for people; `make help` lists them. Everything is incremental, and quiet when there is nothing to do.

# What a fresh Debian 12 needs besides a Rust toolchain: to build, for the demo, and for the whole-system tests.
PACKAGES := build-essential git curl iproute2 openssh-client perl python3 bc time \
            fio bindfs rsync sqlite3 mpich libmpich-dev libhdf5-mpich-dev attr util-linux

# Suites of others that the tests run, with their versions on crates.io. They go beside what is built.
TOOLS := pjdfstest@0.2.2 fsx@0.3.2

# Checks of what dependencies bring along: licences, versions, where they are from (deny.toml). Where the database of advisories
# can be reached (a git clone): make lint DENY="advisories bans licenses sources".
LINTERS := cargo-deny@0.20.2
DENY ?= bans licenses sources

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help build setup lint test unit system demo bench bench-faults bench-malleability clean

help:
	@echo "make build   the programs: $(TARGET)/release/bivouac and libbivouac_preload.so beside it"
	@echo "make demo    a real workload on four servers, checked against a local directory (under 2 minutes)"
	@echo "make bench   speed beside the machine's limits (some 40 minutes; bench/run --quick TARGET... for parts of it)"
	@echo "make bench-malleability  how fast files move when servers come and leave, and what programs feel of it, on 8 shaped links (some 60 minutes)"
	@echo "make bench-faults  what copies cost, and what is left without some servers, on 8 shaped links (some 10 minutes)"
	@echo "make test    everything: what tests need is installed, lint, unit tests, whole-system tests"
	@echo "make lint    formatting, clippy, and what dependencies bring along (cargo-deny)"
	@echo "make setup   installs with apt-get (as root) and cargo what is missing"

build:
	@$(CARGO) build --quiet --release -p bivouac-cli -p bivouac-preload

setup:
	@scripts/setup.sh $(PACKAGES)
	@for tool in $(TOOLS); do \
	    [ -x $(TARGET)/tools/bin/$${tool%@*} ] || $(CARGO) install --quiet --locked --root $(TARGET)/tools $$tool || exit 1; \
	done
	@# A checker runs for a second: building it without optimization saves minutes.
	@for tool in $(LINTERS); do \
	    [ -x $(TARGET)/tools/bin/$${tool%@*} ] || $(CARGO) install --quiet --locked --debug --root $(TARGET)/tools $$tool || exit 1; \
	done

lint:
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	@[ -x $(TARGET)/tools/bin/cargo-deny ] || { echo "lint: cargo-deny is missing: make setup" >&2; exit 1; }
	@$(TARGET)/tools/bin/cargo-deny --log-level warn --locked check $(DENY)

unit:
	@# Tests of the preload library load it as programs do; `cargo test` alone does not put it there.
	@$(CARGO) build --quiet -p bivouac-preload
	@$(CARGO) test --quiet --no-fail-fast --workspace --exclude bivouac-tests

system: build
	@BIVOUAC_TEST_BINARY=$(abspath $(TARGET))/release/bivouac $(CARGO) test --quiet --no-fail-fast -p bivouac-tests

test: setup lint unit system

demo: setup build
	@BIVOUAC=$(abspath $(TARGET))/release/bivouac scripts/demo.sh

bench: setup build
	@$(CARGO) build --quiet --release -p bivouac-bench --example idle
	@BIVOUAC=$(abspath $(TARGET))/release/bivouac bench/run

bench-faults: setup build
	@BIVOUAC=$(abspath $(TARGET))/release/bivouac bench/run --out $(TARGET)/bench-faults.jsonl faults

bench-malleability: setup build
	@$(CARGO) build --quiet --release -p bivouac-bench --example moves
	@BIVOUAC=$(abspath $(TARGET))/release/bivouac bench/run --out $(TARGET)/bench-malleability.jsonl application malleability

clean:
	@$(CARGO) clean --quiet
