"""The program that reads one Darshan log and prints what it contains as JSON.

`process.py` runs it as a process of its own, because the C library behind PyDarshan prints to stderr,
aborts on failed assertions and can crash when a log is damaged. It is started by its path, outside of the
package, and imports nothing of the package. It writes one JSON object to the file descriptor that its second
argument names, and nothing else there.

PyDarshan does not pass on most of the C library's error codes. What the library prints ("Error: ...") is
therefore read by the parent, which does not trust the JSON of a process that printed such a line.
"""

import json
import os
import resource
import sys
from collections import Counter

# More files than this are not told apart. The summary says that it is incomplete.
MOST_FILES = 200_000
# DXT has a segment for each request. After so many, the rest is not looked at.
MOST_SEGMENTS = 400_000
# A hostile log can inflate to anything.
MOST_MEMORY = 8 << 30
# The parent has a time limit and ends this process. If the parent was killed, this one ends nevertheless.
MOST_PROCESSOR_SECONDS = 900
# What the library prints goes to a file.
MOST_COMPLAINTS = 16 << 20

BINS = ["0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS"]


def positive(value):
    """Darshan has -1 where it did not monitor something."""
    return max(int(value), 0)


class Files:
    """The records of one module, summed up by file."""

    def __init__(self, backend, module, prefix):
        self.counters = {name: i for i, name in enumerate(backend.counter_names(module))}
        self.times = {name: i for i, name in enumerate(backend.fcounter_names(module))}
        self.prefix = prefix
        self.files = {}
        self.left_out = 0

    def add(self, record):
        key = int(record["id"])
        file = self.files.get(key)
        if file is None:
            if len(self.files) >= MOST_FILES:
                self.left_out += 1
                return
            file = self.files[key] = {
                "ranks": set(),
                "readers": set(),
                "writers": set(),
                "sums": Counter(),
                "first": {},
                "last": {},
                "accesses": Counter(),
                "strides": Counter(),
                "largest": 0,
            }
        counters, times, prefix = record["counters"], record["fcounters"], self.prefix
        file["ranks"].add(int(record["rank"]))

        def count(name):
            place = self.counters.get(f"{prefix}_{name}")
            return 0 if place is None else positive(counters[place])

        for name in (
            "OPENS",
            "FDOPENS",
            "READS",
            "WRITES",
            "SEEKS",
            "STATS",
            "MMAPS",
            "FSYNCS",
            "FDSYNCS",
            "FLUSHES",
            "RENAME_SOURCES",
            "BYTES_READ",
            "BYTES_WRITTEN",
            "CONSEC_READS",
            "CONSEC_WRITES",
            "SEQ_READS",
            "SEQ_WRITES",
            "RW_SWITCHES",
            "FILE_NOT_ALIGNED",
            "INDEP_READS",
            "INDEP_WRITES",
            "COLL_READS",
            "COLL_WRITES",
            "INDEP_OPENS",
            "COLL_OPENS",
            "SYNCS",
        ):
            value = count(name)
            if value:
                file["sums"][name] += value
        for name, who in (("READS", "readers"), ("WRITES", "writers")):
            if count(name):
                file[who].add(int(record["rank"]))
        for operation in ("READ", "WRITE"):
            for part in BINS:
                value = count(f"SIZE_{operation}_{part}")
                if value:
                    file["sums"][f"SIZE_{operation}_{part}"] += value
        for i in "1234":
            if count(f"ACCESS{i}_COUNT"):
                file["accesses"][count(f"ACCESS{i}_ACCESS")] += count(f"ACCESS{i}_COUNT")
            if count(f"STRIDE{i}_COUNT"):
                file["strides"][count(f"STRIDE{i}_STRIDE")] += count(f"STRIDE{i}_COUNT")
        file["largest"] = max(file["largest"], count("MAX_BYTE_READ"), count("MAX_BYTE_WRITTEN"))

        def time(name):
            place = self.times.get(f"{prefix}_F_{name}")
            value = 0.0 if place is None else float(times[place])
            return value if value > 0 and value < 1e12 else 0.0

        for name in ("READ_TIME", "WRITE_TIME", "META_TIME"):
            file["sums"][name] += time(name)
        for name in ("OPEN", "READ", "WRITE", "CLOSE"):
            start, end = time(f"{name}_START_TIMESTAMP"), time(f"{name}_END_TIMESTAMP")
            if start:
                file["first"][name] = min(file["first"].get(name, start), start)
            if end:
                file["last"][name] = max(file["last"].get(name, end), end)

    def plain(self):
        for key, file in self.files.items():
            yield {
                "id": str(key),
                "ranks": sorted(file["ranks"]),
                "readers": sorted(file["readers"]),
                "writers": sorted(file["writers"]),
                "sums": dict(file["sums"]),
                "first": file["first"],
                "last": file["last"],
                "accesses": file["accesses"].most_common(64),
                "strides": file["strides"].most_common(16),
                "largest": file["largest"],
            }


def read_module(backend, log, module, prefix):
    files = Files(backend, module, prefix)
    while (record := backend.log_get_record(log, module)) is not None:
        files.add(record)
    return {"files": list(files.plain()), "left_out": files.left_out}


def read_traces(backend, log):
    """DXT: for each file and operation the sizes, the processes, and the time that a process lets pass between two requests."""
    hosts, ranks, traces, streams = set(), set(), {}, {}
    segments, complete = 0, True
    while (record := backend.log_get_record(log, "DXT_POSIX")) is not None:
        if segments > MOST_SEGMENTS:
            complete = False
            break
        rank, key = int(record["rank"]), int(record["id"])
        if record["hostname"]:
            hosts.add(record["hostname"])
        ranks.add(rank)
        for operation in ("read", "write"):
            parts = record[f"{operation}_segments"]
            if not parts:
                continue
            trace = traces.setdefault(
                (key, operation),
                {
                    "sizes": Counter(),
                    "ranks": set(),
                    "gaps": [],
                    "requests": 0,
                    "followers": 0,
                    "consecutive": 0,
                    "sequential": 0,
                },
            )
            trace["ranks"].add(rank)
            trace["requests"] += len(parts)
            segments += len(parts)
            # The order of the large requests. Small ones between them, such as those of a file format for its own tables,
            # would make a contiguous access look strided.
            large = max(int(part["length"]) for part in parts) // 8
            end = None
            for part in parts:
                if int(part["length"]) < large:
                    continue
                if end is not None:
                    trace["followers"] += 1
                    trace["consecutive"] += int(part["offset"]) == end
                    trace["sequential"] += int(part["offset"]) >= end
                end = int(part["offset"]) + int(part["length"])
            for part in parts:
                trace["sizes"][int(part["length"])] += 1
                streams.setdefault(rank, []).append(
                    (float(part["start_time"]), float(part["end_time"]), key, operation)
                )
    for stream in streams.values():
        stream.sort()
        for before, after in zip(stream, stream[1:]):
            if before[2:] == after[2:]:
                traces[after[2:]]["gaps"].append(max(0.0, after[0] - before[1]))
    result = []
    for (key, operation), trace in traces.items():
        gaps = sorted(trace["gaps"])
        result.append(
            {
                "id": str(key),
                "operation": operation,
                "sizes": trace["sizes"].most_common(64),
                "ranks": sorted(trace["ranks"]),
                "requests": trace["requests"],
                "gaps": len(gaps),
                "followers": trace["followers"],
                "consecutive": trace["consecutive"],
                "sequential": trace["sequential"],
                "median_gap": gaps[len(gaps) // 2] if gaps else 0.0,
                "sum_of_gaps": sum(gaps),
            }
        )
    return {"hosts": sorted(hosts), "ranks": sorted(ranks), "complete": complete, "files": result}


def text(read, otherwise):
    """Names in a log need not be UTF-8, which PyDarshan takes for granted."""
    try:
        return read(), True
    except UnicodeDecodeError:
        return otherwise, False


def read(path):
    try:
        import darshan
        import darshan.backend.cffi_backend as backend
    except ImportError as error:
        return {"error": "no-library", "text": str(error)}
    log = backend.log_open(path)
    if log["handle"] == backend.ffi.NULL:
        return {"error": "not-opened", "text": ""}
    job, _ = text(lambda: backend.log_get_job(log), None)
    if job is None or job["nprocs"] < 1:
        return {"error": "damaged", "text": "the record of the job cannot be read"}
    names, names_read = text(lambda: backend.log_get_name_records(log), {})
    executable, _ = text(lambda: backend.log_get_exe(log), "")
    mounts, _ = text(lambda: backend.log_get_mounts(log), [])
    modules = backend.log_get_modules(log)
    found = {
        "library": darshan.__version__,
        "version": job["log_ver"],
        "processes": int(job["nprocs"]),
        "job_id": int(job["jobid"]),
        "run_time": float(job["run_time"]),
        "started": int(job["start_time_sec"]),
        "executable": executable,
        "mounts": mounts,
        "names_read": names_read,
        "modules": {name: {"partial": bool(module["partial_flag"])} for name, module in modules.items()},
        "posix": None,
        "mpi": None,
        "stdio": None,
        "dxt": None,
    }
    for place, module, prefix in (("posix", "POSIX", "POSIX"), ("mpi", "MPI-IO", "MPIIO"), ("stdio", "STDIO", "STDIO")):
        if module in modules:
            found[place] = read_module(backend, log, module, prefix)
    if "DXT_POSIX" in modules:
        found["dxt"] = read_traces(backend, log)
    needed = {file["id"] for place in ("posix", "mpi", "stdio") if found[place] for file in found[place]["files"]}
    found["names"] = {str(key): name for key, name in names.items() if str(key) in needed}
    backend.log_close(log)
    return found


def main():
    path, descriptor = sys.argv[1], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_COMPLAINTS, MOST_COMPLAINTS))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_PROCESSOR_SECONDS, MOST_PROCESSOR_SECONDS))
    try:
        found = read(path)
    except MemoryError:
        found = {"error": "damaged", "text": "reading it takes more memory than any real log"}
    except Exception as error:  # PyDarshan raises whatever a damaged record leads to.
        found = {"error": "damaged", "text": f"{type(error).__name__}: {error}"}
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump(found, out)


if __name__ == "__main__":
    main()
