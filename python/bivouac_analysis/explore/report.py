"""Puts the report of an exploration together."""

from collections.abc import Sequence
from pathlib import Path

from ..page import Page
from ..tables import Table, write_csv
from . import figures, tables, words
from .choices import Choice, choose_all, overall
from .results import Exploration, read_exploration


def explore_report(files: Sequence[Path], html: Path, csv: Path | None) -> None:
    """Reads the files of one exploration and writes its report, and its tables if a directory for them is given."""
    exploration = read_exploration(files)
    choices = choose_all(exploration)
    page, all_tables = build(exploration, choices)
    if csv is not None:
        write_csv(all_tables, csv)
    page.write(html)


def build(exploration: Exploration, choices: list[Choice]) -> tuple[Page, list[Table]]:
    """The page and the tables of the report."""
    ranking = overall(choices)
    bandwidths, chosen = tables.bandwidths(choices), tables.choices_table(choices)
    pairs, one_for_all, failures = tables.pairs(choices), tables.overall_table(ranking), tables.failures(exploration)
    patterns = tables.patterns(exploration)

    page = Page("Exploration of I/O forwarding")
    page.section("What was run")
    page.points(words.what_was_run(exploration))
    page.warn(*words.what_went_wrong(exploration, choices))

    page.section("Findings")
    page.points(words.findings(choices, ranking))
    page.figure(
        figures.choices_figure(choices, exploration.io_nodes),
        "(a) How many numbers of I/O nodes make a significant difference to a pattern. (b) How many patterns want which number of I/O nodes.",
    )

    page.section("Bandwidth of each pattern")
    page.say(
        "Boxes are quartiles, and whiskers reach to the last run within 1.5 times the height of the box; further runs are points. The line "
        "is the median, the diamond the mean. Scales differ from pattern to pattern."
    )
    for at, figure in enumerate(figures.bandwidth_figures(choices)):
        first, last = at * figures.PATTERNS, min((at + 1) * figures.PATTERNS, len(choices)) - 1
        page.figure(
            figure, f"Bandwidth over the number of I/O nodes, patterns {choices[first].pattern} to {choices[last].pattern}."
        )
    page.points([words.of_pattern(choice) for choice in choices])

    page.section("Choices")
    page.table(chosen)
    page.table(one_for_all)

    page.section("How much the data can tell")
    page.say(
        "Kruskal-Wallis compares all numbers of I/O nodes of a pattern. If it finds a difference (p ≤ 0.05), pairs are compared, with Holm's "
        "correction for their number. “Not significantly worse” means that these runs do not show a difference; it does not mean that there is none."
    )
    page.points(words.of_repetitions(choices))
    page.table(pairs)

    page.section("Bandwidth and requests")
    page.table(bandwidths)
    page.section("Patterns")
    page.table(patterns)
    if not failures.frame.empty:
        page.section("Runs that do not count")
        page.table(failures)
    return page, [patterns, bandwidths, chosen, pairs, one_for_all, tables.runs(exploration), failures]
