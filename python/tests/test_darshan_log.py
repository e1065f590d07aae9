"""Reading Darshan logs: real ones that PyDarshan ships, ones written for a test, and ones that cannot be used."""

import bz2
import gzip
import lzma
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import darshan
import pytest
from darshan_writer import File, Request, number_of, own, shared, write_log
from reading import read_here

from bivouac_analysis.darshan import process
from bivouac_analysis.darshan.errors import (
    Compressed,
    Damaged,
    LibraryMissing,
    LogError,
    NewVersion,
    NoPosix,
    NotDarshan,
    OldVersion,
    TooSlow,
    Truncated,
    Unreadable,
)
from bivouac_analysis.darshan.groups import groups
from bivouac_analysis.darshan.log import read_log
from bivouac_analysis.errors import Unusable

SHIPPED = Path(darshan.__file__).parent
EXAMPLES = SHIPPED / "examples" / "example_logs"
INPUTS = SHIPPED / "tests" / "input"


@pytest.fixture(autouse=True)
def no_process_and_no_descriptor_stays():
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture
def good() -> bytes:
    return (EXAMPLES / "ior_hdf5_example.darshan").read_bytes()


def refused(error: type[LogError], path, **options) -> str:
    with pytest.raises(error) as caught:
        read_log(path, **options)
    assert type(caught.value) is error
    text = str(caught.value)
    assert isinstance(caught.value, Unusable) and "\n" not in text and str(path) in text and ": " in text, text
    return text


# Real logs


@pytest.mark.parametrize("name", ["ior_hdf5_example", "example", "everything"])
def test_tests_that_read_logs_themselves_get_what_the_child_finds(tmp_path, name):
    source = EXAMPLES / f"{name}.darshan"
    if name == "everything":
        files = own("write", 4, 8, 4096, pause=0.1) + [shared("read", 4, 8, 65536, "random", path="/scratch/me/caf\udce9")]
        source = write_log(tmp_path / "a.darshan", files, 4, dxt=True, per_node=2, stdio_bytes=12345)
    assert read_log(source) == read_here(source)


def test_file_for_each_process_is_one_group():
    log = read_here(INPUTS / "sample-goodost.darshan")
    assert log.version == "3.10" and log.job.processes == 48 and log.job.nodes is None
    assert log.job.command.endswith("ior -t 8m -b 256m -s 4 -F -C -e -a POSIX -w -k")
    [group] = groups(log.files)
    assert group.files == 48 and not group.shared and group.fsyncs == 48
    assert group.path == "/scratch1/scratchdirs/glock" and log.file_system_of(group.path) == "lustre"
    assert group.reads.requests == 0
    assert group.writes.bytes == 48 * (1 << 30) and group.writes.requests == 48 * 128
    assert group.writes.spatiality == "contiguous" and group.writes.participants == 48
    size = group.request_size(group.writes)
    assert (size.bytes, size.exact) == (8 << 20, True)
    assert group.writes.sizes == {"4M_10M": 48 * 128}


def test_shared_file_of_collective_writes_is_strided_in_spite_of_small_requests():
    log = read_here(EXAMPLES / "example.darshan")
    [group] = groups(log.files)
    assert group.shared and group.ranks == {-1} and group.collective == 16384 and group.independent == 18
    assert group.writes.spatiality == "strided"
    assert group.request_size(group.writes).bytes == 128 << 20
    assert not group.writes.participants_known and group.writes.participants == 2048
    assert group.strides == {274743689216: 10240, 274743691264: 4096}
    assert any("aggregators" in note for note in log.notes)
    assert any("O_DIRECT" in note for note in log.notes)
    assert any("how many nodes" in note for note in log.notes)


def test_traces_name_the_nodes_and_show_order_that_small_requests_hide():
    log = read_here(EXAMPLES / "ior_hdf5_example.darshan")
    assert log.traced and log.job.nodes == 1
    [group] = groups(log.files)
    assert group.writes.traced_sizes[262144] == 16
    assert group.writes.participants == 4 and group.writes.participants_known
    assert group.writes.spatiality == group.reads.spatiality == "contiguous"
    assert not group.mixed and group.writes.end < group.reads.start
    assert log.stdio.written_bytes == 2421


def test_processes_that_only_open_a_file_do_not_count_as_writers():
    log = read_here(INPUTS / "sample-dxt-simple.darshan")
    file = next(file for file in log.files if file.path.endswith("/test.out"))
    assert file.shared and len(file.ranks) == 16
    assert file.writes.participants == 1 and file.writes.bytes == 4000
    assert log.job.nodes is None, "DXT has seen one process of sixteen"


def test_thousands_of_files_are_read_within_seconds():
    began = time.monotonic()
    log = read_log(EXAMPLES / "sample-badost.darshan")
    [group] = groups(log.files)
    assert group.files == 2048 and group.writes.bytes == 2048 * 64 * (4 << 20)
    assert time.monotonic() - began < 30


def test_log_without_opens_has_no_bytes():
    log = read_here(INPUTS / "noposixopens.darshan")
    assert log.read_bytes == log.written_bytes == 0
    assert log.stdio.read_bytes == 603979776


def test_log_without_posix_module_is_refused():
    assert "LUSTRE, STDIO" in refused(NoPosix, EXAMPLES / "noposix.darshan")


# Logs written for the test


@pytest.mark.parametrize("spatiality", ["contiguous", "strided", "random"])
@pytest.mark.parametrize("dxt", [False, True])
def test_order_of_requests_is_recognised(tmp_path, spatiality, dxt):
    path = write_log(tmp_path / "a.darshan", [shared("write", 4, 16, 65536, spatiality)], 4, dxt=dxt, per_node=2)
    log = read_here(path)
    assert log.version == "3.41"
    [group] = groups(log.files)
    assert group.shared and group.writes.spatiality == spatiality
    assert log.job.nodes == (2 if dxt else None)


def test_many_small_requests_beside_few_large_ones_do_not_set_the_request_size(tmp_path):
    file = File(
        "/scratch/me/a",
        [Request(0, "write", i * 96, 96) for i in range(500)]
        + [Request(0, "write", (1 + i) << 20, 1 << 20) for i in range(4)],
    )
    [group] = groups(read_here(write_log(tmp_path / "a.darshan", [file], 1)).files)
    size = group.request_size(group.writes)
    assert (size.bytes, size.exact, size.requests) == (1 << 20, True, 4)


def test_sizes_of_reads_are_not_taken_for_those_of_writes(tmp_path):
    file = File(
        "/scratch/me/a",
        [Request(0, "read", i << 20, 1 << 20) for i in range(20)]
        + [Request(0, "write", i * 512, 512) for i in range(20)],
    )
    [group] = groups(read_here(write_log(tmp_path / "a.darshan", [file], 1)).files)
    assert group.request_size(group.writes).bytes == 512
    assert group.request_size(group.reads).bytes == 1 << 20


def test_size_is_a_mean_where_none_carries_most_bytes(tmp_path):
    file = File("/scratch/me/a", [Request(0, "write", i << 20, 10_000 + 1_000 * i) for i in range(40)])
    [group] = groups(read_here(write_log(tmp_path / "a.darshan", [file], 1)).files)
    size = group.request_size(group.writes)
    assert not size.exact and abs(size.bytes - 29_500) <= 2048


def test_reading_and_writing_in_turn_is_mixed_and_one_after_the_other_is_not(tmp_path):
    turn = File("/scratch/me/turn", [Request(0, "write" if i % 2 else "read", i * 4096, 4096) for i in range(40)])
    after = File(
        "/scratch/me/after",
        [Request(0, "write", i * 4096, 4096) for i in range(20)]
        + [Request(0, "read", i * 4096, 4096) for i in range(20)],
    )
    log = read_here(write_log(tmp_path / "a.darshan", [turn, after], 1))
    assert {file.path: file.mixed for file in log.files} == {"/scratch/me/turn": True, "/scratch/me/after": False}


def test_some_processes_sharing_a_file_is_shared(tmp_path):
    file = shared("write", 2, 8, 4096, "contiguous")
    log = read_here(write_log(tmp_path / "a.darshan", [file], 8))
    [use] = log.files
    assert use.shared and use.ranks == {0, 1} and use.writes.participants == 2 and use.writes.participants_known


def test_who_only_opens_a_file_is_no_writer_without_traces_either(tmp_path):
    file = File("/scratch/me/a", [Request(0, "write", i * 4096, 4096) for i in range(8)], only_opened_by=(1, 2, 3))
    [use] = read_here(write_log(tmp_path / "a.darshan", [file], 4)).files
    assert use.shared and use.ranks == {0, 1, 2, 3} and use.writes.participants == 1


def test_one_change_from_writing_to_reading_is_not_mixed_however_few_requests_there_are(tmp_path):
    file = File(
        "/scratch/me/a",
        [Request(rank, operation, rank << 20, 1 << 20) for operation in ("write", "read") for rank in range(4)],
    )
    [use] = read_here(write_log(tmp_path / "a.darshan", [file], 4)).files
    assert use.switches == 4 and not use.mixed


def test_think_time_comes_from_traces(tmp_path):
    path = write_log(tmp_path / "a.darshan", own("write", 2, 10, 4096, took=0.01, pause=0.25), 2, dxt=True)
    [group] = groups(read_here(path).files)
    assert group.writes.median_gap == pytest.approx(0.25)


def test_name_that_is_not_utf8_is_a_number(tmp_path):
    file = File("/scratch/me/caf\udce9", [Request(0, "write", 0, 4096)])
    path = write_log(tmp_path / "a.darshan", [file], 1)
    log = read_here(path)
    assert [file.path for file in log.files] == [f"(file {number_of(file.path)})"]
    assert any("UTF-8" in note for note in log.notes)


def test_path_need_not_be_utf8(tmp_path, good):
    path = os.fsdecode(bytes(tmp_path) + b"/caf\xe9.darshan")
    Path(path).write_bytes(good)
    assert read_log(path).job.processes == 4


# What cannot be used


@pytest.mark.parametrize("version", ["3.10", "3.21", "3.41"])
def test_truncated_at_any_length_is_refused(tmp_path, version):
    if version == "3.41":
        source = write_log(tmp_path / "whole.darshan", own("write", 3, 5, 4096), 3)
    else:
        source = {"3.10": INPUTS / "sample-goodost.darshan", "3.21": EXAMPLES / "ior_hdf5_example.darshan"}[version]
    data = source.read_bytes()
    assert read_here(source).version == version
    path = tmp_path / "cut.darshan"
    path.write_bytes(data)
    # The header's table tells, so no length needs a process of its own, and many can be tried.
    for length in sorted({*range(400), *range(400, len(data), 83), len(data) - 1}, reverse=True):
        os.truncate(path, length)
        refused(Truncated, path)


@pytest.mark.parametrize(
    "pack, command", [(gzip.compress, "gunzip"), (bz2.compress, "bunzip2"), (lzma.compress, "unxz")]
)
def test_compressed_as_a_whole_is_refused_with_the_command_that_unpacks_it(tmp_path, good, pack, command):
    path = tmp_path / "a.darshan"
    path.write_bytes(pack(good))
    assert f"`{command}`" in refused(Compressed, path)
    path.write_bytes(pack(b"no log at all"))
    assert "a file that was compressed" in refused(Compressed, path)
    path.write_bytes(pack(good)[:20])
    refused(Compressed, path)


def test_version_2_is_refused_packed_or_not(tmp_path, good):
    path = tmp_path / "a.darshan"
    old = b"2.06\0\0\0\0" + good[8:]
    for data in (old, gzip.compress(old), bz2.compress(old)):
        path.write_bytes(data)
        text = refused(OldVersion, path)
        assert "2.06" in text and "version 3" in text


@pytest.mark.parametrize("version", [b"3.99", b"4.00"])
def test_version_newer_than_the_library_is_refused(tmp_path, good, version):
    path = tmp_path / "a.darshan"
    path.write_bytes(version + good[4:])
    assert "install a newer one" in refused(NewVersion, path)


@pytest.mark.parametrize(
    "data", [b"Hello, I am a text.\n", b"\0" * 5000, b"3.x1\0" + b"z" * 500, b"\x7fELF" + bytes(range(256))]
)
def test_other_files_are_refused(tmp_path, data):
    path = tmp_path / "a.darshan"
    path.write_bytes(data)
    refused(NotDarshan, path)


def test_wrong_magic_number_is_refused(tmp_path, good):
    path = tmp_path / "a.darshan"
    path.write_bytes(good[:8] + b"\1" * 8 + good[16:])
    assert "magic" in refused(NotDarshan, path)


def test_what_is_no_file_is_refused(tmp_path):
    assert "directory" in refused(Unreadable, tmp_path)
    assert "No such file" in refused(Unreadable, tmp_path / "missing")
    os.mkfifo(tmp_path / "fifo")
    assert "regular" in refused(Unreadable, tmp_path / "fifo")
    with pytest.raises(Unreadable):
        read_log("a\0b")


def test_unreadable_file_is_refused(tmp_path, good):
    path = tmp_path / "a.darshan"
    path.write_bytes(good)
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        text = refused(Unreadable, path)
    finally:
        os.seteuid(user)
    assert "Permission" in text


def test_damage_that_aborts_the_library_is_an_error(tmp_path, good):
    # The data of the job are unreadable: the library's assertion in darshan_log_get_mounts fails, and it aborts.
    path = tmp_path / "a.darshan"
    path.write_bytes(good[:360] + b"\xff" * 300 + good[660:])
    refused(Damaged, path)


def test_damage_anywhere_is_an_error_or_read(tmp_path, good):
    chance, paths = random.Random(5), [tmp_path / f"{at}.darshan" for at in range(6)]
    for path in paths:
        data = bytearray(good)
        for _ in range(4):
            data[chance.randrange(360, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)

    def outcome(path: Path) -> str:
        try:
            read_log(path, 30)
        except LogError as error:
            assert "\n" not in str(error)
            return type(error).__name__
        return "read"

    with ThreadPoolExecutor(2) as several:
        assert "Damaged" in set(several.map(outcome, paths))


def replace_child(monkeypatch, tmp_path, text: str) -> None:
    child = tmp_path / "child.py"
    child.write_text(text)
    monkeypatch.setattr(process, "CHILD", child)


def test_library_that_does_not_end_is_killed(tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    # It does not want to end, and has started another process, which would keep the pipe open.
    replace_child(
        monkeypatch,
        tmp_path,
        f"""import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    with open({str(pid)!r}, "w") as out:
        out.write(str(os.getpid()))
time.sleep(20)
""",
    )
    began = time.monotonic()
    refused(TooSlow, EXAMPLES / "example.darshan", time_limit=1.0)
    assert time.monotonic() - began < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    "body",
    [
        "import os; os.abort()",
        "import os; os.kill(os.getpid(), 11)",
        "raise SystemExit(3)",
        "pass",
        "import os, sys; os.write(int(sys.argv[2]), b'{\"posix\": ')",
    ],
)
def test_library_that_dies_is_an_error(tmp_path, monkeypatch, body):
    replace_child(monkeypatch, tmp_path, body)
    refused(Damaged, EXAMPLES / "example.darshan")


def test_answer_after_the_library_complained_is_not_trusted(tmp_path, monkeypatch):
    source = process.CHILD.read_text()
    replace_child(
        monkeypatch,
        tmp_path,
        source.replace(
            'if __name__ == "__main__":', 'if __name__ == "__main__":\n    print("Error: failed", file=sys.stderr)'
        ),
    )
    assert "Error: failed" in refused(Damaged, EXAMPLES / "example.darshan")


def test_answer_of_a_library_that_died_afterwards_is_not_trusted(tmp_path, monkeypatch):
    source = process.CHILD.read_text()
    replace_child(monkeypatch, tmp_path, source.replace("    main()\n", "    main()\n    os.abort()\n"))
    assert "signal 6" in refused(Damaged, EXAMPLES / "example.darshan")


def test_logs_with_more_than_is_looked_at_are_said_to_be_incomplete(tmp_path, monkeypatch):
    source = process.CHILD.read_text()
    source = source.replace("MOST_FILES = 200_000", "MOST_FILES = 3").replace(
        "MOST_SEGMENTS = 400_000", "MOST_SEGMENTS = 10"
    )
    log = write_log(tmp_path / "a.darshan", own("write", 5, 8, 4096), 5, dxt=True)
    whole = read_here(log)
    assert len(whole.files) == 5 and whole.traced and not any("left out" in note for note in whole.notes)
    replace_child(monkeypatch, tmp_path, source)
    part = read_log(log)
    assert len(part.files) == 3 and any("2 records were left out" in note for note in part.notes)
    assert not part.traced and any("DXT has more requests" in note for note in part.notes)
    assert part.job.nodes is None and all(not file.writes.traced_sizes for file in part.files)


def test_missing_library_is_said(tmp_path, monkeypatch):
    replace_child(
        monkeypatch,
        tmp_path,
        'import os, sys\nos.write(int(sys.argv[2]), b\'{"error": "no-library", "text": "No module named darshan"}\')',
    )
    assert "pip install darshan" in refused(LibraryMissing, EXAMPLES / "example.darshan")
