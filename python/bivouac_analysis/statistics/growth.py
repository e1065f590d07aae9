"""How a time grows with a count: linearly, or faster, as floods of files do on some file systems.

The exponent b of time = c · countᵇ is the slope of a straight line through the logarithms. It is 1 where time is linear and 2 where it
is quadratic. What each flood costs once, however many files it has, makes the exponent smaller, never greater.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy import stats

# Fewer counts lie on many curves.
LEAST_COUNTS = 3
# An exponent that is this near to 1 is linear for all purposes: the time of one file changes by a quarter when files are ten times as many.
TOLERANCE = 0.1


class Shape(Enum):
    """How time grows. The value is how reports say it."""

    SLOWER = "less than linear"
    LINEAR = "linear"
    FASTER = "more than linear"
    UNCLEAR = "not clear"


@dataclass(frozen=True)
class Growth:
    """The fit of times over counts."""

    exponent: float
    low: float  # the 95 % confidence interval of the exponent
    high: float
    r_squared: float  # of the straight line through times and counts themselves, as the paper on Lustre and tmpfs gives it
    shape: Shape


def fit(counts: Sequence[float], times: Sequence[float]) -> Growth | None:
    """Fits the growth, or None if there are too few different counts."""
    if len(set(counts)) < LEAST_COUNTS:
        return None
    line = stats.linregress(np.log(counts), np.log(times))
    margin = float(stats.t.ppf(0.975, len(counts) - 2) * line.stderr)
    low, high = float(line.slope - margin), float(line.slope + margin)
    if low > 1 + TOLERANCE:
        shape = Shape.FASTER
    elif high < 1 - TOLERANCE:
        shape = Shape.SLOWER
    elif abs(line.slope - 1) <= TOLERANCE:
        shape = Shape.LINEAR
    else:
        shape = Shape.UNCLEAR
    straight = stats.linregress(counts, times).rvalue ** 2
    return Growth(float(line.slope), low, high, float(straight), shape)
