"""Captions of several images, and images without a caption: what the whole chain makes of them, against loops."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tercet
from tercet.data.collate import Collator
from tercet.data.dataset import PairedData
from tercet.data.feature_array import FeatureArray
from tercet.data.hard_negatives import HardNegativeSampler, MinedTable, open_mined
from tercet.data.samplers import EpochSampler, image_batches, pair_batches
from tercet.evaluation import evaluate_tiles, tiles_of_embeddings
from tercet.evaluation.metrics import contributions, metric_names
from tercet.mining.filters import FalseNegativeFilters
from tercet.mining.mine import MiningConfig, mine
from tercet.similarity import dot_product_scorer
from tercet.types import TEXT_TEXT

IMAGES, CAPTIONS = 40, 25


def world(seed=0):
    """Random positives, several each way; some images match nothing. `mask` is the truth that loops use."""
    random = np.random.default_rng(seed)
    mask = random.random((IMAGES, CAPTIONS)) < 0.06
    mask[random.integers(0, IMAGES, CAPTIONS), np.arange(CAPTIONS)] = True
    mask[7] = mask[IMAGES - 1] = False
    mask[0, ~mask.any(axis=0)] = True
    mask = mask[:, np.argsort(mask.argmax(axis=0), kind="stable")]  # by first image: owners ascend
    owners = mask.argmax(axis=0)
    more = np.argwhere(mask & (np.arange(IMAGES)[:, None] != owners))
    x, y = (random.standard_normal((count, 8), dtype=np.float32) for count in (IMAGES, CAPTIONS))
    y += 0.7 * np.stack([x[mask[:, caption]].mean(axis=0) for caption in range(CAPTIONS)])
    data = PairedData(
        "world",
        FeatureArray((x,), "x"),
        FeatureArray((y,), "y"),
        torch.from_numpy(owners),
        tuple(f"query {caption}" for caption in range(CAPTIONS)),
        more_pairs=torch.from_numpy(more),
        sides=TEXT_TEXT,
    )
    assert len(more) > 5
    assert (~mask.any(axis=1)).sum() >= 2
    return SimpleNamespace(data=data, mask=torch.from_numpy(mask), x=torch.from_numpy(x), y=torch.from_numpy(y))


def pairs_of(mask):
    return {tuple(pair) for pair in mask.nonzero().tolist()}


def test_positives_of_any_items_and_of_a_subset():
    w = world()
    assert {tuple(pair) for pair in w.data.pairs.tolist()} == pairs_of(w.mask)
    images, captions = torch.tensor([3, 0, 39, 3]), torch.tensor([5, 24, 0])
    assert torch.equal(w.data.positives(images, captions), w.mask[images][:, captions])
    kept = torch.arange(0, IMAGES, 3)
    part = w.data.subset(kept)
    captions = (w.mask[kept] & (w.data.owners == kept[:, None])).any(dim=0).nonzero().flatten()
    every = torch.arange(len(kept)), torch.arange(len(captions))
    assert torch.equal(part.positives(*every), w.mask[kept][:, captions])


def test_evaluation_is_that_of_the_mask():
    w = world()
    tiles = tiles_of_embeddings(w.x, w.y)
    evaluation = evaluate_tiles(tiles, w.data.owners, more_pairs=w.data.more_pairs)
    assert evaluation.metrics == tercet.evaluate(w.x @ w.y.T, w.mask)
    assert evaluation.metrics["i2t_queries"] == w.mask.any(dim=1).sum()
    with pytest.raises(ValueError, match="use custom for several positives"):
        evaluate_tiles(tiles, w.data.owners, more_pairs=w.data.more_pairs, protocol="flickr-1k")


@pytest.mark.parametrize("metric", metric_names())
def test_contributions_of_what_positives_connect_average_to_the_metric(metric):
    w = world()
    evaluation = evaluate_tiles(tiles_of_embeddings(w.x, w.y), w.data.owners, more_pairs=w.data.more_pairs)
    of_groups = contributions(evaluation.ranks.table(), metric)
    assert of_groups.mean() == pytest.approx(evaluation.metrics[metric], rel=1e-12)
    groups = [{("image", image)} for image in range(IMAGES) if w.mask[image].any()]
    for image, caption in w.mask.nonzero().tolist():  # join what is connected, pair by pair
        joined = {("image", image), ("caption", caption)}
        for group in [group for group in groups if group & joined]:
            groups.remove(group)
            joined |= group
        groups.append(joined)
    assert len(of_groups) == len(groups)


def test_every_pair_is_trained_on_once_an_epoch():
    w = world()
    batches = pair_batches(w.data.owners, 7, seed=1, epoch=0, keep_short=True, more_pairs=w.data.more_pairs)
    seen = [pair for batch in batches for pair in zip(batch.images.tolist(), batch.captions.tolist(), strict=True)]
    assert len(seen) == len(set(seen))
    assert set(seen) == pairs_of(w.mask)
    batches = image_batches(w.data.owners, 5, None, seed=1, epoch=0, keep_short=True, more_pairs=w.data.more_pairs)
    images = torch.cat([batch.images for batch in batches]).tolist()
    assert sorted(images) == w.mask.any(dim=1).nonzero().flatten().tolist()  # without those that match nothing
    for batch in batches:
        expected = sorted(caption for image in batch.images for caption in w.mask[image].nonzero().flatten().tolist())
        assert sorted(batch.captions.tolist()) == expected
    sampler = EpochSampler(w.data.owners, 5, 1, seed=0, more_pairs=w.data.more_pairs)
    assert all(w.mask[batch.images, batch.captions].all() for batch in sampler.epoch(0))


def test_no_positive_is_pushed_away():
    w = world()
    collator = Collator(w.data, ignore_equal_text=True)
    nt_xent = tercet.objective("nt-xent")
    for indices in pair_batches(w.data.owners, 16, seed=0, epoch=0, more_pairs=w.data.more_pairs):
        batch = collator.make(indices)
        expected = w.mask[indices.images][:, indices.captions]
        assert torch.equal(batch.positives(), expected)
        gradient = nt_xent.pair_gradient(torch.zeros(expected.shape), batch.positives(), batch.ignored)
        assert torch.equal(gradient < 0, expected)
    diagonal = Collator(w.data, diagonal=True).make(indices)
    assert torch.equal(diagonal.positives(), torch.eye(16, dtype=torch.bool))


@pytest.mark.parametrize("margin", [None, 0.1])
def test_mined_lists_hold_no_positive(tmp_path, margin):
    w = world()
    S = w.x @ w.y.T
    config = MiningConfig(6, 9, FalseNegativeFilters(margin=margin))
    mine(lambda folder: dot_product_scorer(w.x, w.y), w.data, tmp_path / "mined", config, {"weights": "w"})
    table = open_mined(tmp_path / "mined", w.data)
    for lists, similarity, mask in ((table.captions, S, w.mask), (table.images, S.T, w.mask.T)):
        for row, listed in enumerate(lists.tolist()):
            best = max((s for s, own in zip(similarity[row], mask[row], strict=True) if own), default=None)
            cap = np.inf if margin is None or best is None else best - margin
            allowed = [item for item in range(mask.shape[1]) if not mask[row, item] and similarity[row, item] <= cap]
            expected = sorted(allowed, key=lambda item: -float(similarity[row, item]))[: lists.shape[1]]
            assert [item for item in listed if item >= 0] == expected
    with pytest.raises(ValueError, match="mined from another dataset"):
        open_mined(tmp_path / "mined", replace(w.data, more_pairs=None))


def test_a_mined_distractor_has_no_caption_of_its_own():
    """(i-', t-') then repeats (i-, t-)."""
    owners = torch.tensor([0, 1])  # images 2 and 3 have no caption
    table = MinedTable(np.array([[1], [0], [0], [0]]), np.array([[3], [0]]), "here", "checksum")
    drawn = HardNegativeSampler(table, owners).draw(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.Generator())
    assert drawn.images.tolist() == [[3, 3], [0, 0]]
    assert drawn.captions.tolist() == [[1, 1], [0, 0]]


def test_ids_alone_would_miss_positives():
    """The positives of a batch are not those of equal ids: the masks are needed."""
    w = world()
    every = Collator(w.data).make(pair_batches(w.data.owners, CAPTIONS, seed=0, epoch=0)[0])
    by_ids = every.image_ids[:, None] == every.caption_ids[None, :]
    assert (by_ids & ~every.positives()).sum() == 0
    assert (every.positives() & ~by_ids).any()
    assert all(every.positives()[i, j] or not by_ids[i, j] for i, j in product(range(5), range(5)))
