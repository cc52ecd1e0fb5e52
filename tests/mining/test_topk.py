"""Streaming top-k per anchor against a full sort."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tercet.mining.topk import NO_ITEM, RunningTopK
from tests.examples import examples


def sorted_all(similarity, k):
    """Rows are anchors: candidates by similarity, then by index, padded with NO_ITEM."""
    candidates, values = [], []
    for row in similarity.tolist():
        order = sorted((c for c in range(len(row)) if row[c] > float("-inf")), key=lambda c: (-row[c], c))[:k]
        missing = k - len(order)
        candidates.append(order + [NO_ITEM] * missing)
        values.append([row[c] for c in order] + [float("-inf")] * missing)
    return torch.tensor(candidates, dtype=torch.int32), torch.tensor(values)


@given(
    seed=st.integers(0, 10_000),
    images=st.integers(1, 30),
    captions=st.integers(1, 60),
    k=st.integers(1, 12),
    block_shape=st.tuples(st.integers(1, 30), st.integers(1, 40)),
    levels=st.sampled_from([1, 3, 10_000]),
)
@examples(150)
def test_blocks_equal_sorting_with_ties_and_excluded_pairs(seed, images, captions, k, block_shape, levels):
    generator = torch.Generator().manual_seed(seed)
    S = torch.randint(levels, (images, captions), generator=generator).float()
    S[torch.rand(S.shape, generator=generator) < 0.2] = -torch.inf
    image_lists, caption_lists = RunningTopK(images, k), RunningTopK(captions, k)
    for top in range(0, images, block_shape[0]):
        for left in range(0, captions, block_shape[1]):
            rows = slice(top, min(top + block_shape[0], images))
            columns = slice(left, min(left + block_shape[1], captions))
            image_lists.update(S[rows, columns], rows, left, images=True)
            caption_lists.update(S[rows, columns], columns, top, images=False)
    for lists, expected in ((image_lists, sorted_all(S, k)), (caption_lists, sorted_all(S.T, k))):
        for ours, theirs in zip(lists.result(), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_equal_similarities_keep_the_lowest_indices():
    lists = RunningTopK(1, 3)
    for start in (0, 50, 100):
        lists.update(torch.zeros(1, 50), slice(0, 1), start, images=True)
    assert lists.result()[0].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_restored_state_continues_identically(at):
    blocks = torch.rand(8, 5, 40, generator=torch.Generator().manual_seed(1))
    uninterrupted, first, second = RunningTopK(5, 4), RunningTopK(5, 4), RunningTopK(5, 4)
    for index, block in enumerate(blocks):
        uninterrupted.update(block, slice(0, 5), 40 * index, images=True)
        (first if index < at else second).update(block, slice(0, 5), 40 * index, images=True)
        if index == at - 1:
            second.restore({name: tensor.clone() for name, tensor in first.state().items()})
    for ours, theirs in zip(second.result(), uninterrupted.result(), strict=True):
        assert torch.equal(ours, theirs)
