"""The command line: `python3 -m bivouac_analysis COMMAND`, which the program `bivouac` calls.

Exit codes: 0 if the work is done, 1 if the data cannot be used (one line on the standard error says what to do), 2 for wrong usage.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .errors import Unusable, printable

PROGRAM = "bivouac-analysis"
# With this variable set, a defect of this package shows its traceback.
DEBUG = "BIVOUAC_ANALYSIS_DEBUG"


def parser() -> argparse.ArgumentParser:
    """The arguments of the reports. `advise` and `patterns-from` have parsers of their own, which get what follows the command."""
    whole = argparse.ArgumentParser(prog=PROGRAM, description="Reports and advice from what Bivouac measures.")
    whole.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")

    explore = commands.add_parser(
        "explore-report", help="how many I/O nodes each access pattern wants, from `bivouac explore run`"
    )
    explore.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="results; several files of one exploration may be given"
    )
    characterize = commands.add_parser(
        "characterize-report", help="which storage suits which accesses, from `bivouac characterize`"
    )
    characterize.add_argument("file", type=Path, metavar="FILE", help="results")
    for command in (explore, characterize):
        command.add_argument("--html", type=Path, required=True, metavar="OUT", help="where the report goes (one HTML file)")
        command.add_argument("--csv", type=Path, metavar="DIR", help="a directory for the report's tables as CSV files")

    for name, words in (
        ("advise", "what to change, from a Darshan log"),
        ("patterns-from", "a patterns file for `bivouac explore`, from a Darshan log"),
    ):
        commands.add_parser(name, help=words, add_help=False)
    return whole


def run(arguments: Sequence[str]) -> int:
    """Carries a command out. Each imports what it needs itself, because others would take seconds to load."""
    # Where the home directory cannot be written to, as in many batch jobs, matplotlib would complain when it is imported.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    if arguments[:1] == ["advise"]:
        from .advice.command import main as advise

        return advise(list(arguments[1:]))
    if arguments[:1] == ["patterns-from"]:
        from .darshan.patterns import main as patterns_from

        return patterns_from(list(arguments[1:]))
    options = parser().parse_args(arguments)
    if options.command == "explore-report":
        from .explore.report import explore_report

        explore_report(options.files, options.html, options.csv)
    else:
        from .characterize.report import characterize_report

        characterize_report(options.file, options.html, options.csv)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Carries a command out and turns what goes wrong into one line and an exit code."""
    try:
        return run(sys.argv[1:] if arguments is None else list(arguments))
    except Unusable as error:
        said = str(error)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # A defect of this package. Users get one line in this case, too.
        if os.environ.get(DEBUG):
            raise
        said = f"this is a defect of {PROGRAM} ({type(error).__name__}: {error}): report it, with what {DEBUG}=1 shows"
    print(f"{PROGRAM}: {printable(said)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
