"""Who is silent, and how a push is shared out, beside loops over queries."""

import math

import pytest
import torch

import tercet
from tercet.analysis.gradient_shape import NEXT_TO_NOTHING, gradient_shape


def batch(images=6, captions_each=2, seed=0):
    similarity = torch.rand(images, images * captions_each, generator=torch.Generator().manual_seed(seed)).double()
    positives = torch.arange(images)[:, None] == torch.arange(images).repeat_interleave(captions_each)
    return similarity, positives


@pytest.mark.parametrize("name", ["triplet-sh", "triplet", "nt-xent", "sigmoid", "smooth-ap", "cir/sig-ms", "con/lin"])
def test_shapes_beside_loops(name):
    similarity, positives = batch()
    objective = tercet.objective(name)
    shape = gradient_shape(objective, similarity, positives)
    silent, evenness, hardest = [], [], []
    now = objective.pair_gradients(similarity, positives)
    first = objective.pair_gradients(torch.zeros_like(similarity), positives)
    for g, at_first, own in ((now[0], first[0], positives), (now[1].T, first[1].T, positives.T)):
        sizes = [sum(map(abs, row)) for row in g.tolist()]
        for row, size, begun, mask in zip(g.tolist(), sizes, at_first.tolist(), own.tolist(), strict=True):
            silent.append(size <= NEXT_TO_NOTHING * (sum(map(abs, begun)) or max(sizes)))
            pushes = [abs(entry) for entry, positive in zip(row, mask, strict=True) if not positive]
            if sum(pushes) > 0:
                shares = [push / sum(pushes) for push in pushes]
                evenness.append(-sum(s * math.log(s) for s in shares if s > 0) / math.log(len(shares)))
                hardest.append((max(shares) - 1 / len(shares)) / (1 - 1 / len(shares)))
    assert shape.silent.tolist() == silent
    assert shape.evenness.tolist() == pytest.approx(evenness)
    assert shape.hardest_share.tolist() == pytest.approx(hardest)


def test_a_margin_that_all_pairs_meet_leaves_every_query_silent():
    similarity, positives = batch()
    met = torch.where(positives, 1.0, 0.0).double()
    assert gradient_shape(tercet.objective("triplet-sh"), met, positives).silent.all()
    assert not gradient_shape(tercet.objective("triplet-sh"), similarity, positives).silent.all()


def test_an_objective_that_never_says_anything_is_silent():
    similarity, positives = batch()
    shape = gradient_shape(tercet.objective("triplet-sh", margin=-1.0), similarity, positives)
    assert shape.silent.all()
    assert not len(shape.evenness)


def test_a_high_temperature_is_even_and_a_low_one_sees_one_negative():
    similarity, positives = batch()
    flat = gradient_shape(tercet.objective("nt-xent", temperature=100.0), similarity, positives)
    sharp = gradient_shape(tercet.objective("nt-xent", temperature=1e-3), similarity, positives)
    assert flat.evenness.min() > 0.999
    assert flat.hardest_share.max() < 0.01
    assert sharp.hardest_share.mean() > 0.99


def test_ignored_pairs_are_no_negatives():
    similarity, positives = batch(captions_each=1)
    ignored = torch.zeros_like(positives)
    ignored[:, 1], ignored[1, 1] = ~positives[:, 1], False
    even = torch.full_like(similarity, 0.5)
    shape = gradient_shape(tercet.objective("nt-xent"), even, positives, ignored)
    assert shape.evenness.tolist() == pytest.approx([1.0] * len(shape.evenness))
