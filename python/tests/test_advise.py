"""Advice from Darshan logs and measured results."""

import bz2
import gzip
import json
import lzma
import random
import re
import subprocess
from pathlib import Path

import darshan
import pytest
from darshan_writer import File, Request, own, shared, write_log
from reading import read_here

from bivouac_analysis import __main__ as command_line
from bivouac_analysis.advice import command
from bivouac_analysis.advice.command import main
from bivouac_analysis.advice.gain import times_faster
from bivouac_analysis.advice.nearest import Manner, distance, size
from bivouac_analysis.advice.papers import published
from bivouac_analysis.advice.results import read_results
from bivouac_analysis.characterize.results import Characterization
from bivouac_analysis.errors import Unusable
from bivouac_analysis.explore.results import Exploration

EXAMPLES = Path(darshan.__file__).parent / "examples" / "example_logs"


@pytest.fixture(autouse=True)
def no_process_for_each_log(request, monkeypatch):
    """Only tests that are marked with `end_to_end` have logs read by a process."""
    if "end_to_end" not in request.keywords:
        monkeypatch.setattr(command, "read_log", read_here)


# Results as `explore run` and `characterize` write them.


def phase(operation="write", layout="shared", spatiality="contiguous", request=65536, **more) -> dict:
    return {
        "operation": operation,
        "layout": layout,
        "spatiality": spatiality,
        "request": request,
        "total": 1 << 30,
        "direct": True,
        "fsync": False,
        "think": 0.0,
    } | more


def pattern(name="A", processes=4, nodes=2, phases=None) -> dict:
    return {"name": name, "nodes": nodes, "processes": processes, "phases": phases or [phase()]}


def exploration(
    path: Path, patterns: list[dict], bandwidths: dict[tuple[str, int], list[float] | list[list[float]]], **head
) -> Path:
    """`bandwidths`: for a pattern and a number of I/O nodes those of the repetitions, each a number or one for each phase."""
    lines = [
        {
            "kind": "exploration",
            "version": 1,
            "deployment": "job",
            "directory": "/scratch/me",
            "file_system": "lustre",
            "nodes": ["n1", "n2"],
            "io_nodes": sorted({n for _, n in bandwidths}),
            "repetitions": 5,
            "seed": 7,
            "started": 1795708582.1,
            "scheduler": "to",
            "assign": "file",
            "patterns": patterns,
        }
        | head
    ]
    for (name, io_nodes), repetitions in bandwidths.items():
        phases = next(p["phases"] for p in patterns if p["name"] == name)
        for i, values in enumerate(repetitions):
            values = values if isinstance(values, list) else [values] * len(phases)
            lines.append(
                {
                    "kind": "run",
                    "pattern": name,
                    "io_nodes": io_nodes,
                    "repetition": i,
                    "order": i,
                    "begun": 1.0,
                    "load": 0.5,
                    "seconds": 1.0,
                    "bytes": 1,
                    "requests": 1,
                    "bandwidth": 1.0,
                    "phases": [
                        {"operation": p["operation"], "seconds": 1.0, "bytes": 1, "requests": 1, "bandwidth": value}
                        for p, value in zip(phases, values)
                    ],
                    "verified": True,
                }
            )
    return write_lines(path, lines)


def write_lines(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def characterization(path: Path, lines: list[dict], *, free=1 << 40) -> Path:
    storages = [
        {"name": name, "directory": directory, "file_system": kind, "capacity": 1 << 42, "free": free}
        for name, directory, kind in (
            ("site", "/scratch", "lustre"),
            ("node", "/local", "xfs"),
            ("memory", "/dev/shm", "tmpfs"),
            ("job", "/bivouac", "fuse.bivouac"),
        )
    ]
    return write_lines(
        path,
        [
            {
                "kind": "characterization",
                "version": 1,
                "started": 1.0,
                "memory": 1 << 34,
                "cores": 2,
                "seed": 1,
                "storages": storages,
            }
        ]
        + lines,
    )


def transfers(storage: str, bandwidth: float, *, count=5, **more) -> list[dict]:
    chance = random.Random(storage)
    return [
        {
            "kind": "transfer",
            "storage": storage,
            "operation": "write",
            "access": "sequential",
            "fsync": False,
            "request": 65536,
            "nodes": 1,
            "processes": 4,
            "bytes": 1,
            "requests": 1,
            "seconds": 1.0,
            "repetition": i,
            "cached": False,
            "bandwidth": bandwidth * chance.uniform(0.97, 1.03),
        }
        | more
        for i in range(count)
    ]


def around(value: float, count=7, spread=0.02) -> list[float]:
    chance = random.Random(value)
    return [value * chance.uniform(1 - spread, 1 + spread) for _ in range(count)]


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


def advice(capsys, log, *results) -> dict:
    assert main([str(log), "--json", *(arg for path in results for arg in ("--with", str(path)))]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    found = json.loads(output.out)
    assert found["kind"] == "advice" and found["version"] == 1
    return found


def cautions(found: dict) -> str:
    return "\n".join(found["cautions"])


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


# Storage


def test_storage_that_was_measured_fastest_is_used_with_its_gain(tmp_path, capsys, own_log):
    results = characterization(tmp_path / "c", transfers("site", 1e8) + transfers("node", 5e8) + transfers("job", 3e8))
    found = advice(capsys, own_log, results)
    storage = found["storage"]
    assert (
        storage["measured"]
        and storage["name"] == "node"
        and storage["kind"] == "node-local"
        and storage["over"] == "site"
    )
    assert storage["gain"]["value"] == pytest.approx(5, rel=0.05) and storage["gain"]["interval"] == "bootstrap-95"
    assert 4.5 < storage["gain"]["low"] <= storage["gain"]["value"] <= storage["gain"]["high"] < 5.5
    assert "gone with the job" in cautions(found)
    assert "/local" in found["options"][0]["command"]


def test_shared_files_on_several_nodes_cannot_be_on_a_nodes_own_storage(tmp_path, capsys, shared_log):
    results = characterization(tmp_path / "c", transfers("site", 1e8) + transfers("node", 5e8) + transfers("job", 3e8))
    found = advice(capsys, shared_log, results)
    assert found["storage"]["name"] == "job" and found["storage"]["kind"] == "deployment"
    assert "processes share files, and they are on 2 nodes" in cautions(found)
    assert (
        found["options"][0]["command"]
        == "bivouac run --hosts nodes.txt --flush-on-exit /data:/scratch/me/run7 -- PROGRAM"
    )


def test_measurements_of_the_page_cache_are_left_out(tmp_path, capsys, own_log):
    results = characterization(
        tmp_path / "c", transfers("site", 1e8) + transfers("node", 9e9, cached=True) + transfers("job", 3e8)
    )
    found = advice(capsys, own_log, results)
    assert found["storage"]["name"] == "job"
    assert "5 measurements saw the page cache" in cautions(found)


def test_cached_is_no_blemish_of_fsync_nor_of_memory(tmp_path, capsys, own_log):
    results = characterization(
        tmp_path / "c",
        transfers("site", 1e8, fsync=True, cached=True) + transfers("memory", 5e8, fsync=True, cached=True),
    )
    assert advice(capsys, own_log, results)["storage"]["name"] == "memory"


def test_storage_without_room_is_left_out(tmp_path, capsys, own_log):
    results = characterization(
        tmp_path / "c", transfers("site", 1e8) + transfers("node", 5e8) + transfers("job", 3e8), free=1000
    )
    found = advice(capsys, own_log, results)
    assert found["storage"]["name"] == "job" and "1000 bytes are free" in cautions(found)


def test_storage_that_is_not_measurably_faster_is_not_recommended(tmp_path, capsys, own_log):
    wide = [
        line | {"bandwidth": line["bandwidth"] * f}
        for line, f in zip(transfers("node", 1.02e8, count=7), (1, 2, 0.5, 1.5, 0.7, 1, 1.2))
    ]
    found = advice(capsys, own_log, characterization(tmp_path / "c", transfers("site", 1e8, count=7) + wide))
    assert found["storage"]["name"] == "site" and found["storage"]["gain"] is None
    assert "not measurably faster" in found["storage"]["words"][0]


def test_storages_measured_differently_are_not_compared(tmp_path, capsys, own_log):
    results = characterization(tmp_path / "c", transfers("site", 1e8) + transfers("node", 5e8, request=1 << 20))
    found = advice(capsys, own_log, results)
    assert found["storage"]["name"] is None and not found["storage"]["measured"]
    assert "node is left out: it has no measurement of" in cautions(found) and "nothing to compare" in cautions(found)


def small_files(count: int) -> list[File]:
    return [File(f"/scratch/me/run7/{i}", [Request(i % 4, "write", 0, 800, 1, 2)]) for i in range(count)]


def flood(storage: str, seconds: float, *, whole=1000, count=5) -> list[dict]:
    return [
        {
            "kind": "flood",
            "storage": storage,
            "files": 1000,
            "size": 4096,
            "processes": 4,
            "create_seconds": seconds * (1 + i / 100),
            "read_seconds": 0.1,
            "present": 1000,
            "whole": whole,
            "repetition": i,
        }
        for i in range(count)
    ]


def test_floods_of_small_files_are_compared_by_files(tmp_path, capsys):
    log = write_log(tmp_path / "l.darshan", small_files(1200), 4)
    # By bandwidth the site's storage would be best.
    results = characterization(
        tmp_path / "c", transfers("site", 9e9) + transfers("memory", 1e6) + flood("site", 60) + flood("memory", 1)
    )
    found = advice(capsys, log, results)
    assert found["storage"]["name"] == "memory" and found["storage"]["gain"]["value"] > 40


def test_storage_that_loses_files_is_never_recommended(tmp_path, capsys):
    log = write_log(tmp_path / "l.darshan", small_files(1200), 4)
    results = characterization(tmp_path / "c", flood("site", 60) + flood("memory", 1, whole=999) + flood("node", 30))
    found = advice(capsys, log, results)
    assert found["storage"][
        "name"
    ] == "node" and "memory (tmpfs) is left out: it did not have all files whole" in cautions(found)


def test_storage_that_loses_files_is_not_recommended_for_its_bandwidth_either(tmp_path, capsys, own_log):
    lines = transfers("site", 1e8) + transfers("node", 5e8) + transfers("job", 3e8) + flood("node", 1, whole=999)
    assert advice(capsys, own_log, characterization(tmp_path / "c", lines))["storage"]["name"] == "job"


def test_storages_are_compared_by_what_is_near_and_not_by_what_all_were_measured_with(tmp_path, capsys, own_log):
    # All have requests of 1 GiB, for which the node's is best; near are only those of two.
    far = [
        line
        for name, rate in (("site", 1e8), ("node", 9e8), ("job", 2e8))
        for line in transfers(name, rate, request=1 << 30)
    ]
    results = characterization(tmp_path / "c", far + transfers("site", 1e8) + transfers("job", 3e8))
    found = advice(capsys, own_log, results)
    assert found["storage"]["name"] == "job" and found["storage"]["gain"]["value"] == pytest.approx(3, rel=0.05)


def test_flood_without_results_is_sent_to_memory_or_a_deployment(tmp_path, capsys):
    found = advice(capsys, write_log(tmp_path / "l.darshan", small_files(1200), 4))
    assert "tmpfs" in found["storage"]["words"][0] and "Not measured here" in found["storage"]["words"][0]


def test_both_kinds_of_results_are_alternatives(tmp_path, capsys, shared_log):
    explored = exploration(tmp_path / "r", [pattern()], {("A", 0): around(100e6), ("A", 2): around(300e6)})
    found = advice(
        capsys, shared_log, explored, characterization(tmp_path / "c", transfers("site", 1e8) + transfers("job", 3e8))
    )
    assert found["forwarding"]["io_nodes"] == 2 and found["storage"]["name"] == "job"
    assert "alternatives" in cautions(found)
    assert ["--flush-on-exit" in option["command"] for option in found["options"]] == [True, False]
    assert "--forward" in found["options"][1]["command"] and "instead of" in found["options"][1]["for"]


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


# Results that cannot be used


def test_last_line_that_was_cut_is_left_out_and_said(tmp_path, capsys, shared_log):
    results = exploration(tmp_path / "r", [pattern()], {("A", 0): around(100e6), ("A", 2): around(200e6)})
    whole = results.read_text()
    results.write_text(whole[:-40])
    found = advice(capsys, shared_log, results)
    assert "the last line is cut" in cautions(found) and found["forwarding"]["gain"]["repetitions"] == 6


HEAD = {
    "kind": "exploration",
    "version": 1,
    "directory": "/d",
    "file_system": "lustre",
    "nodes": ["a"],
    "io_nodes": [0],
    "repetitions": 1,
    "seed": 1,
    "started": 1.0,
    "scheduler": "to",
    "assign": "file",
    "patterns": [pattern()],
}
RUN = {
    "kind": "run",
    "pattern": "A",
    "io_nodes": 0,
    "repetition": 0,
    "seconds": 1.0,
    "bytes": 1,
    "requests": 1,
    "bandwidth": 1.0,
    "phases": [{"bandwidth": 1.0}],
    "verified": True,
}


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
