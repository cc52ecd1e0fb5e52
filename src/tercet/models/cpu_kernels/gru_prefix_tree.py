"""GRU over a prefix tree of captions, for evaluation on CPUs: shared prefixes are computed once.

"a dog runs" and "a dog sleeps" have the same states at "a" and "a dog". A step of the GRU processes the nodes of one
level of the tree. The input part of the gates is computed once per distinct word.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


def tree_states(
    gru: nn.GRU,
    embedding: Float[Tensor, "vocab word_dim"],
    token_ids: Int[Tensor, "caption word"],
    lengths: Int[Tensor, " caption"],
) -> Float[Tensor, "caption longest dim"]:
    """States of a one-layer GRU, averaged over its directions if bidirectional; zeros where padded."""
    states = embedding.new_zeros(len(token_ids), int(lengths.max()), gru.hidden_size)
    for step, captions, nodes, hidden in _steps(gru, embedding, token_ids, lengths, backward=False):
        states[captions, step] = hidden[nodes]
    if gru.bidirectional:
        for step, captions, nodes, hidden in _steps(gru, embedding, token_ids, lengths, backward=True):
            states[captions, lengths[captions] - 1 - step] += hidden[nodes]
        states /= 2
    return states


def tree_last(
    gru: nn.GRU,
    embedding: Float[Tensor, "vocab word_dim"],
    token_ids: Int[Tensor, "caption word"],
    lengths: Int[Tensor, " caption"],
) -> Float[Tensor, "caption dim"]:
    """State at each caption's last word, without storing the others."""
    last = embedding.new_empty(len(token_ids), gru.hidden_size)
    for step, captions, nodes, hidden in _steps(gru, embedding, token_ids, lengths, backward=False):
        ends = lengths[captions] == step + 1
        last[captions[ends]] = hidden[nodes[ends]]
    return last


def _steps(
    gru: nn.GRU, embedding: Tensor, token_ids: Tensor, lengths: Tensor, backward: bool
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Yield for each step: its index, the captions that have a word there, their nodes, and the states of all nodes."""
    longest = int(lengths.max())
    token_ids = token_ids[:, :longest]
    if backward:
        token_ids = token_ids.gather(1, _reversed_positions(lengths, longest))
    vocabulary, words = token_ids.unique(return_inverse=True)
    weight, recurrent, bias, recurrent_bias = (
        getattr(gru, f"{name}_l0{'_reverse' if backward else ''}")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    two_gates = 2 * gru.hidden_size  # reset and update gates: their input and recurrent biases are added
    bias = torch.cat([bias[:two_gates] + recurrent_bias[:two_gates], bias[two_gates:]])
    word_gates = F.linear(embedding[vocabulary], weight, bias)
    nodes = torch.zeros_like(lengths)
    # Buffers reused at every level: allocating them per level costs more than the computation.
    inputs, previous, candidate_recurrent, hidden = (
        embedding.new_zeros(len(lengths), width * gru.hidden_size) for width in (3, 1, 1, 1)
    )
    for step in range(longest):
        active = (lengths > step).nonzero().squeeze(1)
        branches, nodes[active] = (nodes[active] * len(vocabulary) + words[active, step]).unique(return_inverse=True)
        level = slice(len(branches))
        torch.index_select(word_gates, 0, branches % len(vocabulary), out=inputs[level])
        torch.index_select(hidden, 0, branches // len(vocabulary), out=previous[level])
        _gru_step(
            inputs[level],
            previous[level],
            recurrent,
            recurrent_bias[two_gates:],
            candidate_recurrent[level],
            hidden[level],
        )
        yield step, active, nodes[active], hidden


def _gru_step(
    inputs: Float[Tensor, "node gates"],
    previous: Float[Tensor, "node dim"],
    weight: Float[Tensor, "gates dim"],
    candidate_bias: Float[Tensor, " dim"],
    candidate_recurrent: Float[Tensor, "node dim"],
    hidden: Float[Tensor, "node dim"],
) -> None:
    """Write the states that follow `previous` to `hidden`; overwrites `inputs` and `candidate_recurrent`."""
    dim = previous.shape[1]
    gates = inputs[:, : 2 * dim].addmm_(previous, weight[: 2 * dim].T).sigmoid_()
    reset, update = gates[:, :dim], gates[:, dim:]
    torch.addmm(candidate_bias, previous, weight[2 * dim :].T, out=candidate_recurrent)
    candidate = inputs[:, 2 * dim :].addcmul_(reset, candidate_recurrent).tanh_()
    torch.lerp(candidate, previous, update, out=hidden)


def _reversed_positions(lengths: Int[Tensor, " caption"], longest: int) -> Int[Tensor, "caption word"]:
    """Positions with the words of each caption reversed and its padding unchanged."""
    positions = torch.arange(longest, device=lengths.device).expand(len(lengths), longest)
    return torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
