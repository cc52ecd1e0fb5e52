"""A GRU over captions of any lengths, for training on a processor: each word costs what a word costs.

torch's own GRU over packed captions makes, on a processor, a whole empty gradient for every step, and one small product
of weights for every step. Here the gates of all words are computed at once before the first step, and the gradient of
the recurrent weights in one product after the last.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Packed:
    """Where the words of captions stand when the first words of all captions come first, then the second ones.

    Captions in the order of their lengths, the longest first, so that those that go on are always the first ones. The
    axis `word` goes over all words of all captions.
    """

    def __init__(self, lengths: Int[Tensor, " caption"]) -> None:
        self.order = lengths.argsort(descending=True, stable=True)
        self.lengths = lengths[self.order]
        steps = torch.arange(int(lengths.max()), device=lengths.device)
        there = steps[:, None] < self.lengths
        self.step, self.row = there.nonzero(as_tuple=True)
        counts = there.sum(dim=1)
        self.counts: list[int] = counts.tolist()
        self.starts = counts.cumsum(0) - counts

    def words(self, token_ids: Int[Tensor, "caption longest"], *, backward: bool) -> Int[Tensor, " word"]:
        step = self.lengths[self.row] - 1 - self.step if backward else self.step
        return token_ids[self.order[self.row], step]

    def mirrored(self) -> Int[Tensor, " word"]:
        """For each word, where it stands when captions are read from their end."""
        return self.starts[self.lengths[self.row] - 1 - self.step] + self.row

    def last(self) -> Int[Tensor, " caption"]:
        """Where the last word of each caption stands, captions in the order given."""
        return (self.starts[self.lengths - 1] + torch.arange(len(self.order)))[self.order.argsort()]

    def padded(self, states: Float[Tensor, "word dim"]) -> Float[Tensor, "caption longest dim"]:
        """Captions in the order given; zeros where padded."""
        longest = len(self.counts)
        places = self.order[self.row] * longest + self.step
        flat = states.new_zeros(len(self.order) * longest, states.shape[1]).index_copy(0, places, states)
        return flat.view(len(self.order), longest, -1)


def gru_states(
    gru: nn.GRU, embedding: nn.Embedding, token_ids: Int[Tensor, "caption longest"], packed: Packed
) -> Float[Tensor, "word dim"]:
    """Of a GRU of one layer, in packed order; the mean of both directions where it has two."""
    forward = _direction(gru, embedding, token_ids, packed, "")
    if not gru.bidirectional:
        return forward
    return (forward + _direction(gru, embedding, token_ids, packed, "_reverse")[packed.mirrored()]) / 2


def _direction(gru: nn.GRU, embedding: nn.Embedding, token_ids: Tensor, packed: Packed, suffix: str) -> Tensor:
    weight, recurrent, bias, recurrent_bias = (
        getattr(gru, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    inputs = F.linear(embedding(packed.words(token_ids, backward=bool(suffix))), weight, bias)
    states: Tensor = _Steps.apply(inputs, recurrent, recurrent_bias, packed.counts)  # type: ignore[no-untyped-call]
    return states


class _Steps(torch.autograd.Function):
    """reset r and update z = sigmoid(inputs + recurrent), candidate c = tanh(input + r m), m the recurrent part of it,
    state h = c + z (h before - c)."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Float[Tensor, "word gates"],
        weight: Float[Tensor, "gates dim"],
        bias: Float[Tensor, " gates"],
        counts: Sequence[int],
    ) -> Float[Tensor, "word dim"]:
        dim = weight.shape[1]
        states, before, remembered = (inputs.new_empty(len(inputs), dim) for _ in range(3))
        gates = inputs.clone()  # becomes r, z and c
        start, hidden = 0, inputs.new_zeros(counts[0], dim)
        for count in counts:
            here = slice(start, start + count)
            before[here] = hidden[:count]
            recurrent = torch.addmm(bias, before[here], weight.T)
            gates[here, : 2 * dim].add_(recurrent[:, : 2 * dim]).sigmoid_()
            remembered[here] = recurrent[:, 2 * dim :]
            candidate = gates[here, 2 * dim :].addcmul_(gates[here, :dim], remembered[here]).tanh_()
            hidden = torch.lerp(candidate, before[here], gates[here, dim : 2 * dim], out=states[here])
            start += count
        ctx.save_for_backward(gates, before, remembered, weight)
        ctx.counts = counts
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Float[Tensor, "word dim"]) -> tuple[Tensor | None, ...]:
        gates, before, remembered, weight = ctx.saved_tensors
        dim = weight.shape[1]
        reset, update, candidate = gates[:, :dim], gates[:, dim : 2 * dim], gates[:, 2 * dim :]
        # What does not depend on later steps, for all words at once.
        to_candidate = (1 - update) * (1 - candidate * candidate)
        to_update = (before - candidate) * update * (1 - update)
        to_reset = remembered * reset * (1 - reset)
        inner = torch.empty_like(gates)  # gradient of the recurrent part of the gates
        of_candidate = torch.empty_like(before)
        later = upstream.new_zeros(0, dim)
        start = len(gates)
        for count in reversed(ctx.counts):
            start -= count
            here = slice(start, start + count)
            arrived = upstream[here].clone()
            arrived[: len(later)] += later
            torch.mul(arrived, to_candidate[here], out=of_candidate[here])
            torch.mul(of_candidate[here], to_reset[here], out=inner[here, :dim])
            torch.mul(arrived, to_update[here], out=inner[here, dim : 2 * dim])
            torch.mul(of_candidate[here], reset[here], out=inner[here, 2 * dim :])
            later = torch.addmm(arrived.mul_(update[here]), inner[here], weight)
        for_weight, for_bias = inner.T @ before, inner.sum(dim=0)
        inner[:, 2 * dim :] = of_candidate  # of the inputs: the candidate's own part is not scaled by the reset gate
        return inner, for_weight, for_bias, None
