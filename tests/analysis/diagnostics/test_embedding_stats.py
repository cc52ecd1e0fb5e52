"""Embedding statistics against simple, slow reference implementations."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn.functional import normalize

from tercet.analysis.diagnostics.measurements import (
    center_and_normalize,
    k_occurrence,
    modality_gap,
    nearest_cosine,
    skewness,
    spread,
)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_spread_is_the_mean_std_of_a_querys_similarities_in_the_flatter_direction():
    similarity = randn(5, 8)
    rows = np.mean([np.std(row) for row in similarity.numpy()])
    columns = np.mean([np.std(column) for column in similarity.numpy().T])
    assert spread(similarity) == pytest.approx(min(rows, columns), abs=1e-6)


def test_a_modality_that_collapsed_alone_has_no_spread():
    """All images are equal: captions differ, but every caption has the same similarity to all images."""
    assert spread(randn(1, 8).expand(5, 8)) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_k_occurrence_counts_the_nearest_of_every_anchor(k):
    similarity = randn(6, 9)
    expected = [0] * 9
    for row in similarity.tolist():
        for candidate in sorted(range(9), key=lambda c: (-row[c], c))[:k]:
            expected[candidate] += 1
    assert k_occurrence(similarity, k).tolist() == expected


def test_among_equals_the_lower_index_is_nearer():
    assert k_occurrence(torch.zeros(4, 5), 2).tolist() == [4, 4, 0, 0, 0]


def test_skewness_is_that_of_scipy():
    counts = (10 * randn(50).exp()).long()
    assert skewness(counts) == pytest.approx(stats.skew(counts.numpy()), rel=1e-10)
    assert skewness(torch.full((7,), 3)) == 0


def test_one_hub_among_many_makes_the_skew_large():
    even, hub = randn(200, 100), randn(200, 100)
    hub[:, 3] = 9.0
    assert skewness(k_occurrence(hub)) > 4 * max(1, abs(skewness(k_occurrence(even))))


def test_the_gap_equals_loops():
    x, y = randn(7, 4).double(), randn(11, 4, seed=1).double() + 0.7
    mean_x, mean_y = (np.mean([row.numpy() for row in items], axis=0) for items in (x, y))
    squares = [np.mean([np.sum((r - m) ** 2) for r in s.numpy()]) for s, m in ((x, mean_x), (y, mean_y))]
    separated = [np.mean([np.linalg.norm(r - mean_x) < np.linalg.norm(r - mean_y) for r in x.numpy()])]
    separated.append(np.mean([np.linalg.norm(r - mean_y) < np.linalg.norm(r - mean_x) for r in y.numpy()]))
    gap = modality_gap(x, y)
    assert gap.distance == pytest.approx(np.linalg.norm(mean_x - mean_y))
    assert gap.width == pytest.approx(np.sqrt(np.mean(squares)))
    assert gap.separable_share == pytest.approx(np.mean(separated))


def test_the_gap_does_not_depend_on_how_many_captions_an_image_has():
    x, y = normalize(randn(20, 6)), normalize(randn(20, 6, seed=1) + 0.5)
    once, often = modality_gap(x, y), modality_gap(x, y.repeat(5, 1))
    assert often == pytest.approx(once, abs=1e-6)


def test_the_nearest_cosine_equals_loops():
    x, others = randn(5, 6), randn(1100, 6, seed=1) + 3
    mean = others.mean(dim=0)
    centre = mean.numpy()
    cosines = [
        [
            np.dot(a - centre, b - centre) / np.linalg.norm(a - centre) / np.linalg.norm(b - centre)
            for b in others.numpy()
        ]
        for a in x.numpy()
    ]
    cosine, nearest = nearest_cosine(center_and_normalize(x, mean), center_and_normalize(others, mean).split(300))
    np.testing.assert_allclose(cosine.numpy(), np.max(cosines, axis=1), atol=1e-5)
    assert nearest.tolist() == np.argmax(cosines, axis=1).tolist()


def test_a_component_shared_by_all_images_does_not_make_them_equal():
    """Non-negative features have large cosines with each other without being copies."""
    train, test = randn(50, 30).abs() + 5, randn(20, 30, seed=1).abs() + 5
    test[4] = train[17]
    mean = train.mean(dim=0)
    cosine, nearest = nearest_cosine(center_and_normalize(test, mean), [center_and_normalize(train, mean)])
    assert (cosine > 0.99).nonzero().flatten().tolist() == [4]
    assert nearest[4] == 17
