"""What all figures share: a canvas without a display, and its SVG as text.

Figures are made without pyplot, which keeps global state and looks for a display. Labels come from results: they are shown as they
are, not as mathematical formulas, and are cut if they are long.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from .quantities import three

# Distinguishable with colour-blind eyes (Okabe and Ito), and in this order.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "bivouac",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "legend.frameon": False,
}


@contextmanager
def style() -> Iterator[None]:
    """The style of all figures. Fonts that lack a character of somebody's label are no reason for a warning."""
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def label(text: str, most: int = 24) -> str:
    """A text from results as a label."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def plain_numbers(axis: Axis) -> None:
    """Labels an axis that is logarithmic with plain numbers. Powers of ten would be formulas, which are off."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: three(value)))
    axis.set_minor_formatter(NullFormatter())


def svg(figure: Figure) -> str:
    """The figure as SVG, which is the same for the same data."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()
