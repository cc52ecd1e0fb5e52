"""The GRU that trains on a processor: states and gradients of torch's own."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tercet.models.words import WordGRU


def by_torch(words, token_ids, lengths):
    packed = pack_padded_sequence(words.embedding(token_ids), lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(words.gru(packed)[0], batch_first=True)
    half = words.gru.hidden_size
    return (states[..., :half] + states[..., half:]) / 2 if words.gru.bidirectional else states


@pytest.mark.parametrize("both_directions", [False, True])
@pytest.mark.parametrize("captions", [1, 2, 30])
def test_states_and_gradients_are_those_of_torch(both_directions, captions):
    torch.manual_seed(captions)
    words = WordGRU(20, 6, 7, both_directions=both_directions).double()
    lengths = torch.randint(1, 9, (captions,))
    token_ids = torch.randint(0, 20, (captions, 11))
    expected = by_torch(words, token_ids, lengths)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * upstream).sum(), list(words.parameters()))
    states = words.states(token_ids, lengths)
    torch.testing.assert_close(states, expected, rtol=0, atol=1e-14)
    found = torch.autograd.grad((states * upstream).sum(), list(words.parameters()))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_last_state_and_its_gradient():
    torch.manual_seed(0)
    words = WordGRU(9, 4, 5).double()
    lengths = torch.tensor([3, 1, 6, 6, 2])
    token_ids = torch.randint(0, 9, (5, 6))
    expected = by_torch(words, token_ids, lengths)[torch.arange(5), lengths - 1]
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * upstream).sum(), list(words.parameters()))
    last = words.last(token_ids, lengths)
    torch.testing.assert_close(last, expected, rtol=0, atol=1e-14)
    found = torch.autograd.grad((last * upstream).sum(), list(words.parameters()))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
