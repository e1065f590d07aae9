"""Advice from Darshan logs and measured storages."""

import pytest
from advising import advice, around, cautions, characterization, exploration, pattern, transfers
from darshan_writer import File, Request, write_log

pytestmark = pytest.mark.usefixtures("no_process_for_each_log")


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
