"""What tests of reports share: the command line in the same process, and what a page says."""

import base64
import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from bivouac_analysis.__main__ import main


@dataclass
class Report:
    """A report that was written: its text without tags, its figures, and its tables."""

    source: str
    text: str
    figures: list[str]
    directory: Path

    def table(self, name: str) -> pd.DataFrame:
        """A table, as it is in its CSV file."""
        return pd.read_csv(self.directory / f"{name}.csv", keep_default_na=True)


def make_report(directory: Path, command: str, *files: Path) -> Report:
    """Makes a report of files and reads it. Fails if the command does."""
    page, tables = directory / "report.html", directory / "made" / "tables"
    assert main([command, *map(str, files), "--html", str(page), "--csv", str(tables)]) == 0
    source = page.read_text()
    figures = [base64.b64decode(data).decode() for data in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', source)]
    text = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", source, flags=re.DOTALL))
    return Report(source, re.sub(r"\s+", " ", text), figures, tables)


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., Report]:
    """Makes reports in the test's directory: `report(command, file...)`."""
    return partial(make_report, tmp_path)
