"""Push on judged pairs against plain loops; the interval; what is even."""

import numpy as np
import pytest
import torch

import tercet
from tercet.data.judgements import Judgements
from tercet.dissection.judged import Push, difference, even_share, meetings_of, push_on_judged, table
from tercet.dissection.opened import open_run_folder
from tests.dissection.small_runs import small_run


@pytest.fixture(scope="module")
def opened():
    return open_run_folder(small_run())


@pytest.fixture(scope="module")
def judgements(opened):
    drawn = np.random.default_rng(0)
    captions = np.arange(2, len(opened.held_out.owners), 5)
    return Judgements(captions, drawn.choice([-1, 0, 1], size=(len(opened.held_out.images), len(captions))))


@pytest.mark.parametrize("name", ["triplet-sh", "nt-xent", "cir/sig-ms"])
def test_push_against_loops(opened, judgements, name):
    objective = tercet.objective(name)
    found = push_on_judged(opened, objective, judgements, batch_size=10)
    images, captions = opened.encoded_held_out
    owners = opened.held_out.owners.tolist()
    wanted = np.zeros_like(found.of)
    for meeting in meetings_of(judgements, np.array(owners), 10):
        of = [int(judgements.captions[c]) for c in meeting.captions]
        S = (images[meeting.images] @ captions[of].T).double()
        positives = torch.tensor([[int(i) == owners[c] for c in of] for i in meeting.images])
        for G in objective.pair_gradients(S, positives):
            for row, image in enumerate(meeting.images.tolist()):
                for column, caption in enumerate(of):
                    push = G[row, column].item()
                    if positives[row, column] or push <= 0:
                        continue
                    said = judgements.said[image, meeting.captions[column]]
                    wanted[:, image, owners[caption]] += [push, push * (said >= 0), push * (said == 1)]
    np.testing.assert_allclose(found.of, wanted, atol=1e-9)
    everything, judged, matching = wanted.sum(axis=(1, 2))
    assert found.share() == pytest.approx(matching / judged)
    assert found.at_least() == pytest.approx(matching / everything)
    low, high = found.interval()
    assert low < found.share() < high


def test_an_interval_covers_as_often_as_it_says():
    """Images are of kinds, and whether a pair matches hangs on both of its images: both ends must be drawn anew."""
    drawn, images, covered = np.random.default_rng(1), 40, 0
    for _ in range(60):
        kinds = drawn.normal(size=(2, images))
        matching = drawn.random((images, images)) < 1 / (1 + np.exp(-(kinds[0][:, None] + kinds[1][None, :])))
        everything = np.ones((images, images))
        low, high = Push("any", np.stack([everything, everything, matching])).interval()
        covered += low < 0.5 < high
    assert covered >= 52  # of 60; drawing the anchors alone covers about 45


def test_a_difference_of_two_is_narrower_than_their_intervals(opened, judgements):
    one, other = (push_on_judged(opened, tercet.objective(name), judgements) for name in ("nt-xent", "triplet-sh"))
    low, high = difference(one, other)
    assert low < one.share() - other.share() < high
    assert difference(one, one) == (0.0, 0.0)


def test_even_is_what_is_pushed_alike(opened, judgements):
    alike = tercet.objective(lambda S, positives: (~positives).to(S.dtype))
    even = even_share(judgements, opened.held_out.owners.numpy())
    assert push_on_judged(opened, alike, judgements).share() == pytest.approx(even, abs=0.02)
    assert 0.4 < even < 0.6


def test_a_table_has_a_row_each(opened, judgements):
    one = push_on_judged(opened, tercet.objective("nt-xent"), judgements)
    assert table([one], 0.5).markdown().count("| nt-xent |") == 1
