"""Reads a Darshan log into a summary of what the program did to its files.

Darshan records, for each file, counters of the requests that a program issued: how many, how large, in which order. `read_log` has
PyDarshan read a log of version 3 and returns a `LogSummary`: the job, and the use of each file.

Every failure is a `LogError`. What a log cannot tell is left open: O_DIRECT is not recorded by Darshan at all; the number of nodes is
known only if DXT (Darshan's extended tracing) names the hosts; STDIO has no request sizes.
"""

import os
from dataclasses import dataclass

from .errors import NoPosix
from .header import check_header
from .process import run_child
from .use import BIN_LIMITS, Direction, FileUse


@dataclass(frozen=True)
class StdioUse:
    files: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class Job:
    command: str
    """The program with its arguments, as far as the log has them. Sites may have them replaced by a number."""
    processes: int
    run_time: float
    started: int
    job_id: int
    nodes: int | None
    """None: the log does not say."""


@dataclass(frozen=True)
class LogSummary:
    log: str
    version: str
    library: str
    job: Job
    files: tuple[FileUse, ...]
    stdio: StdioUse
    mounts: tuple[tuple[str, str], ...]
    """Mount points and types of file systems on the machine of the job."""
    traced: bool
    """DXT is there, and all of it was read."""
    notes: tuple[str, ...]
    """What the log does not say, or says only in part: one sentence each."""

    def file_system_of(self, path: str) -> str | None:
        """The type of the file system that `path` was on during the job."""
        fitting = [mount for mount in self.mounts if path == mount[0] or path.startswith(mount[0].rstrip("/") + "/")]
        return max(fitting, key=lambda mount: len(mount[0]))[1] if fitting else None

    @property
    def read_bytes(self) -> int:
        return sum(file.reads.bytes for file in self.files)

    @property
    def written_bytes(self) -> int:
        return sum(file.writes.bytes for file in self.files)

    @property
    def metadata_seconds(self) -> float:
        return sum(file.metadata_seconds for file in self.files)

    @property
    def data_seconds(self) -> float:
        return sum(file.reads.seconds + file.writes.seconds for file in self.files)


def read_log(path: str | os.PathLike[str], time_limit: float = 120.0) -> LogSummary:
    """Reads a log. Every failure is a `LogError`."""
    path = os.fspath(path)
    check_header(path)
    found = run_child(path, time_limit)
    return summary_of(path, found)


def summary_of(path: str, found: dict) -> LogSummary:
    if found["posix"] is None:
        has = ", ".join(sorted(found["modules"])) or "nothing"
        raise NoPosix(
            f"{path} has no POSIX module (it has {has}): run the program with Darshan's POSIX module switched on"
        )
    processes, notes = found["processes"], []
    dxt = found["dxt"]
    traced = bool(dxt) and dxt["complete"] and not found["modules"]["DXT_POSIX"]["partial"]
    traces = {(trace["id"], trace["operation"]): trace for trace in dxt["files"]} if dxt else {}
    mpi = {file["id"]: file["sums"] for file in found["mpi"]["files"]} if found["mpi"] else {}
    names = found["names"]
    files = tuple(
        file_use(
            names.get(file["id"], f"(file {file['id']})"), file, mpi.get(file["id"], {}), traces, processes, traced
        )
        for file in found["posix"]["files"]
    )
    nodes = nodes_of(dxt, traced, processes)

    for module, what in found["modules"].items():
        if what["partial"]:
            notes.append(
                f"Darshan ran out of memory for its {module} module: the log does not have all files or requests."
            )
    left_out = sum(found[place]["left_out"] for place in ("posix", "mpi", "stdio") if found[place])
    if left_out:
        notes.append(f"The log has more files than are told apart here: {left_out} records were left out.")
    if not found["names_read"]:
        notes.append("Names of files in the log are not UTF-8: files are given by numbers.")
    if not found["mounts_read"]:
        notes.append("The log's table of mounts cannot be read: on what file systems the files were is not known.")
    if dxt and not dxt["complete"]:
        notes.append(
            "DXT has more requests than are looked at here: sizes and gaps are of the first ones only, and are not used."
        )
    if nodes is None:
        notes.append("The log does not say on how many nodes the program ran: only DXT names hosts.")
    notes.append("Darshan does not record O_DIRECT: whether the program goes past the page cache is not known.")
    stdio = StdioUse(0, 0, 0)
    if found["stdio"]:
        sums = [file["sums"] for file in found["stdio"]["files"]]
        stdio = StdioUse(
            len(sums), sum(s.get("BYTES_READ", 0) for s in sums), sum(s.get("BYTES_WRITTEN", 0) for s in sums)
        )
    if any(file.collective for file in files):
        notes.append(
            "MPI-IO made collective calls: the POSIX requests are those of its aggregators, "
            "and which processes these were is known only with DXT."
        )
    job = Job(found["executable"].strip(), processes, found["run_time"], found["started"], found["job_id"], nodes)
    return LogSummary(
        path,
        found["version"],
        found["library"],
        job,
        files,
        stdio,
        tuple((str(place), str(kind)) for place, kind in found["mounts"]),
        traced,
        tuple(notes),
    )


def nodes_of(dxt: dict | None, traced: bool, processes: int) -> int | None:
    """The hosts that DXT names, if it has seen every process. A process without requests is not in it."""
    if processes == 1:
        return 1
    if not dxt or not traced or not dxt["hosts"] or len(dxt["ranks"]) < processes:
        return None
    return len(dxt["hosts"])


def file_use(path: str, file: dict, mpi: dict, traces: dict, processes: int, traced: bool) -> FileUse:
    sums, ranks = file["sums"], frozenset(file["ranks"])
    everybody = -1 in ranks

    def direction(one: str, many: str, written: str, who: str) -> Direction:
        requests = int(sums.get(many, 0))
        if not requests:
            return Direction()
        trace = traces.get((file["id"], one.lower())) if traced else None
        if trace and trace["requests"] != requests:
            trace = None
        if trace:
            participants, known = len(trace["ranks"]), True
        elif -1 in file[who]:
            participants, known = min(processes, requests), processes == 1
        else:
            participants, known = len(file[who]), True
        gaps = trace["gaps"] if trace else 0
        mean_gap = trace["sum_of_gaps"] / gaps if trace and gaps else None
        return Direction(
            bytes=int(sums.get(written, 0)),
            requests=requests,
            consecutive=int(sums.get(f"CONSEC_{many}", 0)),
            sequential=int(sums.get(f"SEQ_{many}", 0)),
            sizes={name: int(sums[f"SIZE_{one}_{name}"]) for name in BIN_LIMITS if sums.get(f"SIZE_{one}_{name}")},
            traced_sizes={int(size): int(count) for size, count in trace["sizes"]} if trace else {},
            participants=participants,
            participants_known=known,
            first_accesses=participants,
            traced_order=(trace["followers"], trace["consecutive"], trace["sequential"]) if trace else None,
            start=file["first"].get(one),
            end=file["last"].get(one),
            seconds=float(sums.get(f"{one}_TIME", 0.0)),
            median_gap=trace["median_gap"] if trace and gaps else None,
            mean_gap=mean_gap,
        )

    return FileUse(
        path=path,
        files=1,
        shared=(everybody and processes > 1) or len(ranks) > 1,
        ranks=ranks,
        reads=direction("READ", "READS", "BYTES_READ", "readers"),
        writes=direction("WRITE", "WRITES", "BYTES_WRITTEN", "writers"),
        common_sizes={int(size): int(count) for size, count in file["accesses"]},
        strides={int(stride): int(count) for stride, count in file["strides"]},
        opens=int(sums.get("OPENS", 0)),
        stats=int(sums.get("STATS", 0)),
        seeks=int(sums.get("SEEKS", 0)),
        fsyncs=int(sums.get("FSYNCS", 0) + sums.get("FDSYNCS", 0)),
        mmaps=int(sums.get("MMAPS", 0)),
        switches=int(sums.get("RW_SWITCHES", 0)),
        metadata_seconds=float(sums.get("META_TIME", 0.0)),
        largest_offset=int(file["largest"]),
        collective=int(mpi.get("COLL_READS", 0) + mpi.get("COLL_WRITES", 0)),
        independent=int(mpi.get("INDEP_READS", 0) + mpi.get("INDEP_WRITES", 0)),
    )
