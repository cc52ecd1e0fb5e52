"""A GRU over many captions at once, for evaluation: what begins alike is computed once.

"a dog runs" and "a dog sleeps" have the same states at "a" and "a dog". Captions form a tree of their beginnings; a
step of the GRU goes over the nodes of one level. A word's part of the gates is computed once for every word in use.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


def tree_states(
    gru: nn.GRU,
    embedding: Float[Tensor, "known word_dim"],
    token_ids: Int[Tensor, "caption word"],
    lengths: Int[Tensor, " caption"],
) -> Float[Tensor, "caption longest dim"]:
    """The states of a GRU of one layer, the mean of its directions where it has two; zeros where padded."""
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
    embedding: Float[Tensor, "known word_dim"],
    token_ids: Int[Tensor, "caption word"],
    lengths: Int[Tensor, " caption"],
) -> Float[Tensor, "caption dim"]:
    """The state at each caption's last word, without holding the others."""
    last = embedding.new_empty(len(token_ids), gru.hidden_size)
    for step, captions, nodes, hidden in _steps(gru, embedding, token_ids, lengths, backward=False):
        ends = lengths[captions] == step + 1
        last[captions[ends]] = hidden[nodes[ends]]
    return last


def _steps(
    gru: nn.GRU, embedding: Tensor, token_ids: Tensor, lengths: Tensor, backward: bool
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Each step with the captions that have a word there, the nodes they are at, and the nodes' states."""
    longest = int(lengths.max())
    token_ids = token_ids[:, :longest]
    if backward:
        token_ids = token_ids.gather(1, _mirror(lengths, longest))
    used, words = token_ids.unique(return_inverse=True)
    weight, recurrent, bias, recurrent_bias = (
        getattr(gru, f"{name}_l0{'_reverse' if backward else ''}")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    both = 2 * gru.hidden_size  # reset and update gates: there the biases of word and state add up
    bias = torch.cat([bias[:both] + recurrent_bias[:both], bias[both:]])
    by_word = F.linear(embedding[used], weight, bias)
    nodes = torch.zeros_like(lengths)
    # Memory that is written anew at every level: fresh memory of that size costs more than what is done with it.
    inputs, before, remembered, hidden = (
        embedding.new_zeros(len(lengths), width * gru.hidden_size) for width in (3, 1, 1, 1)
    )
    for step in range(longest):
        there = (lengths > step).nonzero().squeeze(1)
        branches, nodes[there] = (nodes[there] * len(used) + words[there, step]).unique(return_inverse=True)
        level = slice(len(branches))
        torch.index_select(by_word, 0, branches % len(used), out=inputs[level])
        torch.index_select(hidden, 0, branches // len(used), out=before[level])
        _gru_step(inputs[level], before[level], recurrent, recurrent_bias[both:], remembered[level], hidden[level])
        yield step, there, nodes[there], hidden


def _gru_step(
    inputs: Float[Tensor, "node gates"],
    before: Float[Tensor, "node dim"],
    weight: Float[Tensor, "gates dim"],
    candidate_bias: Float[Tensor, " dim"],
    remembered: Float[Tensor, "node dim"],
    hidden: Float[Tensor, "node dim"],
) -> None:
    """Writes the states after `before` to `hidden`, and over `inputs` and `remembered`."""
    dim = before.shape[1]
    gates = inputs[:, : 2 * dim].addmm_(before, weight[: 2 * dim].T).sigmoid_()
    reset, update = gates[:, :dim], gates[:, dim:]
    torch.addmm(candidate_bias, before, weight[2 * dim :].T, out=remembered)
    candidate = inputs[:, 2 * dim :].addcmul_(reset, remembered).tanh_()
    torch.lerp(candidate, before, update, out=hidden)


def _mirror(lengths: Int[Tensor, " caption"], longest: int) -> Int[Tensor, "caption word"]:
    """Places with the last word first; padding stays behind."""
    places = torch.arange(longest, device=lengths.device).expand(len(lengths), longest)
    return torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)
