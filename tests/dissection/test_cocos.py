"""Counts over a run's training batches: those of the batches one by one, at its own weights."""

import json
from collections import defaultdict
from statistics import fmean, pstdev

import pytest
import torch

import tercet
from tercet.data.formats import open_data
from tercet.data.meetings import Meeting
from tercet.dissection.cocos import count_run, table
from tercet.dissection.opened import open_run_folder
from tests.dissection.small_runs import small_run
from tests.models.tiny_clips import save_clip


@pytest.fixture(scope="module")
def opened():
    return open_run_folder(small_run())


def by_hand(folder, objective, captions_each):
    """From the saved model and the data alone."""
    model, split = tercet.load(folder), open_data("scenes:90").split("train")
    opened = open_run_folder(folder)
    found = []
    for meeting in opened.meetings(objective, 50):
        images = torch.from_numpy(split.features.take(meeting.images)[0].numpy())
        captions = split.caption_features.take(meeting.captions)[0]
        with torch.no_grad():
            S = model.similarity(model.encode_images(images), model.encode_captions(captions))
        positives = meeting.images[:, None] == torch.from_numpy(split.owners)[meeting.captions][None, :]
        assert positives.sum(dim=1).max() >= captions_each
        truth = split.truth(meeting.images, meeting.captions)
        found.append(tercet.cocos(objective, S, positives, matching=truth))
    return found


@pytest.mark.parametrize(("name", "captions_each"), [("nt-xent", 1), ("triplet-sh", 1), ("smooth-ap", 5)])
def test_mean_and_std_over_batches(opened, name, captions_each):
    objective = tercet.objective(name)
    found = count_run(opened, objective, meetings=opened.meetings(objective, 50))
    each = by_hand(opened.folder, objective, captions_each)
    assert found.batches == len(each)
    for side in ("i2t", "t2i"):
        for key, value in found.mean[side].items():
            numbers = [batch[side][key] for batch in each]
            assert value == pytest.approx(fmean(numbers), abs=1e-5)
            assert found.std[side][key] == pytest.approx(pstdev(numbers), abs=1e-5)
    assert "matching_share" in found.mean["i2t"]  # scenes know their truth


def test_every_training_caption_once_and_the_short_batch_too(opened):
    meetings = opened.meetings(opened.objective, 64)
    captions = torch.cat([meeting.captions for meeting in meetings])
    assert sorted(captions.tolist()) == list(range(450))
    assert len(meetings[-1].captions) == 450 % 64


def test_released_counters_of_a_run(opened):
    for name in ("triplet", "smooth-ap"):
        objective = tercet.objective(name)
        meetings = opened.meetings(objective, 45)
        found = count_run(opened, objective, meetings=meetings, as_published=True)
        assert set(found.mean["i2t"]) <= {"C_q", "C_B", "C_0"}
    # From caption B / 5 on the released counter of smooth-ap looks at nothing.
    assert found.mean["t2i"]["C_0"] >= 225 - 45 / 5


def test_a_table_of_counts(opened):
    found = count_run(opened, opened.objective, meetings=opened.meetings(opened.objective)[:1])
    assert "| C_qv |" in table(found).markdown()
    json.dumps(found.content())


def test_other_data_and_unfinished_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is not the data that"):
        open_run_folder(small_run(), data="scenes:91")
    with pytest.raises(ValueError, match="no run there"):
        open_run_folder(tmp_path)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match="is not finished"):
        open_run_folder(tmp_path)


def test_pairs_that_training_left_out_are_left_out():
    """Some scenes share a caption: with --ignore-equal-text such a pair is no negative."""
    opened = open_run_folder(small_run(data="scenes:900", epochs=1, ignore_equal_text=True))
    texts, owners = opened.ready.train.texts, opened.ready.train.owners.tolist()
    own = defaultdict(set)
    for text, owner in zip(texts, owners, strict=True):
        own[text].add(owner)
    captions = [*[c for c, text in enumerate(texts) if len(own[text]) > 1][:30], 0, 1]
    meeting = Meeting(opened.ready.train.owners[captions], torch.tensor(captions), 0)
    seen = opened.seen(meeting)
    wanted = [[i in own[texts[c]] and owners[c] != i for c in captions] for i in meeting.images.tolist()]
    assert seen.ignored.tolist() == wanted
    assert seen.ignored.any()
    assert open_run_folder(small_run()).seen(Meeting(torch.tensor([0, 1]), torch.tensor([0, 5]), 0)).ignored is None
    G = opened.objective.pair_gradient(seen.similarity, seen.positives, seen.ignored)
    assert (G[seen.ignored] == 0).all()


def test_a_learned_scale_is_the_temperature_of_what_is_looked_at(tmp_path):
    save_clip(tmp_path / "clip", open_data("scenes:40").split("train").texts)
    given = {"data": "scenes:40", "epochs": 1, "batch_size": 8, "model": "clip", "runs": tmp_path / "runs"}
    run = tercet.train(objective="nt-xent", model_settings={"clip": str(tmp_path / "clip")}, **given)
    opened = open_run_folder(run.folder)
    scale = opened.model.scale_and_bias()[0].item()
    assert opened.objective.temperature == pytest.approx(1 / scale)
    assert opened.looked_at("nt-xent", {}).temperature == pytest.approx(1 / scale)
    assert opened.looked_at("nt-xent", {"temperature": 0.1}).temperature == 0.1
    meeting = opened.meetings(opened.objective, 8)[0]
    seen = opened.seen(meeting)
    # The scale of the plain similarity drops out of the shares: the same as training's scale * S at temperature 1.
    trained = tercet.objective("nt-xent", temperature=1.0).pair_gradient(scale * seen.similarity, seen.positives)
    found = opened.objective.pair_gradient(seen.similarity, seen.positives)
    torch.testing.assert_close(found, scale * trained, rtol=1e-4, atol=1e-6)
