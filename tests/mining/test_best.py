"""The k best of every anchor, block by block, against sorting everything."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.mining.best import NOBODY, Best


def sorted_all(similarity, k):
    """Rows are anchors: candidates by similarity, then by number; NOBODY where there are too few."""
    candidates, values = [], []
    for row in similarity.tolist():
        order = sorted((c for c in range(len(row)) if row[c] > float("-inf")), key=lambda c: (-row[c], c))[:k]
        missing = k - len(order)
        candidates.append(order + [NOBODY] * missing)
        values.append([row[c] for c in order] + [float("-inf")] * missing)
    return torch.tensor(candidates, dtype=torch.int32), torch.tensor(values)


@given(
    seed=st.integers(0, 10_000),
    images=st.integers(1, 30),
    captions=st.integers(1, 60),
    k=st.integers(1, 12),
    sides=st.tuples(st.integers(1, 30), st.integers(1, 40)),
    levels=st.sampled_from([1, 3, 10_000]),
)
@settings(max_examples=150, deadline=None)
def test_blocks_find_what_sorting_finds_with_ties_and_pairs_left_out(seed, images, captions, k, sides, levels):
    generator = torch.Generator().manual_seed(seed)
    S = torch.randint(levels, (images, captions), generator=generator).float()
    S[torch.rand(S.shape, generator=generator) < 0.2] = -torch.inf
    of_images, of_captions = Best(images, k), Best(captions, k)
    for top in range(0, images, sides[0]):
        for left in range(0, captions, sides[1]):
            rows, columns = slice(top, min(top + sides[0], images)), slice(left, min(left + sides[1], captions))
            of_images.update(S[rows, columns], rows, left, images=True)
            of_captions.update(S[rows, columns], columns, top, images=False)
    for found, expected in ((of_images, sorted_all(S, k)), (of_captions, sorted_all(S.T, k))):
        for ours, theirs in zip(found.result(), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_equal_similarities_keep_the_lowest_numbers():
    best = Best(1, 3)
    for start in (0, 50, 100):
        best.update(torch.zeros(1, 50), slice(0, 1), start, images=True)
    assert best.result()[0].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("at", [0, 3, 7])
def test_what_is_saved_and_restored_goes_on_alike(at):
    blocks = torch.rand(8, 5, 40, generator=torch.Generator().manual_seed(1))
    whole, first, second = Best(5, 4), Best(5, 4), Best(5, 4)
    for number, block in enumerate(blocks):
        whole.update(block, slice(0, 5), 40 * number, images=True)
        (first if number < at else second).update(block, slice(0, 5), 40 * number, images=True)
        if number == at - 1:
            second.restore({name: tensor.clone() for name, tensor in first.state().items()})
    for ours, theirs in zip(second.result(), whole.result(), strict=True):
        assert torch.equal(ours, theirs)
