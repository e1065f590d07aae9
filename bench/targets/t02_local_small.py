"""The same with 4 KiB."""

from targets import t01_local_data

TARGET = 2


def measure(bench):
    t01_local_data.measure(bench, TARGET, ("4k",), 0.75)
