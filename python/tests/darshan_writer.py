"""Writes Darshan logs for the tests, with the C library that PyDarshan ships.

The logs that come with PyDarshan are of real runs, but there are few of them. Here a test says what the
processes of a job did, and gets the log that Darshan would have written: counters are derived from the
requests in the way that Darshan's runtime does it.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import darshan.backend.cffi_backend as backend

MODULES = {"POSIX": (1, 4), "MPI-IO": (2, 3), "STDIO": (9, 2), "DXT_POSIX": (10, 1)}
LIMITS = [
    ("0_100", 100),
    ("100_1K", 1 << 10),
    ("1K_10K", 10 << 10),
    ("10K_100K", 100 << 10),
    ("100K_1M", 1 << 20),
    ("1M_4M", 4 << 20),
    ("4M_10M", 10 << 20),
    ("10M_100M", 100 << 20),
    ("100M_1G", 1 << 30),
    ("1G_PLUS", 1 << 62),
]


@dataclass
class Request:
    rank: int
    operation: str
    offset: int
    length: int
    start: float = 0.0
    end: float = 0.0


@dataclass
class File:
    path: str
    requests: list[Request] = field(default_factory=list)
    fsyncs: int = 0
    collective: int = 0
    only_opened_by: tuple[int, ...] = ()


class Job(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("uid", "start", "start_ns", "end", "end_ns", "nprocs", "jobid")] + [
        ("metadata", ctypes.c_char * 1024)
    ]


class NameReference(ctypes.Structure):
    """A name with the links of a uthash table, of which the library follows only `next` when it writes."""

    _fields_ = [
        ("record", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("prev", ctypes.c_void_p),
        ("next", ctypes.c_void_p),
        ("hash_prev", ctypes.c_void_p),
        ("hash_next", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("key_length", ctypes.c_uint),
        ("hash_value", ctypes.c_uint),
    ]


class Mount(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_char * 3015), ("path", ctypes.c_char * 3015)]


def library() -> ctypes.CDLL:
    import darshan

    place = Path(darshan.__file__).parent.parent / "darshan.libs"
    lib = ctypes.CDLL(str(next(place.glob("libdarshan-util*"))))
    lib.darshan_log_create.restype = ctypes.c_void_p
    lib.darshan_log_create.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    lib.darshan_log_put_job.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.darshan_log_put_exe.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    lib.darshan_log_put_namehash.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.darshan_log_put_mod.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    lib.darshan_log_put_mounts.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    lib.darshan_log_close.argtypes = [ctypes.c_void_p]
    return lib


def write_log(
    path: Path,
    files: list[File],
    processes: int,
    *,
    command: str = "/home/me/simulate run7",
    dxt: bool = False,
    per_node: int | None = None,
    reduce: bool = True,
    stdio_bytes: int = 0,
) -> Path:
    """Writes the log of a job. `reduce`: files of all processes get one record, as with MPI."""
    lib = library()
    log = lib.darshan_log_create(str(path).encode(), 0, 0)
    assert log
    job = Job(1000, 1_700_000_000, 0, 1_700_000_060, 0, processes, 4711, b"lib_ver=3.4.1\n")
    assert lib.darshan_log_put_job(log, ctypes.byref(job)) == 0
    assert lib.darshan_log_put_exe(log, command.encode()) == 0
    mounts = (Mount * 1)(Mount(b"lustre", b"/scratch"))
    assert lib.darshan_log_put_mounts(log, mounts, 1) == 0
    put_names(lib, log, {number_of(file.path): os.fsencode(file.path) for file in files})
    posix, mpi, traces = [], [], []
    for file in files:
        everybody = {request.rank for request in file.requests} == set(range(processes)) and processes > 1
        if everybody and reduce:
            posix.append(posix_record(file, -1, file.requests))
        else:
            posix += [
                posix_record(file, rank, [r for r in file.requests if r.rank == rank])
                for rank in sorted({r.rank for r in file.requests} | set(file.only_opened_by))
            ]
        if file.collective:
            mpi.append(record("MPI-IO", number_of(file.path), -1, {"MPIIO_COLL_WRITES": file.collective}, {}))
        if dxt:
            traces += [
                dxt_record(file, rank, per_node or processes) for rank in sorted({r.rank for r in file.requests})
            ]
    for module, records in (("POSIX", posix), ("MPI-IO", mpi)):
        for data in records:
            put(lib, log, module, data)
    if stdio_bytes:
        put(
            lib,
            log,
            "STDIO",
            record("STDIO", number_of("<STDOUT>"), 0, {"STDIO_BYTES_WRITTEN": stdio_bytes, "STDIO_WRITES": 1}, {}),
        )
    for data in traces:
        put(lib, log, "DXT_POSIX", data)
    lib.darshan_log_close(log)
    return path


def number_of(path: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.sha256(os.fsencode(path)).digest()[:8], "little")


def put_names(lib, log, names: dict[int, bytes]) -> None:
    keep, references = [], []
    for number, name in names.items():
        record = ctypes.create_string_buffer(number.to_bytes(8, "little") + name + b"\0" * 8)
        keep.append(record)
        references.append(NameReference(record=ctypes.addressof(record)))
    for before, after in zip(references, references[1:]):
        before.next = ctypes.addressof(after)
    if references:
        assert lib.darshan_log_put_namehash(log, ctypes.byref(references[0])) == 0


def put(lib, log, module: str, data: bytes) -> None:
    number, version = MODULES[module]
    assert lib.darshan_log_put_mod(log, number, data, len(data), version) == 0


def record(module: str, number: int, rank: int, counters: dict[str, int], times: dict[str, float]) -> bytes:
    names, time_names = backend.counter_names(module), backend.fcounter_names(module)
    assert set(counters) <= set(names) and set(times) <= set(time_names)
    data = number.to_bytes(8, "little") + rank.to_bytes(8, "little", signed=True)
    data += b"".join(counters.get(name, 0).to_bytes(8, "little", signed=True) for name in names)
    return data + b"".join(bytes(ctypes.c_double(times.get(name, 0.0))) for name in time_names)


def posix_record(file: File, rank: int, requests: list[Request]) -> bytes:
    counters: Counter = Counter()
    times: dict[str, float] = {}
    sizes, strides, ends, last = Counter(), Counter(), {}, {}
    for r in requests:
        one, many = ("READ", "READS") if r.operation == "read" else ("WRITE", "WRITES")
        counters[f"POSIX_{many}"] += 1
        counters["POSIX_BYTES_READ" if one == "READ" else "POSIX_BYTES_WRITTEN"] += r.length
        counters[f"POSIX_SIZE_{one}_{next(name for name, limit in LIMITS if r.length <= limit)}"] += 1
        sizes[r.length] += 1
        end = ends.get((r.rank, one), 0)
        counters[f"POSIX_SEQ_{many}"] += r.offset >= end > 0
        counters[f"POSIX_CONSEC_{many}"] += r.offset == end > 0
        if r.offset > end > 0:
            strides[r.offset - end] += 1
        ends[r.rank, one] = r.offset + r.length
        counters["POSIX_RW_SWITCHES"] += last.get(r.rank, one) != one
        last[r.rank] = one
        begin, stop = f"POSIX_F_{one}_START_TIMESTAMP", f"POSIX_F_{one}_END_TIMESTAMP"
        times[begin] = min(times.get(begin, r.start), r.start)
        times[stop] = max(times.get(stop, r.end), r.end)
        times[f"POSIX_F_{one}_TIME"] = times.get(f"POSIX_F_{one}_TIME", 0.0) + r.end - r.start
    counters["POSIX_OPENS"] = max(1, len({r.rank for r in requests}))
    counters["POSIX_FSYNCS"] = file.fsyncs
    for kind, counts in (("ACCESS", sizes), ("STRIDE", strides)):
        for i, (value, count) in enumerate(counts.most_common(4), 1):
            counters[f"POSIX_{kind}{i}_{kind}"], counters[f"POSIX_{kind}{i}_COUNT"] = value, count
    return record("POSIX", number_of(file.path), rank, counters, times)


def dxt_record(file: File, rank: int, per_node: int) -> bytes:
    writes = [r for r in file.requests if r.rank == rank and r.operation == "write"]
    reads = [r for r in file.requests if r.rank == rank and r.operation == "read"]
    data = number_of(file.path).to_bytes(8, "little") + rank.to_bytes(8, "little") + (0).to_bytes(8, "little")
    data += (
        f"node{rank // per_node}".encode().ljust(64, b"\0")
        + len(writes).to_bytes(8, "little")
        + len(reads).to_bytes(8, "little")
    )
    for r in writes + reads:
        data += r.offset.to_bytes(8, "little") + r.length.to_bytes(8, "little")
        data += bytes(ctypes.c_double(r.start)) + bytes(ctypes.c_double(r.end))
    return data


# What jobs do.


def own(
    operation: str,
    processes: int,
    count: int,
    size: int,
    *,
    directory: str = "/scratch/me/run7",
    begin: float = 1.0,
    took: float = 0.01,
    pause: float = 0.0,
) -> list[File]:
    """A file for each process, from its beginning to its end."""
    return [
        File(
            f"{directory}/part.{rank:04}",
            [
                Request(rank, operation, i * size, size, begin + i * (took + pause), begin + i * (took + pause) + took)
                for i in range(count)
            ],
        )
        for rank in range(processes)
    ]


def shared(
    operation: str,
    processes: int,
    count: int,
    size: int,
    spatiality: str,
    *,
    path: str = "/scratch/me/run7/all",
    begin: float = 1.0,
) -> File:
    """One file for all processes."""

    def offset(rank: int, i: int) -> int:
        if spatiality == "contiguous":
            return (rank * count + i) * size
        if spatiality == "strided":
            return (i * processes + rank) * size
        return ((i * 7919 + rank * 104729) % (count * processes) + 1) * size

    return File(
        path,
        [
            Request(rank, operation, offset(rank, i), size, begin + i * 0.01, begin + i * 0.01 + 0.005)
            for rank in range(processes)
            for i in range(count)
        ],
    )
