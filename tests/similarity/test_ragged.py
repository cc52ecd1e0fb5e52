"""Sets of a whole split without their padding: slices and orders are those of the padded tensor."""

import torch

from tercet.similarity import Ragged, joined
from tests.similarity.test_cross_attention import sets


def test_slices_and_orders_are_those_of_the_padded_sets():
    batches = [sets([3, 1, 4]), sets([6, 2], seed=1), sets([5], seed=2)]
    ragged, padded = Ragged.of(batches), joined(batches)
    assert len(ragged) == 6
    assert len(ragged.parts) == 21
    assert torch.equal(ragged.padded(), padded)
    assert torch.equal(ragged[1:3], padded[1:3, :4])
    order = torch.tensor([5, 0, 3, 3])
    assert torch.equal(ragged[order][:], padded[order, :6])
    assert torch.equal(ragged[order][order[1:2]][0:1], padded[5:6, :5])
    assert ragged[0:0].shape == (0, 1, 6)
