"""GRU over packed captions of any lengths, for training on CPUs.

On a CPU, torch's GRU over packed sequences allocates a full-size gradient and computes a small weight product per step.
Here the input gates of all words are computed in one product before the first step, and the gradient of the recurrent
weights in one product after the last.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.single_backward import single_backward

NO_SECOND = "the GRU of CPU training has a backward pass of its own"


class PackedLayout:
    """Positions of words in packed order: the first words of all captions, then the second words, and so on.

    Captions are sorted by length, longest first, so that the captions still active at a step are always a prefix. The
    axis `word` is over all words of all captions.
    """

    def __init__(self, lengths: Int[Tensor, " caption"]) -> None:
        self.order = lengths.argsort(descending=True, stable=True)
        self.lengths = lengths[self.order]
        steps = torch.arange(int(lengths.max()), device=lengths.device)
        active = steps[:, None] < self.lengths
        self.step, self.row = active.nonzero(as_tuple=True)
        counts = active.sum(dim=1)
        self.counts: list[int] = counts.tolist()
        self.starts = counts.cumsum(0) - counts

    def token_ids(self, token_ids: Int[Tensor, "caption longest"], *, backward: bool) -> Int[Tensor, " word"]:
        """Token ids in packed order; of the reversed captions if `backward`."""
        step = self.lengths[self.row] - 1 - self.step if backward else self.step
        return token_ids[self.order[self.row], step]

    def reversed_positions(self) -> Int[Tensor, " word"]:
        """For each word, its position in the packed order of the reversed captions."""
        return self.starts[self.lengths[self.row] - 1 - self.step] + self.row

    def last(self) -> Int[Tensor, " caption"]:
        """Packed position of each caption's last word, in the original caption order."""
        return (self.starts[self.lengths - 1] + torch.arange(len(self.order)))[self.order.argsort()]

    def padded(self, states: Float[Tensor, "word dim"]) -> Float[Tensor, "caption longest dim"]:
        """Packed states as a padded tensor in the original caption order; zeros where padded."""
        longest = len(self.counts)
        positions = self.order[self.row] * longest + self.step
        flat = states.new_zeros(len(self.order) * longest, states.shape[1]).index_copy(0, positions, states)
        return flat.view(len(self.order), longest, -1)


def gru_states(
    gru: nn.GRU, embedding: nn.Embedding, token_ids: Int[Tensor, "caption longest"], layout: PackedLayout
) -> Float[Tensor, "word dim"]:
    """States of a one-layer GRU in packed order, averaged over both directions if bidirectional."""
    forward = _direction(gru, embedding, token_ids, layout, "")
    if not gru.bidirectional:
        return forward
    return (forward + _direction(gru, embedding, token_ids, layout, "_reverse")[layout.reversed_positions()]) / 2


def _direction(gru: nn.GRU, embedding: nn.Embedding, token_ids: Tensor, layout: PackedLayout, suffix: str) -> Tensor:
    weight, recurrent, bias, recurrent_bias = (
        getattr(gru, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    inputs = F.linear(embedding(layout.token_ids(token_ids, backward=bool(suffix))), weight, bias)
    states: Tensor = _Steps.apply(inputs, recurrent, recurrent_bias, layout.counts)  # type: ignore[no-untyped-call]
    return states


class _Steps(torch.autograd.Function):
    """Reset r and update z = sigmoid(inputs + recurrent), candidate c = tanh(input + r m) with its recurrent part m,
    state h = c + z (h_previous - c)."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Float[Tensor, "word gates"],
        weight: Float[Tensor, "gates dim"],
        bias: Float[Tensor, " gates"],
        counts: Sequence[int],
    ) -> Float[Tensor, "word dim"]:
        dim = weight.shape[1]
        states, previous, candidate_recurrent = (inputs.new_empty(len(inputs), dim) for _ in range(3))
        gates = inputs.clone()  # overwritten with r, z and c
        start, hidden = 0, inputs.new_zeros(counts[0], dim)
        for count in counts:
            rows = slice(start, start + count)
            previous[rows] = hidden[:count]
            recurrent = torch.addmm(bias, previous[rows], weight.T)
            gates[rows, : 2 * dim].add_(recurrent[:, : 2 * dim]).sigmoid_()
            candidate_recurrent[rows] = recurrent[:, 2 * dim :]
            candidate = gates[rows, 2 * dim :].addcmul_(gates[rows, :dim], candidate_recurrent[rows]).tanh_()
            hidden = torch.lerp(candidate, previous[rows], gates[rows, dim : 2 * dim], out=states[rows])
            start += count
        ctx.save_for_backward(gates, previous, candidate_recurrent, weight)
        ctx.counts = counts
        return states

    @staticmethod
    @single_backward(NO_SECOND)
    def backward(ctx: Any, upstream: Float[Tensor, "word dim"]) -> tuple[Tensor | None, ...]:
        gates, previous, candidate_recurrent, weight = ctx.saved_tensors
        dim = weight.shape[1]
        reset, update, candidate = gates[:, :dim], gates[:, dim : 2 * dim], gates[:, 2 * dim :]
        # Factors that do not depend on later steps, for all words at once.
        to_candidate = (1 - update) * (1 - candidate * candidate)
        to_update = (previous - candidate) * update * (1 - update)
        to_reset = candidate_recurrent * reset * (1 - reset)
        recurrent_grad = torch.empty_like(gates)  # of the recurrent part of the gates
        candidate_grad = torch.empty_like(previous)
        next_grad = upstream.new_zeros(0, dim)
        start = len(gates)
        for count in reversed(ctx.counts):
            start -= count
            rows = slice(start, start + count)
            state_grad = upstream[rows].clone()
            state_grad[: len(next_grad)] += next_grad
            torch.mul(state_grad, to_candidate[rows], out=candidate_grad[rows])
            torch.mul(candidate_grad[rows], to_reset[rows], out=recurrent_grad[rows, :dim])
            torch.mul(state_grad, to_update[rows], out=recurrent_grad[rows, dim : 2 * dim])
            torch.mul(candidate_grad[rows], reset[rows], out=recurrent_grad[rows, 2 * dim :])
            next_grad = torch.addmm(state_grad.mul_(update[rows]), recurrent_grad[rows], weight)
        weight_grad, bias_grad = recurrent_grad.T @ previous, recurrent_grad.sum(dim=0)
        # Now the gradient of the inputs: the candidate's input part is not scaled by the reset gate.
        recurrent_grad[:, 2 * dim :] = candidate_grad
        return recurrent_grad, weight_grad, bias_grad, None
