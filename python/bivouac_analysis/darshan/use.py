"""What a program did to a file, as Darshan counted it.

The properties here turn Darshan's counters into the words of a patterns file: how requests follow on one another, of which size those
are that carry the bytes, whether reading and writing alternate. `log` makes these records from logs.
"""

import math
from dataclasses import dataclass, field

BIN_LIMITS = {
    "0_100": 100,
    "100_1K": 1 << 10,
    "1K_10K": 10 << 10,
    "10K_100K": 100 << 10,
    "100K_1M": 1 << 20,
    "1M_4M": 4 << 20,
    "4M_10M": 10 << 20,
    "10M_100M": 100 << 20,
    "100M_1G": 1 << 30,
    "1G_PLUS": math.inf,
}
"""The bins of Darshan's histograms of request sizes, each with the largest size that belongs to it."""
SEQUENTIAL = 0.75
"""The share of requests that have to follow on the one before for a file to count as accessed in that way."""


@dataclass(frozen=True)
class Direction:
    """All reads, or all writes, of a file or of a group of files. Times are seconds since the start of the job."""

    bytes: int = 0
    requests: int = 0
    consecutive: int = 0
    """Requests that begin where the one before of the same process ended."""
    sequential: int = 0
    """Requests that begin behind the one before of the same process; the consecutive ones are among them."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Requests by the bins of BIN_LIMITS."""
    traced_sizes: dict[int, int] = field(default_factory=dict)
    """Requests by size, from DXT. Empty if DXT has not seen all of them."""
    participants: int = 0
    """Processes that issued these requests; an upper limit where `participants_known` is false."""
    participants_known: bool = True
    first_accesses: int = 0
    """Pairs of a process and a file: so many requests have no request before them."""
    traced_order: tuple[int, int, int] | None = None
    """DXT, large requests only: those that have one before them, the consecutive and the sequential ones among these."""
    start: float | None = None
    end: float | None = None
    seconds: float = 0.0
    """Time in these calls, summed over the processes."""
    median_gap: float | None = None
    """DXT: the time that a process typically lets pass between two requests of this kind."""
    mean_gap: float | None = None

    @property
    def order(self) -> tuple[float, float]:
        """The consecutive and the sequential requests, as shares of those that have a request before them."""
        if self.traced_order:
            followers, consecutive, sequential = self.traced_order
        else:
            followers = self.requests - min(self.first_accesses, self.requests)
            consecutive, sequential = self.consecutive, self.sequential
        if followers <= 0:
            return 1.0, 1.0
        return min(1.0, consecutive / followers), min(1.0, sequential / followers)

    @property
    def spatiality(self) -> str:
        """As in a patterns file: "contiguous", "strided" or "random"."""
        consecutive, sequential = self.order
        if consecutive >= SEQUENTIAL:
            return "contiguous"
        return "strided" if sequential >= SEQUENTIAL else "random"


@dataclass(frozen=True)
class RequestSize:
    bytes: int
    exact: bool
    """True: a size that occurs, and that carries most of the bytes. False: a mean."""
    requests: int
    """How many have this size; of a mean, all."""


@dataclass(frozen=True)
class FileUse:
    """How a file, or a group of files, was used by POSIX calls."""

    path: str
    """Of a group: the directory that its files have in common."""
    files: int
    shared: bool
    """Several processes opened the same file."""
    ranks: frozenset[int]
    """The processes that opened it; -1 stands for all."""
    reads: Direction
    writes: Direction
    common_sizes: dict[int, int]
    """ACCESS1..4: the most frequent request sizes with their counts, reads and writes together."""
    strides: dict[int, int]
    """STRIDE1..4: the most frequent distances from the end of a request to the beginning of the next one."""
    opens: int
    stats: int
    seeks: int
    fsyncs: int
    mmaps: int
    switches: int
    """How often a process went from reading to writing or back."""
    metadata_seconds: float
    largest_offset: int
    collective: int
    """Collective MPI-IO calls for it. Where there are any, the POSIX requests are those of MPI-IO's aggregators."""
    independent: int

    @property
    def bytes(self) -> int:
        return self.reads.bytes + self.writes.bytes

    @property
    def requests(self) -> int:
        return self.reads.requests + self.writes.requests

    @property
    def mixed(self) -> bool:
        """Processes read and write in turn, instead of one after the other."""
        fewer = min(self.reads.requests, self.writes.requests)
        # Two switches of a process are no more than write, read, write.
        expected = 2 * max(self.reads.first_accesses, self.writes.first_accesses)
        return (
            fewer > 0
            and self.switches > expected
            and self.switches >= 0.25 * fewer
            and min(self.reads.bytes, self.writes.bytes) >= 0.05 * self.bytes
        )

    def request_size(self, direction: Direction) -> RequestSize:
        """The size of the requests that carry the bytes. Many small requests beside a few large ones do not count."""
        if direction.requests == 0 or direction.bytes == 0:
            return RequestSize(0, True, 0)
        if direction.traced_sizes:
            counts = direction.traced_sizes
        else:
            # The counters do not tell reads from writes, but the histograms do.
            counts = {
                size: min(count, direction.sizes.get(bin_of(size), 0)) for size, count in self.common_sizes.items()
            }
        size, count = max(counts.items(), key=lambda item: item[0] * item[1], default=(0, 0))
        if size * count >= 0.5 * direction.bytes:
            return RequestSize(size, True, count)
        mean = direction.bytes / direction.requests
        size = round(mean / 4096) * 4096 if mean >= 4096 else max(1, round(mean))
        return RequestSize(size, False, direction.requests)


def bin_of(size: int) -> str:
    return next(name for name, limit in BIN_LIMITS.items() if size <= limit)
