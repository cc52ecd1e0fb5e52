"""`tercet analyse`: written files, printed output and error messages."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from tercet import objective, runs
from tercet.analysis.reports.analyse import _write_figures, analyse
from tercet.analysis.reports.diagrams import (
    CELLS,
    DIFFERENCES,
    TABLE_1,
    cell_integrability,
    diagram,
    integrability_notes,
    integrability_tables,
    select_epochs,
)
from tercet.analysis.reports.loaded_run import open_run_folder
from tercet.analysis.reports.settings import AnalyseSettings
from tests.commands import tercet
from tests.shared_runs import small_run

QUIET = Console(quiet=True)


def test_figures_of_goal_need_no_run(tmp_path):
    run = tercet("analyse", "--diagram", "--out", tmp_path)
    assert run.returncode == 0, run.stderr
    for name in ("goal_figure_2", "goal_figure_3"):
        assert f"{name}.png" in run.stdout
        with Image.open(tmp_path / "figures" / f"{name}.png") as image:
            assert image.size[0] > 1000
        assert (tmp_path / "figures" / f"{name}.svg").read_text().startswith("<?xml")
    content = json.loads((tmp_path / "figures" / "goal_figure_2.json").read_text())
    assert set(content) == {"con", "nca", "cir"}


def figures(out, *arguments):
    files = analyse(AnalyseSettings(*arguments, diagram=True, objectives=("goal", "triplet"), out=out), QUIET)
    return {file.stem for file in files if file.suffix == ".png"}


@pytest.mark.parametrize("with_run", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_figures_of_goal_with_other_diagrams_with_and_without_a_run(tmp_path, with_run):
    runs_ = [(small_run(),)] if with_run else []
    assert figures(tmp_path, *runs_) == {"goal_figure_2", "goal_figure_3", "diagram_triplet"}


@pytest.mark.slow
def test_figures_of_goal_alone_with_a_run(tmp_path):
    alone = list(analyse(AnalyseSettings((small_run(),), diagram=True, objectives=("goal",), out=tmp_path), QUIET))
    assert {file.stem for file in alone} == {"goal_figure_2", "goal_figure_3", "diagrams"}


def test_the_json_of_a_figure_is_strict(tmp_path):
    figure, content = diagram(objective("triplet"), name="mine")
    list(_write_figures(tmp_path, "Mine", [(figure, content | {"pull": [[float("nan")]]})]))
    written = json.loads((tmp_path / "figures" / "mine.json").read_text(), parse_constant=pytest.fail)
    assert written["pull"] == [[None]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"breakdown": True, "batch": -1}, "--batch must be at least 0, got -1"),
        ({"cocos": True, "epsilon": float("nan")}, "--epsilon must be at least 0 and below 1, got nan"),
        ({"diagram": True, "mined_similarity": float("nan")}, "--mined-similarity must be a finite number, got nan"),
        (
            {"objectives": ("goal",)},
            "--objectives goal is only for --diagram: name another objective for --cocos",
        ),
        ({"cocos": True, "objectives": ("goal", "triplet")}, "--objectives goal needs --diagram"),
    ],
)
def test_invalid_settings_are_named_with_their_value(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        list(analyse(AnalyseSettings((tmp_path,), **settings, out=tmp_path / "out"), QUIET))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_cocos_and_diagrams_of_a_run_are_deterministic(tmp_path):
    folder = small_run()
    first = tercet("analyse", folder, "--cocos", "--diagram", "--objectives", "nt-xent", "cir/sig", "--out", tmp_path)
    assert first.returncode == 0, first.stderr
    assert "C_qv" in first.stdout
    out = tmp_path / folder.name
    written = {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert {"cocos.json", "cocos.md", "diagram_nt-xent.png", "diagram_cir+sig.svg"} <= set(written)
    counts = json.loads(written["cocos.json"])
    assert [each["objective"] for each in counts] == ["nt-xent", "cir/sig"]
    triplets = json.loads(written["diagram_nt-xent.json"])["triplets"]
    assert list(triplets) == ["1", "2"]
    assert triplets["2"] == runs.read_triplets(folder)[2]
    tercet("analyse", folder, "--cocos", "--diagram", "--objectives", "nt-xent", "cir/sig", "--out", tmp_path)
    assert written == {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}


def test_errors_are_one_line(tmp_path):
    folder = small_run()
    for arguments, message in [
        ([], "give a run folder, or --diagram or --integrability"),
        (["--cocos"], "--cocos needs a run folder"),
        (["nowhere", "--cocos"], "nowhere: not a run folder"),
        ([folder, folder, folder], "expected one or two runs, got 3"),
        ([folder, "--diagram", "--epochs", "7"], "no triplets of epoch 7; the run has epochs 1 to 2"),
        ([folder, "--cocos", "--objectives", "tripet"], "did you mean triplet"),
        (
            [folder, "--cocos", "--objectives", "triplet:learning_rate=1.0"],
            "learning_rate is a training setting, and analyse does not train",
        ),
        ([folder, "--judgments", tmp_path], "no judgments found"),
        ([folder, "--cocos", "--batch-size", "0"], "--batch-size must be at least 2, got 0"),
        ([folder, "--cocos", "--as-published", "--objectives", "cir/lin"], "no counter for cir/lin"),
    ]:
        run = tercet("analyse", *arguments, "--out", tmp_path / "out", cwd=tmp_path)
        assert run.returncode == 2, run
        assert message in run.stderr
        assert len(run.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_all_of_a_run_without_triplets_and_the_same_objective_twice(tmp_path):
    folder = small_run(cocos_every=0)
    run = tercet("analyse", folder, "--out", tmp_path / "all")
    assert run.returncode == 0, run.stderr
    assert "has no saved triplets" in run.stdout
    written = {file.name for file in (tmp_path / "all" / folder.name).rglob("*")}
    assert {"cocos.json", "diagrams.html", "diagram_nt-xent.png", "breakdown.html", "examples.html"} <= written
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


def test_a_run_without_triplets_is_explained():
    with pytest.raises(ValueError, match="has no saved triplets"):
        select_epochs({}, ())


def test_integrability_notes_where_table_1_differs():
    cells = [cell_integrability(*each) for each in CELLS if each[0] in ("con/con", "con/lin", "con/sig")]
    assert [cell.has_loss for cell in cells] == [True, False, False, True, True, True]
    notes = integrability_notes(cells)
    assert [note.split(":")[0] for note in notes] == [
        "con/sig, reading=paper",
        "con/con, reading=code",
        "con/lin, reading=code",
    ]
    for cell in cells:  # every difference from Table 1 has a note
        assert cell.has_loss == (cell.cell in TABLE_1) or (cell.cell, cell.reading) in DIFFERENCES
    assert "| con/lin | New | 0 | 0 | **yes** |" in integrability_tables(cells)[1].markdown()


@pytest.mark.slow
def test_the_docs_show_the_table_of_all_cells(tmp_path):
    run = tercet("analyse", "--integrability", "--out", tmp_path)
    assert run.returncode == 0, run.stderr
    docs = (Path(__file__).parents[3] / "docs" / "dissecting.md").read_text()
    section = docs.split("<!-- integrability -->")[1].split("<!-- end of integrability -->")[0]
    assert section.strip() == (tmp_path / "integrability.md").read_text().strip()
    assert len(json.loads((tmp_path / "integrability.json").read_text())) == 30
