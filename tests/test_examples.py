"""The files in examples/ run as they say, on less data; tests/models/test_outside_model.py has more on maxsim.py."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import tercet

ROOT = Path(__file__).parents[1]
FILES = sorted(file for file in (ROOT / "examples").glob("*.py") if file.stem != "text_pairs")
SMALL = ("--epochs", "1", "--batch-size", "30")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_runs_as_it_says(file, tmp_path):
    (shown,) = re.findall(r"^ *tercet (.*)$", file.read_text(), flags=re.MULTILINE)
    shown, replaced = re.subn(r"\bscenes\S*", "scenes:30", shown)
    assert replaced == 1
    done = tercet(*shlex.split(shown), *SMALL, "--runs", tmp_path, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*/weights.safetensors"))


def test_captions_become_queries_and_passages(tmp_path):
    script = ROOT / "examples" / "text_pairs.py"
    subprocess.run([sys.executable, script, "scenes:30", tmp_path / "texts", "--distractors", "4"], check=True)
    files = sorted(str(file.relative_to(tmp_path / "texts")) for file in (tmp_path / "texts").rglob("*.*"))
    assert files == ["corpus.jsonl", "qrels/dev.tsv", "qrels/test.tsv", "qrels/train.tsv", "queries.jsonl"]
    done = tercet("data", "inspect", tmp_path / "texts")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^train +200 +26 ", done.stdout, flags=re.MULTILINE), done.stdout
