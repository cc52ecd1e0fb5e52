"""Captions that share their beginnings in the GRU: the same states as the GRU itself gives."""

import pytest
import torch

from tercet.models import word_tree
from tercet.models.words import WordGRU


@pytest.mark.parametrize("both_directions", [False, True])
@pytest.mark.parametrize("known", [2, 5, 40])  # few words: nearly all is shared
def test_the_tree_gives_the_states_of_the_gru(both_directions, known):
    torch.manual_seed(known)
    words = WordGRU(known, 6, 7, both_directions=both_directions).double()
    lengths = torch.randint(1, 9, (50,))
    token_ids = torch.randint(0, known, (50, 11))
    expected = words.states(token_ids, lengths)  # with gradients: the GRU of torch
    assert expected.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(words.states(token_ids, lengths), expected.detach(), rtol=0, atol=1e-14)
        if not both_directions:
            last = words.last(token_ids, lengths)
            torch.testing.assert_close(last, expected[torch.arange(50), lengths - 1].detach(), rtol=0, atol=1e-14)


def test_equal_beginnings_are_computed_once(monkeypatch):
    words = WordGRU(9, 4, 5)
    rows = []
    step = word_tree._gru_step
    monkeypatch.setattr(word_tree, "_gru_step", lambda inputs, *rest: rows.append(len(inputs)) or step(inputs, *rest))
    with torch.no_grad():
        words.last(torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6, 0], [1, 2, 3, 4]]), torch.tensor([4, 4, 3, 4]))
    assert rows == [1, 1, 2, 2]
