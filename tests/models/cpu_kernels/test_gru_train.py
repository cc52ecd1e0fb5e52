"""The CPU training GRU: the same states and gradients as torch's GRU."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tercet.models.parts.gru_text_encoder import WordGRU


def torch_states(words, token_ids, lengths):
    packed = pack_padded_sequence(words.embedding(token_ids), lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(words.gru(packed)[0], batch_first=True)
    half = words.gru.hidden_size
    return (states[..., :half] + states[..., half:]) / 2 if words.gru.bidirectional else states


def assert_same_with_gradients(words, output, expected):
    """Equal outputs, and equal gradients of all parameters for a random upstream gradient."""
    upstream = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad((expected * upstream).sum(), list(words.parameters()))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-14)
    gradients = torch.autograd.grad((output * upstream).sum(), list(words.parameters()))
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("captions", [1, 2, 30])
def test_states_and_gradients_are_those_of_torch(bidirectional, captions):
    torch.manual_seed(captions)
    words = WordGRU(20, 6, 7, bidirectional=bidirectional).double()
    lengths = torch.randint(1, 9, (captions,))
    token_ids = torch.randint(0, 20, (captions, 11))
    assert_same_with_gradients(words, words.states(token_ids, lengths), torch_states(words, token_ids, lengths))


def test_the_last_state_and_its_gradient():
    torch.manual_seed(0)
    words = WordGRU(9, 4, 5).double()
    lengths = torch.tensor([3, 1, 6, 6, 2])
    token_ids = torch.randint(0, 9, (5, 6))
    expected = torch_states(words, token_ids, lengths)[torch.arange(5), lengths - 1]
    assert_same_with_gradients(words, words.last(token_ids, lengths), expected)
