"""BFAN (Liu et al., ACM MM 2019): words and regions attend to each other, and to the relevant parts alone."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.contracts import Similarity
from tercet.models.part_sets import RegionSet, WordSet
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


class BFAN(nn.Module):
    """S is the mean cosine of words plus that of regions: from -2 to 2."""

    dot_product = False

    def __init__(self, settings: BFANSettings) -> None:
        super().__init__()
        self.settings = settings
        self.regions = RegionSet(settings.image_dim, settings.joint_dim, norm=settings.image_norm)
        self.captions = WordSet(
            settings.words, settings.word_dim, settings.joint_dim, settings.layers, norm=settings.text_norm
        )
        self._attention = CrossAttention(settings.sharpness, focus=settings.focus)

    def encode_images(
        self, images: Float[Tensor, "image region dim"], lengths: Int[Tensor, " image"] | None = None
    ) -> Float[Tensor, "image longest joint"]:
        """Every region; zeros where padded."""
        return self.regions(images, lengths)

    def encode_captions(
        self, token_ids: Int[Tensor, "caption word"], lengths: Int[Tensor, " caption"]
    ) -> Float[Tensor, "caption longest joint"]:
        """Every word; zeros where padded."""
        return self.captions(token_ids, lengths)

    def similarity(
        self,
        encoded_images: Float[Tensor, "image region joint"],
        encoded_captions: Float[Tensor, "caption word joint"],
    ) -> Similarity:
        return by_blocks(self._both_ways, encoded_images, encoded_captions)

    def _both_ways(self, images: Parts, captions: Parts) -> Similarity:
        products = products_of(images, captions)
        for_words = self._attention(images, captions, products)
        return for_words + self._attention(captions, images, seen_from_the_other_side(products)).T
