"""Patterns files that are derived from Darshan logs."""

import json
from pathlib import Path

import darshan
import pytest
from darshan_writer import File, Request, own, shared, write_log
from reading import read_here

from bivouac_analysis import __main__ as command_line
from bivouac_analysis.darshan import patterns
from bivouac_analysis.darshan.patterns import main

EXAMPLES = Path(darshan.__file__).parent / "examples" / "example_logs"
PHASE_FIELDS = {
    "operation",
    "layout",
    "spatiality",
    "request",
    "total",
    "stonewall",
    "read_share",
    "direct",
    "fsync",
    "think",
}


@pytest.fixture(autouse=True)
def no_process_for_each_log(request, monkeypatch):
    """Only tests that are marked with `end_to_end` have logs read by a process."""
    if "end_to_end" not in request.keywords:
        monkeypatch.setattr(patterns, "read_log", read_here)


def derive(capsys, *args) -> tuple[dict, str]:
    assert main([str(arg) for arg in args]) == 0
    output = capsys.readouterr()
    patterns = json.loads(output.out)
    check_format(patterns)
    return patterns, output.err


def check_format(patterns: dict) -> None:
    """What /tmp/schema/formats.md says of a patterns file, which the explorer is strict about."""
    assert set(patterns) == {"version", "patterns"} and patterns["version"] == 1 and patterns["patterns"]
    names = [pattern["name"] for pattern in patterns["patterns"]]
    assert len(set(names)) == len(names)
    for pattern in patterns["patterns"]:
        assert set(pattern) == {"name", "nodes", "processes", "phases"} and pattern["name"] and pattern["phases"]
        assert pattern["nodes"] >= 1 and pattern["processes"] >= 1 and pattern["processes"] % pattern["nodes"] == 0
        for phase in pattern["phases"]:
            assert set(phase) <= PHASE_FIELDS
            assert phase["operation"] in ("write", "read", "mixed") and phase["layout"] in ("own", "shared")
            assert phase["spatiality"] in ("contiguous", "strided", "random")
            assert type(phase["request"]) is int and phase["request"] >= 1
            assert type(phase["total"]) is int and phase["total"] % (phase["request"] * pattern["processes"]) == 0
            assert phase["total"] > 0 and type(phase["direct"]) is bool and type(phase["fsync"]) is bool
            assert phase["think"] >= 0
            assert ("read_share" in phase) == (phase["operation"] == "mixed")


@pytest.mark.parametrize(
    "name",
    [
        "dxt",
        "example",
        "ior_hdf5_example",
        "sample-badost",
        "shane_macsio_id29959_5-22-32552-7035573431850780836_1590156158",
    ],
)
def test_real_logs_give_files_of_the_format(capsys, name):
    derive(capsys, EXAMPLES / f"{name}.darshan")


@pytest.mark.end_to_end
def test_real_run_of_ior_gives_what_its_options_say(capsys):
    # ior -t 8m -b 256m -s 4 -F -C -e -a POSIX -w -k on 48 processes
    patterns, words = derive(
        capsys, Path(darshan.__file__).parent / "tests" / "input" / "sample-goodost.darshan", "--nodes", "2"
    )
    assert patterns["patterns"] == [
        {
            "name": "ior",
            "nodes": 2,
            "processes": 48,
            "phases": [
                {
                    "operation": "write",
                    "layout": "own",
                    "spatiality": "contiguous",
                    "request": 8 << 20,
                    "total": 48 << 30,
                    "direct": False,
                    "fsync": True,
                    "think": 0.0,
                }
            ],
        }
    ]
    assert "Think time is not in the log" in words and "O_DIRECT" in words and "nodes" not in words


def test_writing_and_then_reading_are_two_phases_in_that_order(tmp_path, capsys):
    files = own("read", 4, 10, 65536, directory="/scratch/me/in", begin=30.0) + [
        shared("write", 4, 8, 1 << 20, "strided", begin=2.0)
    ]
    patterns, words = derive(capsys, write_log(tmp_path / "a.darshan", files, 4))
    [pattern] = patterns["patterns"]
    assert [
        (phase["operation"], phase["layout"], phase["spatiality"], phase["request"], phase["total"])
        for phase in pattern["phases"]
    ] == [("write", "shared", "strided", 1 << 20, 32 << 20), ("read", "own", "contiguous", 65536, 40 * 65536)]
    assert "order of the phases" in words and "without DXT" in words and "overlap" not in words


def test_phases_are_in_the_order_of_time_and_not_of_bytes(tmp_path, capsys):
    files = own("read", 4, 100, 65536, directory="/scratch/me/in", begin=30.0) + [
        shared("write", 4, 8, 65536, "strided", begin=2.0)
    ]
    patterns, _ = derive(capsys, write_log(tmp_path / "a.darshan", files, 4))
    assert [phase["operation"] for phase in patterns["patterns"][0]["phases"]] == ["write", "read"]


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path, capsys):
    file = shared("write", 4, 8, 65536, "contiguous", path="/scratch/me/\x1b[2Ja/b")
    _, words = derive(capsys, write_log(tmp_path / "a.darshan", [file], 4))
    assert "/scratch/me/?[2Ja/b" in words and "\x1b" not in words


def test_phases_that_overlap_are_said(tmp_path, capsys):
    files = own("read", 4, 50, 65536, directory="/scratch/me/in", begin=1.0) + [
        shared("write", 4, 50, 65536, "strided", begin=1.1)
    ]
    _, words = derive(capsys, write_log(tmp_path / "a.darshan", files, 4))
    assert "overlap in time" in words


def test_reading_and_writing_in_turn_is_one_mixed_phase(tmp_path, capsys):
    file = File(
        "/scratch/me/a", [Request(0, "read" if i % 4 == 0 else "write", i * 4096, 4096, i, i + 0.1) for i in range(100)]
    )
    patterns, _ = derive(capsys, write_log(tmp_path / "a.darshan", [file], 1))
    [phase] = patterns["patterns"][0]["phases"]
    assert phase["operation"] == "mixed" and phase["read_share"] == 0.25 and phase["total"] == 100 * 4096


def test_traces_give_nodes_and_think_time(tmp_path, capsys):
    files = own("write", 4, 10, 4096, took=0.01, pause=0.25)
    patterns, words = derive(capsys, write_log(tmp_path / "a.darshan", files, 4, dxt=True, per_node=2))
    [pattern] = patterns["patterns"]
    assert pattern["nodes"] == 2 and pattern["phases"][0]["think"] == pytest.approx(0.25)
    assert "Think" not in words and "nodes" not in words


def test_bursts_are_said(tmp_path, capsys):
    file = File(
        "/scratch/me/a",
        [Request(0, "write", i * 4096, 4096, start := i * 0.01 + (i // 10) * 100, start + 0.005) for i in range(40)],
    )
    patterns, words = derive(capsys, write_log(tmp_path / "a.darshan", [file], 1, dxt=True))
    assert patterns["patterns"][0]["phases"][0]["think"] == pytest.approx(0.005, rel=0.01)
    assert "bursts" in words


def test_nodes_are_assumed_where_the_log_does_not_say(tmp_path, capsys):
    patterns, words = derive(capsys, write_log(tmp_path / "a.darshan", own("write", 96, 1, 4096), 96))
    assert patterns["patterns"][0]["nodes"] == 2
    assert '"nodes" is set to 2. Correct it' in words


def test_different_numbers_of_processes_are_different_patterns(tmp_path, capsys):
    files = own("write", 4, 10, 65536) + [
        File("/scratch/me/log", [Request(0, "write", i * 4096, 4096) for i in range(100)])
    ]
    patterns, words = derive(capsys, write_log(tmp_path / "a.darshan", files, 4))
    assert [(p["name"], p["processes"]) for p in patterns["patterns"]] == [("simulate", 4), ("simulate-1", 1)]
    assert "different patterns" in words


def test_little_files_are_left_out_and_counted(tmp_path, capsys):
    files = own("write", 4, 10, 1 << 20) + [File(f"/scratch/me/log{i}", [Request(0, "read", 0, 100)]) for i in range(7)]
    patterns, words = derive(capsys, write_log(tmp_path / "a.darshan", files, 4))
    assert len(patterns["patterns"]) == 1 and len(patterns["patterns"][0]["phases"]) == 1
    assert "7 files" in words and "7 requests of 47" in words


def test_fsync_is_of_phases_that_write(tmp_path, capsys):
    file = File(
        "/scratch/me/a",
        [Request(0, "write", i * 4096, 4096, 1.0, 1.1) for i in range(10)]
        + [Request(0, "read", i * 4096, 4096, 9.0, 9.1) for i in range(10)],
        fsyncs=1,
    )
    patterns, _ = derive(capsys, write_log(tmp_path / "a.darshan", [file], 1))
    assert [(p["operation"], p["fsync"]) for p in patterns["patterns"][0]["phases"]] == [
        ("write", True),
        ("read", False),
    ]


def test_stdio_is_named_because_it_is_not_in_the_patterns(tmp_path, capsys):
    _, words = derive(capsys, write_log(tmp_path / "a.darshan", own("write", 2, 4, 4096), 2, stdio_bytes=12345))
    assert "STDIO" in words and "12345" in words


def test_output_file_is_whole_or_not_there(tmp_path, capsys):
    log = write_log(tmp_path / "a.darshan", own("write", 2, 4, 4096), 2)
    target = tmp_path / "patterns.json"
    target.write_text("old")
    assert main([str(log), "--output", str(target)]) == 0
    check_format(json.loads(target.read_text()))
    assert capsys.readouterr().out == ""
    target.write_text("old")
    assert command_line.main(["patterns-from", str(tmp_path / "missing"), "--output", str(target)]) == 1
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.darshan", "patterns.json"]


@pytest.mark.parametrize("log", ["noposix.darshan", "../../tests/input/noposixopens.darshan", "no-such-file"])
def test_logs_without_patterns_are_one_line_and_exit_code_1(capsys, log):
    assert command_line.main(["patterns-from", str(EXAMPLES / log)]) == 1
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("bivouac-analysis: ") and output.err.count("\n") == 1
    assert "defect" not in output.err and ": " in output.err.removeprefix("bivouac-analysis: ")


def test_output_that_cannot_be_written_is_exit_code_1(tmp_path, capsys):
    log = write_log(tmp_path / "a.darshan", own("write", 2, 4, 4096), 2)
    assert command_line.main(["patterns-from", str(log), "--output", str(tmp_path / "no" / "such" / "directory")]) == 1
    assert "directory cannot be written: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("args", [[], ["a", "b"], ["a", "--nodes", "0"], ["a", "--nodes", "x"], ["--wrong"]])
def test_wrong_usage_is_exit_code_2(capsys, args):
    assert main(args) == 2
    assert "usage" in capsys.readouterr().err
