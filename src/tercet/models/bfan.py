"""BFAN (Liu et al., ACM MM 2019): words and regions attend to each other, and to the relevant parts alone."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from tercet.contracts import Similarity
from tercet.models.part_sets import PartSetModel, RegionSet, WordSet
from tercet.similarity import CrossAttention, Parts, by_blocks
from tercet.similarity.cross_attention import products_of, seen_from_the_other_side


@dataclass(frozen=True)
class BFANSettings:
    words: int
    """Size of the vocabulary."""
    image_dim: int
    """Channels of a region."""
    focus: Literal["equal", "prob"] = "equal"
    """Kept are parts above the mean attention (equal), or above a mean that weighs the attended ones more (prob)."""
    sharpness: float = 20.0
    """Inverse temperature of the attention."""
    joint_dim: int = 1024
    word_dim: int = 300
    layers: int = 1
    image_norm: bool = True
    text_norm: bool = True


class BFAN(PartSetModel):
    """S is the mean cosine of words plus that of regions: from -2 to 2."""

    def __init__(self, settings: BFANSettings) -> None:
        regions = RegionSet(settings.image_dim, settings.joint_dim, norm=settings.image_norm)
        captions = WordSet(
            settings.words, settings.word_dim, settings.joint_dim, settings.layers, norm=settings.text_norm
        )
        super().__init__(regions, captions)
        self.settings = settings
        self._attention = CrossAttention(settings.sharpness, focus=settings.focus)

    def similarity(
        self,
        encoded_images: Float[Tensor, "image region joint"],
        encoded_captions: Float[Tensor, "caption word joint"],
    ) -> Similarity:
        return by_blocks(self._both_ways, encoded_images, encoded_captions)

    def similarity_of_pairs(
        self, encoded_images: Float[Tensor, "pair region joint"], encoded_captions: Float[Tensor, "pair word joint"]
    ) -> Float[Tensor, " pair"]:
        """Of image k with caption k."""
        images, captions = Parts.of(encoded_images), Parts.of(encoded_captions)
        return self._attention.of_pairs(images, captions) + self._attention.of_pairs(captions, images)

    def attended(
        self, encoded_image: Float[Tensor, "region joint"], encoded_caption: Float[Tensor, "word joint"]
    ) -> Float[Tensor, "word region"]:
        """Where each word looks; rows add up to 1."""
        image, caption = Parts.of(encoded_image[None]), Parts.of(encoded_caption[None])
        return self._attention.attention(image, caption)[0, :, 0].T

    def _both_ways(self, images: Parts, captions: Parts) -> Similarity:
        products = products_of(images, captions)
        for_words = self._attention(images, captions, products)
        return for_words + self._attention(captions, images, seen_from_the_other_side(products)).T
