"""Text-text from a dataset to search: passages and queries, with frozen features and with two text towers."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import tercet as library
from tercet import runs
from tests.commands import inside, tercet

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "text_text.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]


def make_texts(*arguments, cwd):
    """`python examples/text_pairs.py ...` in this process."""
    with inside(cwd), pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["text_pairs.py", *map(str, arguments)])
        runpy.run_path(str(ROOT / "examples" / "text_pairs.py"), run_name="__main__")


def passages_of(folder):
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    return {line["_id"]: line["text"] for line in map(json.loads, lines)}


def test_heads_and_towers_train_evaluate_mine_and_search(tmp_path):
    make_texts("scenes:18", "texts", "--distractors", 3, "--limit", 18, cwd=tmp_path)
    passages = passages_of(tmp_path / "texts")
    tercet("features", "texts", "features", "--text-encoder", "bag-of-words", cwd=tmp_path, check=True)
    small = ("--epochs", 1, "--batch-size", 16, "--runs", "runs")
    towers = ("texts", "--model", "text-towers", "--model-settings", "embed_dim=8", "word_dim=4")
    for name, given in {"heads": ("features", "--model-settings", "embed_dim=8"), "towers": towers}.items():
        trained = tercet("train", *given, *small, cwd=tmp_path, check=True)
        assert "passage to query" in trained.stdout
        assert "validation passage -> query R@1" in trained.stdout + trained.stderr
        (run,) = (tmp_path / "runs").glob(f"*_{name}_*") if name == "heads" else (tmp_path / "runs").glob("*towers*")
        assert runs.read_sides(run).images == "passages"
        evaluated = tercet("evaluate", run, "--data", given[0], cwd=tmp_path, check=True)
        assert "query to passage" in evaluated.stdout
        mined = tercet("mine", run, "--out", f"mined_{name}", cwd=tmp_path, check=True)
        assert f"{len(passages)} passages with up to" in mined.stdout
        tercet("index", run, "--images", "texts", "--out", f"index_{name}", cwd=tmp_path, check=True)
        found = tercet("search", f"index_{name}", "a red square", "--k", 3, "--json", cwd=tmp_path, check=True)
        hits = json.loads(found.stdout)
        assert [passages[hit["path"]] for hit in hits] == [hit["text"] for hit in hits]
        shown = tercet("search", f"index_{name}", "a red square", "--k", 1, cwd=tmp_path, check=True).stdout
        assert re.search(r"rank +similarity +passage +text", shown)
        model = library.load(run)
        best = model.embed_passages(list(passages.values())) @ model.embed_texts(["a red square"])[0]
        assert list(passages)[int(best.argmax())] == hits[0]["path"]
        refused = tercet("search", f"index_{name}", "--image", "x.jpg", cwd=tmp_path)
        assert (refused.returncode, "holds passages" in refused.stderr) == (2, True)
    refused = tercet("data", "convert", "texts", "converted", cwd=tmp_path)
    assert (refused.returncode, "only images with captions can be converted" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_the_commands_of_the_page_run_as_shown(tmp_path):
    """On captions of scenes, as the page says; what it names exists afterwards."""
    assert len(COMMANDS) >= 9
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        if program == "python":
            assert arguments[0] == "examples/text_pairs.py"
            make_texts(*arguments[1:], cwd=tmp_path)
            continue
        assert program == "tercet"
        expanded = [part for each in arguments for part in _paths(each, tmp_path)]
        done = tercet(*expanded, cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    reports = list((tmp_path / "runs").glob("comparison_*/report.html"))
    assert len(reports) == 1
    assert "Query to passage" in reports[0].read_text()


def _paths(argument, folder):
    """What the shell would make of a pattern."""
    found = sorted(folder.glob(argument)) if "*" in argument else []
    return [str(path.relative_to(folder)) for path in found] or [argument]
