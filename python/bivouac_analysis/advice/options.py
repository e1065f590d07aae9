"""What to write into a batch script: for each advice a command, and what it is for."""

import posixpath
import shlex

from ..darshan.log import LogSummary
from ..darshan.phases import Phase
from .recommendations import ForwardingAdvice, StorageAdvice


def main_directory(phases: list[Phase], operations: tuple[str, ...] = ("write", "read", "mixed")) -> str | None:
    """The directory of the files with most bytes."""
    fitting = [phase for phase in phases if phase.operation in operations and phase.group.path.startswith("/")]
    if not fitting:
        return None
    group = max(fitting, key=lambda phase: phase.total).group
    directory = group.path if group.files > 1 else posixpath.dirname(group.path)
    return directory if directory != "/" else None


def forwarded_directory(phases: list[Phase], summary: LogSummary) -> tuple[str | None, list[str]]:
    """What to give `--forward`: the directory above all that carries bytes, if it is not too much; and what stays outside."""
    directories = [directory for phase in phases if (directory := main_directory([phase]))]
    if not directories:
        return None, []
    above = posixpath.commonpath(directories)
    mounts = {mount for mount, _ in summary.mounts}
    same = len({summary.file_system_of(directory) for directory in directories}) == 1
    if same and (above.count("/") >= 2 or above in mounts and above != "/"):
        return above, []
    heaviest = main_directory(phases)
    return heaviest, sorted({d for d in directories if d != heaviest and not d.startswith(f"{heaviest}/")})


def options_for(
    phases: list[Phase], forwarding: ForwardingAdvice, storage: StorageAdvice, directory: str | None
) -> list[dict]:
    """What to write in a batch script: for each advice a command and what it is for. `directory` is to be forwarded."""
    options = []
    quoted = shlex.quote(main_directory(phases) or "DIR")
    if storage.measured and storage.kind == "deployment":
        command = "bivouac run --hosts nodes.txt"
        for operations, option, form in (
            (("read", "mixed"), "--preload", "{}:/data"),
            (("write", "mixed"), "--flush-on-exit", "/data:{}"),
        ):
            if any(phase.operation in operations for phase in phases):
                place = (main_directory(phases, operations) or "DIR").replace("\\", "\\\\").replace(":", "\\:")
                command += f" {option} {shlex.quote(form.format(place))}"
        options.append(
            {
                "for": "a deployment; the program uses /bivouac/data instead of the directory",
                "command": command + " -- PROGRAM",
            }
        )
    if storage.measured and storage.kind == "node-local" and storage.storage:
        local = shlex.quote(storage.storage.directory)
        options.append(
            {
                "for": "storage of the node; the program uses this directory, and results are copied out at the end",
                "command": f"PROGRAM && cp -r {local}/RESULTS {quoted}",
            }
        )
    way = forwarding.way
    if way and way.io_nodes:
        command = f"bivouac run --hosts nodes.txt --forward {shlex.quote(directory or 'DIR')} --io-nodes {way.io_nodes}"
        command += (
            "".join(
                f" {option} {shlex.quote(value)}"
                for option, value in (("--assign", way.assign), ("--scheduler", way.scheduler))
                if value
            )
            + " -- PROGRAM"
        )
        purpose = "forwarding" if forwarding.measured else "forwarding, to try: not measured here"
        options.append({"for": f"{purpose}{'; instead of the storage above' if options else ''}", "command": command})
    return options
