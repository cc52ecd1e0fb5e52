"""Runs with mined members laid open: counts of members, diagrams with their similarity, anatomy, the doctor."""

import json

import pytest
from rich.console import Console

import tercet
from tercet.analysis.diagram import plane
from tercet.dissection.analyse import analyse
from tercet.dissection.doctor_page import run_doctor
from tercet.dissection.doctor_settings import DoctorSettings
from tercet.dissection.settings import AnalyseSettings
from tercet.training.mine_settings import MineSettings
from tercet.training.mining import mine_table
from tests.dissection.small_runs import SMALL, small_run


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mined") / "table"
    mine_table(MineSettings(small_run("triplet-sh"), SMALL["data"], folder, top_captions=60, top_images=12))
    return folder


def analysed(run, out, **asked):
    return list(analyse(AnalyseSettings((run,), out=out, **asked), Console(quiet=True)))


def test_a_run_with_members_is_counted_drawn_and_laid_open(table, tmp_path):
    run = small_run("aoq", mined=str(table))
    files = analysed(run, tmp_path, cocos=True, diagram=True, anatomy=True)
    assert all(file.is_file() for file in files)
    (counted,) = json.loads(next(file for file in files if file.name == "cocos.json").read_text())
    members = counted["mean"]["mined"]
    assert list(members) == ["(i, t-)", "(i-, t)", "(i-, t-)", "(i-', t-')"]
    assert members["(i, t-)"] > 0
    assert "mined_active (i-, t)" in (tmp_path / run.name / "cocos.md").read_text()
    _, page = run_doctor(DoctorSettings(run, out=tmp_path / "doctor"))
    assert page.is_file()


def test_members_are_looked_at_on_a_run_without_them(table, tmp_path):
    run = small_run("triplet-sh")
    with pytest.raises(ValueError, match="aoq needs mined members"):
        analysed(run, tmp_path / "without", cocos=True, objectives=("triplet", "aoq"))
    with pytest.raises(ValueError, match="no mined table there"):
        analysed(run, tmp_path / "without", anatomy=True, objectives=("triplet",), mined=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="--judgements: aoq needs mined members, and held-out pairs have none"):
        analysed(run, tmp_path / "without", judgements=tmp_path, objectives=("aoq",), mined=table)
    assert not (tmp_path / "without").exists()
    (file,) = analysed(run, tmp_path / "with", cocos=True, objectives=("aoq",), mined=table)
    assert json.loads(file.read_text())[0]["mean"]["mined"]["(i-, t)"] > 0


def test_a_moved_table_is_asked_for(table, tmp_path):
    moved = tmp_path / "there"
    table_copy = tmp_path / "here"
    table_copy.mkdir()
    for file in table.iterdir():
        (table_copy / file.name).write_bytes(file.read_bytes())
    run = small_run("off-quin", mined=str(table_copy))
    table_copy.rename(moved)
    with pytest.raises(ValueError, match="no mined table there"):
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
    assert high.pull[0, middle] > low.pull[0, middle] == 0  # the hardest of the batch is far, the mined one is not
    files = list(
        analyse(
            AnalyseSettings(diagram=True, objectives=("aoq",), mined_similarity=0.6, out=tmp_path), Console(quiet=True)
        )
    )
    content = json.loads(next(file for file in files if file.suffix == ".png").with_suffix(".json").read_text())
    assert content["mined"] == 0.6
    assert "Offline members at 0.6" in content["caption"]
