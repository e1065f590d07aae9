"""Reads fields of objects that come from JSON, and refuses what is absent, of the wrong type, or out of range.

Each error names the place (file and line) and the field, so that one line on the standard error is enough to find it. Fields that
nobody asks for are ignored: a later release may add some without raising the version.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import Unusable

# Nothing that is measured is larger, so sums and products of numbers stay finite.
LARGEST = 1 << 63


@dataclass(frozen=True)
class Fields:
    """One JSON object, and where it is from."""

    place: str
    values: dict[str, Any]

    def refuse(self, words: str) -> Unusable:
        """The error that this object is not as it should be."""
        return Unusable(f"{self.place}: {words}; was this file edited, or is it another program's?")

    def has(self, name: str) -> bool:
        """Whether the field is there and is not null."""
        return self.values.get(name) is not None

    def _get(self, name: str) -> Any:
        if name not in self.values:
            raise self.refuse(f'the field "{name}" is missing')
        return self.values[name]

    def text(self, name: str, among: Sequence[str] = ()) -> str:
        """A string, which is one of those that are allowed, if any are named. An empty one is refused."""
        value = self._get(name)
        if not isinstance(value, str) or not value:
            raise self.refuse(f'"{name}" should be a text that is not empty')
        if among and value not in among:
            raise self.refuse(f'"{name}" is {value[:40]!r} and should be one of {", ".join(among)}')
        return value

    def flag(self, name: str, otherwise: bool | None = None) -> bool:
        """True or false. The field may be absent if `otherwise` is given."""
        if otherwise is not None and name not in self.values:
            return otherwise
        value = self._get(name)
        if not isinstance(value, bool):
            raise self.refuse(f'"{name}" should be true or false')
        return value

    def number(self, name: str, least: float = 0.0, above: bool = False) -> float:
        """A number up to 2^63 that is not less than `least`, or that is greater with `above`."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(f'"{name}" should be a number')
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        # NaN is refused as well: it compares with nothing.
        if not least <= number <= LARGEST or (above and number == least):
            raise self.refuse(
                f'"{name}" is {number:g} and should be {"greater than" if above else "at least"} {least:g}, and at most 2^63'
            )
        return number

    def count(self, name: str, least: int = 0) -> int:
        """A whole number that is not less than `least`, and that a 64-bit integer can hold."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(f'"{name}" should be a whole number')
        if not least <= value < LARGEST:
            raise self.refuse(f'"{name}" is out of range (at least {least})')
        return value

    def many(self, name: str) -> list[Any]:
        """A list that is not empty."""
        value = self._get(name)
        if not isinstance(value, list) or not value:
            raise self.refuse(f'"{name}" should be a list that is not empty')
        return value

    def objects(self, name: str) -> list["Fields"]:
        """A list of objects that is not empty."""
        values = self.many(name)
        if not all(isinstance(value, dict) for value in values):
            raise self.refuse(f'"{name}" should be a list of objects')
        return [Fields(f'{self.place}: "{name}" {at}', value) for at, value in enumerate(values, 1)]

    def texts(self, name: str) -> list[str]:
        """A list of strings that is not empty."""
        values = self.many(name)
        if not all(isinstance(value, str) for value in values):
            raise self.refuse(f'"{name}" should be a list of texts')
        return values

    def version(self, newest: int) -> None:
        """Refuses versions of the format that this package does not know."""
        version = self.count("version", least=1)
        if version > newest:
            raise Unusable(
                f"{self.place}: the file has version {version} of the format, and this package knows versions up to {newest}: "
                "install the bivouac-analysis of the release that wrote it"
            )
