"""Puts the report of a characterization together."""

from pathlib import Path

from ..page import Page
from ..tables import Table, write_csv
from . import figures, measures, tables, words
from .measures import Measured, Varies
from .results import Characterization, read_characterization


def characterize_report(file: Path, html: Path, csv: Path | None) -> None:
    """Reads a characterization and writes its report, and its tables if a directory for them is given."""
    page, all_tables = build(read_characterization(file))
    if csv is not None:
        write_csv(all_tables, csv)
    page.write(html)


def build(found: Characterization) -> tuple[Page, list[Table]]:
    """The page and the tables of the report."""
    measured, flooded, rates = measures.transfers(found), measures.floods(found), measures.rates(found)
    costs = measures.fsync_costs(measured)
    names = list(found.storages)
    storages, transfers, fsync = tables.storages(found), tables.transfers(measured), tables.fsync(costs)
    floods, growth, metadata = tables.floods(flooded), tables.growth(flooded), tables.metadata(rates)

    page = Page("Characterization of storage")
    page.section("What was measured")
    page.points(words.what_was_measured(found))
    page.warn(*words.what_is_doubtful(measured, flooded))

    page.section("Findings")
    for title, sentences in (
        ("Reading and writing", words.of_transfers(measured)),
        ("fsync", words.of_fsync(costs)),
        ("Floods of small files", words.of_floods(flooded)),
        ("Metadata", words.of_metadata(rates)),
    ):
        if sentences:
            page.heading(title)
            page.points(sentences)

    if measured:
        page.section("Bandwidth")
        page.say(
            "Points are medians, and whiskers reach to the least and the greatest repetition. Hollow points may have measured memory."
        )
        _bandwidths(page, measured, names)
        page.table(transfers)
    if costs:
        page.section("The cost of fsync")
        page.table(fsync)
    if flooded:
        page.section("Floods of small files")
        page.figure(
            figures.floods_figure(flooded, names),
            "The time of floods. Dashed lines are linear in the number of files, from each storage's smallest flood.",
        )
        page.table(growth)
        page.table(floods)
    if rates:
        page.section("Metadata")
        page.figure(figures.metadata_figure(rates, names), "Rates of metadata operations over the number of processes.")
        page.table(metadata)
    page.section("Storages")
    page.table(storages)
    return page, [storages, transfers, fsync, floods, growth, metadata]


def _bandwidths(page: Page, measured: list[Measured], storages: list[str]) -> None:
    """A figure for each kind of transfer, over whatever varies in its measurements."""
    for kind in sorted({each.kind for each in measured}):
        of_kind = [each for each in measured if each.kind == kind]
        for varies in Varies:
            line = measures.cut(of_kind, varies)
            if line is not None:
                caption = f"{kind.words().capitalize()} over the {figures.AXES[varies]}; {line.words()}."
                page.figure(figures.transfer_figure(of_kind, line, storages), caption)
