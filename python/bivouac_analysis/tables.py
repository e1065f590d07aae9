"""Tables that go both into a report and into CSV files: the same rows, once as people read them and once as programs do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from .errors import Unusable
from .quantities import NONE


@dataclass(frozen=True)
class Table:
    """A table. `frame` has plain numbers, in bytes and seconds; `shown` says how a column's values look in the report."""

    name: str  # of the CSV file, without its suffix
    caption: str
    frame: pd.DataFrame
    shown: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)  # of columns, where their names are not good enough

    def title(self, column: str) -> str:
        """The heading of a column in the report."""
        return self.titles.get(column, column.replace("_", " "))

    def cells(self) -> list[list[str]]:
        """The texts of all cells, by rows."""
        return [
            [self._cell(column, value) for column, value in zip(self.frame.columns, row, strict=True)]
            for row in self.frame.itertuples(index=False, name=None)
        ]

    def _cell(self, column: str, value: Any) -> str:
        if pd.isna(value):
            return NONE
        if column in self.shown:
            return self.shown[column](value)
        return "yes" if value is True else "no" if value is False else str(value)


def whole(values: list[int | None]) -> "pd.Series[Any]":
    """A column of whole numbers of which some may be missing."""
    return pd.Series(values, dtype="Int64")


def write_csv(tables: list[Table], directory: Path) -> None:
    """Writes each table into a file of its own. The directory is made if it is not there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for table in tables:
            table.frame.to_csv(directory / f"{table.name}.csv", index=False, errors="replace")
    except OSError as error:
        raise Unusable(
            f"cannot write tables to {directory}: {error.strerror or error}: name a directory that you may write to"
        ) from error
