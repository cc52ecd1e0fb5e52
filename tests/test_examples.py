"""The files in examples/ run as they say, on less data; tests/models/test_outside_model.py has more on maxsim.py."""

import re
import shlex
from pathlib import Path

import pytest

from tests.commands import tercet

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "examples").glob("*.py"))
SMALL = ("--epochs", "1", "--batch-size", "30")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_runs_as_it_says(file, tmp_path):
    (shown,) = re.findall(r"^ *tercet (.*)$", file.read_text(), flags=re.MULTILINE)
    shown, replaced = re.subn(r"\bscenes\S*", "scenes:30", shown)
    assert replaced == 1
    done = tercet(*shlex.split(shown), *SMALL, "--runs", tmp_path, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*/weights.safetensors"))
