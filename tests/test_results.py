"""Pages of results are written from their lines by a command: no number by hand."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import tercet

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


def test_the_line_of_a_run_says_nowhere_where_its_own_objective_lies(tmp_path):
    file = tmp_path / "deep" / "own.py"
    file.parent.mkdir()
    file.write_text("def pull(S, positives):\n    return -positives.float()\n")
    objective = f"{file}:pull"
    given = {"objective": objective, "first_objective": objective, "first_epochs": 1}
    run = tercet.train(data="scenes:60", epochs=2, runs=tmp_path, **given).folder
    line = made().line_of(run)
    assert line["settings"]["objective"] == line["settings"]["first_objective"] == "own.py:pull"
    assert "_heads_own.py_pull_s0_" in line["id"]
    assert "deep" in run.name or "pytest" in run.name
    assert not {"pytest", "deep"} & set(re.findall(r"[a-z]+", json.dumps(line)))


def test_there_are_results():
    assert list(RESULTS.glob("*.jsonl"))
