"""A program that writes and reads pieces of a file all the time, checks what it reads, and says how long its slowest calls took.

usage: pauses.py FILE STOP
Runs until STOP exists. Prints, for each call that took a millisecond or longer, when it ended (seconds of the monotonic clock) and how
long it took; at the end how many calls there were.
"""

import os
import random
import sys
import time

PIECE = 4096
PIECES = 256


def main(path, stop):
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    written = {}
    calls = 0
    while calls % 64 or not os.path.exists(stop):
        number = random.randrange(PIECES)
        piece = (b"%08d%08d" % (number, calls)) * (PIECE // 16)
        begun = time.monotonic()
        done = os.pwrite(file, piece, number * PIECE)
        between = time.monotonic()
        written[number] = piece
        number = random.choice(list(written))
        found = os.pread(file, PIECE, number * PIECE)
        ended = time.monotonic()
        if done != PIECE or found != written[number]:
            sys.exit(f"piece {number} is wrong after {calls} calls")
        for at, took in ((between, between - begun), (ended, ended - between)):
            if took >= 0.001:
                print(f"{at:.6f} {took:.6f}")
        calls += 2
    print(f"calls {calls}")


main(*sys.argv[1:])
