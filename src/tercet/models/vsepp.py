"""VSE++ (Faghri et al., BMVC 2018): one vector per image, a GRU over words, cosine or order similarity."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet import similarity
from tercet.interfaces import SystemSpec
from tercet.models.parts.backbone import backbone_and_dim, check_image_input
from tercet.models.parts.gru_text_encoder import WordGRU
from tercet.models.parts.masking import l2_normalize
from tercet.types import Similarity


@dataclass(frozen=True)
class VSEPPSettings:
    vocab_size: int
    """Size of the vocabulary."""
    image_dim: int | None = None
    """Dimension of precomputed features; None with a backbone."""
    backbone: str | dict[str, Any] | None = None
    """Hugging Face vision model for pixels: name, path or configuration."""
    train_backbone: bool = False
    embed_dim: int = 1024
    word_dim: int = 300
    layers: int = 1
    image_norm: bool = True
    """L2-normalize image embeddings."""
    absolute: bool = False
    """Take the absolute value of embeddings, as order similarity needs."""
    measure: Literal["cosine", "order"] = "cosine"

    def __post_init__(self) -> None:
        check_image_input(self.image_dim, self.backbone)


class VSEPP(nn.Module):
    spec = SystemSpec(VSEPPSettings, vision="backbone")
    eval_batch_size = 4096  # captions per evaluation batch: the more, the more share a prefix and its GRU states

    def __init__(self, settings: VSEPPSettings) -> None:
        super().__init__()
        self.backbone, image_dim = backbone_and_dim(
            settings.image_dim, settings.backbone, trained=settings.train_backbone
        )
        if self.backbone is not None:
            settings = replace(settings, backbone=self.backbone.config())
        self.settings = settings
        self.image_head = nn.Linear(image_dim, settings.embed_dim)
        nn.init.xavier_uniform_(self.image_head.weight)
        nn.init.zeros_(self.image_head.bias)
        self.words = WordGRU(settings.vocab_size, settings.word_dim, settings.embed_dim, settings.layers)

    @property
    def dot_product(self) -> bool:
        return self.settings.measure == "cosine"

    @property
    def has_backbone(self) -> bool:
        return self.backbone is not None

    def set_backbone_trained(self, trained: bool) -> None:
        if self.backbone is not None:
            self.backbone.set_trained(trained)

    def encode_images(
        self, images: Float[Tensor, "image *rest"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image embed_dim"]:
        """Embed precomputed vectors or, with a backbone, pixels; the backbone's output is L2-normalized first."""
        if self.backbone is None and images.ndim != 2:
            raise ValueError(f"VSE++ takes one vector per image, (image dim), got {tuple(images.shape)}")
        features = images if self.backbone is None else l2_normalize(self.backbone.vectors(images))
        embedded = self.image_head(features)
        return self._maybe_absolute(l2_normalize(embedded) if self.settings.image_norm else embedded)

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"] | None = None
    ) -> Float[Tensor, "caption embed_dim"]:
        return self._maybe_absolute(l2_normalize(self.words.last(token_ids, lengths)))

    def similarity(
        self, encoded_images: Float[Tensor, "image embed_dim"], encoded_captions: Float[Tensor, "caption embed_dim"]
    ) -> Similarity:
        if self.dot_product:
            return encoded_images @ encoded_captions.T
        return similarity.order(encoded_images, encoded_captions)

    def similarity_of_pairs(
        self, encoded_images: Float[Tensor, "pair embed_dim"], encoded_captions: Float[Tensor, "pair embed_dim"]
    ) -> Float[Tensor, " pair"]:
        """Similarities of image k with caption k."""
        if self.dot_product:
            return torch.linalg.vecdot(encoded_images, encoded_captions)
        return similarity.order_of_pairs(encoded_images, encoded_captions)

    def _maybe_absolute(self, embedded: Tensor) -> Tensor:
        return torch.abs(embedded) if self.settings.absolute else embedded
