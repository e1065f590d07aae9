"""The command line as the program `bivouac` calls it: exit codes, and one line on the standard error."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import synthetic
from synthetic import characterization, exploration, storage, transfer

from bivouac_analysis import __version__
from bivouac_analysis.__main__ import DEBUG, main


def module(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `python3 -m bivouac_analysis`."""
    command = [sys.executable, "-m", "bivouac_analysis", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False, env=os.environ | environment)


def test_a_report_end_to_end(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "one", exploration({"A": {0: 1e6, 2: 4e6}}))
    synthetic.write(tmp_path / "two", [*exploration({"A": {0: 1e6, 2: 4e6}}, started=5.0), '{"kind":'])
    done = module("explore-report", "one", "two", "--html", "out.html", "--csv", "tables", cwd=tmp_path)
    assert done.returncode == 0 and not done.stdout
    assert done.stderr.count("\n") == 1 and "two, line 14: the last line is cut" in done.stderr
    assert "24 runs ended well" in (tmp_path / "out.html").read_text()
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        f"{name}.csv" for name in ("patterns", "bandwidth", "choices", "pairs", "overall", "runs", "failures")
    }
    synthetic.write(tmp_path / "three", characterization([storage("tmp")], [transfer("tmp", 1e8)]))
    # As in a batch job whose home directory is missing, where matplotlib has no place for its caches.
    done = module("characterize-report", "three", "--html", "other.html", cwd=tmp_path, HOME="/no", MPLCONFIGDIR="/proc/no")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "three", "out.html", "other.html", "tables"}, (
        "nothing is left over"
    )


def test_data_that_cannot_be_used_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text('{"kind":"exploration","version":99}\n')
    done = module("explore-report", "bad", "--html", "out.html", cwd=tmp_path)
    assert done.returncode == 1 and not done.stdout and done.stderr.count("\n") == 1
    assert done.stderr.startswith("bivouac-analysis: bad, line 1: the file has version 99") and "install" in done.stderr
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize("command", ["explore-report", "characterize-report"])
@pytest.mark.parametrize("content", ["", "\n", "no", "{}", "[]", '{"kind":"run"}\n', '{"kind":"exploration"}\n', "\x00" * 99])
def test_bad_files_give_one_line(tmp_path: Path, command: str, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a\nb").write_text(content)
    assert main([command, str(tmp_path / "a\nb"), "--html", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "defect" not in said and ": " in said


@pytest.mark.parametrize(
    "arguments",
    [[], ["explore-report"], ["explore-report", "f"], ["characterize-report", "a", "b", "--html", "o"], ["other"], ["--no"]],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and "usage:" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out == f"bivouac-analysis {__version__}\n"


def test_reports_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(synthetic.write(tmp_path / "f", exploration({"A": {0: 1e6}})))
    (tmp_path / "old").mkdir()
    for more in (
        ["--html", str(tmp_path / "no" / "out")],
        ["--html", str(tmp_path / ("x" * 300))],
        ["--html", str(tmp_path / "old")],
        ["--html", str(tmp_path / "out"), "--csv", path],
    ):
        assert main(["explore-report", path, *more]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "cannot write" in said
    assert {each.name for each in tmp_path.iterdir()} == {"f", "old"}, "nothing is left over"


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "f", exploration({"A": {0: 1e6}}, repetitions=1))
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        assert main(["explore-report", str(path), "--html", str(pipe)]) == 0
        assert reader.stdout.read().endswith("</html>\n")
    assert pipe.is_fifo()
    link.symlink_to(target)
    for _ in range(2):  # The first time there is no target.
        assert main(["explore-report", str(path), "--html", str(link)]) == 0
        assert link.is_symlink() and target.is_file()
    assert {each.name for each in tmp_path.iterdir()} == {"f", "pipe", "link", "target"}


@pytest.mark.parametrize(("command", "name"), [("advise", "advice.command"), ("patterns-from", "darshan.patterns")])
def test_other_commands_get_what_follows(command: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[list[str]] = []
    other = types.ModuleType(name)
    other.main = lambda arguments: got.append(arguments) or 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"bivouac_analysis.{name}", other)
    assert main([command, "log", "--json", "--help"]) == 7 and got == [["log", "--json", "--help"]]


def test_a_defect_gives_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken = types.ModuleType("advise")
    broken.main = lambda arguments: 1 // 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bivouac_analysis.advice.command", broken)
    monkeypatch.delenv(DEBUG, raising=False)
    assert main(["advise"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "ZeroDivisionError" in said and DEBUG in said
    monkeypatch.setenv(DEBUG, "1")
    with pytest.raises(ZeroDivisionError):
        main(["advise"])


def test_reports_load_no_darshan_and_no_pyplot() -> None:
    """Loading them would take seconds, and a report must not fail because of a library that it does not use."""
    code = (
        "import sys, bivouac_analysis.explore.report, bivouac_analysis.characterize.report;"
        "sys.exit(bool({'darshan', 'matplotlib.pyplot', 'scikit_posthocs'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
