"""`advise LOG [--with RESULTS]... [--json]`: the command line of the advice."""

import argparse
import json
from pathlib import Path

from ..characterize.results import Characterization
from ..darshan.log import read_log
from ..explore.results import Exploration
from .advice import advise, as_text
from .results import read_results


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bivouac_analysis advise", description="Says what a program does with files, and how to run it for that."
    )
    parser.add_argument("log", metavar="LOG", help="a Darshan log of version 3")
    parser.add_argument(
        "--with",
        metavar="RESULTS",
        dest="results",
        action="append",
        default=[],
        help="results of `explore run` or of `characterize`; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the advice as JSON")
    try:
        options = parser.parse_args(args)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    said: list[str] = []
    results = [read_results(Path(path), said.append) for path in options.results]
    found = advise(
        read_log(options.log),
        [each for each in results if isinstance(each, Exploration)],
        [each for each in results if isinstance(each, Characterization)],
        said,
    )
    try:
        print(json.dumps(found, indent=2) if options.json else as_text(found), flush=True)
    except BrokenPipeError:
        return 1
    return 0
