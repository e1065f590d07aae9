"""How far a measured pattern is from what a program does.

A distance is a sum of terms, one for each property, so that it can be shown why a pattern is near or far. The
weights follow what FORGE's measurements (forge-io-forwarding.004) show to change the best number of I/O
nodes: the same requests to a shared file instead of own ones (patterns A and C), or requests an eighth as
large (A and B), want another number. These count 2 and 1.5. They are a judgement and no result: near means
"likely to behave alike", not "measured to behave alike".
"""

import math
from dataclasses import dataclass

from ..darshan.phases import Phase

CLOSE = 1.0
"""Up to here the measured pattern is taken for the program's."""
FAR = 3.0
"""Beyond this nothing is concluded from a pattern."""


@dataclass(frozen=True)
class Manner:
    """What a distance is taken of."""

    operation: str
    layout: str
    spatiality: str
    request: int
    processes: int


def manner_of(phase: Phase) -> Manner:
    """What a distance from a phase of the program is taken of."""
    return Manner(phase.operation, phase.layout, phase.spatiality, phase.request, phase.processes)


@dataclass(frozen=True)
class Distance:
    terms: tuple[tuple[str, float], ...]
    """What differs, in words, and how much it counts. What is equal is not in it."""

    @property
    def value(self) -> float:
        return sum(amount for _, amount in self.terms)

    @property
    def words(self) -> str:
        return "; ".join(f"{what} ({amount:.2f})" for what, amount in self.terms) or "no difference"

    @property
    def close(self) -> bool:
        return self.value <= CLOSE

    @property
    def far(self) -> bool:
        return self.value > FAR


def distance(program: Manner, measured: Manner) -> Distance:
    terms = []
    if program.operation != measured.operation:
        terms.append(
            (
                f"{measured.operation} instead of {program.operation}",
                1.0 if "mixed" in (program.operation, measured.operation) else 2.0,
            )
        )
    if program.layout != measured.layout:
        names = {"own": "a file for each process", "shared": "one shared file"}
        terms.append((f"{names[measured.layout]} instead of {names[program.layout]}", 2.0))
    if program.spatiality != measured.spatiality:
        terms.append(
            (
                f"{measured.spatiality} instead of {program.spatiality}",
                1.5 if "random" in (program.spatiality, measured.spatiality) else 1.0,
            )
        )
    if program.request != measured.request:
        terms.append(
            (
                f"requests of {size(measured.request)} instead of {size(program.request)}",
                0.5 * abs(math.log2(program.request / measured.request)),
            )
        )
    if program.processes != measured.processes:
        terms.append(
            (
                f"{counted(measured.processes, 'process')} instead of {program.processes:,}",
                0.25 * abs(math.log2(program.processes / measured.processes)),
            )
        )
    return Distance(tuple(terms))


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 'es' if what.endswith('s') else 's'}"


def size(count: float) -> str:
    """A number of bytes, as people write it."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < 1024 or unit == "PiB":
            return f"{count:.3g} {unit}" if count != int(count) else f"{int(count)} {unit}"
        count /= 1024
    raise AssertionError
