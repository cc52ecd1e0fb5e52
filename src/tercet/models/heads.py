"""Heads: small projections on frozen features of any encoder, the way most people compare objectives on their data."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet import similarity
from tercet.contracts import Similarity
from tercet.models.gpo import GPO
from tercet.models.norms import check_lengths, full_lengths, real_parts
from tercet.models.projection import Projection, unit_rows


@dataclass(frozen=True)
class HeadsSettings:
    image_dim: int
    """Channels of an image's (or a region's) features."""
    caption_dim: int
    joint_dim: int = 256
    kind: Literal["linear", "mlp"] = "linear"
    """`mlp` adds a hidden layer as wide as the joint space to the linear projection."""
    pooling: Literal["mean", "gpo"] = "mean"
    """How regions or words become one vector, where there are several."""


class Heads(nn.Module):
    """A projection a side into a joint space; S is the cosine there. Regions or words are pooled after it."""

    dot_product = True

    def __init__(self, settings: HeadsSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image_head = _Head(settings.image_dim, settings)
        self.caption_head = _Head(settings.caption_dim, settings)

    def encode_images(
        self, images: Float[Tensor, "image *region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image joint"]:
        return self.image_head(images, lengths)

    def encode_captions(
        self, captions: Float[Tensor, "caption *word dim"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption joint"]:
        return self.caption_head(captions, lengths)

    def similarity(
        self, encoded_images: Float[Tensor, "image joint"], encoded_captions: Float[Tensor, "caption joint"]
    ) -> Similarity:
        return similarity.dot_products(encoded_images, encoded_captions)


class _Head(nn.Module):
    def __init__(self, dim: int, settings: HeadsSettings) -> None:
        super().__init__()
        joint = settings.joint_dim
        self.linear = Projection(dim, joint)
        self.hidden = None
        if settings.kind == "mlp":
            self.hidden = nn.Sequential(Projection(dim, joint), nn.GELU(), Projection(joint, joint))
        self.pool = GPO() if settings.pooling == "gpo" else None

    def forward(self, features: Tensor, lengths: Tensor | None) -> Float[Tensor, "item joint"]:
        projected = self.linear(features)
        if self.hidden is not None:
            projected = projected + self.hidden(features)
        if projected.ndim == 3:
            lengths = full_lengths(projected) if lengths is None else lengths
            check_lengths(lengths, projected, "items")
            projected = self._pooled(projected, lengths)
        return unit_rows(projected)

    def _pooled(self, parts: Float[Tensor, "item part joint"], lengths: Int[Tensor, " item"]) -> Tensor:
        if self.pool is not None:
            return self.pool(parts, lengths)
        real = real_parts(lengths, parts.shape[1])[..., None]
        return torch.where(real, parts, 0).sum(dim=1) / lengths[:, None].to(parts.dtype)
