"""Reading results of characterizations: what is refused, and what is not."""

import json
from pathlib import Path

import pytest
import synthetic
from synthetic import characterization, flood, metadata, storage, transfer

from bivouac_analysis.characterize.results import read_characterization
from bivouac_analysis.errors import Unusable

GOOD = characterization([storage("tmp")], [transfer("tmp", 1e8), flood("tmp", 1000, 2.0), metadata("tmp", "create", 500.0)])


def read(tmp_path: Path, lines: list[synthetic.Line | str]):
    return read_characterization(synthetic.write(tmp_path / "f", lines))


def refusal(tmp_path: Path, lines: list[synthetic.Line | str]) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(Unusable) as caught:
        read(tmp_path, lines)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_all_fields_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert found.storages["tmp"].file_system == "ext4" and (found.memory, found.cores, found.seed) == (1 << 34, 8, 3)
    assert (found.transfers[0].bandwidth, found.transfers[0].access, found.transfers[0].cached) == (1e8, "random", False)
    assert (found.floods[0].files, found.floods[0].create_seconds, found.floods[0].whole) == (1000, 2.0, 1000)
    assert (found.metadata[0].operation, found.metadata[0].rate) == ("create", 500.0)


def test_a_cut_last_line_is_ignored_with_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(read(tmp_path, [*GOOD, '{"kind":"flo']).floods) == 1
    assert "line 5: the last line is cut" in capsys.readouterr().err


@pytest.mark.parametrize("at", range(4))
def test_each_field_that_is_used_has_to_be_there(tmp_path: Path, at: int) -> None:
    unused = {"started", "bytes", "requests", "count"} | ({"seconds"} if GOOD[at]["kind"] == "metadata" else set())
    for name in GOOD[at].keys() - unused:
        lines = [dict(line) for line in GOOD]
        del lines[at][name]
        assert f'"{name}"' in refusal(tmp_path, lines)


@pytest.mark.parametrize(
    ("at", "name", "values"),
    [
        (1, "bandwidth", ["NaN", "-1", "1e999", "null", "true"]),
        (1, "request", ["0", "-4096", "1.5"]),
        (1, "operation", ['"copy"', "7"]),
        (1, "storage", ['"other"', "[]"]),
        (1, "cached", ["null", "0"]),
        (2, "create_seconds", ["0", "-1", "NaN"]),
        (2, "present", ["1001", "-1"]),
        (2, "whole", ["1001"]),
        (3, "rate", ["-1", "Infinity"]),
        (3, "operation", ['"chmod"']),
        (0, "storages", ["[]", "{}", "[1]", '[{"name":"tmp"}]']),
        (0, "version", ["2", "null"]),
    ],
)
def test_values_that_make_no_sense_are_refused(tmp_path: Path, at: int, name: str, values: list[str]) -> None:
    for value in values:
        line = json.dumps(GOOD[at]).replace(f'"{name}": {json.dumps(GOOD[at][name])}', f'"{name}": {value}', 1)
        assert f'"{name}": {value}' in line
        assert f"line {at + 1}" in refusal(tmp_path, [*GOOD[:at], line + "\n", *GOOD[at + 1 :]])


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert "`bivouac characterize`" in refusal(tmp_path, synthetic.exploration({"A": {0: 1e6}}))
    assert "no measurement" in refusal(tmp_path, GOOD[:1])
    assert "empty" in refusal(tmp_path, [])
    assert "twice" in refusal(tmp_path, characterization([storage("tmp"), storage("tmp")], GOOD[1:]))
    assert "line 5" in refusal(tmp_path, [*GOOD, {"kind": "run"}])
