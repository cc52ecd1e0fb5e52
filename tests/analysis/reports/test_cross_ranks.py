"""Cross-retrieval ranks of two runs: counts add up and equal the runs' own metrics."""

import json

import numpy as np
import pytest

import tercet
from tercet import runs
from tercet.analysis.reports.cross_ranks import CrossRanks, compare_cross_ranks
from tercet.analysis.reports.loaded_run import open_run_folder
from tercet.analysis.reports.retrieved_examples import write_examples
from tercet.evaluation.metrics import CROSS_SHARES

SMALL = {"data": "scenes:90", "epochs": 1, "batch_size": 50, "model_settings": {"embed_dim": 16}}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    folders = [tercet.train(objective="nt-xent", seed=seed, runs=root, **SMALL).folder for seed in (0, 1)]
    return [open_run_folder(folder) for folder in folders]


def test_counts_and_moves_by_hand():
    first, second = [1, 2, 10, 11, 50, 51, 200, 201], [2, 1, 10, 5, 60, 51, 300, 200.5]
    ranks = CrossRanks(("a", "b"), np.array([first, second], dtype=float))
    assert ranks.counts().tolist() == [[1, 2, 2, 2, 1], [1, 3, 0, 2, 2]]
    assert ranks.moved() == {"up": 3, "down": 3, "stayed": 2}
    assert ranks.moves().tolist() == [
        [0, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 0, 1, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 0, 0, 1],
    ]
    assert ranks.sentence() == (
        "Of 8 pairs, 1 have rank 1 with a and 1 with b; 1 and 2 are over 200. "
        "From a to b, 3 pairs move up, 3 move down and 2 keep their rank."
    )
    rows = {name: [cell.text for cell in cells] for name, cells in ranks.table().rows}
    assert rows["2 to 10"] == ["2", "25.0 %", "3", "37.5 %", "+1"]
    assert [cell.best for cell in dict(ranks.table().rows)["over 200"]] == [True, False, False, False, False]


def test_shares_are_those_of_the_runs_own_metrics(loaded):
    document = compare_cross_ranks(*loaded).document()
    for run, shares in zip(loaded, document["runs"].values(), strict=True):
        metrics = runs.read_metrics(run.folder)
        assert shares["shares"] == pytest.approx({name: metrics[name] for name in CROSS_SHARES})
        assert sum(shares["counts"].values()) == document["pairs"] == len(run.held_out.owners)
    assert sum(document["moved"].values()) == document["pairs"]
    assert list(document["runs"]) == ["nt-xent (seed 0)", "nt-xent (seed 1)"]


def test_figure_and_numbers_are_written(loaded, tmp_path):
    ranks = compare_cross_ranks(*loaded)
    assert "<svg" in write_examples(*loaded, tmp_path / "new").read_text()
    file = tmp_path / "new" / "figures" / "cross_ranks.png"
    assert file.read_bytes().startswith(b"\x89PNG")
    svg = file.with_suffix(".svg").read_text()
    for shares in json.loads(json.dumps(ranks.document()))["runs"].values():
        assert f"{shares['counts']['cross_1']:,}</text>" in svg
        assert f"{shares['counts']['cross_over_200']:,}</text>" in svg


def test_other_data_is_refused(loaded, tmp_path):
    other = tercet.train(objective="nt-xent", runs=tmp_path / "runs", **SMALL | {"data": "scenes:60"}).folder
    with pytest.raises(ValueError, match="different data"):
        compare_cross_ranks(loaded[0], open_run_folder(other))
