"""What tests share: reports of the command line in the same process, and what a page says; logs, and how they are read."""

import base64
import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from darshan_writer import own, shared, write_log
from reading import read_here

from bivouac_analysis.__main__ import main
from bivouac_analysis.advice import command as advice_command


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


@pytest.fixture
def no_process_for_each_log(request, monkeypatch):
    """Only tests that are marked with `end_to_end` have logs read by a process."""
    if "end_to_end" not in request.keywords:
        monkeypatch.setattr(advice_command, "read_log", read_here)


@pytest.fixture
def shared_log(tmp_path) -> Path:
    """Four processes on two nodes write one file, each its part of it, in requests of 64 KiB."""
    return write_log(
        tmp_path / "shared.darshan",
        [shared("write", 4, 32, 65536, "contiguous", path="/scratch/me/run7/all")],
        4,
        dxt=True,
        per_node=2,
    )


@pytest.fixture
def own_log(tmp_path) -> Path:
    return write_log(tmp_path / "own.darshan", own("write", 4, 32, 65536), 4, dxt=True, per_node=2)
