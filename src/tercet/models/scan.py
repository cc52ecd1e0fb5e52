"""SCAN (Lee et al., ECCV 2018): words attend to regions, or regions to words."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from tercet.interfaces import SystemSpec
from tercet.models.parts.region_word_encoders import RegionWordModel, RegionWordSettings
from tercet.similarity import CrossAttention, PaddedSets, blockwise_similarity
from tercet.similarity.cross_attention import Norm, Pooling
from tercet.types import Similarity


@dataclass(frozen=True)
class SCANSettings(RegionWordSettings):
    direction: Literal["t2i", "i2t"] = "t2i"
    """t2i: words attend to regions. i2t: regions attend to words."""
    inverse_temperature: float = 9.0
    """Inverse temperature of the attention; published: 9 for t2i, 4 for i2t."""
    norm: Norm = "clipped_l2norm"
    """Normalization of the raw products of regions and words before the attention."""
    pooling: Pooling = "LogSumExp"
    """Aggregation of the queries' cosines into one similarity."""
    pooling_inverse_temperature: float = 6.0
    """Inverse temperature of LogSumExp pooling; published: 6 for t2i, 5 (Flickr30K) and 20 (COCO) for i2t."""
    bidirectional: bool = True
    weight_norm: bool = False
    """Weight-normalize the projection of regions."""


class SCAN(RegionWordModel):
    spec = SystemSpec(SCANSettings, regions=True)

    def __init__(self, settings: SCANSettings) -> None:
        super().__init__(settings, bidirectional=settings.bidirectional, weight_normed=settings.weight_norm)
        self.settings = settings
        self._attention = CrossAttention(
            settings.inverse_temperature,
            settings.norm,
            pooling=settings.pooling,
            pooling_inverse_temperature=settings.pooling_inverse_temperature,
        )

    def similarity(
        self,
        encoded_images: Float[Tensor, "image region embed_dim"],
        encoded_captions: Float[Tensor, "caption word embed_dim"],
    ) -> Similarity:
        attend = self._attention
        if self.settings.direction == "t2i":
            return blockwise_similarity(attend, encoded_images, encoded_captions)
        return blockwise_similarity(
            lambda images, captions: attend(captions, images).T, encoded_images, encoded_captions
        )

    def similarity_of_pairs(
        self,
        encoded_images: Float[Tensor, "pair region embed_dim"],
        encoded_captions: Float[Tensor, "pair word embed_dim"],
    ) -> Float[Tensor, " pair"]:
        """Similarities of image k with caption k."""
        images, captions = PaddedSets.of(encoded_images), PaddedSets.of(encoded_captions)
        contexts_and_queries = (images, captions) if self.settings.direction == "t2i" else (captions, images)
        return self._attention.of_pairs(*contexts_and_queries)

    def attention_map(
        self, encoded_image: Float[Tensor, "region embed_dim"], encoded_caption: Float[Tensor, "word embed_dim"]
    ) -> Float[Tensor, "word region"]:
        """Attention between words and regions: rows sum to 1 for t2i, columns for i2t."""
        image, caption = PaddedSets.of(encoded_image[None]), PaddedSets.of(encoded_caption[None])
        if self.settings.direction == "t2i":
            return self._attention.attention(image, caption)[0, :, 0].T
        return self._attention.attention(caption, image)[0, :, 0]
