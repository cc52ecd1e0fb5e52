"""Tables that a run mines again by itself: guards that empty lists, the run's identity, pairs of a file."""

import json
from pathlib import Path

import numpy as np
import pytest

import tercet
from tercet.data.mined import open_mined
from tercet.training import loop as module
from tercet.training.config import train_settings
from tercet.training.mine_settings import MineSettings
from tercet.training.mining import mine_now, mine_table
from tercet.training.run import resolve
from tests.training.small import SMALL, small_data
from tests.training.test_run import assert_same_run, stopped

# From random weights that hardly move: some captions find every image nearer than their own.
AGAIN = {"objective": "aoq", "mined_top": 30, "mine_every": 1, "epochs": 3, "learning_rate": 1e-6}


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    return tercet.train(**SMALL | {"epochs": 15}, runs=tmp_path_factory.mktemp("first")).folder


def mined(run, table, **guards):
    return mine_table(MineSettings(run, SMALL["data"], table, top_captions=40, top_images=8, **guards))


def test_lists_that_a_refresh_finds_empty_stay_as_they_were(tmp_path, first_run, monkeypatch):
    mined(first_run, tmp_path / "table", guard_margin=0.0)
    given = AGAIN | {"mined": str(tmp_path / "table")}
    seen = []

    def kept(model, data, folder, like, weights, before):
        made = mine_now(model, data, folder, like, weights, before)
        empty = json.loads((folder / "mined.json").read_text())["empty"]
        seen.append((before, made, empty, [file.name for file in folder.parent.glob("mined_*")]))
        return made

    with monkeypatch.context() as patched:
        patched.setattr(module, "mine_now", kept)
        whole = tercet.train(**SMALL | given, runs=tmp_path / "whole", checkpoint_every=2)
    assert len(seen) == 2
    assert Path(seen[0][0].place) == tmp_path / "table"
    assert Path(seen[1][0].place).name == "mined_1"
    before, made, empty, _ = seen[0]
    same = (np.array(made.images) == np.array(before.images)).all(axis=1)
    assert 0 < empty["captions"] <= same.sum() < len(same)
    assert (
        f"guards left nothing for {empty['images']} images and {empty['captions']} captions: they keep their lists"
        in (whole.folder / "log.txt").read_text()
    )
    stopped(tmp_path / "broken", 21, **given)
    resumed = tercet.train(**SMALL | given, runs=tmp_path / "broken", checkpoint_every=2)
    assert_same_run(whole.folder, resumed.folder)


def marked(table, **more):
    return resolve(train_settings(SMALL | {"objective": "aoq", "mined": str(table)} | more))[2]


def test_what_refreshes_are_made_with_is_part_of_the_run(tmp_path, first_run):
    """Though the first tables are the same to the last bit."""
    pairs = [tmp_path / f"{name}.csv" for name in ("one", "other", "copy")]
    own = open_mined(mined(first_run, tmp_path / "plain").place, small_data(90)).captions
    for file, image in zip(pairs, (0, 1, 0), strict=True):
        unlisted = next(c for c in range(450) if c // 5 != image and c not in own[image])
        file.write_text(f"{image},{unlisted}\n")
    guards = {
        "plain": {},
        "loose": {"guard_margin": -10.0},
        **{file.stem: {"guard_pairs": file} for file in pairs},
    }
    for name, each in guards.items():
        mined(first_run, tmp_path / name, **each)
    same = {name: marked(tmp_path / name) for name in ("plain", "loose")}
    assert same["plain"] | {"mined": ""} == same["loose"] | {"mined": ""}
    assert "mined_again" not in same["plain"]
    again = {name: json.dumps(marked(tmp_path / name, mine_every=1)["mined_again"]) for name in guards}
    assert len(set(again.values())) == 4
    assert again["one"] == again["copy"]  # wherever the file lies


def test_pairs_of_a_file_go_with_the_table(tmp_path, first_run, monkeypatch):
    (tmp_path / "pairs.csv").write_text("0,10\n")
    monkeypatch.chdir(tmp_path)
    mined(first_run, Path("table"), guard_pairs=Path("pairs.csv"))
    (tmp_path / "pairs.csv").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    given = SMALL | AGAIN | {"mined": "../table", "runs": tmp_path / "runs", "learning_rate": 1e-3}
    assert tercet.train(**given).metrics
    kept = tmp_path / "table" / "guard_pairs.csv"
    kept.write_text("0,11\n")
    with pytest.raises(ValueError, match=r"guard_pairs.csv: not the pairs that the table was mined with"):
        tercet.train(**given | {"seed": 1})
    kept.unlink()
    with pytest.raises(ValueError, match=r"guard_pairs.csv: no such file"):
        tercet.train(**given | {"seed": 1})
    assert len(list((tmp_path / "runs").glob("2*"))) == 1
