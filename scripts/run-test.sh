#!/bin/sh
# Runs one test program for cargo (its `runner`): ends it when it hangs, so that the others still run and the whole run says what
# failed, and says how long it took. Usage: run-test.sh PROGRAM ARGUMENT...; BIVOUAC_TEST_LIMIT is the limit in seconds.
limit=${BIVOUAC_TEST_LIMIT:-900}
start=$(date +%s)
# At a terminal, so that an interrupt from the keyboard reaches the tests; elsewhere what a test has started ends with it.
[ -t 0 ] && foreground=--foreground || foreground=
timeout $foreground --kill-after=10 "$limit" "$@"
status=$?
seconds=$(($(date +%s) - start))
name=$(basename "$1")
case $status in
    124 | 137) echo "${name%-*} had not ended after $limit s, and was ended" ;;
    *) [ "$seconds" -lt 5 ] || echo "${name%-*}: $seconds s" ;;
esac
exit "$status"
