"""Mining again during training: filters that empty lists, the identity of the run, a file of pairs."""

import json
from pathlib import Path

import numpy as np
import pytest

import tercet
from tercet.data.hard_negatives import open_mined, table_checksum
from tercet.training import mine_run as module
from tercet.training.mine_run import mine_table, remine
from tercet.training.prepare import resolve
from tercet.training.settings import MineSettings, train_settings
from tests import shared_runs
from tests.shared_runs import small_run
from tests.training.small_training import SMALL, small_data
from tests.training.test_train import assert_same_run, interrupted_run

# Random weights that hardly change: for some captions every image is more similar than their own.
AGAIN = {"objective": "aoq", "mined_top": 30, "mine_every": 1, "epochs": 3, "learning_rate": 1e-6}


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    return tercet.train(**SMALL | {"epochs": 15}, runs=tmp_path_factory.mktemp("first")).folder


def mined(run, table, **filters):
    return mine_table(MineSettings(run, SMALL["data"], table, top_captions=40, top_images=8, **filters))


@pytest.mark.slow
def test_lists_left_empty_by_filters_are_kept_from_the_previous_table(tmp_path, first_run, monkeypatch):
    mined(first_run, tmp_path / "table", filter_margin=0.0)
    given = AGAIN | {"mined": str(tmp_path / "table")}
    recorded = []

    def recording_remine(model, data, folder, like, weights, before):
        table = remine(model, data, folder, like, weights, before)
        empty = json.loads((folder / "mined.json").read_text())["empty"]
        recorded.append((before, table, empty, [file.name for file in folder.parent.glob("mined_*")]))
        return table

    with monkeypatch.context() as patched:
        patched.setattr(module, "remine", recording_remine)
        uninterrupted = tercet.train(**SMALL | given, runs=tmp_path / "uninterrupted", checkpoint_every=2)
    assert len(recorded) == 2
    assert Path(recorded[0][0].path) == tmp_path / "table"
    assert Path(recorded[1][0].path).name == "mined_1"
    before, table, empty, _ = recorded[0]
    same = (np.array(table.images) == np.array(before.images)).all(axis=1)
    assert 0 < empty["captions"] <= same.sum() < len(same)
    assert (
        f"filters left no candidates for {empty['images']} images and {empty['captions']} captions: their lists of the "
        "previous table are kept" in (uninterrupted.folder / "log.txt").read_text()
    )
    interrupted_run(tmp_path / "interrupted", 21, **given)
    resumed = tercet.train(**SMALL | given, runs=tmp_path / "interrupted", checkpoint_every=2)
    assert_same_run(uninterrupted.folder, resumed.folder)


def identity(table, **more):
    return resolve(train_settings(SMALL | {"objective": "aoq", "mined": str(table)} | more))[2]


@pytest.mark.slow
def test_filters_of_later_tables_are_part_of_the_identity(tmp_path, first_run):
    """Even if the first tables are bit-identical."""
    pairs = [tmp_path / f"{name}.csv" for name in ("one", "other", "copy")]
    own = open_mined(mined(first_run, tmp_path / "plain").path, small_data(90)).captions
    for file, image in zip(pairs, (0, 1, 0), strict=True):
        unlisted = next(c for c in range(450) if c // 5 != image and c not in own[image])
        file.write_text(f"{image},{unlisted}\n")
    filters = {
        "plain": {},
        "loose": {"filter_margin": -10.0},
        **{file.stem: {"filter_pairs": file} for file in pairs},
    }
    for name, options in filters.items():
        mined(first_run, tmp_path / name, **options)
    same = {name: identity(tmp_path / name) for name in ("plain", "loose")}
    assert same["plain"] | {"mined": ""} == same["loose"] | {"mined": ""}
    assert "mined_again" not in same["plain"]
    again = {name: json.dumps(identity(tmp_path / name, mine_every=1)["mined_again"]) for name in filters}
    assert len(set(again.values())) == 4
    assert again["one"] == again["copy"]  # wherever the file is


def test_the_table_has_a_copy_of_the_pairs(tmp_path, first_run, monkeypatch):
    (tmp_path / "pairs.csv").write_text("0,10\n")
    monkeypatch.chdir(tmp_path)
    mined(first_run, Path("table"), filter_pairs=Path("pairs.csv"))
    (tmp_path / "pairs.csv").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    given = SMALL | AGAIN | {"mined": "../table", "runs": tmp_path / "runs", "learning_rate": 1e-3}
    assert tercet.train(**given).metrics
    copy = tmp_path / "table" / "filter_pairs.csv"
    copy.write_text("0,11\n")
    with pytest.raises(
        ValueError, match=r"filter_pairs.csv: checksum mismatch: not the pairs that the table was mined with"
    ):
        tercet.train(**given | {"seed": 1})
    copy.unlink()
    with pytest.raises(ValueError, match=r"filter_pairs.csv: no such file"):
        tercet.train(**given | {"seed": 1})
    assert len(list((tmp_path / "runs").glob("2*"))) == 1


def test_the_default_dataset_is_that_of_the_run(tmp_path):
    run = small_run()
    mine_table(MineSettings(run, out=tmp_path / "default", top_captions=9, top_images=9))
    mine_table(MineSettings(run, shared_runs.SMALL["data"], tmp_path / "given", top_captions=9, top_images=9))
    assert table_checksum(tmp_path / "default") == table_checksum(tmp_path / "given")
    tercet.load(run).save(tmp_path / "model")
    with pytest.raises(ValueError, match="does not name its dataset: give it as --data"):
        mine_table(MineSettings(tmp_path / "model", out=tmp_path / "none"))
