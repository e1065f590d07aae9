"""Compares ways of doing the same input and output, each measured several times.

A program has phases of so many bytes. For each way there is, for each phase, a list of bandwidths, one for
each repetition. The time that a way takes is the sum of the bytes over the medians, and two ways are compared
by the ratio of their times.

How sure a ratio is depends on the repetitions. From five on, the interval is a bootstrap: the ratio for
medians of repetitions that are drawn anew, the middle 95% of them. With three or four, it is the range from
the least to the most favourable repetitions. With fewer there is none.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

ENOUGH = 5
"""Repetitions for an interval that deserves the name."""
DRAWS = 1000

Samples = Sequence[Sequence[float]]
"""For each phase the bandwidths of its repetitions."""


@dataclass(frozen=True)
class Ratio:
    value: float
    low: float | None
    high: float | None
    repetitions: int
    """The fewest of any phase."""

    @property
    def thin(self) -> bool:
        return self.repetitions < ENOUGH

    @property
    def distinct(self) -> bool:
        """The interval leaves 1 out. Without an interval nothing is distinct."""
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)

    @property
    def words(self) -> str:
        if self.low is None:
            return f"{self.value:.2f} times (no interval: {self.repetitions} repetition{'s' * (self.repetitions != 1)})"
        kind = "range" if self.thin else "95% interval"
        return f"{self.value:.2f} times ({kind}: {self.low:.2f} to {self.high:.2f}; {self.repetitions} repetitions)"

    def plain(self) -> dict:
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "repetitions": self.repetitions,
            "interval": None if self.low is None else "range" if self.thin else "bootstrap-95",
        }


def seconds(bytes_of_phases: Sequence[float], samples: Samples, middle=median) -> float:
    return sum(amount / middle(phase) for amount, phase in zip(bytes_of_phases, samples, strict=True))


def times_faster(bytes_of_phases: Sequence[float], before: Samples, after: Samples) -> Ratio:
    """How many times faster `after` is than `before`."""
    value = seconds(bytes_of_phases, before) / seconds(bytes_of_phases, after)
    repetitions = min(len(phase) for samples in (before, after) for phase in samples)
    if before is after or list(map(list, before)) == list(map(list, after)):
        return Ratio(1.0, 1.0, 1.0, repetitions)
    if repetitions < 3:
        return Ratio(value, None, None, repetitions)
    if repetitions < ENOUGH:
        low = seconds(bytes_of_phases, before, max) / seconds(bytes_of_phases, after, min)
        high = seconds(bytes_of_phases, before, min) / seconds(bytes_of_phases, after, max)
        return Ratio(value, low, high, repetitions)
    chance = random.Random(7)  # The same results give the same words.

    def again(phase: Sequence[float]) -> float:
        return median(chance.choices(phase, k=len(phase)))

    ratios = sorted(
        seconds(bytes_of_phases, before, again) / seconds(bytes_of_phases, after, again) for _ in range(DRAWS)
    )
    return Ratio(value, ratios[int(0.025 * DRAWS)], ratios[int(0.975 * DRAWS) - 1], repetitions)
