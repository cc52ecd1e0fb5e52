"""Ranks of every positive: exact ties at any position, any annotation, bounded memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tercet.evaluation import (
    PositivePairs,
    Positives,
    rank_positives,
    tiles_of_blocks,
    tiles_of_embeddings,
    tiles_of_matrix,
)
from tercet.evaluation.blocked_similarity import equal_rows
from tercet.evaluation.metrics import cross_ranks, direction_metrics
from tercet.evaluation.rank_counts import Axis, Thresholds, count_on_device, count_tile
from tercet.evaluation.ranks import concat_ranks, rank_annotations
from tests.examples import others_slow


def slow_ranks(similarity, mask):
    """(image, caption) -> (rank among all, rank among negatives), by sorting; the negative first on a tie."""
    ranks = {}
    for i, (row, positives) in enumerate(zip(similarity.tolist(), mask.tolist(), strict=True)):
        own = sorted((j for j, positive in enumerate(positives) if positive), key=lambda j: (-row[j], j))
        for earlier, j in enumerate(own):
            negatives = sum(s >= row[j] for s, positive in zip(row, positives, strict=True) if not positive)
            ranks[i, j] = (1 + negatives + earlier, 1 + negatives)
    return ranks


def mask_of(pairs, images, captions):
    mask = torch.zeros(images, captions, dtype=torch.bool)
    mask[torch.from_numpy(pairs.image), torch.from_numpy(pairs.caption)] = True
    return mask


def assert_ranks(ranks, similarity, positives):
    rows = slow_ranks(similarity, mask_of(positives.i2t, *similarity.shape))
    columns = slow_ranks(similarity.T, mask_of(positives.t2i, *similarity.shape).T)
    for direction, expected in ((ranks.i2t, rows), (ranks.t2i, columns)):
        pairs = zip(direction.anchor.tolist(), direction.candidate.tolist(), strict=True)
        values = zip(direction.rank.tolist(), direction.rank_negatives.tolist(), strict=True)
        ours = dict(zip(pairs, values, strict=True))
        assert ours == expected


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9], ids=["few", "some", "most"])
@pytest.mark.parametrize(
    ("images", "captions", "entries"), [(37, 91, 10**6), (37, 91, 100), (300, 70, 5000), (1, 9, 4)]
)
def test_every_positive_has_the_rank_that_sorting_gives(images, captions, entries, share):
    """One tile or many, fewer or more thresholds per line than MAX_PASSES, different positives per direction."""
    generator = torch.Generator().manual_seed(captions)
    similarity = torch.randint(50, (images, captions), generator=generator) / 7
    lists = [(torch.rand(images, captions, generator=generator) < share).nonzero().numpy() for _ in range(2)]
    positives = Positives(
        PositivePairs.of(np.vstack([lists[0], [[0, 0]]])), PositivePairs.of(np.vstack([lists[1], [[0, 1]]]))
    )
    tiles = replace(tiles_of_matrix(similarity), entries=entries)
    assert_ranks(rank_positives(tiles, positives), similarity, positives)


def test_a_strip_of_more_rows_and_columns_than_a_byte_can_count():
    generator = torch.Generator().manual_seed(0)
    similarity = torch.rand(600, 4300, generator=generator)
    owners = torch.arange(4300) % 600
    positives = Positives.of_owners(owners)
    ranks = rank_positives(tiles_of_matrix(similarity), positives)
    image, caption = torch.from_numpy(ranks.i2t.anchor), torch.from_numpy(ranks.i2t.candidate)
    own = similarity[image, caption]
    negatives = similarity.masked_fill(mask_of(positives.i2t, 600, 4300), -torch.inf)
    some = torch.arange(0, 4300, 7)
    expected = (negatives[image[some]] >= own[some, None]).sum(dim=1) + 1
    assert torch.equal(torch.from_numpy(ranks.i2t.rank_negatives)[some].long(), expected)
    expected = (negatives[:, caption[some]] >= own[some]).sum(dim=0) + 1
    assert torch.equal(torch.from_numpy(ranks.t2i.rank_negatives)[some].long(), expected)


@pytest.mark.parametrize("strict", [False, True])
def test_counting_on_a_device_equals_counting_in_strips(strict):
    generator = torch.Generator().manual_seed(1)
    tile = torch.randint(30, (80, 120), generator=generator) / 8
    row, column = (torch.rand(80, 120, generator=generator) < 0.15).nonzero().numpy().T
    values, cells = tile.numpy()[row, column], np.arange(len(row))
    multiplicity = torch.randint(3, (200,), generator=generator).numpy()
    results = []
    for count in (count_tile, count_on_device):
        axes = [
            Axis([Thresholds.of(values, line, size, cells, strict)], multiplicity[:size])
            for line, size in ((row, 80), (column, 120))
        ]
        count(tile, slice(0, 80), slice(0, 120), *axes)
        results.append([axis.thresholds[0].of_cells(len(row)).tolist() for axis in axes])
    assert results[0] == results[1]


@pytest.mark.parametrize("seed", others_slow(range(60), 15))
def test_planted_duplicates_tie_exactly(seed):
    """Odd sizes and widths, where equal rows of a product differ in the last bit; duplicates are in other tiles."""
    random = np.random.default_rng(seed)
    images, captions_per_image, dim = (
        int(random.integers(3, 60)),
        int(random.integers(1, 6)),
        int(random.integers(1, 1025)),
    )
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(images, dim, generator=generator)
    owners = torch.arange(images).repeat_interleave(captions_per_image)
    y = torch.randn(len(owners), dim, generator=generator)
    copied, onto = 0, int(random.integers(1, images))
    x[onto] = x[copied]
    y[owners == onto] = y[owners == copied]
    order = torch.from_numpy(random.permutation(len(owners)))
    tiles = replace(tiles_of_embeddings(x, y[order]), entries=int(random.integers(1, 2000)))
    optimistic, against = (
        rank_positives(tiles, Positives.of_owners(owners[order]), ties=ties) for ties in ("optimistic", "against")
    )
    twins = np.isin(against.t2i.candidate, [copied, onto])
    assert (against.t2i.rank[twins] == optimistic.t2i.rank[twins] + 1).all()  # only the duplicate image
    duplicated = np.isin(against.i2t.anchor, [copied, onto])
    behind = against.i2t.rank_negatives[duplicated] - optimistic.i2t.rank_negatives[duplicated]
    assert (behind == 1).all()  # the duplicate caption


def test_equal_rows_are_those_of_equal_value():
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    assert equal_rows(x) is None
    x[7, 3], x[9] = 0.0, x[7]
    x[9, 3] = -0.0
    x[20] = x[30]
    x[40, ::2] = x[41, ::2]  # equal in some columns
    groups = equal_rows(x).tolist()
    assert groups[7] == groups[9]
    assert groups[20] == groups[30]
    assert len(set(groups)) == 48
    assert len(set(equal_rows(torch.ones(5, 3)).tolist())) == 1
    assert equal_rows(torch.ones(1, 3)) is None


def test_arrays_for_a_file():
    similarity = torch.tensor([[0.9, 0.1, 0.5], [0.8, 0.3, 0.7]])
    ranks = rank_positives(tiles_of_matrix(similarity), Positives.of_owners(torch.tensor([0, 1, 0])))
    arrays = {name: array.tolist() for name, array in ranks.arrays().items()}
    assert arrays == {
        "image": [0, 0, 1],
        "caption": [0, 2, 1],
        "i2t_rank": [1, 2, 3],
        "i2t_rank_negatives": [1, 1, 3],
        "t2i_rank": [1, 2, 1],
        "t2i_rank_negatives": [1, 2, 1],
    }
    assert ranks.arrays()["i2t_rank"].dtype == np.int64
    asymmetric = rank_positives(
        tiles_of_matrix(similarity), Positives(PositivePairs.of([(0, 0)]), PositivePairs.of([(1, 1)]))
    )
    arrays = {name: array.tolist() for name, array in asymmetric.arrays().items()}
    assert arrays["i2t_image"] == [0]
    assert arrays["t2i_image"] == [1]
    assert arrays["t2i_caption"] == [1]
    assert set(arrays) == {f"{s}_{n}" for s in ("i2t", "t2i") for n in ("image", "caption", "rank", "rank_negatives")}


def test_several_annotations_at_once_equal_each_alone():
    generator = torch.Generator().manual_seed(3)
    similarity = torch.rand(20, 60, generator=generator)
    owners = Positives.of_owners(torch.arange(60) // 3)
    further = Positives(PositivePairs.of([(0, 5), (0, 5), (4, 9)]), PositivePairs.of([(3, 3), (19, 59)]))
    tiles = tiles_of_matrix(similarity)
    ranks_of_both = rank_annotations(tiles, [owners, further])
    for ranks, positives in zip(ranks_of_both, (owners, further), strict=True):
        assert_ranks(ranks, similarity, positives)
    assert direction_metrics(ranks_of_both[1].i2t)["queries"] == 2


def test_cross_retrieval_ranks_of_five_captions_are_those_of_aoq():
    """max(5 r_i - 4, r_t), with ranks against negatives only."""
    generator = torch.Generator().manual_seed(4)
    ranks = rank_positives(
        tiles_of_matrix(torch.rand(12, 60, generator=generator)),
        Positives.of_owners(torch.arange(12).repeat_interleave(5)),
    )
    expected = np.maximum(5 * ranks.t2i.rank_negatives - 4, ranks.i2t.rank_negatives)
    assert cross_ranks(ranks) == pytest.approx(expected)


def test_folds_are_concatenated():
    tiles = tiles_of_matrix(torch.rand(4, 4, generator=torch.Generator().manual_seed(5)))
    half = torch.arange(2)
    folds = [
        rank_positives(tiles.subset(half + k, half + k), Positives.of_owners(half)).with_rows(
            (half + k).numpy(), (half + k).numpy()
        )
        for k in (0, 2)
    ]
    ranks = concat_ranks(folds)
    assert ranks.arrays()["image"].tolist() == [0, 1, 2, 3]
    assert ranks.t2i.anchor.tolist() == [0, 1, 2, 3]


def test_only_tiles_are_ever_computed():
    """No tile is larger than `entries`, and the first pass computes the diagonal only."""
    shapes = []

    def similarity(a, b):
        shapes.append((len(a), len(b)))
        return a @ b.T

    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(6))
    order = torch.randperm(500, generator=torch.Generator().manual_seed(7))
    owners = torch.arange(100).repeat_interleave(5)[order]
    rank_positives(tiles_of_blocks(similarity, x, x[owners], entries=500), Positives.of_owners(owners))
    assert max(a * b for a, b in shapes) <= 500
    assert len(shapes) == 100  # 10 x 10; the diagonal is cached from the first pass


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux")
def test_memory_stays_below_that_of_the_similarity():
    """3,000 x 15,000 would be 172 MB; tiles of a million entries, a few of them cached, need a fraction."""
    x = torch.randn(3000, 16, generator=torch.Generator().manual_seed(8))
    owners = torch.arange(3000).repeat_interleave(5)
    tiles = replace(tiles_of_embeddings(x, x[owners] + 1), entries=10**6)
    rank_positives(tiles.subset(torch.arange(300), torch.arange(1500)), Positives.of_owners(owners[:1500]))  # warms up
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    rank_positives(tiles, Positives.of_owners(owners))
    assert resident("VmHWM") - before < 110_000  # kB


def resident(key):
    return int(
        next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)).split()[1]
    )


def test_shares_of_negatives_ahead():
    """Two images with two captions and one: image 0 has one negative caption, image 1 two."""
    similarity = torch.tensor([[0.9, 0.1, 0.5], [0.3, 0.6, 0.4]])
    ranks = rank_positives(tiles_of_matrix(similarity), Positives.of_owners(torch.tensor([0, 0, 1])))
    i2t, t2i = ranks.table().shares_ahead()
    assert i2t == pytest.approx((0 + 1 + 1 / 2) / 3)  # caption 1 is behind caption 2; caption 2 is behind caption 1
    assert t2i == pytest.approx((0 + 1 + 1) / 3)
