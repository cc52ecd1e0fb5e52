"""`tercet analyse` as a user meets it: what is written, what is printed, what is refused."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from tercet import objective, runs
from tercet.dissection.analyse import _write_figures, analyse
from tercet.dissection.diagrams import chosen_epochs, diagram
from tercet.dissection.integrability import CELLS, DIFFERENCES, TABLE_1, explanations, judge, tables
from tercet.dissection.opened import open_run_folder
from tercet.dissection.settings import AnalyseSettings
from tests.dissection.small_runs import small_run
from tests.test_cli import tercet

QUIET = Console(quiet=True)


def test_figures_of_goal_need_no_run(tmp_path):
    run = tercet("analyse", "--diagram", "--out", tmp_path)
    assert run.returncode == 0, run.stderr
    for name in ("goal_figure_2", "goal_figure_3"):
        assert f"{name}.png" in run.stdout
        with Image.open(tmp_path / "figures" / f"{name}.png") as drawn:
            assert drawn.size[0] > 1000
        assert (tmp_path / "figures" / f"{name}.svg").read_text().startswith("<?xml")
    content = json.loads((tmp_path / "figures" / "goal_figure_2.json").read_text())
    assert set(content) == {"con", "nca", "cir"}


def figures(out, *arguments):
    files = analyse(AnalyseSettings(*arguments, diagram=True, objectives=("goal", "triplet"), out=out), QUIET)
    return {file.stem for file in files if file.suffix == ".png"}


def test_figures_of_goal_stand_beside_other_diagrams_with_a_run_and_without(tmp_path):
    asked = {"goal_figure_2", "goal_figure_3", "diagram_triplet"}
    assert figures(tmp_path) == figures(tmp_path, (small_run(),)) == asked
    alone = list(analyse(AnalyseSettings((small_run(),), diagram=True, objectives=("goal",), out=tmp_path), QUIET))
    assert {file.stem for file in alone} == {"goal_figure_2", "goal_figure_3", "diagrams"}


def test_the_json_of_a_figure_is_strict(tmp_path):
    figure, content = diagram(objective("triplet"), name="mine")
    list(_write_figures(tmp_path, "Mine", [(figure, content | {"pull": [[float("nan")]]})]))
    written = json.loads((tmp_path / "figures" / "mine.json").read_text(), parse_constant=pytest.fail)
    assert written["pull"] == [[None]]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"anatomy": True, "batch": -1}, "--batch must be at least 0, got -1"),
        ({"cocos": True, "epsilon": float("nan")}, "--epsilon must be at least 0 and below 1, got nan"),
        ({"diagram": True, "mined_similarity": float("nan")}, "--mined-similarity must be a finite number, got nan"),
        (
            {"objectives": ("goal",)},
            "--objectives goal is for --diagram alone: name an objective beside it for --cocos",
        ),
        ({"cocos": True, "objectives": ("goal", "triplet")}, "goal is for --diagram, which was not asked for"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_given(asked, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        list(analyse(AnalyseSettings((tmp_path,), **asked, out=tmp_path / "out"), QUIET))
    assert not (tmp_path / "out").exists()


def test_everything_about_a_run_and_the_same_twice(tmp_path):
    folder = small_run()
    first = tercet("analyse", folder, "--cocos", "--diagram", "--objectives", "nt-xent", "cir/sig", "--out", tmp_path)
    assert first.returncode == 0, first.stderr
    assert "C_qv" in first.stdout
    out = tmp_path / folder.name
    written = {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert {"cocos.json", "cocos.md", "diagram_nt-xent.png", "diagram_cir+sig.svg"} <= set(written)
    counted = json.loads(written["cocos.json"])
    assert [each["objective"] for each in counted] == ["nt-xent", "cir/sig"]
    laid = json.loads(written["diagram_nt-xent.json"])["triplets"]
    assert list(laid) == ["1", "2"]
    assert laid["2"] == runs.read_triplets(folder)[2]
    tercet("analyse", folder, "--cocos", "--diagram", "--objectives", "nt-xent", "cir/sig", "--out", tmp_path)
    assert written == {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}


def test_mistakes_get_one_line(tmp_path):
    folder = small_run()
    for arguments, message in [
        ([], "name a run folder"),
        (["--cocos"], "--cocos needs a run folder"),
        (["nowhere", "--cocos"], "nowhere: no run there"),
        ([folder, folder, folder], "one or two runs"),
        ([folder, "--diagram", "--epochs", "7"], "no triplets of epoch 7; the run has epochs 1 to 2"),
        ([folder, "--cocos", "--objectives", "tripet"], "did you mean 'triplet'"),
        ([folder, "--cocos", "--objectives", "triplet:learning_rate=1.0"], "nothing is trained here"),
        ([folder, "--judgements", tmp_path], "no judgements there"),
        ([folder, "--cocos", "--batch-size", "0"], "--batch-size must be at least 2, got 0"),
        ([folder, "--cocos", "--as-published", "--objectives", "cir/lin"], "no counter for cir/lin"),
    ]:
        run = tercet("analyse", *arguments, "--out", tmp_path / "out", cwd=tmp_path)
        assert run.returncode == 2, run
        assert message in run.stderr
        assert len(run.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_all_of_a_run_without_triplets_and_the_same_objective_twice(tmp_path):
    folder = small_run(cocos_every=0)
    run = tercet("analyse", folder, "--out", tmp_path / "all")
    assert run.returncode == 0, run.stderr
    assert "kept no triplets" in run.stdout
    written = {file.name for file in (tmp_path / "all" / folder.name).rglob("*")}
    assert {"cocos.json", "diagrams.html", "diagram_nt-xent.png", "anatomy.html", "examples.html"} <= written
    twice = ["nt-xent:temperature=0.05", "nt-xent:temperature=0.5"]
    run = tercet("analyse", folder, "--cocos", "--diagram", "--objectives", *twice, "--out", tmp_path / "two")
    assert run.returncode == 0, run.stderr
    out = tmp_path / "two" / folder.name
    assert len(list(out.glob("figures/*.png"))) == 2
    assert [each["objective"] for each in json.loads((out / "cocos.json").read_text())] == twice


def test_a_renamed_run_is_still_that_run(tmp_path):
    moved = tmp_path / "my_best"
    shutil.copytree(small_run(), moved)
    assert open_run_folder(moved).name == "my_best"


def test_a_run_without_triplets_says_why():
    with pytest.raises(ValueError, match="kept no triplets"):
        chosen_epochs({}, ())


def test_integrability_is_said_in_sentences_where_table_1_differs():
    few = [judge(*each) for each in CELLS if each[0] in ("con/con", "con/lin", "con/sig")]
    assert [each.has_loss for each in few] == [True, False, False, True, True, True]
    said = explanations(few)
    assert [sentence.split(":")[0] for sentence in said] == [
        "con/sig, reading=paper",
        "con/con, reading=code",
        "con/lin, reading=code",
    ]
    for each in few:  # a loss where none is named, or none where one is: never without a sentence
        assert each.has_loss == (each.cell in TABLE_1) or (each.cell, each.reading) in DIFFERENCES
    assert "| con/lin | New | 0 | 0 | **yes** |" in tables(few)[1].markdown()


@pytest.mark.slow
def test_the_docs_show_the_table_of_all_cells(tmp_path):
    run = tercet("analyse", "--integrability", "--out", tmp_path)
    assert run.returncode == 0, run.stderr
    docs = (Path(__file__).parents[2] / "docs" / "dissecting.md").read_text()
    shown = docs.split("<!-- integrability -->")[1].split("<!-- end of integrability -->")[0]
    assert shown.strip() == (tmp_path / "integrability.md").read_text().strip()
    assert len(json.loads((tmp_path / "integrability.json").read_text())) == 30
