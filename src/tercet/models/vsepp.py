"""VSE++ (Faghri et al., BMVC 2018): one vector an image, a GRU over words, cosine or order similarity."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet import similarity
from tercet.contracts import Similarity
from tercet.models.backbone import Backbone
from tercet.models.norms import unit
from tercet.models.words import WordGRU


@dataclass(frozen=True)
class VSEPPSettings:
    words: int
    """Size of the vocabulary."""
    image_dim: int | None = None
    """Channels of precomputed features; None where a backbone makes them from pixels."""
    backbone: str | dict[str, Any] | None = None
    """A vision model of Hugging Face: a name or path, or a configuration."""
    train_backbone: bool = False
    joint_dim: int = 1024
    word_dim: int = 300
    layers: int = 1
    image_norm: bool = True
    """Image embeddings of length 1."""
    absolute: bool = False
    """Embeddings without signs, as order similarity wants them."""
    measure: Literal["cosine", "order"] = "cosine"

    def __post_init__(self) -> None:
        if (self.image_dim is None) == (self.backbone is None):
            raise ValueError("give either image_dim, for precomputed features, or a backbone, for pixels")


class VSEPP(nn.Module):
    captions_at_once = 4096  # in evaluation; the more there are, the more of them begin alike and share their states

    def __init__(self, settings: VSEPPSettings) -> None:
        super().__init__()
        self.backbone = None
        image_dim = settings.image_dim
        if settings.backbone is not None:
            self.backbone = Backbone(settings.backbone, trained=settings.train_backbone)
            image_dim = self.backbone.dim
            settings = replace(settings, backbone=self.backbone.config())
        assert image_dim is not None
        self.settings = settings
        self.image_head = nn.Linear(image_dim, settings.joint_dim)
        nn.init.xavier_uniform_(self.image_head.weight)
        nn.init.zeros_(self.image_head.bias)
        self.words = WordGRU(settings.words, settings.word_dim, settings.joint_dim, settings.layers)

    @property
    def dot_product(self) -> bool:
        return self.settings.measure == "cosine"

    def encode_images(
        self, images: Float[Tensor, "image *rest"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image joint"]:
        """Of precomputed vectors, or of pixels where there is a backbone, whose output is brought to length 1 first."""
        if self.backbone is None and images.ndim != 2:
            raise ValueError(f"VSE++ takes one vector an image, (image dim), got {tuple(images.shape)}")
        features = images if self.backbone is None else unit(self.backbone.vectors(images))
        embedded = self.image_head(features)
        return self._signed(unit(embedded) if self.settings.image_norm else embedded)

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption joint"]:
        return self._signed(unit(self.words.last(token_ids, lengths)))

    def similarity(
        self, encoded_images: Float[Tensor, "image joint"], encoded_captions: Float[Tensor, "caption joint"]
    ) -> Similarity:
        measure = similarity.dot_products if self.dot_product else similarity.order
        return measure(encoded_images, encoded_captions)

    def similarity_of_pairs(
        self, encoded_images: Float[Tensor, "pair joint"], encoded_captions: Float[Tensor, "pair joint"]
    ) -> Float[Tensor, " pair"]:
        """Of image k with caption k."""
        if self.dot_product:
            return torch.linalg.vecdot(encoded_images, encoded_captions)
        return similarity.order_of_pairs(encoded_images, encoded_captions)

    def _signed(self, embedded: Tensor) -> Tensor:
        return torch.abs(embedded) if self.settings.absolute else embedded
