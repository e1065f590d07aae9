#!/bin/sh
# The totals of a run of all tests. Usage: test-totals.sh LOG SKIPPED STATUS SECONDS: what the run printed, the lines that skipped
# tests have left (crates/testing/src/skips.rs), its exit code, and how long it took. The last line is "N passed, N failed".
# Succeeds if the run did, some test passed, and none failed.
set -eu
log=$1 skipped=$2 status=$3 seconds=$4

# A Rust test binary says "test result: ok. 12 passed; 0 failed; 1 ignored; ...". pytest says "1 failed, 12 passed, 1 skipped in 3.20s",
# and "1 error" for a test that could not even begin or a file that could not be loaded. A binary that crashed or hung says nothing:
# scripts/run-tests.py does.
count() {
    awk -v what="$1" '
        /^test result:/ || /^(=+ )?[0-9]+ [a-z]+(, [0-9]+ [a-z]+)* in [0-9.]+s/ {
            for (i = 2; i <= NF; i++) if (index($i, what) == 1) n += $(i - 1)
        }
        /^PROGRAM FAILED:/ && what == "failed" { n++ }
        END { print n + 0 }' "$log"
}
passed=$(count passed)
failed=$(($(count failed) + $(count error)))

# With BIVOUAC_TESTS_STRICT a skip fails its test, which is then not among those that passed; what kernels cannot do is, always.
whole=$(grep '^SKIPPED	' "$skipped" | sort -u || true)
part=$(grep '^SKIPPED IN PART	' "$skipped" | sort -u || true)
lines() { printf '%s' "$1" | grep -c '^' || true; }
tests=$(printf '%s' "$whole" | cut -f 2 | sort -u | grep -c . || true)
if [ "$tests" != 0 ] || [ -n "$part" ]; then
    echo "$tests tests skipped, $(lines "$part") parts of others:"
    printf '%s\n%s\n' "$whole" "$part" | grep . | sed 's/^/  /' | tr '\t' ' '
else
    echo "no test skipped"
fi
if [ "$status" != 0 ] && [ "$failed" = 0 ]; then
    echo "make test failed before or beside the tests (exit code $status)"
fi
[ "$tests" -le "$passed" ] || tests=$passed
passed=$((passed - tests))
echo "$seconds seconds"
echo "$passed passed, $failed failed"
[ "$status" = 0 ] && [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
