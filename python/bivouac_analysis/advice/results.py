"""Reads results for advice: those of an exploration or of a characterization, as the first line says."""

from collections.abc import Callable
from pathlib import Path

from ..characterize.results import Characterization, characterization_of
from ..errors import Unusable
from ..explore.results import Exploration, exploration_of
from ..jsonlines import read


def read_results(path: Path, say: Callable[[str], None]) -> Exploration | Characterization:
    """Reads one file of results, once, because it may be a pipe. `say` gets what was left out of it."""
    lines = list(read(path, say))
    kind = lines[0].text("kind")
    if kind == "exploration":
        return exploration_of([(path, lines)], say)
    if kind == "characterization":
        return characterization_of(path, lines)
    raise Unusable(
        f"{lines[0].place}: these are no results: name a file that `bivouac explore run` or `bivouac characterize` wrote"
    )
