"""Heads: small projections on frozen features of any encoder, for comparing objectives on your own data."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.interfaces import SystemSpec
from tercet.models.cpu_kernels.sparse_linear import Projection, l2_normalize_rows
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
