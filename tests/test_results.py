"""Result pages are generated from their JSON lines: no number is typed by hand."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import tercet

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def make_module():
    spec = importlib.util.spec_from_file_location("make_results", RESULTS / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(file.stem for file in RESULTS.glob("*.jsonl")))
def test_a_page_is_generated_from_its_lines(name):
    module = make_module()
    assert (RESULTS / f"{name}.md").read_text() == module.PAGES[name](module.read(name))
    for line in module.read(name):
        if name == "hosts":  # measurements of other packages, not runs
            assert line["version"]
            continue
        assert "/" not in line["settings"]["data"]
        assert len(line["ranks"]) == 16
        json.dumps(line)


def test_the_line_of_a_run_contains_no_path_of_a_custom_objective(tmp_path):
    file = tmp_path / "deep" / "own.py"
    file.parent.mkdir()
    file.write_text("def pull(S, positives):\n    return -positives.float()\n")
    objective = f"{file}:pull"
    settings = {"objective": objective, "warmup_objective": objective, "warmup_objective_epochs": 1}
    run = tercet.train(data="scenes:60", epochs=2, runs=tmp_path, **settings).folder
    line = make_module().line_of(run)
    assert line["settings"]["objective"] == line["settings"]["warmup_objective"] == "own.py:pull"
    assert "_heads_own.py_pull_s0_" in line["id"]
    assert "deep" not in run.name
    assert not {"pytest", "deep"} & set(re.findall(r"[a-z]+", json.dumps(line)))


def test_there_are_results():
    assert list(RESULTS.glob("*.jsonl"))
