"""Counts over a run's training batches equal the counts of the single batches at its weights."""

import json
from collections import defaultdict
from statistics import fmean, pstdev

import pytest
import torch

import tercet
from tercet.analysis.reports.cocos_report import count_run, table
from tercet.analysis.reports.loaded_run import open_run_folder
from tercet.data.formats import open_data
from tercet.data.samplers import BatchIndices
from tests.shared_runs import small_run
from tests.tiny_models import save_clip


@pytest.fixture(scope="module")
def loaded():
    return open_run_folder(small_run())


def by_hand(folder, objective, captions_per_image):
    """Computed from the saved model and the data only."""
    model, split = tercet.load(folder), open_data("scenes:90").split("train")
    loaded = open_run_folder(folder)
    counts = []
    for indices in loaded.index_batches(objective, 50):
        images = torch.from_numpy(split.features.take(indices.images)[0].numpy())
        captions = split.caption_features.take(indices.captions)[0]
        with torch.no_grad():
            S = model.similarity(model.encode_images(images), model.encode_captions(captions))
        positives = indices.images[:, None] == torch.from_numpy(split.owners)[indices.captions][None, :]
        assert positives.sum(dim=1).max() >= captions_per_image
        truth = split.truth(indices.images, indices.captions)
        counts.append(tercet.cocos(objective, S, positives, matching=truth))
    return counts


@pytest.mark.parametrize(("name", "captions_per_image"), [("nt-xent", 1), ("triplet-sh", 1), ("smooth-ap", 5)])
def test_mean_and_std_over_batches(loaded, name, captions_per_image):
    objective = tercet.objective(name)
    counts = count_run(loaded, objective, index_batches=loaded.index_batches(objective, 50))
    expected = by_hand(loaded.folder, objective, captions_per_image)
    assert counts.batches == len(expected)
    for direction in ("i2t", "t2i"):
        for key, value in counts.mean[direction].items():
            values = [batch[direction][key] for batch in expected]
            assert value == pytest.approx(fmean(values), abs=1e-5)
            assert counts.std[direction][key] == pytest.approx(pstdev(values), abs=1e-5)
    assert "matching_share" in counts.mean["i2t"]  # scenes have ground truth


def test_every_training_caption_once_and_the_short_batch_too(loaded):
    index_batches = loaded.index_batches(loaded.objective, 64)
    captions = torch.cat([indices.captions for indices in index_batches])
    assert sorted(captions.tolist()) == list(range(450))
    assert len(index_batches[-1].captions) == 450 % 64


def test_released_counters_of_a_run(loaded):
    for name in ("triplet", "smooth-ap"):
        objective = tercet.objective(name)
        index_batches = loaded.index_batches(objective, 45)
        counts = count_run(loaded, objective, index_batches=index_batches, as_published=True)
        assert set(counts.mean["i2t"]) <= {"C_q", "C_B", "C_0"}
    # From caption B / 5 on the released counter of smooth-ap reads no entries.
    assert counts.mean["t2i"]["C_0"] >= 225 - 45 / 5


def test_a_table_of_counts(loaded):
    counts = count_run(loaded, loaded.objective, index_batches=loaded.index_batches(loaded.objective)[:1])
    assert "| C_qv |" in table(counts).markdown()
    json.dumps(counts.content())


def test_other_data_and_unfinished_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is not the data that"):
        open_run_folder(small_run(), data="scenes:91")
    with pytest.raises(ValueError, match="not a run folder"):
        open_run_folder(tmp_path)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match="is not finished"):
        open_run_folder(tmp_path)


def test_pairs_that_training_ignored_are_ignored():
    """Some scenes share a caption: with --ignore-equal-text such a pair is not a negative."""
    loaded = open_run_folder(small_run(data="scenes:900", epochs=1, ignore_equal_text=True))
    texts, owners = loaded.prepared.train.texts, loaded.prepared.train.owners.tolist()
    own = defaultdict(set)
    for text, owner in zip(texts, owners, strict=True):
        own[text].add(owner)
    captions = [*[c for c, text in enumerate(texts) if len(own[text]) > 1][:30], 0, 1]
    indices = BatchIndices(loaded.prepared.train.owners[captions], torch.tensor(captions), 0)
    batch = loaded.evaluate_batch(indices)
    expected = [[i in own[texts[c]] and owners[c] != i for c in captions] for i in indices.images.tolist()]
    assert batch.ignored.tolist() == expected
    assert batch.ignored.any()
    assert (
        open_run_folder(small_run()).evaluate_batch(BatchIndices(torch.tensor([0, 1]), torch.tensor([0, 5]), 0)).ignored
        is None
    )
    G = loaded.objective.pair_gradient(batch.similarity, batch.positives, batch.ignored)
    assert (G[batch.ignored] == 0).all()


def test_a_learned_scale_becomes_the_temperature(tmp_path):
    save_clip(tmp_path / "clip", open_data("scenes:40").split("train").texts)
    settings = {"data": "scenes:40", "epochs": 1, "batch_size": 8, "model": "clip", "runs": tmp_path / "runs"}
    run = tercet.train(objective="nt-xent", model_settings={"clip": str(tmp_path / "clip")}, **settings)
    loaded = open_run_folder(run.folder)
    scale = loaded.model.scale_and_bias()[0].item()
    assert loaded.objective.temperature == pytest.approx(1 / scale)
    assert loaded.objective_on_run("nt-xent", {}).temperature == pytest.approx(1 / scale)
    assert loaded.objective_on_run("nt-xent", {"temperature": 0.1}).temperature == 0.1
    indices = loaded.index_batches(loaded.objective, 8)[0]
    batch = loaded.evaluate_batch(indices)
    # S at temperature 1 / scale gives scale times the gradient of training, which uses scale * S at temperature 1.
    trained = tercet.objective("nt-xent", temperature=1.0).pair_gradient(scale * batch.similarity, batch.positives)
    gradient = loaded.objective.pair_gradient(batch.similarity, batch.positives)
    torch.testing.assert_close(gradient, scale * trained, rtol=1e-4, atol=1e-6)
