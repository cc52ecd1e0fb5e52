"""BFAN (Liu et al., ACM MM 2019): words and regions attend to each other, restricted to the relevant ones."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from tercet.interfaces import SystemSpec
from tercet.models.parts.region_word_encoders import RegionWordModel, RegionWordSettings
from tercet.similarity import CrossAttention, PaddedSets, blockwise_similarity
from tercet.similarity.cross_attention import products_of, transpose_products
from tercet.types import Similarity


@dataclass(frozen=True)
class BFANSettings(RegionWordSettings):
    focus: Literal["equal", "prob"] = "equal"
    """Regions or words that keep their attention: above the mean (equal) or an attention-weighted mean (prob)."""
    inverse_temperature: float = 20.0
    """Inverse temperature of the attention."""


class BFAN(RegionWordModel):
    """S is the mean cosine of the words plus that of the regions, from -2 to 2."""

    spec = SystemSpec(BFANSettings, regions=True)

    def __init__(self, settings: BFANSettings) -> None:
        super().__init__(settings)
        self.settings = settings
        self._attention = CrossAttention(settings.inverse_temperature, focus=settings.focus)

    def similarity(
        self,
        encoded_images: Float[Tensor, "image region embed_dim"],
        encoded_captions: Float[Tensor, "caption word embed_dim"],
    ) -> Similarity:
        return blockwise_similarity(self._both_directions, encoded_images, encoded_captions)

    def similarity_of_pairs(
        self,
        encoded_images: Float[Tensor, "pair region embed_dim"],
        encoded_captions: Float[Tensor, "pair word embed_dim"],
    ) -> Float[Tensor, " pair"]:
        """Similarities of image k with caption k."""
        images, captions = PaddedSets.of(encoded_images), PaddedSets.of(encoded_captions)
        return self._attention.of_pairs(images, captions) + self._attention.of_pairs(captions, images)

    def attention_map(
        self, encoded_image: Float[Tensor, "region embed_dim"], encoded_caption: Float[Tensor, "word embed_dim"]
    ) -> Float[Tensor, "word region"]:
        """Attention of each word over the regions; rows sum to 1."""
        image, caption = PaddedSets.of(encoded_image[None]), PaddedSets.of(encoded_caption[None])
        return self._attention.attention(image, caption)[0, :, 0].T

    def _both_directions(self, images: PaddedSets, captions: PaddedSets) -> Similarity:
        products = products_of(images, captions)
        word_similarity = self._attention(images, captions, products)
        return word_similarity + self._attention(captions, images, transpose_products(products)).T
