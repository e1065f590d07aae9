"""The report of a characterization: what it says, and that its numbers are right."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import synthetic
from conftest import Report, make_report
from synthetic import characterization, flood, metadata, storage, transfer, transfers

from bivouac_analysis.characterize.measures import Kind, Spot, Varies, best, best_at, cut
from bivouac_analysis.characterize.measures import transfers as measure
from bivouac_analysis.characterize.results import read_characterization

Make = Callable[..., Report]
STORAGES = [storage("nvme"), storage("lustre", file_system="lustre")]


def nvme(operation: str, access: str, fsync: bool, request: int, processes: int) -> float:
    """Good at small requests, and slow with fsync."""
    return 2e8 * processes / 2 / (4 if fsync else 1)


def lustre(operation: str, access: str, fsync: bool, request: int, processes: int) -> float:
    """Good at large requests, whoever makes them."""
    return 8e8 * request / (1 << 20) / (2 if fsync else 1)


def both() -> list[synthetic.Line]:
    return transfers("nvme", nvme) + transfers("lustre", lustre)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of everything: transfers of both storages, floods and metadata. It takes a second to make."""
    lines = both() + [flood("nvme", files, files * 1e-4) for files in (10, 1000, 100_000)]
    lines += [metadata(name, "stat", rate) for name, rate in (("nvme", 1e6), ("lustre", 1e3))]
    directory = tmp_path_factory.mktemp("usual")
    return make_report(directory, "characterize-report", synthetic.write(directory / "f", characterization(STORAGES, lines)))


def measured(tmp_path: Path, storages: list[synthetic.Line], lines: list[synthetic.Line]):
    return measure(read_characterization(synthetic.write(tmp_path / "f", characterization(storages, lines))))


def test_the_best_storage_for_each_size(usual: Report) -> None:
    text = usual.text
    assert "Best for random reads of 4 KiB (2 processes on 1 node): nvme with" in text
    assert "Best for random reads of 1 MiB (2 processes on 1 node): lustre with" in text
    assert "Best for sequential writes of 1 MiB with fsync (2 processes on 1 node): lustre with" in text
    assert "4.0 times that of nvme" in text or "3.9 times that of nvme" in text or "4.1 times that of nvme" in text


def test_the_cost_of_fsync(usual: Report) -> None:
    factors = usual.table("fsync").groupby("storage")["factor"]
    assert factors.median()["nvme"] == pytest.approx(4, rel=0.06) and factors.median()["lustre"] == pytest.approx(2, rel=0.06)
    assert "random writes on lustre are 2.0 times as fast as with it (median of 5 comparisons" in usual.text


def test_processes_are_compared(usual: Report) -> None:
    assert "Random reads, bandwidth of many processes beside that of few (requests of 64 KiB, 1 node): " in usual.text
    assert "on nvme (1 to 4 processes)" in usual.text


def test_repetitions_are_put_together(tmp_path: Path, report: Make) -> None:
    lines = [transfer("nvme", value, repetition=at) for at, value in enumerate((1e8, 5e8, 3e8))]
    row = (
        report("characterize-report", synthetic.write(tmp_path / "f", characterization(STORAGES, lines)))
        .table("transfers")
        .loc[0]
    )
    assert (row["median"], row["least"], row["greatest"], row["repetitions"]) == (3e8, 1e8, 5e8, 3)


def test_cached_reads_are_doubtful_and_never_the_best(tmp_path: Path) -> None:
    lines = [transfer("nvme", 1e8), transfer("lustre", 9e9, cached=True)]
    first, doubtful = best_at(measured(tmp_path, STORAGES, lines), Kind("read", "random", False), Spot(4096, 1, 2))
    assert first.name == "nvme" and first.second is None and doubtful == ["lustre"]


def test_one_cached_repetition_makes_all_doubtful(tmp_path: Path) -> None:
    lines = [transfer("nvme", 1e8), transfer("nvme", 9e9, cached=True, repetition=1)]
    assert measured(tmp_path, STORAGES, lines)[0].doubtful


@pytest.mark.parametrize(
    ("change", "file_system", "doubtful"),
    [
        ({"operation": "read"}, "ext4", True),
        ({"operation": "write"}, "ext4", True),
        ({"operation": "write", "fsync": True}, "ext4", False),  # fsync reaches the storage whatever is cached
        ({"operation": "read", "fsync": True}, "ext4", True),
        ({"operation": "read"}, "tmpfs", False),  # its storage is the memory
    ],
)
def test_what_is_doubtful(tmp_path: Path, change: synthetic.Line, file_system: str, doubtful: bool) -> None:
    lines = [transfer("x", 1e8, cached=True, **change)]
    assert measured(tmp_path, [storage("x", file_system=file_system)], lines)[0].doubtful is doubtful


def test_cached_measurements_are_said_and_marked(tmp_path: Path, report: Make, usual: Report) -> None:
    kinds = [{"operation": "write", "fsync": fsync, "request": request} for fsync in (False, True) for request in (4096, 8192)]
    lines = [transfer("nvme", 9e9, cached=True, **kind) for kind in kinds] + [transfer("lustre", 1e8, **kind) for kind in kinds]
    made = report("characterize-report", synthetic.write(tmp_path / "f", characterization(STORAGES, lines)))
    assert "2 of 8 kinds and sizes of transfers may have measured the machine's memory" in made.text
    assert "Not compared, because it may have been memory: nvme." in made.text
    assert "those without it may have measured memory, those with it did not" in made.text
    table = made.table("transfers")
    assert (table["cached"] == (table["storage"] == "nvme")).all()
    assert (table["may_be_memory"] == (table["cached"] & ~table["fsync"])).all()
    assert "may be memory" in made.figures[0]
    assert "memory and not the storage" not in usual.text and "may be memory" not in "".join(usual.figures)


def test_where_all_is_cached_nothing_is_the_best(tmp_path: Path, report: Make) -> None:
    lines = [transfer("nvme", 1e9, cached=True), transfer("lustre", 2e9, cached=True)]
    text = report("characterize-report", synthetic.write(tmp_path / "f", characterization(STORAGES, lines))).text
    assert "No storage can be called the best for random reads of 4 KiB" in text and "All kinds and sizes" in text
    assert "Best for" not in text


def test_overlapping_repetitions_are_said() -> None:
    assert best({"a": (1.0, 5.0, 6.0), "b": (2.0, 3.0, 4.0)}).clear is False
    apart = best({"a": (5.0, 6.0), "b": (2.0, 4.0), "c": (1.0,)})
    assert (apart.name, apart.second, apart.clear) == ("a", "b", True)
    assert best({"a": (6.0, 6.0), "b": (1.0, 1.0), "c": (0.5, 0.5, 9.0)}).clear is False, (
        "also of a storage that is not the second"
    )
    assert best({}) is None


def test_floods_that_grow_differently(tmp_path: Path, report: Make) -> None:
    lines = [flood("nvme", files, files * 1e-4) for files in (1000, 4000, 16_000, 64_000)]
    lines += [flood("lustre", files, files**2 * 1e-6, whole=files - (files > 30_000) * 5, present=files - (files > 30_000) * 2)
              for files in (1000, 4000, 16_000, 64_000)]  # fmt: skip
    made = report("characterize-report", synthetic.write(tmp_path / "f", characterization(STORAGES, lines)))
    growth = made.table("growth").set_index(["storage", "operation"])
    assert (
        growth.loc[("nvme", "create"), "growth"] == "linear" and growth.loc[("lustre", "create"), "growth"] == "more than linear"
    )
    assert growth.loc[("lustre", "create"), "exponent"] == pytest.approx(2)
    assert "Creating: time is linear in the number of files (exponent 1.00" in made.text
    assert "Creating: time is more than linear in the number of files (exponent 2.00" in made.text
    assert "nvme, files of 8 B from 36 processes: 64,000 files took 6.4 s to create." in made.text
    assert "All files were there and whole." in made.text
    assert "lustre lost data in floods of files of 8 B: 2 files missing and 3 files without the right contents." in made.text
    assert list(made.table("floods")["whole"])[-1] == 63_995


def test_few_floods_make_no_claim(tmp_path: Path, report: Make) -> None:
    lines = [flood("nvme", 1000, 1.0), flood("nvme", 2000, 2.0)]
    made = report("characterize-report", synthetic.write(tmp_path / "f", characterization(STORAGES, lines)))
    assert "too few different numbers of files" in made.text and "is linear" not in made.text


def test_metadata_rates(tmp_path: Path, report: Make) -> None:
    lines = [metadata(name, "stat", rate * factor, repetition=at) for name, rate in (("nvme", 9000.0), ("lustre", 3000.0))
             for at, factor in enumerate((0.9, 1.0, 1.2))]  # fmt: skip
    lines.append(metadata("lustre", "stat", 99_999.0, processes=1))
    made = report("characterize-report", synthetic.write(tmp_path / "f", characterization(STORAGES, lines)))
    assert "Fastest at stat (2 processes): nvme with 9,000 a second, 3.0 times that of lustre." in made.text
    assert list(made.table("metadata")["median"]) == [9000, 3000, 99_999]


def test_lines_through_the_measurements(tmp_path: Path) -> None:
    found = [m for m in measured(tmp_path, STORAGES, both()) if m.kind == Kind("read", "random", False)]
    over_requests, over_processes = cut(found, Varies.REQUEST), cut(found, Varies.PROCESSES)
    assert over_requests.fixed == (1, 2) and [m.spot.request for m in over_requests.through(found) if m.storage == "nvme"] == [
        4096,
        65536,
        1 << 20,
    ]
    assert over_processes.fixed == (65536, 1) and [
        m.spot.processes for m in over_processes.through(found) if m.storage == "nvme"
    ] == [1, 2, 4]
    assert cut(found, Varies.NODES) is None and cut([], Varies.REQUEST) is None
    lines = [transfer("nvme", 1e8 * nodes, nodes=nodes, processes=4 * nodes) for nodes in (1, 2, 4)]
    over_nodes = cut(measured(tmp_path, STORAGES, lines), Varies.NODES)
    assert over_nodes.fixed == (4096, 4) and over_nodes.words() == "requests of 4 KiB, 4 processes on each node"


def test_figures_are_whole_and_plain(usual: Report) -> None:
    assert len(usual.figures) == 6 * 2 + 1 + 1, "six kinds over requests and over processes, floods, metadata"
    for figure in usual.figures:
        ElementTree.fromstring(figure)
        assert "$" not in figure and "mathdefault" not in figure
    assert "2 processes on 1 node" in usual.figures[0] and ">4 KiB<" in usual.figures[0]
    assert ">100,000<" in usual.figures[-2]


def test_bandwidths_of_zero_make_a_report(tmp_path: Path, report: Make) -> None:
    lines = [
        transfer("nvme", 0.0, operation="write", fsync=fsync, request=request)
        for fsync in (False, True)
        for request in (4096, 8192)
    ]
    lines += [line | {"storage": "lustre"} for line in lines] + [
        metadata(name, "stat", 1.0) | {"rate": 0} for name in ("nvme", "lustre")
    ]
    report("characterize-report", synthetic.write(tmp_path / "f", characterization(STORAGES, lines)))


def test_names_of_others_are_harmless(tmp_path: Path, report: Make) -> None:
    name = "<script>$\\frac{$\ud800" + "x" * 99
    lines = [transfer(name, 1e6, request=request) for request in (4096, 8192)] + [
        flood(name, 9, 1.0),
        metadata(name, "stat", 5.0),
    ]
    made = report("characterize-report", synthetic.write(tmp_path / "f", characterization([storage(name)], lines)))
    assert "<script" not in made.source
