"""Which storage for a program: the site's file system, a deployment of Bivouac, or storage of the node itself.

With results of `characterize`, the storages that the program can use are compared by the time that its bytes
take at the bandwidths that were measured in the manner nearest to the program's; a program that makes floods
of small files, by the files per second. Measurements that only saw the page cache are left out. Without
results, there is a word from published measurements.
"""

import math
from dataclasses import dataclass

from ..characterize.results import Characterization, Storage, Transfer
from ..darshan.log import LogSummary
from ..darshan.phases import Phase
from ..darshan.use import FileUse
from .gain import ENOUGH, seconds, times_faster
from .nearest import FAR, counted, size
from .papers import storage_from_papers
from .recommendations import StorageAdvice
from .storages import KINDS, MEMORY, flood_of, kind_of, storage_of_program, unsuitable


@dataclass(frozen=True)
class Manner:
    """What a transfer was measured with, other than the storage."""

    operation: str
    access: str
    fsync: bool
    request: int
    nodes: int
    processes: int

    @property
    def words(self) -> str:
        return (
            f"{self.access} {self.operation}s of {size(self.request)} by {counted(self.processes, 'process')} on {counted(self.nodes, 'node')}"
            f"{' with fsync' if self.fsync else ''}"
        )


def advise_storage(summary: LogSummary, phases: list[Phase], found: list[Characterization]) -> StorageAdvice:
    if not found:
        return storage_from_papers(summary, phases)
    advice = StorageAdvice(measured=True)
    used = found[0]
    if len(found) > 1:
        advice.cautions.append(f"Storages of different files of results are not compared: only {used.source} was used.")
    usable = []
    lossy = {flood.storage for flood in used.floods if flood.whole < flood.files}
    for storage in used.storages.values():
        why = unsuitable(storage, summary, phases)
        if storage.name in lossy:
            why = "it did not have all files whole after a flood of them"
        if why:
            advice.cautions.append(f"{storage.name} ({storage.file_system}) is left out: {why}.")
        else:
            usable.append(storage)
    flood = flood_of(summary)
    if flood:
        compare_floods(advice, used, usable, flood, summary)
    else:
        compare_transfers(advice, used, usable, phases, summary)
    if advice.storage is None:
        papers = storage_from_papers(summary, phases)
        advice.measured = False
        advice.words += papers.words
        advice.cautions += papers.cautions
    return advice


def memory_only(transfer: Transfer, storage: Storage) -> bool:
    """The measurement saw the page cache instead of the storage. Storage that is memory has no other."""
    reached = transfer.operation == "write" and transfer.fsync
    return transfer.cached and not reached and storage.file_system not in MEMORY


def compare_transfers(
    advice: StorageAdvice, used: Characterization, usable: list[Storage], phases: list[Phase], summary: LogSummary
) -> None:
    if not phases:
        advice.words.append("The program makes no reads or writes that a storage could be chosen by.")
        return
    samples: dict[str, dict[Manner, list[float]]] = {storage.name: {} for storage in usable}
    cached = 0
    for transfer in used.transfers:
        if transfer.storage not in samples or not transfer.bandwidth:
            continue
        if memory_only(transfer, used.storages[transfer.storage]):
            cached += 1
            continue
        manner = Manner(
            transfer.operation, transfer.access, transfer.fsync, transfer.request, transfer.nodes, transfer.processes
        )
        samples[transfer.storage].setdefault(manner, []).append(transfer.bandwidth)
    if cached:
        advice.cautions.append(
            f"{cached} measurements saw the page cache and not the storage (cached): they are left out. "
            f"Characterize with files larger than memory."
        )
    measured = [storage for storage in usable if samples[storage.name]]
    chosen: list[Manner] = []
    for phase in phases:
        # Storages are compared by the same manner. Those that were not measured in it are left out.
        fitting = {
            manner
            for storage in measured
            for manner in samples[storage.name]
            if manner.operation == operation_of(phase)
        }
        if not fitting:
            advice.cautions.append(
                f"No {operation_of(phase)}s were measured on {' or '.join(s.name for s in usable) or 'any storage'} "
                f"in a manner that can be used: nothing is compared."
            )
            return

        def order(manner: Manner) -> tuple:
            far = farness(phase, manner)
            return far > FAR, -sum(manner in samples[storage.name] for storage in measured), far, manner.words

        manner = min(fitting, key=order)
        for storage in measured:
            if manner not in samples[storage.name]:
                advice.cautions.append(f"{storage.name} is left out: it has no measurement of {manner.words}.")
        measured = [storage for storage in measured if manner in samples[storage.name]]
        chosen.append(manner)
    amounts = [float(phase.total) for phase in phases]
    ways = {storage.name: [samples[storage.name][manner] for manner in chosen] for storage in measured}
    rank(advice, used, measured, amounts, ways, summary, "; ".join(dict.fromkeys(manner.words for manner in chosen)))
    for i, (phase, manner) in enumerate(zip(phases, chosen), 1):
        if farness(phase, manner) > FAR:
            advice.cautions.append(f"What was measured is not close to phase {i}: {manner.words}.")
    if any(phase.operation == "mixed" for phase in phases):
        advice.cautions.append(
            "Reading and writing in turn was not measured: the operation with more bytes stands for both."
        )


def operation_of(phase: Phase) -> str:
    if phase.operation != "mixed":
        return phase.operation
    return "read" if phase.group.reads.bytes > phase.group.writes.bytes else "write"


def farness(phase: Phase, manner: Manner) -> float:
    access = "random" if phase.spatiality == "random" else "sequential"
    return (
        2.0 * (access != manner.access)
        + 1.0 * (phase.fsync != manner.fsync)
        + 0.5 * abs(math.log2(phase.request / manner.request))
        + 0.25 * abs(math.log2(phase.processes / manner.processes))
    )


def compare_floods(
    advice: StorageAdvice, used: Characterization, usable: list[Storage], flood: list[FileUse], summary: LogSummary
) -> None:
    advice.words.append(
        f"The program uses {len(flood)} files of {size(sum(file.bytes for file in flood) / len(flood))} on average: "
        f"names cost more than bytes, so storages are compared by files per second."
    )
    mean = max(1.0, sum(file.bytes for file in flood) / len(flood))
    names = {storage.name for storage in usable}
    by_manner: dict[tuple, dict[str, list[float]]] = {}
    for one in used.floods:
        if one.storage in names and one.create_seconds + one.read_seconds > 0:
            rate = one.files / (one.create_seconds + one.read_seconds)
            by_manner.setdefault((one.files, one.size, one.processes), {}).setdefault(one.storage, []).append(rate)
    most = max((len(rates) for rates in by_manner.values()), default=0)
    if not most:
        advice.cautions.append("No flood of files was measured: nothing is compared.")
        return
    processes = summary.job.processes
    manner, rates = min(
        ((manner, rates) for manner, rates in by_manner.items() if len(rates) == most),
        key=lambda item: (
            abs(math.log2(mean / max(1, item[0][1])))
            + abs(math.log2(len(flood) / item[0][0]))
            + abs(math.log2(processes / item[0][2])),
            item[0],
        ),
    )
    measured = [storage for storage in usable if storage.name in rates]
    rank(
        advice,
        used,
        measured,
        [float(len(flood))],
        {name: [some] for name, some in rates.items()},
        summary,
        f"{manner[0]} files of {size(manner[1])} by {counted(manner[2], 'process')}, written and read",
    )


def rank(
    advice: StorageAdvice,
    used: Characterization,
    measured: list[Storage],
    amounts: list[float],
    ways: dict[str, list[list[float]]],
    summary: LogSummary,
    what: str,
) -> None:
    if not measured:
        advice.cautions.append("No storage was measured in a manner that says something of this program.")
        return
    order = sorted(measured, key=lambda storage: seconds(amounts, ways[storage.name]))
    advice.ranking = [(storage, seconds(amounts, ways[storage.name]), what) for storage in order]
    if len(order) == 1:
        advice.cautions.append(
            f"Only {order[0].name} was measured in a manner that can be used: there is nothing to compare it with."
        )
        return
    best = order[0]
    # What the program uses already, or the site's file system, stays unless another one is measurably faster.
    before = storage_of_program(summary, measured)
    if before and before != best:
        ratio = times_faster(amounts, ways[before.name], ways[best.name])
        if not ratio.distinct and ratio.low is not None:
            advice.words.append(f"{best.name} is not measurably faster than {before.name}: {ratio.words}.")
            best = before
        else:
            advice.gain, advice.over = ratio, before
    advice.storage, advice.kind = best, kind_of(best)
    advice.words.append(
        f"Use {best.name}, {best.directory} ({best.file_system}), {KINDS[advice.kind]}; measured: {what}."
    )
    if advice.gain and before:
        advice.words.append(
            f"It was {advice.gain.words} as fast as {before.name}, {before.directory} ({before.file_system})."
        )
    elif before is None:
        second = order[1] if order[0] is best else order[0]
        ratio = times_faster(amounts, ways[second.name], ways[best.name])
        advice.words.append(f"It was {ratio.words} as fast as {second.name}, the next one.")
        advice.cautions.append(
            "Which of the measured storages the program used is not known, so the gain over it is not, either."
        )
        if not ratio.distinct:
            advice.cautions.append(f"{best.name} and {second.name} cannot be told apart by these repetitions.")
    fewest = min(len(phase) for way in ways.values() for phase in way)
    if fewest < ENOUGH:
        advice.cautions.append(
            f"There are only {fewest} repetitions for some storages, and {ENOUGH} are the least for a sound interval: "
            f"characterize with more."
        )
    if advice.kind == "node-local":
        advice.cautions.append(
            "What is on a node's own storage is gone with the job, and no other node sees it: copy what is needed "
            "in at the beginning and out at the end. That time is not in the gain."
        )
    if advice.kind == "deployment" and kind_of(before or best) != "deployment":
        advice.cautions.append(
            "What is in a deployment is gone with the job unless it is flushed. The time of preload and flush is not "
            "in the gain."
        )
