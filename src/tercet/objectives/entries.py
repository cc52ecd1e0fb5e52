"""Single entries of S, and sparse matrices of them: for batches of which only a few pairs matter."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

AT_ONCE = 128  # entries


def products_of_entries(
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    rows: Int[Tensor, " entry"],
    columns: Int[Tensor, " entry"],
    known: Float[Tensor, " known"] | None = None,
) -> Float[Tensor, " entry"]:
    """images[rows[k]] . captions[columns[k]]: single entries of S, whose gradient is a sparse product.

    `known`: the first of them, where they were computed before.
    """
    known = images.new_empty(0) if known is None else known.detach()
    entries: Tensor = _Entries.apply(images, captions, rows, columns, known)  # type: ignore[no-untyped-call]
    return entries


class _Entries(torch.autograd.Function):
    """Autograd would gather, multiply and add up each side of every entry by itself."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, captions: Tensor, rows: Tensor, columns: Tensor, known: Tensor) -> Tensor:
        ctx.save_for_backward(images, captions, rows, columns)
        # A few at a time: what is gathered stays in the processor's cache.
        few = zip(rows[len(known) :].split(AT_ONCE), columns[len(known) :].split(AT_ONCE), strict=True)
        found = [torch.linalg.vecdot(images.index_select(0, r), captions.index_select(0, c)) for r, c in few]
        return torch.cat([known, *found])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        images, captions, rows, columns = ctx.saved_tensors
        # Hinges that are satisfied leave zeros: only the others are multiplied.
        active = gradient.nonzero().flatten()
        rows, columns, gradient = (each.index_select(0, active) for each in (rows, columns, gradient))
        for_images = sparse_product(rows, columns, gradient, len(images), captions)
        return for_images, sparse_product(columns, rows, gradient, len(captions), images), None, None, None


def sparse_product(
    row: Int[Tensor, " entry"],
    column: Int[Tensor, " entry"],
    value: Float[Tensor, " entry"],
    rows: int,
    dense: Float[Tensor, "column dim"],
) -> Float[Tensor, "row dim"]:
    """(the sparse rows x columns matrix of these entries) @ dense, without a temporary of entries x dim."""
    ordered, order = row.sort(stable=True)
    first = torch.searchsorted(ordered, torch.arange(rows, device=row.device))
    return F.embedding_bag(column[order], dense, first, mode="sum", per_sample_weights=value[order])
