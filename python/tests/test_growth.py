"""How time grows with the number of files."""

import numpy as np
import pytest

from bivouac_analysis.statistics.growth import Shape, fit

COUNTS = [1000, 2000, 5000, 10_000, 20_000, 50_000]


@pytest.mark.parametrize(
    ("exponent", "shape"),
    [(1.0, Shape.LINEAR), (1.05, Shape.LINEAR), (2.0, Shape.FASTER), (1.3, Shape.FASTER), (0.6, Shape.SLOWER)],
)
def test_exponents_are_found(exponent: float, shape: Shape) -> None:
    noise = np.random.default_rng(1).uniform(0.98, 1.02, len(COUNTS))
    growth = fit(COUNTS, [1e-4 * count**exponent * factor for count, factor in zip(COUNTS, noise, strict=True)])
    assert growth.exponent == pytest.approx(exponent, abs=0.03) and growth.shape is shape
    assert growth.low <= growth.exponent <= growth.high


def test_a_straight_line_has_r_squared_of_one_and_a_parabola_less() -> None:
    assert fit(COUNTS, [count * 0.001 for count in COUNTS]).r_squared == pytest.approx(1)
    assert fit(COUNTS, [count**2 * 0.001 for count in COUNTS]).r_squared < 0.96


def test_wild_times_are_not_called_linear() -> None:
    growth = fit([1000, 2000, 4000], [1.0, 9.0, 5.0])
    assert growth.shape is Shape.UNCLEAR and growth.low < 0


def test_too_few_counts_say_nothing() -> None:
    assert fit([1000, 1000, 2000, 2000], [1, 1, 2, 2]) is None
    assert fit([], []) is None
