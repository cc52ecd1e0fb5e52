"""Heads: small projections on frozen features of any encoder, for comparing objectives on your own data.

`StackedHeads` are the heads of several runs as one: parameters are stacked, and one product projects the items of all
runs. The parameters of every run are views of the stacked ones, so that its own optimizer and checkpoints work as
always. Forward and backward are written out there. The gradients of weights are computed run by run into one tensor,
just before the optimizer of the run reads it: it is then still in the CPU's cache, and nothing of that size is
allocated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.interfaces import SystemSpec
from tercet.models.cpu_kernels.sparse_linear import Normalized, Projection, l2_normalize_rows
from tercet.models.parts.gpo import GPO
from tercet.models.parts.masking import checked_lengths, length_mask
from tercet.types import Similarity


@dataclass(frozen=True)
class HeadsSettings:
    image_dim: int
    """Dimension of an image's (or a region's) features."""
    caption_dim: int
    embed_dim: int = 256
    kind: Literal["linear", "mlp"] = "linear"
    """`mlp` adds a branch with a hidden layer of width embed_dim to the linear projection."""
    pooling: Literal["mean", "gpo"] = "mean"
    """Pooling of regions or words into one vector, if there are several."""


class Heads(nn.Module):
    """One projection per modality into a joint space; S is the cosine. Regions or words are pooled after projection."""

    spec = SystemSpec(HeadsSettings, caption_features=True)
    dot_product = True

    def __init__(self, settings: HeadsSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image_head = Head(settings.image_dim, settings)
        self.caption_head = Head(settings.caption_dim, settings)

    def encode_images(
        self, images: Float[Tensor, "image *region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image embed_dim"]:
        return self.image_head(images, lengths)

    def encode_captions(
        self, captions: Float[Tensor, "caption *word dim"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption embed_dim"]:
        return self.caption_head(captions, lengths)

    def similarity(
        self, encoded_images: Float[Tensor, "image embed_dim"], encoded_captions: Float[Tensor, "caption embed_dim"]
    ) -> Similarity:
        return encoded_images @ encoded_captions.T


class Head(nn.Module):
    """The projection of one modality."""

    def __init__(self, dim: int, settings: HeadsSettings) -> None:
        super().__init__()
        embed_dim = settings.embed_dim
        self.linear = Projection(dim, embed_dim)
        self.hidden = None
        if settings.kind == "mlp":
            self.hidden = nn.Sequential(Projection(dim, embed_dim), nn.GELU(), Projection(embed_dim, embed_dim))
        self.pool = GPO() if settings.pooling == "gpo" else None

    def forward(self, features: Tensor, lengths: Tensor | None) -> Float[Tensor, "item embed_dim"]:
        projected = self.linear(features)
        if self.hidden is not None:
            projected = projected + self.hidden(features)
        if projected.ndim == 3:
            projected = self._pooled(projected, checked_lengths(lengths, projected, "items"))
        return l2_normalize_rows(projected)

    def _pooled(self, vectors: Float[Tensor, "item element embed_dim"], lengths: Int[Tensor, " item"]) -> Tensor:
        if self.pool is not None:
            return self.pool(vectors, lengths)
        real = length_mask(lengths, vectors.shape[1])[..., None]
        return torch.where(real, vectors, 0).sum(dim=1) / lengths[:, None].to(vectors.dtype)


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

    The last bit of a product may depend on how matrices are aligned in memory (it does with AVX2 on AMD): a run
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
