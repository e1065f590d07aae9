"""Reads JSON lines that a program has appended to a file, and that may end in the middle of a line if the program was killed.

A line that is cut is ignored, with a word to the user, if it is the last one, or if the program went on after it (a line of
the kind "continued" follows). Any other line that is not a JSON object makes the file unusable.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from .errors import Unusable
from .fields import Fields

# Results of a large exploration have some megabytes. What is far larger is another file, given by mistake.
MOST_BYTES = 1 << 30


def warn(words: str) -> None:
    """Tells the user something that does not stop the work."""
    print("bivouac-analysis: " + " ".join(words.split()), file=sys.stderr)


def cannot(path: Path, error: OSError) -> Unusable:
    """The error that a file cannot be read."""
    return Unusable(f"cannot read {path}: {error.strerror or error}: name a file that exists and that you may read")


def refuse_constant(name: str) -> NoReturn:
    """JSON has no NaN and no Infinity, but Python's reader accepts them unless it is told not to."""
    raise ValueError(f"{name} is not JSON")


def parse(line: bytes) -> dict[str, Any] | None:
    """The object in a line, or None if it is not one."""
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read(path: Path, say: Callable[[str], None] = warn) -> Iterator[Fields]:
    """The objects of a file, at least one, each with its place. Empty lines are ignored. `say` gets what was left out."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Unusable(f"{path} is larger than any results: name the file that `bivouac` wrote")
        content = path.read_bytes()
    except OSError as error:
        raise cannot(path, error) from error
    lines = content.split(b"\n")
    ended = lines[-1] == b""
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise Unusable(f"{path} is empty: name a file with results")
    for at, (number, line) in enumerate(numbered):
        place = f"{path}, line {number}"
        value = parse(line)
        last = at + 1 == len(numbered)
        if value is not None:
            yield Fields(place, value)
        elif last and not ended and at > 0:
            say(f"{place}: the last line is cut and is ignored (was the program that wrote it killed?)")
        elif at > 0 and not last and (parse(numbered[at + 1][1]) or {}).get("kind") == "continued":
            say(f"{place}: the line is cut and is ignored (the program was continued after it)")
        else:
            raise Unusable(f"{place}: this is not a line of results (a JSON object): name a file that `bivouac` wrote")
