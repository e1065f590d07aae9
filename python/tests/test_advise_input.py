"""Results and logs that cannot be used for advice, or only in part."""

import bz2
import gzip
import json
import lzma
import re
import subprocess
from pathlib import Path

import darshan
import pytest
from advising import HEAD, RUN, advice, around, cautions, characterization, exploration, pattern, phase, transfers

from bivouac_analysis import __main__ as command_line
from bivouac_analysis.advice.command import main
from bivouac_analysis.advice.results import read_results
from bivouac_analysis.characterize.results import Characterization
from bivouac_analysis.errors import Unusable
from bivouac_analysis.explore.results import Exploration

EXAMPLES = Path(darshan.__file__).parent / "examples" / "example_logs"
pytestmark = pytest.mark.usefixtures("no_process_for_each_log")


def test_last_line_that_was_cut_is_left_out_and_said(tmp_path, capsys, shared_log):
    results = exploration(tmp_path / "r", [pattern()], {("A", 0): around(100e6), ("A", 2): around(200e6)})
    whole = results.read_text()
    results.write_text(whole[:-40])
    found = advice(capsys, shared_log, results)
    assert "the last line is cut" in cautions(found) and found["forwarding"]["gain"]["repetitions"] == 6


@pytest.mark.parametrize(
    "lines, place",
    [
        ([], "is empty"),
        (["not json"], "line 1"),
        (["[1]"], "line 1"),
        ([{"kind": "other"}], "line 1: these are no results"),
        ([HEAD | {"version": 2}], "version 2"),
        ([HEAD | {"patterns": {}}], '"patterns"'),
        ([HEAD | {"patterns": [pattern(processes=0)]}], '"patterns" 1: "processes"'),
        ([HEAD | {"patterns": [pattern(phases=[phase(), phase(layout="both")])]}], '"patterns" 1: "phases" 2: "layout"'),
        ([HEAD, RUN | {"pattern": "B"}], "line 2: the pattern 'B'"),
        ([HEAD, RUN | {"phases": []}], 'line 2: "phases"'),
        ([HEAD, RUN | {"phases": [{"bandwidth": "fast"}]}], 'line 2: "phases" 1: "bandwidth"'),
        ([HEAD, RUN | {"phases": [{"bandwidth": -1}]}], '"bandwidth"'),
        ([HEAD, RUN | {"phases": [{"bandwidth": 10**400}]}], '"bandwidth"'),
        ([HEAD, RUN | {"phases": [{"bandwidth": 1e19}]}], '"bandwidth"'),
        ([HEAD, RUN | {"phases": [{"bandwidth": 1.0}] * 2}], 'line 2: "phases"'),
        ([HEAD, RUN | {"io_nodes": 1}], "line 2: 1 I/O nodes"),
        ([HEAD, {key: value for key, value in RUN.items() if key != "verified"}], '"verified"'),
        ([HEAD, RUN | {"verified": False}], "no usable run"),
        ([HEAD], "no usable run"),
        ([HEAD, RUN | {"io_nodes": 1.5}], '"io_nodes"'),
        ([HEAD, RUN | {"io_nodes": True}], '"io_nodes"'),
        (
            [HEAD, '{"kind": "run", "pattern": "A", "io_nodes": 0, "repetition": 0, "phases": [{"bandwidth": NaN}]}'],
            "line 2",
        ),
        ([HEAD, "{cut", RUN], "line 2"),
        ([{"kind": "characterization", "version": 1, "storages": []}, {"kind": "flood", "storage": "x"}], '"storages"'),
        (["[" * 100000], "line 1"),
    ],
)
def test_results_that_are_not_of_the_format_are_one_line(tmp_path, capsys, lines, place):
    path = tmp_path / "results"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    said: list[str] = []
    with pytest.raises(Unusable) as caught:
        read_results(path, said.append)
    assert place in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value) and not said
    assert command_line.main(["advise", str(EXAMPLES / "example.darshan"), "--with", str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == "" and output.err == f"bivouac-analysis: {caught.value}\n"


def test_results_that_cannot_be_read_are_one_line(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "binary"):
        with pytest.raises(Unusable, match=f"{re.escape(str(path))}.*: name a file"):
            read_results(path, [].append)


def test_kinds_of_results_are_told_apart(tmp_path):
    explored = exploration(tmp_path / "r", [pattern()], {("A", 0): [1.0]})
    assert isinstance(read_results(explored, [].append), Exploration)
    characterized = characterization(tmp_path / "c", transfers("site", 1e8))
    assert isinstance(read_results(characterized, [].append), Characterization)


def test_results_may_come_from_a_pipe(tmp_path, capsys, shared_log):
    results = exploration(tmp_path / "r", [pattern()], {("A", 0): around(100e6), ("A", 2): around(200e6)})
    with subprocess.Popen(["cat", str(results)], stdout=subprocess.PIPE) as source:
        found = advice(capsys, shared_log, f"/dev/fd/{source.stdout.fileno()}")
    assert found["forwarding"]["io_nodes"] == 2


def test_exploration_whose_phases_transferred_nothing_is_as_none(tmp_path, capsys, shared_log):
    found = advice(capsys, shared_log, exploration(tmp_path / "r", [pattern()], {("A", 0): [0.0]}))
    assert not found["forwarding"]["measured"] and "has no runs that can be used" in cautions(found)
    found = advice(capsys, shared_log, exploration(tmp_path / "r", [pattern()], {("A", 0): [1e6, 0.0, 1e6]}))
    assert "1 run failed and 0 were not verified" in cautions(found)


def test_runs_that_are_given_twice_count_once(tmp_path, capsys, shared_log):
    results = exploration(tmp_path / "r", [pattern()], {("A", 0): around(100e6, 3), ("A", 2): around(200e6, 3)})
    results.write_text(results.read_text() + "".join(results.read_text().splitlines(keepends=True)[1:]))
    found = advice(capsys, shared_log, results)
    assert found["forwarding"]["gain"]["repetitions"] == 3 and "6 runs were given more than once" in cautions(found)


@pytest.mark.parametrize(
    "bad, said",
    [
        (lambda good: (EXAMPLES / "noposix.darshan").read_bytes(), "POSIX"),
        (lambda good: good[: len(good) // 2], "copy the log again"),
        (lambda good: good[:100], "copy the log again"),
        (lambda good: b"", ""),
        (gzip.compress, "gunzip"),
        (bz2.compress, "bunzip2"),
        (lzma.compress, "unxz"),
        (lambda good: b"2.06\0\0\0\0" + good[8:], "2.06"),
        (lambda good: gzip.compress(b"2.06\0\0\0\0" + good[8:]), "2.06"),
        (lambda good: b"4.00" + good[4:], "newer"),
        (lambda good: b"no log at all\n", ""),
    ],
)
@pytest.mark.end_to_end
def test_logs_that_cannot_be_used_are_exit_code_1(tmp_path, capsys, shared_log, bad, said):
    log = tmp_path / "bad.darshan"
    log.write_bytes(bad(Path(shared_log).read_bytes()))
    assert command_line.main(["advise", str(log)]) == 1
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and said in output.err, output.err
    assert "defect" not in output.err


@pytest.mark.parametrize("args", [[], ["a", "b"], ["a", "--with"], ["--wrong"]])
def test_wrong_usage_is_exit_code_2(capsys, args):
    assert main(args) == 2
    assert "usage" in capsys.readouterr().err
