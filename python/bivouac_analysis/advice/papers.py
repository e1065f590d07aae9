"""What is said where nothing near was measured: published measurements of other machines, marked as such."""

from dataclasses import dataclass

from ..darshan.log import LogSummary
from ..darshan.phases import Phase
from .nearest import Manner, distance, manner_of, size
from .recommendations import ForwardingAdvice, StorageAdvice, Way
from .storages import flood_of


@dataclass(frozen=True)
class Published:
    """A pattern of FORGE's table 2, all of them writes with O_DIRECT, and the best number of I/O nodes on two machines."""

    name: str
    nodes: int
    manner: Manner
    marenostrum: int
    santos_dumont: int


def published() -> list[Published]:
    table = """
        A 32 1536 own contiguous 1024 0 0
        B 32 1536 own contiguous 128 8 0
        C 32 1536 shared contiguous 1024 2 2
        D 32 1536 shared contiguous 4096 2 4
        E 32 1536 shared strided 512 2 2
        F 16 192 shared contiguous 32 2 8
        G 16 192 shared strided 128 8 4
        H 8 192 own contiguous 8192 8 0
        I 8 192 shared strided 8192 2 4
        J 16 384 shared contiguous 128 4 4
        K 16 384 shared contiguous 8192 2 4
        L 32 384 shared strided 4096 1 4
        M 32 384 shared strided 512 1 4
        N 8 384 shared contiguous 4096 2 2
        O 16 768 shared contiguous 1024 4 4
        P 32 768 shared contiguous 1024 2 4
        Q 16 768 shared strided 1024 2 2
        R 8 96 own contiguous 8192 8 8
        S 8 96 shared strided 6144 2 2
        T 8 96 shared contiguous 512 2 4
    """
    rows = [line.split() for line in table.split("\n") if line.strip()]
    return [
        Published(
            name, int(nodes), Manner("write", layout, spatiality, int(request) << 10, int(processes)), int(mn), int(sd)
        )
        for name, nodes, processes, layout, spatiality, request, mn, sd in rows
    ]



def forwarding_from_paper(phases: list[Phase]) -> ForwardingAdvice:
    """What FORGE's authors measured on their machines for the pattern that is nearest to the phase with most bytes."""
    advice = ForwardingAdvice(measured=False)
    writes = [phase for phase in phases if phase.operation != "read"]
    advice.cautions.append(
        "Nothing near was measured here: what is said of forwarding is from published measurements on other "
        "machines. Measure with `bivouac explore run` before you rely on it."
    )
    if not writes:
        advice.words.append(
            "The program mainly reads, and the published measurements are of writes only: "
            "nothing can be said of forwarding."
            if phases
            else "There are no reads or writes to advise on."
        )
        return advice
    phase = max(writes, key=lambda one: one.total)
    pattern = min(published(), key=lambda one: distance(manner_of(phase), one.manner).value)
    far = distance(manner_of(phase), pattern.manner)
    place = (
        f"FORGE's pattern {pattern.name} ({pattern.manner.layout}, {pattern.manner.spatiality}, {size(pattern.manner.request)}, "
        f"{pattern.manner.processes} processes; distance {far.value:.2f}: {far.words})"
    )
    if far.far:
        advice.words.append(f"Even the nearest published pattern is far: {place}. Nothing is concluded from it.")
        return advice
    if not far.close:
        advice.cautions.append(
            f"The nearest published pattern is not close to the program's (distance {far.value:.2f})."
        )
    numbers = sorted({pattern.marenostrum, pattern.santos_dumont})
    advice.words.append(
        f"Nearest published is {place}. Best there were {pattern.marenostrum} I/O nodes on MareNostrum 4 (GPFS) and "
        f"{pattern.santos_dumont} on Santos Dumont (Lustre). Not measured here."
    )
    advice.words.append(
        "Of 189 scenarios on MareNostrum 4, none was best in 33%, 1 in 6%, 2 in 44%, 4 in 8% and 8 in 9%: "
        "there is no rule that fits all."
    )
    if numbers == [0]:
        advice.way = Way(0)
        advice.words.append("Both say: do not forward.")
    elif 0 in numbers:
        advice.words.append(
            "The two machines contradict each other, so forwarding is not recommended without measuring."
        )
    else:
        advice.way = Way(numbers[0], "to", "file" if phase.layout == "shared" else "node")
        advice.words.append(
            f"To try: {advice.way.words}."
            if len(numbers) == 1
            else f"To try first: {advice.way.words}, then {numbers[-1]}."
        )
    if advice.way and advice.way.assign == "file":
        advice.words.append(
            "All requests for a shared file should go to one I/O node, where they can be merged: --assign file."
        )
    return advice



def storage_from_papers(summary: LogSummary, phases: list[Phase]) -> StorageAdvice:
    advice = StorageAdvice(measured=False)
    advice.cautions.append(
        "What is said of storage is from published measurements on other machines, and was not measured here: "
        "measure with `bivouac characterize`."
    )
    flood = flood_of(summary)
    if flood:
        where = "the node's memory (tmpfs)" if not any(file.shared for file in flood) else "a deployment of Bivouac"
        advice.words.append(
            f"The program uses {len(flood)} files, most of them small. Published: up to a million files from 36 processes "
            f"took tmpfs 5 s and Lustre hours, growing with the square of their number, and some were empty. Keep such "
            f"files in {where} while the job runs, and copy out what is needed. Not measured here."
        )
        return advice
    if not phases:
        return advice
    heaviest = max(phases, key=lambda phase: phase.total)
    if heaviest.request <= 64 << 10 or heaviest.spatiality == "random":
        advice.words.append(
            f"Most bytes are in {'random' if heaviest.spatiality == 'random' else 'small'} requests of "
            f"{size(heaviest.request)}. Published: for random accesses and requests of up to 64 KiB, storage of flash "
            f"behind NFS (VAST) was as fast as GPFS; caches do not help. Prefer flash, or a deployment of Bivouac. "
            f"Not measured here."
        )
    else:
        advice.words.append(
            f"Most bytes are in {heaviest.spatiality} requests of {size(heaviest.request)}. Published: for large requests in "
            f"order, parallel file systems on the fast network (GPFS, Lustre) scaled furthest. Stay with the site's "
            f"parallel file system. Not measured here."
        )
    return advice
