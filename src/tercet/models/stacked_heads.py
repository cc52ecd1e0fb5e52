"""Heads of several runs as one: parameters are stacked, and one product projects the items of all runs.

The parameters of every run are views of the stacked ones, so that its own optimizer and checkpoints work as always.
Forward and backward are written out. The gradients of weights are computed run by run into one tensor, just before the
optimizer of the run reads it: it is then still in the CPU's cache, and nothing of that size is allocated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tercet.models.cpu_kernels.sparse_linear import Normalized
from tercet.models.heads import Head, Heads

ALIGNMENT = 64  # bytes: what torch gives to a new tensor


def product(
    left: Float[Tensor, "run row inner"],
    right: Float[Tensor, "run inner column"],
    bias: Float[Tensor, "run 1 column"] | None = None,
) -> Float[Tensor, "run row column"]:
    """`torch.bmm` of aligned stacks, into an aligned one."""
    out = _aligned_empty(left, (len(left), left.shape[1], right.shape[2]))
    return torch.bmm(left, right, out=out) if bias is None else torch.baddbmm(bias, left, right, out=out)


def aligned(stack: Float[Tensor, "run row column"]) -> Float[Tensor, "run row column"]:
    """The same numbers, the matrix of each run placed as in a tensor of its own; no copy for usual sizes.

    The last bit of a product may depend on how matrices are aligned in memory (it does on AMD's processors): a run
    would depend on its position in the stack.
    """
    if stack.stride(0) * stack.element_size() % ALIGNMENT == 0:
        return stack
    return _aligned_empty(stack, stack.shape).copy_(stack)


def _aligned_empty(like: Tensor, shape: Sequence[int]) -> Float[Tensor, "run row column"]:
    runs, rows, columns = shape
    per_run = ALIGNMENT // like.element_size()
    padded = like.new_empty(runs, -(-rows * columns // per_run) * per_run)
    return padded[:, : rows * columns].unflatten(1, (rows, columns))


class StackedHeads:
    """Image and caption heads of models of equal settings. The models are used through it from now on."""

    def __init__(self, models: Sequence[Heads]) -> None:
        self.images = StackedHead([model.image_head for model in models])
        self.captions = StackedHead([model.caption_head for model in models])


class StackedProjection:
    """The weights and biases of one layer of every run."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.weight = aligned(torch.stack([layer.weight.detach() for layer in layers]))  # run out in
        self.bias = torch.stack([layer.bias.detach() for layer in layers])
        self._weight_grad, self._bias_grad = torch.empty_like(self.weight[0]), torch.empty_like(self.bias[0])
        for run, layer in enumerate(layers):
            layer.weight.data, layer.bias.data = self.weight[run], self.bias[run]
            layer.weight.grad, layer.bias.grad = self._weight_grad, self._bias_grad

    def __call__(self, rows: Float[Tensor, "run item in"], runs: slice) -> Float[Tensor, "run item out"]:
        return product(rows, self.weight[runs].mT, self.bias[runs, None])

    def write_gradient(self, rows: Float[Tensor, "item in"], gradient: Float[Tensor, "item out"]) -> None:
        """Write the gradient of the parameters of one run; it is overwritten by that of the next."""
        torch.mm(gradient.T, rows, out=self._weight_grad)
        torch.sum(gradient, dim=0, out=self._bias_grad)


class StackedHead:
    """One modality: `Head` for vectors, of every run."""

    def __init__(self, heads: Sequence[Head]) -> None:
        self.linear = StackedProjection([head.linear for head in heads])
        hidden = [[layer for layer in head.hidden or () if isinstance(layer, nn.Linear)] for head in heads]
        self.hidden = [StackedProjection(layers) for layers in zip(*hidden, strict=True)]

    def encode(self, rows: Float[Tensor, "run item dim"], runs: slice) -> "StackedEncoding":
        """The embeddings of a slice of the runs, each with rows of its own."""
        rows = aligned(rows)
        projected, inputs = self.linear(rows, runs), [(self.linear, rows)]
        before_activation = None
        if self.hidden:
            first, last = self.hidden
            before_activation = first(rows, runs)
            activated = aligned(F.gelu(before_activation))
            projected += last(activated, runs)
            inputs += [(first, rows), (last, activated)]
        normalized = Normalized.of(projected)
        return StackedEncoding(runs, normalized, aligned(normalized.vectors), inputs, before_activation)


@dataclass
class StackedEncoding:
    """Embeddings of a step, and what the gradients of the weights need."""

    runs: slice
    normalized: Normalized
    embeddings: Float[Tensor, "run item embed_dim"]
    inputs: list[tuple[StackedProjection, Tensor]]
    """The layers and what they were applied to."""
    before_activation: Tensor | None

    def backward(self, gradient: Float[Tensor, "run item embed_dim"]) -> None:
        """Take the gradient of the embeddings."""
        gradient = aligned(self.normalized.backward(gradient))
        self._gradients = [gradient]
        if self.before_activation is not None:
            last = self.inputs[-1][0]
            of_activated = product(gradient, last.weight[self.runs])
            of_hidden = aligned(torch.ops.aten.gelu_backward(of_activated, self.before_activation))
            self._gradients += [of_hidden, gradient]

    def write_gradients(self, run: int) -> None:
        """Write the gradients of the weights of one run, counted within the slice."""
        for (layer, rows), gradient in zip(self.inputs, self._gradients, strict=True):
            layer.write_gradient(rows[run], gradient[run])
