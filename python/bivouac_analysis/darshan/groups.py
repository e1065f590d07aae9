"""Puts files together that were used alike: one group of the thousands of files of a program with a file for each process."""

import math
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable

from .use import Direction, FileUse


def groups(every: Iterable[FileUse]) -> list[FileUse]:
    """The files put together by how they were used, the groups with most bytes first."""
    alike: dict[tuple, list[FileUse]] = {}
    for file in every:
        alike.setdefault(manner_of(file), []).append(file)
    return sorted(
        (together(files) for files in alike.values()), key=lambda group: (-group.bytes, -group.requests, group.path)
    )


def manner_of(file: FileUse) -> tuple:
    manner: list = [file.shared, file.mixed]
    for direction in (file.reads, file.writes):
        if direction.requests:
            size = file.request_size(direction).bytes
            manner.append((direction.spatiality, round(math.log2(size)) if size else 0))
            if file.shared:
                manner.append(direction.participants)
        else:
            manner.append(None)
    return tuple(manner)


def together(files: list[FileUse]) -> FileUse:
    if len(files) == 1:
        return files[0]
    ranks = frozenset().union(*(file.ranks for file in files))

    def add(counts: list[dict]) -> dict:
        total: Counter = Counter()
        for some in counts:
            total.update(some)
        return dict(total)

    def both(of: Callable[[FileUse], Direction]) -> Direction:
        parts = [of(file) for file in files if of(file).requests]
        if not parts:
            return Direction()
        known = all(part.participants_known for part in parts)
        if files[0].shared:
            participants = max(part.participants for part in parts)
        else:
            participants = len(frozenset().union(*(file.ranks for file in files if of(file).requests)))
        starts = [part.start for part in parts if part.start is not None]
        ends = [part.end for part in parts if part.end is not None]
        gaps = sorted(part.median_gap for part in parts if part.median_gap is not None)
        means = [part.mean_gap for part in parts if part.mean_gap is not None]
        traced = all(part.traced_sizes for part in parts)
        orders = [part.traced_order for part in parts if part.traced_order is not None]
        followers, consecutive, sequential = (sum(order[i] for order in orders) for i in range(3))
        order = (followers, consecutive, sequential) if len(orders) == len(parts) else None
        return Direction(
            bytes=sum(part.bytes for part in parts),
            requests=sum(part.requests for part in parts),
            consecutive=sum(part.consecutive for part in parts),
            sequential=sum(part.sequential for part in parts),
            sizes=add([part.sizes for part in parts]),
            traced_sizes=add([part.traced_sizes for part in parts]) if traced else {},
            participants=participants,
            participants_known=known,
            first_accesses=sum(part.first_accesses for part in parts),
            traced_order=order,
            start=min(starts, default=None),
            end=max(ends, default=None),
            seconds=sum(part.seconds for part in parts),
            median_gap=gaps[len(gaps) // 2] if gaps else None,
            mean_gap=sum(means) / len(means) if means else None,
        )

    return FileUse(
        path=common_directory([file.path for file in files]),
        files=len(files),
        shared=files[0].shared,
        ranks=ranks,
        reads=both(lambda file: file.reads),
        writes=both(lambda file: file.writes),
        common_sizes=add([file.common_sizes for file in files]),
        strides=add([file.strides for file in files]),
        opens=sum(file.opens for file in files),
        stats=sum(file.stats for file in files),
        seeks=sum(file.seeks for file in files),
        fsyncs=sum(file.fsyncs for file in files),
        mmaps=sum(file.mmaps for file in files),
        switches=sum(file.switches for file in files),
        metadata_seconds=sum(file.metadata_seconds for file in files),
        largest_offset=max(file.largest_offset for file in files),
        collective=sum(file.collective for file in files),
        independent=sum(file.independent for file in files),
    )


def common_directory(paths: list[str]) -> str:
    """The deepest directory above all paths, or "" if there is none (names that are numbers or relative)."""
    if not paths or not all(path.startswith("/") for path in paths):
        return ""
    return posixpath.commonpath([posixpath.dirname(path) for path in paths])
