"""Advice from Darshan logs and measured results: I/O nodes, and words."""

import json
import random
from pathlib import Path

import darshan
import pytest
from advising import RUN, advice, around, cautions, characterization, exploration, pattern, phase, transfers
from darshan_writer import File, Request, own, shared, write_log

from bivouac_analysis.advice.command import main
from bivouac_analysis.advice.gain import times_faster
from bivouac_analysis.advice.nearest import Manner, distance, size
from bivouac_analysis.advice.papers import published

EXAMPLES = Path(darshan.__file__).parent / "examples" / "example_logs"
pytestmark = pytest.mark.usefixtures("no_process_for_each_log")


# Forwarding


@pytest.mark.end_to_end
def test_advice_end_to_end(tmp_path, capsys, shared_log):
    results = exploration(tmp_path / "r", [pattern()], {("A", 0): around(100e6), ("A", 2): around(200e6)})
    found = advice(capsys, shared_log, results)
    assert found["forwarding"]["io_nodes"] == 2 and found["program"]["nodes"] == 2


def test_fewest_io_nodes_that_cannot_be_told_from_the_best(tmp_path, capsys, shared_log):
    results = exploration(
        tmp_path / "r",
        [pattern()],
        {
            ("A", 0): around(100e6),
            ("A", 1): around(150e6),
            ("A", 2): around(300e6, spread=0.1),
            ("A", 4): around(303e6, spread=0.1),
        },
    )
    found = advice(capsys, shared_log, results)
    forwarding = found["forwarding"]
    assert forwarding["measured"] and forwarding["io_nodes"] == 2
    assert forwarding["gain"]["interval"] == "bootstrap-95" and forwarding["gain"]["repetitions"] == 7
    assert 2.5 < forwarding["gain"]["low"] < forwarding["gain"]["value"] < forwarding["gain"]["high"] < 3.5
    assert found["phases"][0]["nearest"][0]["distance"] == 0
    assert [option["command"] for option in found["options"]] == [
        "bivouac run --hosts nodes.txt --forward /scratch/me/run7 --io-nodes 2 --assign file --scheduler to -- PROGRAM"
    ]
    assert "best of 4 ways" in cautions(found) and "repetitions" not in cautions(found)


def test_no_forwarding_where_it_is_not_measurably_faster(tmp_path, capsys, shared_log):
    results = exploration(
        tmp_path / "r", [pattern()], {("A", 0): around(100e6, spread=0.2), ("A", 2): around(101e6, spread=0.2)}
    )
    found = advice(capsys, shared_log, results)
    assert found["forwarding"]["io_nodes"] == 0 and found["options"] == []
    assert "Do not forward" in found["forwarding"]["words"][0]


def test_scheduler_and_assignment_are_those_measured_best(tmp_path, capsys, shared_log):
    one = exploration(tmp_path / "1", [pattern()], {("A", 0): around(100e6), ("A", 2): around(200e6)})
    two = exploration(
        tmp_path / "2",
        [pattern()],
        {("A", 0): around(100e6), ("A", 2): around(400e6)},
        scheduler="aioli",
        assign="node",
    )
    found = advice(capsys, shared_log, one, two)
    forwarding = found["forwarding"]
    assert (forwarding["io_nodes"], forwarding["scheduler"], forwarding["assign"]) == (2, "aioli", "node")
    assert forwarding["gain"]["value"] == pytest.approx(4, rel=0.05)
    assert "--assign node --scheduler aioli" in found["options"][0]["command"]


def test_phases_count_by_the_bytes_that_the_program_has_in_them(tmp_path, capsys):
    files = [
        shared("write", 4, 90, 65536, "contiguous", path="/scratch/me/a", begin=1),
        shared("read", 4, 10, 65536, "contiguous", path="/scratch/me/b", begin=50),
    ]
    log = write_log(tmp_path / "l.darshan", files, 4, dxt=True, per_node=2)
    # One I/O node is good for writing, two for reading; the program mostly writes.
    results = exploration(
        tmp_path / "r",
        [pattern(phases=[phase(), phase("read")])],
        {("A", 0): [[100e6, 100e6]] * 5, ("A", 1): [[300e6, 50e6]] * 5, ("A", 2): [[100e6, 900e6]] * 5},
    )
    found = advice(capsys, log, results)
    assert found["forwarding"]["io_nodes"] == 1
    # 0.9 / 3 + 0.1 / 0.5 of the time without I/O nodes
    assert found["forwarding"]["gain"]["value"] == pytest.approx(1 / (0.9 / 3 + 0.1 / 0.5))


@pytest.mark.parametrize(
    "repetitions, interval", [(1, None), (2, None), (3, "range"), (4, "range"), (5, "bootstrap-95")]
)
def test_few_repetitions_are_said(tmp_path, capsys, shared_log, repetitions, interval):
    results = exploration(
        tmp_path / "r", [pattern()], {("A", 0): around(100e6, repetitions), ("A", 2): around(200e6, repetitions)}
    )
    found = advice(capsys, shared_log, results)
    assert found["forwarding"]["gain"]["interval"] == interval
    assert (f"only {repetitions} repetitions" in cautions(found)) == (repetitions < 5)
    text = render(capsys, shared_log, results)
    assert ("no interval" in text) == (interval is None)


def test_far_patterns_are_shown_and_not_used(tmp_path, capsys, shared_log):
    far = pattern(phases=[phase("read", "own", "random", 8 << 20)], processes=1024)
    results = exploration(tmp_path / "r", [far], {("A", 0): around(1e6), ("A", 8): around(1e9)})
    found = advice(capsys, shared_log, results)
    assert (
        not found["forwarding"]["measured"]
        and found["forwarding"]["gain"] is None
        and found["forwarding"]["covered"] == 0
    )
    [near] = found["phases"][0]["nearest"]
    assert near["far"] and len(near["terms"]) == 5
    assert "near enough" in cautions(found)
    text = render(capsys, shared_log, results)
    assert "too far" in text and "not measured here" in text and "read instead of write (2.00)" in text


def test_pattern_that_is_not_close_is_used_with_a_caution(tmp_path, capsys, shared_log):
    results = exploration(
        tmp_path / "r",
        [pattern(processes=64, phases=[phase(request=1 << 18)])],
        {("A", 0): around(100e6), ("A", 2): around(300e6)},
    )
    found = advice(capsys, shared_log, results)
    assert found["forwarding"]["measured"] and found["forwarding"]["io_nodes"] == 2
    assert found["phases"][0]["nearest"][0]["distance"] == pytest.approx(0.5 * 2 + 0.25 * 4)
    assert "not close (distance 2.00)" in cautions(found)


def test_nearest_of_several_patterns_is_used(tmp_path, capsys, shared_log):
    results = exploration(
        tmp_path / "r",
        [pattern("own", phases=[phase(layout="own")]), pattern("shared")],
        {("own", 0): around(1e6), ("own", 8): around(1e9), ("shared", 0): around(100e6), ("shared", 1): around(200e6)},
    )
    found = advice(capsys, shared_log, results)
    assert [near["pattern"] for near in found["phases"][0]["nearest"]] == ["shared", "own"]
    assert found["forwarding"]["io_nodes"] == 1


def test_gain_is_unknown_where_nothing_was_measured_without_io_nodes(tmp_path, capsys, shared_log):
    results = exploration(tmp_path / "r", [pattern()], {("A", 1): around(100e6), ("A", 2): around(200e6)})
    found = advice(capsys, shared_log, results)
    assert found["forwarding"]["io_nodes"] == 2 and found["forwarding"]["gain"] is None
    assert "whether forwarding gains anything is not known" in cautions(found)


def test_settings_are_not_mixed(tmp_path, capsys, shared_log):
    # The fast runs with I/O nodes are of another file system than the slow ones without.
    one = exploration(tmp_path / "1", [pattern()], {("A", 0): around(100e6), ("A", 2): around(110e6, spread=0.2)})
    two = exploration(
        tmp_path / "2", [pattern(processes=8)], {("A", 2): around(900e6)}, directory="/fast", file_system="gpfs"
    )
    found = advice(capsys, shared_log, one, two)
    assert found["forwarding"]["io_nodes"] == 0
    assert "2 settings" in cautions(found)


def test_failed_and_unverified_runs_do_not_count(tmp_path, capsys, shared_log):
    results = exploration(
        tmp_path / "r", [pattern()], {("A", 0): around(100e6), ("A", 2): around(200e6)}, io_nodes=[0, 1, 2, 4]
    )
    with results.open("a") as out:
        out.write(
            json.dumps(
                {
                    "kind": "failed",
                    "pattern": "A",
                    "io_nodes": 1,
                    "repetition": 0,
                    "order": 1,
                    "begun": 1,
                    "error": "no",
                }
            )
            + "\n"
        )
        out.write(json.dumps({"kind": "continued", "started": 2.0}) + "\n")
        out.write(
            json.dumps(
                RUN | {"io_nodes": 4, "verified": False, "phases": [{"bandwidth": 9e12}]}
            )
            + "\n"
        )
    found = advice(capsys, shared_log, results)
    assert found["forwarding"]["io_nodes"] == 2
    assert "1 run failed and 1 were not verified" in cautions(found)


def test_differences_of_fsync_and_cache_are_said(tmp_path, capsys):
    log = write_log(
        tmp_path / "l.darshan",
        [
            File(
                "/scratch/me/a",
                [Request(r, "read", (r * 8 + i) << 16, 1 << 16, 1, 2) for r in range(4) for i in range(8)],
            )
        ],
        4,
    )
    results = exploration(
        tmp_path / "r",
        [pattern(phases=[phase("read", direct=False, fsync=True)])],
        {("A", 0): around(1e8), ("A", 1): around(3e8)},
        nodes=["n1"],
    )
    text = cautions(advice(capsys, log, results))
    assert "page cache" in text and "with fsync" in text and "on one host" in text


# Without results


def test_without_results_the_word_is_from_papers_and_says_so(capsys):
    found = advice(capsys, EXAMPLES / "sample-badost.darshan")
    assert not found["forwarding"]["measured"] and not found["storage"]["measured"]
    assert found["forwarding"]["gain"] is None and found["storage"]["gain"] is None and found["storage"]["name"] is None
    # 2048 processes with own files and requests of 4 MiB: FORGE's pattern A, for which both machines were best without.
    assert found["forwarding"]["io_nodes"] == 0 and "pattern A" in found["forwarding"]["words"][0]
    assert "No results were given" in cautions(found)
    text = render(capsys, EXAMPLES / "sample-badost.darshan")
    assert text.count("not measured here") >= 2


def test_machines_that_contradict_each_other_give_no_recommendation(tmp_path, capsys):
    # Pattern B: 8 I/O nodes on one machine, none on the other.
    log = write_log(tmp_path / "l.darshan", own("write", 512, 4, 128 << 10), 512)
    found = advice(capsys, log)
    assert "pattern B" in found["forwarding"]["words"][0]
    assert found["forwarding"]["io_nodes"] is None and found["options"] == []


def test_shared_files_get_assign_file_to_try(capsys):
    [option] = advice(capsys, EXAMPLES / "example.darshan")["options"]
    assert "not measured here" in option["for"] and "--assign file" in option["command"]


def test_reads_are_not_in_the_published_measurements(tmp_path, capsys):
    found = advice(capsys, write_log(tmp_path / "l.darshan", own("read", 4, 4, 65536), 4))
    assert found["forwarding"]["io_nodes"] is None and "writes only" in found["forwarding"]["words"][0]


def test_log_without_posix_bytes_gets_an_answer(capsys):
    found = advice(capsys, EXAMPLES / "../../tests/input/noposixopens.darshan")
    assert found["phases"] == [] and found["options"] == []
    assert any("no POSIX reads or writes" in word for word in found["program"]["words"])
    assert any("STDIO" in word for word in found["program"]["words"])


def test_published_table_is_that_of_the_paper():
    best = {one.name: (one.marenostrum, one.santos_dumont) for one in published()}
    assert "".join(sorted(best)) == "ABCDEFGHIJKLMNOPQRST"

    def names(place: int, number: int) -> str:
        return "".join(name for name in sorted(best) if best[name][place] == number)

    assert [names(0, n) for n in (0, 1, 4, 8)] == ["A", "LM", "JO", "BGHR"]
    assert [names(1, n) for n in (0, 1, 2, 8)] == ["ABH", "", "CENQS", "FR"]


# Distances, intervals, words


def test_distance_is_the_sum_of_its_terms_and_nothing_for_equals():
    a = Manner("write", "own", "contiguous", 1 << 20, 16)
    assert distance(a, a).value == 0 and distance(a, a).words == "no difference"
    b = Manner("mixed", "shared", "random", 1 << 17, 64)
    assert [amount for _, amount in distance(a, b).terms] == [1.0, 2.0, 1.5, 1.5, 0.5]
    assert distance(a, b).value == distance(b, a).value == 6.5 and distance(a, b).far


def test_interval_contains_the_truth_about_as_often_as_it_says():
    chance, hits = random.Random(3), 0
    for _ in range(60):
        before = [[chance.lognormvariate(0, 0.1) * 1e8 for _ in range(15)]]
        after = [[chance.lognormvariate(0, 0.1) * 2e8 for _ in range(15)]]
        ratio = times_faster([1e9], before, after)
        assert ratio.low <= ratio.value <= ratio.high
        hits += ratio.low <= 2.0 <= ratio.high
    assert hits >= 50


def test_single_repetitions_never_look_sure():
    ratio = times_faster([1.0], [[1.0]], [[9.0]])
    assert ratio.value == 9 and ratio.low is None and not ratio.distinct and ratio.thin


@pytest.mark.parametrize(
    "count, words",
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1 << 40, "1 TiB"),
        (5 << 60, "5120 PiB"),
    ],
)
def test_sizes_are_written_as_people_do(count, words):
    assert size(count) == words


def render(capsys, log, *results) -> str:
    assert main([str(log), *(arg for path in results for arg in ("--with", str(path)))]) == 0
    return capsys.readouterr().out


def test_text_has_everything_that_the_json_says(tmp_path, capsys, shared_log):
    results = exploration(tmp_path / "r", [pattern()], {("A", 0): around(100e6), ("A", 2): around(200e6)})
    found, text = advice(capsys, shared_log, results), render(capsys, shared_log, results)
    for words in (
        found["program"]["words"],
        found["forwarding"]["words"],
        found["storage"]["words"],
        found["cautions"],
        found["unknown"],
        [option["command"] for option in found["options"]],
    ):
        for word in words:
            assert word in text
    assert (
        "4 processes on 2 nodes" in text
        and "one shared file (/scratch/me/run7/all), lustre" in text
        and "Distance 0.00" in text
    )


def test_directory_above_all_files_is_forwarded(tmp_path, capsys):
    explored = exploration(
        tmp_path / "r", [pattern(phases=[phase(), phase("read")])], {("A", 0): around(1e8), ("A", 2): around(3e8)}
    )
    files = [
        shared("write", 4, 9, 65536, "contiguous", path="/scratch/me/run/out/a"),
        shared("read", 4, 8, 65536, "contiguous", path="/scratch/me/run/in/b", begin=9),
    ]
    found = advice(capsys, write_log(tmp_path / "1.darshan", files, 4), explored)
    assert "--forward /scratch/me/run --io-nodes" in found["options"][0]["command"]
    files[1].path = "/project/in/b"
    found = advice(capsys, write_log(tmp_path / "2.darshan", files, 4), explored)
    assert "--forward /scratch/me/run/out --io-nodes" in found["options"][0]["command"]
    assert "files in /project/in are used as before" in cautions(found)


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path, capsys):
    log = write_log(tmp_path / "l.darshan", [shared("write", 4, 8, 65536, "contiguous", path="/scratch/\x1b[2Ja/x")], 4)
    text = render(capsys, log)
    assert "/scratch/?[2Ja/x" in text and "\x1b" not in text


def test_names_in_commands_are_quoted(tmp_path, capsys):
    log = write_log(
        tmp_path / "l.darshan", [shared("write", 4, 8, 65536, "contiguous", path="/scratch/my $(rm) dir/a:b/x")], 4
    )
    explored = exploration(tmp_path / "r", [pattern()], {("A", 0): around(100e6), ("A", 2): around(300e6)})
    assert "--forward '/scratch/my $(rm) dir/a:b' " in advice(capsys, log, explored)["options"][0]["command"]
    found = advice(capsys, log, characterization(tmp_path / "c", transfers("site", 1e8) + transfers("job", 3e8)))
    assert r"--flush-on-exit '/data:/scratch/my $(rm) dir/a\:b'" in found["options"][0]["command"]
