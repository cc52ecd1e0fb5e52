"""GRU over a prefix tree: the same states as the plain GRU."""

import pytest
import torch

from tercet.models.cpu_kernels import gru_prefix_tree
from tercet.models.parts.gru_text_encoder import WordGRU


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("vocab_size", [2, 5, 40])  # small vocabularies: nearly all prefixes are shared
def test_the_tree_gives_the_states_of_the_gru(bidirectional, vocab_size):
    torch.manual_seed(vocab_size)
    words = WordGRU(vocab_size, 6, 7, bidirectional=bidirectional).double()
    lengths = torch.randint(1, 9, (50,))
    token_ids = torch.randint(0, vocab_size, (50, 11))
    expected = words.states(token_ids, lengths)  # with gradients: the GRU of torch
    assert expected.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(words.states(token_ids, lengths), expected.detach(), rtol=0, atol=1e-14)
        if not bidirectional:
            last = words.last(token_ids, lengths)
            torch.testing.assert_close(last, expected[torch.arange(50), lengths - 1].detach(), rtol=0, atol=1e-14)


def test_shared_prefixes_are_computed_once(monkeypatch):
    words = WordGRU(9, 4, 5)
    rows = []
    step = gru_prefix_tree._gru_step
    monkeypatch.setattr(
        gru_prefix_tree, "_gru_step", lambda inputs, *rest: rows.append(len(inputs)) or step(inputs, *rest)
    )
    with torch.no_grad():
        words.last(torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6, 0], [1, 2, 3, 4]]), torch.tensor([4, 4, 3, 4]))
    assert rows == [1, 1, 2, 2]
