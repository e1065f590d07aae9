"""What docs/python.md shows, as it is shown."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import bivouac
import pytest

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(number, tmp_path):
    assert len(SNIPPETS) >= 4
    if "import torch" in SNIPPETS[number] and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed here: scripts/torch-test.sh installs it and runs this snippet")
    done = subprocess.run([sys.executable, "-c", SNIPPETS[number]], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_one_says_what_it_should(tmp_path):
    said = subprocess.run([sys.executable, "-c", SNIPPETS[0]], capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert re.fullmatch(r"/data/new/table\.csv 8 \['.+'\]\n", said)
    assert os.path.exists(bivouac.program())
