"""Ragged sets: slicing and indexing are equal to those of the padded tensor."""

import torch

from tercet.similarity import RaggedSets, concat_padded
from tests.similarity.test_cross_attention import sets


def test_slices_and_indices_are_those_of_the_padded_sets():
    batches = [sets([3, 1, 4]), sets([6, 2], seed=1), sets([5], seed=2)]
    ragged, padded = RaggedSets.of(batches), concat_padded(batches)
    assert len(ragged) == 6
    assert len(ragged.vectors) == 21
    assert torch.equal(ragged.padded(), padded)
    assert torch.equal(ragged[1:3], padded[1:3, :4])
    order = torch.tensor([5, 0, 3, 3])
    assert torch.equal(ragged[order][:], padded[order, :6])
    assert torch.equal(ragged[order][order[1:2]][0:1], padded[5:6, :5])
    assert ragged[0:0].shape == (0, 1, 6)
