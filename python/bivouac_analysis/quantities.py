"""Numbers in words: sizes, bandwidths, probabilities, counts."""

from collections.abc import Sequence
from math import isnan

NONE = "–"


def size(count: float) -> str:
    """A number of bytes, in units of 1024: requests and files have sizes that are powers of two."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def bandwidth(rate: float | None) -> str:
    """Bytes per second, in units of 1000, with three significant digits."""
    if rate is None or isnan(rate):
        return NONE
    per_unit, unit = bandwidth_unit(rate)
    return f"{three(rate / per_unit)} {unit}"


def bandwidth_unit(greatest: float) -> tuple[float, str]:
    """The unit in which bandwidths up to this one are shown, and how many bytes per second it is."""
    for per_unit, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if greatest >= per_unit:
            return per_unit, unit
    return 1.0, "B/s"


def three(value: float | None) -> str:
    """A number with three significant digits, and without an exponent where people would write none."""
    if value is None or isnan(value):
        return NONE
    if value == 0 or 1e-3 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1e}"


def factor(value: float) -> str:
    """A factor, with two significant digits."""
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}"


def times(value: float) -> str:
    """A factor, as in "2.1 times"."""
    return f"{factor(value)} times"


def probability(p: float | None) -> str:
    """A p-value."""
    if p is None or isnan(p):
        return NONE
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def seconds(value: float) -> str:
    """A time."""
    return f"{three(value)} s" if value >= 1 else f"{three(value * 1000)} ms"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: "1 run", "2 runs"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(words: Sequence[str]) -> str:
    """Words in a row: "a", "a and b", "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]
