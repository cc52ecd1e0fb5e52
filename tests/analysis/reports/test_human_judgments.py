"""Push on judged pairs against loops, its bootstrap interval, and the even share."""

import numpy as np
import pytest
import torch

import tercet
from tercet.analysis.reports.human_judgments import (
    Push,
    difference,
    even_share,
    judged_batches,
    push_on_judged,
    table,
)
from tercet.analysis.reports.loaded_run import open_run_folder
from tercet.data.flickr8k_judgments import Judgments
from tests.shared_runs import small_run


@pytest.fixture(scope="module")
def loaded():
    return open_run_folder(small_run())


@pytest.fixture(scope="module")
def judgments(loaded):
    random = np.random.default_rng(0)
    captions = np.arange(2, len(loaded.held_out.owners), 5)
    return Judgments(captions, random.choice([-1, 0, 1], size=(len(loaded.held_out.images), len(captions))))


@pytest.mark.parametrize("name", ["triplet-sh", "nt-xent", "cir/sig-ms"])
def test_push_against_loops(loaded, judgments, name):
    objective = tercet.objective(name)
    push = push_on_judged(loaded, objective, judgments, batch_size=10)
    images, captions = loaded.encoded_held_out
    owners = loaded.held_out.owners.tolist()
    expected = np.zeros_like(push.sums)
    for indices in judged_batches(judgments, np.array(owners), 10):
        rows = [int(judgments.captions[c]) for c in indices.captions]
        S = (images[indices.images] @ captions[rows].T).double()
        positives = torch.tensor([[int(i) == owners[c] for c in rows] for i in indices.images])
        for G in objective.pair_gradients(S, positives):
            for row, image in enumerate(indices.images.tolist()):
                for column, caption in enumerate(rows):
                    g = G[row, column].item()
                    if positives[row, column] or g <= 0:
                        continue
                    verdict = judgments.verdicts[image, indices.captions[column]]
                    expected[:, image, owners[caption]] += [g, g * (verdict >= 0), g * (verdict == 1)]
    np.testing.assert_allclose(push.sums, expected, atol=1e-9)
    everything, judged, matching = expected.sum(axis=(1, 2))
    assert push.share() == pytest.approx(matching / judged)
    assert push.at_least() == pytest.approx(matching / everything)
    low, high = push.interval()
    assert low < push.share() < high


def test_the_interval_has_its_nominal_coverage():
    """Whether a pair matches depends on both of its images, so both must be resampled."""
    random, images, covered = np.random.default_rng(1), 40, 0
    for _ in range(60):
        effects = random.normal(size=(2, images))
        matching = random.random((images, images)) < 1 / (1 + np.exp(-(effects[0][:, None] + effects[1][None, :])))
        everything = np.ones((images, images))
        low, high = Push("any", np.stack([everything, everything, matching])).interval()
        covered += low < 0.5 < high
    assert covered >= 52  # of 60; resampling only the anchors covers about 45


def test_a_difference_of_two_is_narrower_than_their_intervals(loaded, judgments):
    one, other = (push_on_judged(loaded, tercet.objective(name), judgments) for name in ("nt-xent", "triplet-sh"))
    low, high = difference(one, other)
    assert low < one.share() - other.share() < high
    assert difference(one, one) == (0.0, 0.0)


def test_the_even_share_is_that_of_an_equal_push(loaded, judgments):
    equal = tercet.objective(lambda S, positives: (~positives).to(S.dtype))
    even = even_share(judgments, loaded.held_out.owners.numpy())
    assert push_on_judged(loaded, equal, judgments).share() == pytest.approx(even, abs=0.02)
    assert 0.4 < even < 0.6


def test_the_table_has_one_row_per_objective(loaded, judgments):
    one = push_on_judged(loaded, tercet.objective("nt-xent"), judgments)
    assert table([one], 0.5).markdown().count("| nt-xent |") == 1
