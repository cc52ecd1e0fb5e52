"""Resuming damaged, unfinished tables; error messages for a table of another model or dataset."""

import numpy as np
import pytest
import torch

from tercet.data import paired
from tercet.data.hard_negatives import HardNegativeSampler, count_empty_lists, open_mined
from tercet.data.scenes import scenes
from tercet.mining.filters import FalseNegativeFilters
from tercet.mining.mine import MiningConfig, mine
from tercet.models import build
from tercet.similarity import SplitScorer, dot_product_scorer
from tercet.training.mine_run import cached_scorer
from tests.checksums import flip_bit
from tests.examples import others_slow
from tests.mining.test_mine import MODEL, scorer_of, world


def truncate(file, size):
    file.write_bytes(file.read_bytes()[:size])


@pytest.mark.parametrize("size", others_slow([100, 0, 7, -1], 1))
@pytest.mark.parametrize("name", ["i2t", "i2t_similarity", "t2i"])
@pytest.mark.parametrize("shortlisted", [False, True])
def test_an_unfinished_table_with_a_damaged_list_is_mined_again(tmp_path, name, size, shortlisted, monkeypatch):
    monkeypatch.setattr("tercet.mining.rerank_lists.BATCH_PAIRS", 64)
    w = world()
    mine(scorer_of(w), w.data, tmp_path / "quick", MiningConfig(20, 9), MODEL)
    shortlist = open_mined(tmp_path / "quick", w.data) if shortlisted else None
    products, calls = scorer_of(w)(None), []

    def interrupted(function):
        def call(*arguments):
            calls.append(arguments)
            if len(calls) == (8 if shortlisted else 4):
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    split_scorer = SplitScorer(interrupted(products.block), interrupted(products.of_pairs), 5)
    config, options = MiningConfig(8, 5, FalseNegativeFilters(skip=1)), {"shortlist": shortlist, "save_interval": 0.0}
    mine(scorer_of(w), w.data, tmp_path / "uninterrupted", config, MODEL, **options)
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        mine(lambda folder: split_scorer, w.data, broken, config, MODEL, **options)
    assert list(tmp_path.glob("broken.unfinished/progress.*"))
    if (tmp_path / "broken.unfinished" / f"{name}.npy").is_file():
        truncate(tmp_path / "broken.unfinished" / f"{name}.npy", size)
    mine(lambda folder: split_scorer, w.data, broken, config, MODEL, **options)
    for file in (tmp_path / "uninterrupted").iterdir():
        assert file.read_bytes() == (broken / file.name).read_bytes(), file.name


@pytest.mark.parametrize("size", [0, 7, 100, -1])
@pytest.mark.parametrize("name", ["encoded_images", "encoded_captions"])
def test_damaged_cached_embeddings_are_encoded_again(tmp_path, name, size):
    data = paired("scenes", scenes("train", 30).as_split("global"))
    model = build("heads", image_dim=data.images.shape[-1], caption_dim=data.captions.shape[-1], embed_dim=6)
    messages = []
    block = cached_scorer(model, data, tmp_path, messages.append).block(slice(0, 30), slice(0, 150))
    cached_scorer(model, data, tmp_path, messages.append)
    assert len(messages) == 1
    original = (tmp_path / f"{name}.npy").read_bytes()
    truncate(tmp_path / f"{name}.npy", size)
    again = cached_scorer(model, data, tmp_path, messages.append).block(slice(0, 30), slice(0, 150))
    assert len(messages) == 2
    assert torch.equal(block, again)
    assert (tmp_path / f"{name}.npy").read_bytes() == original


def test_emptied_lists_are_filled_from_the_previous_table(tmp_path):
    w, later = world(), world(seed=4)
    mine(scorer_of(w), w.data, tmp_path / "first", MiningConfig(8, 5), MODEL)
    previous = open_mined(tmp_path / "first", w.data)
    split_scorer = dot_product_scorer(later.x, later.y)
    config = MiningConfig(8, 5, FalseNegativeFilters(margin=25.0))
    mine(lambda folder: split_scorer, w.data, tmp_path / "bare", config, MODEL)
    mine(lambda folder: split_scorer, w.data, tmp_path / "filled", config, MODEL, previous=previous)
    bare, filled = (open_mined(tmp_path / name, w.data) for name in ("bare", "filled"))
    assert count_empty_lists(tmp_path / "filled") == count_empty_lists(tmp_path / "bare")
    for name in ("captions", "images", "caption_similarity", "image_similarity"):
        lists = "captions" if name.startswith("caption") else "images"
        empty = getattr(bare, lists)[:, :1] < 0
        assert 0 < empty.sum() < len(empty)
        expected = np.where(empty, getattr(previous, name), getattr(bare, name))
        assert np.array_equal(getattr(filled, name), expected)
    HardNegativeSampler(filled, w.data.owners)


def test_the_error_says_whether_the_data_or_the_model_differs(tmp_path):
    w, other = world(), world(seed=9)
    model = MODEL | {"data_checksum": "a"}
    mine(scorer_of(w), w.data, tmp_path / "table", MiningConfig(5, 5), model)

    def mine_again(data, model):
        mine(scorer_of(w), data, tmp_path / "table", MiningConfig(5, 5), model)

    with pytest.raises(ValueError, match=r"is of other data \(pairing .*, not "):
        mine_again(other.data, model | {"data_checksum": "b"})
    with pytest.raises(ValueError, match=r'is of other data \(data_checksum "a", not "b"\)'):
        mine_again(w.data, model | {"data_checksum": "b"})
    with pytest.raises(ValueError, match=r'is of another model \(weights "abc", not "xyz"\)'):
        mine_again(w.data, model | {"weights": "xyz"})
    with pytest.raises(ValueError, match="is of another model"):  # the data are the same, read by another model
        mine_again(w.data, model | {"weights": "xyz", "data_checksum": "b"})


def interrupted_table(w, target, shortlist, calls_before_stop):
    """An unfinished table, and a scorer that goes through."""
    products, calls = scorer_of(w)(None), []

    def interrupted(function):
        def call(*arguments):
            calls.append(arguments)
            if len(calls) == calls_before_stop:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    split_scorer = SplitScorer(interrupted(products.block), interrupted(products.of_pairs), 5)
    with pytest.raises(KeyboardInterrupt):
        mine(
            lambda folder: split_scorer,
            w.data,
            target,
            MiningConfig(8, 5),
            MODEL,
            shortlist=shortlist,
            save_interval=0.0,
        )
    return split_scorer


@pytest.mark.parametrize("place", others_slow([0.5, 0.02, 0.3, 0.7, 0.98], 1))
@pytest.mark.parametrize("name", ["progress", "i2t.npy", "i2t_similarity.npy", "t2i.npy", "t2i_similarity.npy"])
@pytest.mark.parametrize("shortlisted", [False, True])
def test_one_bit_of_an_unfinished_table_does_not_change_the_finished_one(
    tmp_path, name, place, shortlisted, monkeypatch
):
    monkeypatch.setattr("tercet.mining.rerank_lists.BATCH_PAIRS", 64)
    w = world()
    mine(scorer_of(w), w.data, tmp_path / "quick", MiningConfig(20, 9), MODEL)
    shortlist = open_mined(tmp_path / "quick", w.data) if shortlisted else None
    mine(scorer_of(w), w.data, tmp_path / "whole", MiningConfig(8, 5), MODEL, shortlist=shortlist)
    split_scorer = interrupted_table(w, tmp_path / "table", shortlist, 12 if shortlisted else 4)
    unfinished = tmp_path / "table.unfinished"
    file = next(unfinished.glob("progress.*")) if name == "progress" else unfinished / name
    if file.is_file():
        flip_bit(file, int(place * file.stat().st_size), bit=3)
    mine(
        lambda folder: split_scorer,
        w.data,
        tmp_path / "table",
        MiningConfig(8, 5),
        MODEL,
        shortlist=shortlist,
        save_interval=0.0,
    )
    for expected in (tmp_path / "whole").iterdir():
        assert expected.read_bytes() == (tmp_path / "table" / expected.name).read_bytes(), expected.name


def test_an_undamaged_table_resumes_where_it_was(tmp_path):
    w = world()
    split_scorer = interrupted_table(w, tmp_path / "table", None, 4)
    rows = []

    def block(images, captions):
        rows.append(images.start)
        return split_scorer.block(images, captions)

    resumed = SplitScorer(block, split_scorer.of_pairs, 5)
    mine(lambda folder: resumed, w.data, tmp_path / "table", MiningConfig(8, 5), MODEL)
    assert rows[0] > 0


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9, 0.999])
def test_one_bit_of_cached_embeddings_is_seen(tmp_path, place):
    data = paired("scenes", scenes("train", 30).as_split("global"))
    model = build("heads", image_dim=data.images.shape[-1], caption_dim=data.captions.shape[-1], embed_dim=6)
    messages = []
    block = cached_scorer(model, data, tmp_path, messages.append).block(slice(0, 30), slice(0, 150))
    file = tmp_path / "encoded_images.npy"
    flip_bit(file, int(place * file.stat().st_size), bit=3)
    again = cached_scorer(model, data, tmp_path, messages.append).block(slice(0, 30), slice(0, 150))
    assert len(messages) == 2
    assert torch.equal(block, again)
