"""Pages of results are written from their lines by a command: no number by hand."""

import importlib.util
import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def made():
    spec = importlib.util.spec_from_file_location("make_results", RESULTS / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(file.stem for file in RESULTS.glob("*.jsonl")))
def test_a_page_is_what_its_lines_say(name):
    module = made()
    assert (RESULTS / f"{name}.md").read_text() == module.PAGES[name](module.read(name))
    for line in module.read(name):
        assert "/" not in line["settings"]["data"]
        assert len(line["ranks"]) == 16
        json.dumps(line)


def test_there_are_results():
    assert list(RESULTS.glob("*.jsonl"))
