"""S of sets of parts, block by block: memory is bounded, and so is what is padded.

Captions of one length go together. Up to a size autograd keeps what each block made; beyond it a block is made again
when its gradient is due, so that a batch of any size trains in the memory of one block.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from tercet.contracts import Similarity
from tercet.similarity.parts import Parts

Compare = Callable[[Parts, Parts], Similarity]

# Products of parts in a block: on a processor as many as its caches hold.
ON_PROCESSOR, ELSEWHERE = 1 << 19, 1 << 24
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

    def blocks(self, entries: int) -> Iterator[tuple[slice, slice]]:
        """About as many images as captions each, all images of some captions first."""
        words = max(1.0, self.captions.real.sum().item() / len(self.captions.real))
        side = max(1, round((entries / (self.images.real.shape[1] * words)) ** 0.5))
        for captions in _slices(len(self.captions.real), side):
            for images in _slices(len(self.images.real), side):
                yield images, captions

    def similarity(self, compare: Compare, entries: int) -> Similarity:
        columns: dict[int, list[Tensor]] = {}
        for images, captions in self.blocks(entries):
            columns.setdefault(captions.start, []).append(compare(*self.block(images, captions)))
        return torch.cat([torch.cat(rows) for rows in columns.values()], dim=1)

    def block(self, images: slice, captions: slice) -> tuple[Parts, Parts]:
        return (
            Parts(self.images.vectors[images], self.images.real[images]),
            Parts(self.captions.vectors[captions], self.captions.real[captions]).trimmed(),
        )


def _in_order(images: Parts, captions: Parts) -> tuple[_Sides, Int[Tensor, " caption"]]:
    order = captions.real.sum(dim=1).argsort(stable=True)
    return _Sides(images, Parts(captions.vectors[order], captions.real[order])), order


def _slices(count: int, side: int) -> list[slice]:
    return [slice(start, min(start + side, count)) for start in range(0, count, side)]


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
        for_images, for_captions = (torch.zeros_like(side.vectors) for side in sides)
        for images, captions in sides.blocks(ctx.entries):
            block = sides.block(images, captions)
            with torch.enable_grad():
                leaves = [side.vectors.detach().requires_grad_() for side in block]
                similarity = ctx.compare(*(Parts(leaf, side.real) for leaf, side in zip(leaves, block, strict=True)))
            found = torch.autograd.grad(similarity, leaves, gradient[images, captions])
            for_images[images] += found[0]
            for_captions[captions, : found[1].shape[1]] += found[1]
        return for_images, for_captions, None, None, None
