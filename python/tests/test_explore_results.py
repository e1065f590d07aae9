"""Reading results of explorations: what is refused, and what is not."""

import json
from pathlib import Path

import pytest
import synthetic
from synthetic import exploration, failed, header, pattern, run

from bivouac_analysis.errors import Unusable
from bivouac_analysis.explore.results import read_exploration

GOOD = [header([pattern("A")], [0, 2], 3), run("A", 0, 0, 1e6), run("A", 2, 0, 2e6)]


def read(tmp_path: Path, *files: list[synthetic.Line | str]):
    """Writes the files and reads them."""
    return read_exploration([synthetic.write(tmp_path / f"{at}.jsonl", lines) for at, lines in enumerate(files)])


def refusal(tmp_path: Path, *files: list[synthetic.Line | str]) -> str:
    """The one line with which files are refused."""
    with pytest.raises(Unusable) as caught:
        read(tmp_path, *files)
    words = str(caught.value)
    assert words and "\n" not in words
    return words


def test_all_fields_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, [*GOOD, failed("A", 2, 1, "no\nspace")])
    assert found.setting.file_system == "lustre" and found.nodes == ["n1", "n2"] and found.seeds == [7]
    assert found.io_nodes == [0, 2] and found.repetitions == 3
    assert found.patterns["A"].phases[0].request == 32768 and found.patterns["A"].phases[0].direct
    direct, forwarded = found.runs
    assert (direct.bandwidth, direct.requests_in, direct.requests_out) == (1e6, None, None)
    assert (forwarded.bandwidth, forwarded.requests_in, forwarded.requests_out) == (2e6, 1200, 300)
    assert found.source == str(tmp_path / "0.jsonl") and forwarded.bandwidths == (2e6,) and direct.bandwidths == (1e6,)
    assert found.patterns["A"].phases[0].total == 1 << 32
    assert found.failures[0].error == "no\nspace" and found.failures[0].repetition == 1


def test_what_failed_and_was_repeated_counts_as_it_ended(tmp_path):
    again = [failed("A", 2, 1), failed("A", 0, 1), failed("A", 0, 1, "again"), run("A", 2, 1, 3e6)]
    found = read(tmp_path, [*GOOD, *again])
    assert [(failure.io_nodes, failure.error) for failure in found.failures] == [(0, "again")]
    assert found.runs[-1].bandwidth == 3e6 and found.repeated == 0


@pytest.mark.parametrize("cut", ['{"kind":"run","patt', "{", '"', "nu", '{"kind":"run"}garbage'])
def test_a_cut_last_line_is_ignored_with_a_word(tmp_path: Path, cut: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(read(tmp_path, [*GOOD, cut]).runs) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "line 4" in said and "cut" in said


def test_a_last_line_without_an_end_counts_if_it_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(read(tmp_path, [*GOOD, json.dumps(run("A", 2, 1, 3e6))]).runs) == 3
    assert not capsys.readouterr().err


def test_a_line_that_was_cut_before_a_continuation_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read(tmp_path, [*GOOD, '{"kind":"ru\n', {"kind": "continued", "started": 2.0}, run("A", 2, 1, 3e6)])
    assert len(found.runs) == 3 and "cut" in capsys.readouterr().err


def test_a_broken_line_elsewhere_is_refused(tmp_path: Path) -> None:
    assert "line 2" in refusal(tmp_path, [GOOD[0], '{"kind":"ru\n', *GOOD[1:]])
    assert "line 4" in refusal(tmp_path, [*GOOD, '{"kind":"ru\n'])  # The line has an end, so it was not cut.
    assert "line 1" in refusal(tmp_path, ['{"kind":"explo'])


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"\xff\xfe\x00", b"[1]\n", b"7\n", b"PK\x03\x04", b"[" * 100_000, b'{"a":' * 100_000]
)
def test_other_content_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(Unusable, match="name a file"):
        read_exploration([tmp_path / "f"])


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(Unusable, match="cannot read .*: name a file"):
            read_exploration([path])


def test_other_versions_are_refused(tmp_path: Path) -> None:
    words = refusal(tmp_path, [GOOD[0] | {"version": 2}, *GOOD[1:]])
    assert "version 2" in words and "install" in words
    refusal(tmp_path, [GOOD[0] | {"version": 0}, *GOOD[1:]])
    refusal(tmp_path, [GOOD[0] | {"version": "1"}, *GOOD[1:]])


@pytest.mark.parametrize("name", ["bandwidth", "seconds"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "1e19", "-1", "true", '"1"', "null", "[]", "1" + "0" * 400])
def test_numbers_that_are_none_are_refused(tmp_path: Path, name: str, value: str) -> None:
    line = json.dumps(GOOD[1]).replace(f'"{name}": {json.dumps(GOOD[1][name])}', f'"{name}": {value}', 1)
    assert value in line
    assert "line 2" in refusal(tmp_path, [GOOD[0], line + "\n", GOOD[2]])


def test_what_is_not_json_is_refused_also_where_nobody_looks(tmp_path: Path) -> None:
    line = json.dumps(GOOD[1] | {"order": float("nan")})
    assert '"order": NaN' in line and "line 2" in refusal(tmp_path, [GOOD[0], line + "\n", GOOD[2]])


@pytest.mark.parametrize("value", [-1, 1.5, True, "2", None, 1 << 70])
def test_counts_that_are_none_are_refused(tmp_path: Path, value: object) -> None:
    assert "line 2" in refusal(tmp_path, [GOOD[0], GOOD[1] | {"requests": value}])


@pytest.mark.parametrize("at", [0, 1])
def test_each_field_that_is_used_has_to_be_there(tmp_path: Path, at: int) -> None:
    optional = {"deployment", "order", "begun", "load", "requests_in", "requests_out", "bytes_in", "bytes_out"}
    for name in GOOD[at].keys() - optional:
        lines = [dict(line) for line in GOOD]
        del lines[at][name]
        assert f'"{name}"' in refusal(tmp_path, lines)


def test_fields_of_a_later_release_are_ignored(tmp_path: Path) -> None:
    assert len(read(tmp_path, [line | {"colour": "blue"} for line in GOOD]).runs) == 2


@pytest.mark.parametrize(
    "line",
    [run("B", 0, 0, 1e6), run("A", 5, 0, 1e6), {"kind": "transfer"}, {"kind": 7}, GOOD[0], run("A", 0, 0, 1e6) | {"seconds": 0}]
    + [
        GOOD[1] | {"phases": phases}
        for phases in ([], None, [{"bandwidth": 1.0}] * 2, [{"bandwidth": -1.0}], [{"bandwidth": "1"}], [{}], [1.0])
    ],
)
def test_lines_that_do_not_belong_there_are_refused(tmp_path: Path, line: synthetic.Line) -> None:
    assert "line 4" in refusal(tmp_path, [*GOOD, line])


@pytest.mark.parametrize(
    "change",
    [
        {"patterns": []},
        {"patterns": ["A"]},
        {"patterns": [pattern("A"), pattern("A")]},
        {"patterns": [pattern("A") | {"phases": [{"operation": "copy"}]}]},
        {"patterns": [pattern("A") | {"processes": 0}]},
        {"patterns": [pattern("A") | {"phases": [pattern("A")["phases"][0] | {"total": 0}]}]},
        {"patterns": [pattern("A") | {"phases": [pattern("A")["phases"][0] | {"direct": None}]}]},
        {"patterns": [pattern("A") | {"phases": [pattern("A")["phases"][0] | {"fsync": 1}]}]},
        {"io_nodes": [0, -1]},
        {"io_nodes": "02"},
        {"repetitions": 0},
        {"nodes": [1, 2]},
        {"directory": ""},
    ],
)
def test_first_lines_that_make_no_sense_are_refused(tmp_path: Path, change: synthetic.Line) -> None:
    assert "line 1" in refusal(tmp_path, [GOOD[0] | change, *GOOD[1:]])


def test_nothing_usable_is_refused(tmp_path: Path) -> None:
    assert "no usable run" in refusal(tmp_path, [GOOD[0]])
    words = refusal(tmp_path, [GOOD[0], failed("A", 0, 0), run("A", 0, 1, 1e6, verified=False)])
    assert "1 failed, 1 with wrong data" in words


def test_runs_with_wrong_data_do_not_count(tmp_path: Path) -> None:
    found = read(tmp_path, [*GOOD, run("A", 2, 1, 9e9, verified=False)])
    assert len(found.usable()) == 2 and len(found.unverified()) == 1


def test_several_files_are_one_exploration(tmp_path: Path) -> None:
    second = exploration({"A": {0: 1e6, 4: 3e6}, "C": {0: 1e6}}, repetitions=2, started=9.0, seed=8, nodes=["n2", "n3"])
    second[0]["io_nodes"] = [0, 4]
    found = read(tmp_path, GOOD, second, [run("C", 4, 0, 1e6)])  # The third continues the second.
    assert found.io_nodes == [0, 2, 4] and list(found.patterns) == ["A", "C"] and found.nodes == ["n1", "n2", "n3"]
    assert len(found.runs) == 2 + 6 + 1 and found.repeated == 0, "the same repetition of another sitting is another run"


@pytest.mark.parametrize(
    "change",
    [
        {"scheduler": "fifo"},
        {"directory": "/other"},
        {"file_system": "gpfs"},
        {"assign": "node"},
        {"patterns": [pattern("A", request=1)]},
    ],
)
def test_files_of_different_explorations_are_refused(tmp_path: Path, change: synthetic.Line) -> None:
    assert "a report for each" in refusal(tmp_path, GOOD, [GOOD[0] | {"started": 2.0} | change, *GOOD[1:]])


def test_a_continuation_alone_is_refused(tmp_path: Path) -> None:
    assert "not the first line" in refusal(tmp_path, GOOD[1:])
    assert "no file" in refusal(tmp_path)


def test_the_same_run_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read(tmp_path, GOOD, GOOD)
    assert len(found.runs) == 2 and found.repeated == 2 and "more than once" in capsys.readouterr().err
