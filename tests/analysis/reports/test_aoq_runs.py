"""Analyses of runs with mined negatives: counts, diagrams, gradient breakdown, doctor."""

import json

import pytest
from rich.console import Console

import tercet
from tercet.analysis.reports.analyse import analyse
from tercet.analysis.reports.doctor_report import run_doctor
from tercet.analysis.reports.settings import AnalyseSettings, DoctorSettings
from tercet.analysis.triplet_diagram import plane
from tercet.training.mine_run import mine_table
from tercet.training.settings import MineSettings
from tests.shared_runs import SMALL, small_run


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mined") / "table"
    mine_table(MineSettings(small_run("triplet-sh"), SMALL["data"], folder, top_captions=60, top_images=12))
    return folder


def analysed(run, out, **settings):
    return list(analyse(AnalyseSettings((run,), out=out, **settings), Console(quiet=True)))


def test_cocos_diagram_breakdown_and_doctor_of_a_run_with_mined_negatives(table, tmp_path):
    run = small_run("aoq", mined=str(table))
    files = analysed(run, tmp_path, cocos=True, diagram=True, breakdown=True)
    assert all(file.is_file() for file in files)
    (counts,) = json.loads(next(file for file in files if file.name == "cocos.json").read_text())
    mined = counts["mean"]["mined"]
    assert list(mined) == ["(i, t-)", "(i-, t)", "(i-, t-)", "(i-', t-')"]
    assert mined["(i, t-)"] > 0
    assert "mined_active (i-, t)" in (tmp_path / run.name / "cocos.md").read_text()
    _, page = run_doctor(DoctorSettings(run, out=tmp_path / "doctor"))
    assert page.is_file()


def test_objectives_with_mined_negatives_on_a_run_without_them(table, tmp_path):
    run = small_run("triplet-sh")
    with pytest.raises(ValueError, match="aoq needs mined negatives"):
        analysed(run, tmp_path / "without", cocos=True, objectives=("triplet", "aoq"))
    with pytest.raises(ValueError, match="no mined table"):
        analysed(run, tmp_path / "without", breakdown=True, objectives=("triplet",), mined=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="--judgments: aoq needs mined negatives, and held-out pairs have none"):
        analysed(run, tmp_path / "without", judgments=tmp_path, objectives=("aoq",), mined=table)
    assert not (tmp_path / "without").exists()
    (file,) = analysed(run, tmp_path / "with", cocos=True, objectives=("aoq",), mined=table)
    assert json.loads(file.read_text())[0]["mean"]["mined"]["(i-, t)"] > 0


def test_a_moved_table_is_given_with_mined(table, tmp_path):
    moved = tmp_path / "there"
    table_copy = tmp_path / "here"
    table_copy.mkdir()
    for file in table.iterdir():
        (table_copy / file.name).write_bytes(file.read_bytes())
    run = small_run("off-quin", mined=str(table_copy))
    table_copy.rename(moved)
    with pytest.raises(ValueError, match="no mined table"):
        analysed(run, tmp_path, cocos=True)
    assert analysed(run, tmp_path, cocos=True, mined=moved)
    other = tmp_path / "other"
    mine_table(MineSettings(small_run("triplet-sh"), SMALL["data"], other, top_captions=50, top_images=12))
    with pytest.raises(ValueError, match="is not the mined table that"):
        analysed(run, tmp_path, cocos=True, mined=other)


def test_the_diagram_has_a_third_dimension(tmp_path):
    aoq = tercet.objective("aoq")
    low, high = (plane(aoq, points=11, mined=mined) for mined in (0.0, 0.6))
    middle = 5  # S_p = 0.5
    assert high.pull[0, middle] > low.pull[0, middle] == 0  # the batch's hardest negative is far, the mined one is not
    files = list(
        analyse(
            AnalyseSettings(diagram=True, objectives=("aoq",), mined_similarity=0.6, out=tmp_path), Console(quiet=True)
        )
    )
    content = json.loads(next(file for file in files if file.suffix == ".png").with_suffix(".json").read_text())
    assert content["mined"] == 0.6
    assert "Mined negatives have similarity 0.6" in content["caption"]
