"""Silent queries and the distribution of the push, against loops over queries."""

import math

import pytest
import torch

import tercet
from tercet.analysis.diagnostics.measurements import SILENT_BELOW, gradient_stats


def batch(images=6, captions_per_image=2, seed=0):
    similarity = torch.rand(images, images * captions_per_image, generator=torch.Generator().manual_seed(seed)).double()
    positives = torch.arange(images)[:, None] == torch.arange(images).repeat_interleave(captions_per_image)
    return similarity, positives


@pytest.mark.parametrize("name", ["triplet-sh", "triplet", "nt-xent", "sigmoid", "smooth-ap", "cir/sig-ms", "con/lin"])
def test_statistics_equal_loops(name):
    similarity, positives = batch()
    objective = tercet.objective(name)
    stats = gradient_stats(objective, similarity, positives)
    silent, evenness, hardest = [], [], []
    trained = objective.pair_gradients(similarity, positives)
    unlearned = objective.pair_gradients(torch.zeros_like(similarity), positives)
    for g, g_unlearned, own in (
        (trained[0], unlearned[0], positives),
        (trained[1].T, unlearned[1].T, positives.T),
    ):
        sizes = [sum(map(abs, row)) for row in g.tolist()]
        for row, size, unlearned_row, mask in zip(g.tolist(), sizes, g_unlearned.tolist(), own.tolist(), strict=True):
            silent.append(size <= SILENT_BELOW * (sum(map(abs, unlearned_row)) or max(sizes)))
            pushes = [abs(entry) for entry, positive in zip(row, mask, strict=True) if not positive]
            if sum(pushes) > 0:
                shares = [push / sum(pushes) for push in pushes]
                evenness.append(-sum(s * math.log(s) for s in shares if s > 0) / math.log(len(shares)))
                hardest.append((max(shares) - 1 / len(shares)) / (1 - 1 / len(shares)))
    assert stats.silent.tolist() == silent
    assert stats.evenness.tolist() == pytest.approx(evenness)
    assert stats.hardest_share.tolist() == pytest.approx(hardest)


def test_a_margin_that_all_pairs_satisfy_leaves_every_query_silent():
    similarity, positives = batch()
    satisfied = torch.where(positives, 1.0, 0.0).double()
    assert gradient_stats(tercet.objective("triplet-sh"), satisfied, positives).silent.all()
    assert not gradient_stats(tercet.objective("triplet-sh"), similarity, positives).silent.all()


def test_an_objective_without_any_gradient_is_silent():
    similarity, positives = batch()
    stats = gradient_stats(tercet.objective("triplet-sh", margin=-1.0), similarity, positives)
    assert stats.silent.all()
    assert not len(stats.evenness)


def test_a_high_temperature_is_even_and_a_low_one_pushes_one_negative():
    similarity, positives = batch()
    flat = gradient_stats(tercet.objective("nt-xent", temperature=100.0), similarity, positives)
    sharp = gradient_stats(tercet.objective("nt-xent", temperature=1e-3), similarity, positives)
    assert flat.evenness.min() > 0.999
    assert flat.hardest_share.max() < 0.01
    assert sharp.hardest_share.mean() > 0.99


def test_ignored_pairs_are_not_negatives():
    similarity, positives = batch(captions_per_image=1)
    ignored = torch.zeros_like(positives)
    ignored[:, 1], ignored[1, 1] = ~positives[:, 1], False
    even = torch.full_like(similarity, 0.5)
    stats = gradient_stats(tercet.objective("nt-xent"), even, positives, ignored)
    assert stats.evenness.tolist() == pytest.approx([1.0] * len(stats.evenness))
