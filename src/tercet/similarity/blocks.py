"""S of sets of parts, block by block: memory is bounded, and so is what is padded.

Captions of one length go together. Up to a size autograd keeps what each block made; beyond it a block is made again
when its gradient is due, so that a batch of any size trains in the memory of one block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from tercet.contracts import Similarity
from tercet.similarity.parts import Parts

Compare = Callable[[Parts, Parts], Similarity]

# Products of parts in a block: on a processor as many as its caches hold.
ON_PROCESSOR, ELSEWHERE = 1 << 20, 1 << 24
KEPT = 1 << 24  # of a whole batch: a few hundred megabytes


def by_blocks(
    compare: Compare,
    images: Float[Tensor, "image region dim"],
    captions: Float[Tensor, "caption word dim"],
    *,
    entries: int | None = None,
    kept: int = KEPT,
) -> Similarity:
    """S of a pure `compare`, which sees a block of images and one of captions at a time."""
    if not len(images) or not len(captions):
        return images.sum(dim=(1, 2))[:, None] + captions.sum(dim=(1, 2))
    entries = entries or (ON_PROCESSOR if images.device.type == "cpu" else ELSEWHERE)
    whole, order = _in_order(Parts.of(images), Parts.of(captions))
    learned = torch.is_grad_enabled() and (images.requires_grad or captions.requires_grad)
    if learned and whole.products() > kept:
        similarity: Tensor = _Recomputed.apply(*(side.vectors for side in whole), whole, compare, entries)  # type: ignore[no-untyped-call]
    else:
        similarity = whole.similarity(compare, entries)
    return similarity[:, order.argsort()]


class _Sides(NamedTuple):
    images: Parts
    captions: Parts

    def products(self) -> int:
        return self.images.real.numel() * self.captions.real.numel()

    def side(self, entries: int) -> int:
        """Of a block: as many images as captions."""
        words = max(1.0, self.captions.real.sum().item() / len(self.captions.real))
        return max(1, round((entries / (self.images.real.shape[1] * words)) ** 0.5))

    def similarity(self, compare: Compare, entries: int) -> Similarity:
        images, captions = (each.split(self.side(entries)) for each in self)
        columns = ([compare(rows, piece) for rows in images] for piece in map(Parts.trimmed, captions))
        return torch.cat([torch.cat(column) for column in columns], dim=1)


def _in_order(images: Parts, captions: Parts) -> tuple[_Sides, Int[Tensor, " caption"]]:
    order = captions.real.sum(dim=1).argsort(stable=True)
    return _Sides(images, Parts(captions.vectors[order], captions.real[order])), order


class _Recomputed(torch.autograd.Function):
    """Keeps the encoded sets alone; a block is compared again when its gradient is due."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, captions: Tensor, sides: _Sides, compare: Compare, entries: int) -> Tensor:
        ctx.save_for_backward(images, captions)
        ctx.real, ctx.compare, ctx.entries = (sides.images.real, sides.captions.real), compare, entries
        return sides.similarity(compare, entries)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sides = _Sides(*(Parts(*each) for each in zip(ctx.saved_tensors, ctx.real, strict=True)))
        side = sides.side(ctx.entries)
        images, captions = ([_leaf(piece) for piece in each.split(side)] for each in sides)
        for words, columns in zip(captions, gradient.split(side, dim=1), strict=True):
            for regions, block in zip(images, columns.split(side), strict=True):
                with torch.enable_grad():
                    # Parts made anew: what they remember belongs to this block's graph.
                    similarity = ctx.compare(Parts(regions.vectors, regions.real), words.trimmed())
                similarity.backward(block)
        return *(_joined_gradients(each) for each in (images, captions)), None, None, None


def _leaf(parts: Parts) -> Parts:
    return Parts(parts.vectors.detach().requires_grad_(), parts.real)


def _joined_gradients(leaves: list[Parts]) -> Tensor:
    gradients = (leaf.vectors.grad for leaf in leaves)
    return torch.cat(
        [torch.zeros_like(leaf.vectors) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]
    )
