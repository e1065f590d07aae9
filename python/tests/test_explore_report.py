"""The report of an exploration: what it says, and that its numbers are right."""

import statistics
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import synthetic
from conftest import Report, make_report
from synthetic import exploration, failed, header, pattern, run

from bivouac_analysis.explore import figures
from bivouac_analysis.explore.choices import choose, choose_all, overall
from bivouac_analysis.explore.results import Run, read_exploration
from bivouac_analysis.explore.words import what_went_wrong

Make = Callable[..., Report]

# A wants 4 I/O nodes; B wants none; C scatters around the same bandwidth whatever it has; D wants 2 or 4.
MEDIANS = {
    "A": {0: 1e8, 1: 2e8, 2: 3e8, 4: 4e8},
    "B": {0: 9e8, 1: 2e8, 2: 3e8, 4: 4e8},
    "C": {0: 5e8, 1: 5e8, 2: 5e8, 4: 5.001e8},
    "D": {0: 1e8, 1: 2e8, 2: 4e8, 4: 4.001e8},
}


def lines(**more: object) -> list[synthetic.Line | str]:
    return exploration(MEDIANS, repetitions=8, spread=0.05, **more)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of all patterns, and of one run that failed and one whose data was not right. It takes half a second to make."""
    data = [*lines(), failed("A", 2, 9, "<b>no space</b>"), run("B", 1, 11, 9e9, verified=False)]
    directory = tmp_path_factory.mktemp("usual")
    return make_report(directory, "explore-report", synthetic.write(directory / "f", data))


def test_choices_by_median_and_after_ties(tmp_path: Path) -> None:
    choices = {choice.pattern: choice for choice in choose_all(read_exploration([synthetic.write(tmp_path / "f", lines())]))}
    assert choices["A"].best == choices["A"].smallest == 4 and choices["A"].distinct == (0, 1, 2, 4)
    assert choices["B"].best == choices["B"].smallest == 0
    assert choices["C"].smallest == 0 and choices["C"].distinct == (0,) and not choices["C"].comparison.differs
    assert choices["D"].best in (2, 4) and choices["D"].smallest == 2 and choices["D"].distinct == (0, 1, 2)


def test_equal_medians_go_to_the_smaller_number() -> None:
    made = [run("A", io_nodes, repetition, 1e6) for io_nodes in (4, 2) for repetition in range(6)]
    choice = choose("A", [Run(**{name: line.get(name, (1e6,)) for name in Run.__dataclass_fields__}) for line in made])
    assert (choice.best, choice.smallest, choice.distinct) == (2, 2, (2,))


def test_one_number_for_all(tmp_path: Path) -> None:
    found = read_exploration(
        [synthetic.write(tmp_path / "f", exploration({"A": {0: 1e6, 2: 4e6}, "B": {0: 4e6, 2: 2e6}}, spread=0))]
    )
    first, second = overall(choose_all(found))
    assert (first.io_nodes, first.worst, first.worst_pattern) == (2, 0.5, "B") and first.share == pytest.approx(0.5**0.5)
    assert (second.io_nodes, second.worst, second.worst_pattern) == (0, 0.25, "A") and second.share == pytest.approx(0.5)


def test_numbers_in_tables_are_right(usual: Report) -> None:
    made = usual
    values = [line["bandwidth"] for line in lines()[1:] if (line["pattern"], line["io_nodes"]) == ("A", 2)]
    table = made.table("bandwidth").set_index(["pattern", "io_nodes"])
    row = table.loc["A", 2]
    assert row["median"] == pytest.approx(statistics.median(values)) and row["mean"] == pytest.approx(statistics.mean(values))
    assert (row["least"], row["greatest"], row["runs"]) == (pytest.approx(min(values)), pytest.approx(max(values)), 8)
    assert (row["requests_in"], row["requests_out"], row["merge_factor"]) == (1200, 300, 4)
    assert table.loc[("A", 0), ["requests_in", "requests_out", "merge_factor"]].isna().all(), "there were no I/O nodes"
    choices = made.table("choices").set_index("pattern")
    assert list(choices["best_by_median"])[:2] == [4, 0] and list(choices["smallest_not_worse"]) == [4, 0, 0, 2]
    assert choices.loc["A", "kruskal_wallis_p"] < 0.001 < 0.05 < choices.loc["C", "kruskal_wallis_p"]
    pairs = made.table("pairs")
    assert len(pairs) == 3 * 6 and set(pairs["by"]) == {"exact Mann-Whitney, Holm"}, "C has no difference, so no pairs"
    assert len(made.table("runs")) == 4 * 4 * 8 + 1 and len(made.table("patterns")) == 4


def test_the_mean_merge_factor_is_a_mean_of_runs(tmp_path: Path, report: Make) -> None:
    made = [run("A", 1, at, 1e6 + at, merge=factor) for at, factor in enumerate((1, 3, 8))]
    made.append(run("A", 1, 3, 1e6, requests_out=0))  # It says nothing about merging.
    result = report("explore-report", synthetic.write(tmp_path / "f", [header([pattern("A")], [1], 4), *made]))
    assert result.table("bandwidth")["merge_factor"][0] == pytest.approx(4)
    assert "A: the best by median is 1 I/O node (1 MB/s); there is nothing to compare it with." in result.text


def test_the_page_says_what_was_run_and_found(usual: Report) -> None:
    text = usual.text
    for words in (
        "4 access patterns ran in /lustre/me (lustre) on 2 nodes: n1 and n2.",
        "The numbers of I/O nodes were 0, 1, 2 and 4.",
        "scheduler “to”; requests were assigned to them by file",
        "8 repetitions of each were asked for, in random order (seed 7): 128 runs. 128 runs ended well and count.",
        "between 1.2 and 1.2",
        "1 run failed",
        "After 1 run the data was not right.",
        "<b>no space</b>",
        "Numbers of I/O nodes that make a significant difference: 1 choice for 1 pattern, 3 choices for 1 pattern and 4 choices for 2 patterns.",
        "B: the best by median is direct access (",
        "A: the best by median is 4 I/O nodes (",
        "each smaller number is significantly worse",
        "No difference is significant",
        "so direct access will do",
        "and 16 to tell all apart (11 if pairs were not corrected",
        "the exact Mann-Whitney test with Holm's correction needs 5. There are enough for the exact Mann-Whitney test",
    ):
        assert words in text, words
    assert "9 GB/s" not in text, "a run with wrong data counts nowhere"


def test_both_ways_of_counting_direct_access(tmp_path: Path, report: Make) -> None:
    medians = {"A": {0: 9e8, 1: 1e8}, "B": {0: 1e8, 1: 9e8}, "C": {0: 5e8, 1: 5.1e8}, "D": {0: 1e8, 1: 9e8}}
    data = exploration(medians, repetitions=7, spread=0.1, seed=4)
    path = synthetic.write(tmp_path / "f", data)
    assert [choice.best for choice in choose_all(read_exploration([path]))] == [0, 1, 1, 1], "or this test shows nothing"
    words = report("explore-report", path).text
    assert "greatest median for 1 of 4 (25.0 %) patterns" in words
    assert "it is direct access for 2 of 4 (50.0 %)." in words


@pytest.mark.parametrize(("repetitions", "enough"), [(4, False), (5, True)])
def test_the_page_says_whether_repetitions_are_enough(tmp_path: Path, report: Make, repetitions: int, enough: bool) -> None:
    data = exploration(MEDIANS, repetitions=repetitions)
    made = report("explore-report", synthetic.write(tmp_path / "f", data))
    assert ("too few to tell all apart" in made.text) is not enough
    assert ("repeat the exploration until there are 5" in made.text) is not enough
    assert set(made.table("choices")["can_separate_all"]) == {enough}


def test_other_bytes_than_came_are_a_warning(tmp_path: Path) -> None:
    def warnings(*more: synthetic.Line) -> list[str]:
        found = read_exploration([synthetic.write(tmp_path / "f", [*lines(), *more])])
        return what_went_wrong(found, choose_all(found))

    assert warnings() == []
    assert warnings(run("A", 2, 20, 3e8, bytes_out=7)) == [
        "In 1 run the I/O nodes issued another number of bytes than they were sent."
    ]


def test_patterns_without_runs_are_named(tmp_path: Path, report: Make) -> None:
    data = exploration({"A": {0: 1e6, 1: 2e6}})
    data[0]["patterns"].append(pattern("lonely"))
    text = report("explore-report", synthetic.write(tmp_path / "f", data)).text
    assert "no usable run of 1 pattern: lonely" in text


def test_figures_are_whole_and_plain(tmp_path: Path, report: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "PATTERNS", 5)
    many = {f"p{at}": {0: 1e6 * (at + 1), 1: 2e6} for at in range(6)}
    made = report("explore-report", synthetic.write(tmp_path / "f", exploration(many, repetitions=2)))
    assert len(made.figures) == 1 + 2, "one of choices, two of five patterns and of one"
    for figure in made.figures:
        ElementTree.fromstring(figure)
        assert "$" not in figure and "mathdefault" not in figure
    assert ">p4<" in made.figures[1] and ">p5<" in made.figures[2] and ">p5<" not in made.figures[1]
    assert "patterns p0 to p4." in made.text and "patterns p5 to p5." in made.text


def test_names_of_others_are_harmless(tmp_path: Path, report: Make) -> None:
    name = "<script>alert(1)</script>\n$\\frac{$" + "x" * 300 + "漢\u202e"
    data = exploration({name: {0: 1e6, 1: 2e6}}, repetitions=2, directory='/a"><img src=x>')
    made = report("explore-report", synthetic.write(tmp_path / "f", data))
    assert "<script" not in made.source and "<img src=x" not in made.source
    assert "http:" not in made.source and "https:" not in made.source, "the page needs nothing from elsewhere"
    assert made.table("choices")["pattern"][0] == name


@pytest.mark.parametrize("bandwidth", [0, 5e-324, 9e18])
def test_extreme_bandwidths_make_a_report(tmp_path: Path, report: Make, bandwidth: float) -> None:
    made = [run("A", io_nodes, at, bandwidth, bytes=1, bytes_in=1, bytes_out=1) for io_nodes in (0, 1) for at in range(3)]
    report("explore-report", synthetic.write(tmp_path / "f", [header([pattern("A")], [0, 1], 3), *made]))


def test_the_same_data_makes_the_same_page(tmp_path: Path, report: Make) -> None:
    path = synthetic.write(tmp_path / "f", exploration({"A": {0: 1e6, 1: 2e6}}))
    assert report("explore-report", path).source == report("explore-report", path).source
