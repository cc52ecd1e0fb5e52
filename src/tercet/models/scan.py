"""SCAN (Lee et al., ECCV 2018): words attend to regions, or regions to words."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from tercet.contracts import Similarity
from tercet.models.part_sets import PartSetModel, RegionSet, WordSet
from tercet.similarity import CrossAttention, Parts, by_blocks
from tercet.similarity.cross_attention import Norm, Pooling


@dataclass(frozen=True)
class SCANSettings:
    words: int
    """Size of the vocabulary."""
    image_dim: int
    """Channels of a region."""
    attends: Literal["t2i", "i2t"] = "t2i"
    """t2i: every word looks for its regions. i2t: every region looks for its words."""
    sharpness: float = 9.0
    """Inverse temperature of the attention; published are 9 for t2i, 4 for i2t."""
    norm: Norm = "clipped_l2norm"
    """How raw products of regions and words are brought to one scale before the attention."""
    pooling: Pooling = "LogSumExp"
    """How the cosines of the parts that look become one similarity."""
    pooling_sharpness: float = 6.0
    """Of LogSumExp; published are 6 for t2i, 5 (Flickr30K) and 20 (COCO) for i2t."""
    joint_dim: int = 1024
    word_dim: int = 300
    layers: int = 1
    both_directions: bool = True
    image_norm: bool = True
    text_norm: bool = True
    weight_norm: bool = False
    """The projection of regions is a direction and a length."""


class SCAN(PartSetModel):
    def __init__(self, settings: SCANSettings) -> None:
        regions = RegionSet(
            settings.image_dim, settings.joint_dim, norm=settings.image_norm, weight_normed=settings.weight_norm
        )
        captions = WordSet(
            settings.words,
            settings.word_dim,
            settings.joint_dim,
            settings.layers,
            both_directions=settings.both_directions,
            norm=settings.text_norm,
        )
        super().__init__(regions, captions)
        self.settings = settings
        self._attention = CrossAttention(
            settings.sharpness,
            settings.norm,
            pooling=settings.pooling,
            pooling_sharpness=settings.pooling_sharpness,
        )

    def similarity(
        self,
        encoded_images: Float[Tensor, "image region joint"],
        encoded_captions: Float[Tensor, "caption word joint"],
    ) -> Similarity:
        attend = self._attention
        if self.settings.attends == "t2i":
            return by_blocks(attend, encoded_images, encoded_captions)
        return by_blocks(lambda images, captions: attend(captions, images).T, encoded_images, encoded_captions)

    def similarity_of_pairs(
        self, encoded_images: Float[Tensor, "pair region joint"], encoded_captions: Float[Tensor, "pair word joint"]
    ) -> Float[Tensor, " pair"]:
        """Of image k with caption k."""
        images, captions = Parts.of(encoded_images), Parts.of(encoded_captions)
        queried = (images, captions) if self.settings.attends == "t2i" else (captions, images)
        return self._attention.of_pairs(*queried)

    def attended(
        self, encoded_image: Float[Tensor, "region joint"], encoded_caption: Float[Tensor, "word joint"]
    ) -> Float[Tensor, "word region"]:
        """Where each word looks (t2i; rows add up to 1), or by how much each region looks at it (i2t; columns do)."""
        image, caption = Parts.of(encoded_image[None]), Parts.of(encoded_caption[None])
        if self.settings.attends == "t2i":
            return self._attention.attention(image, caption)[0, :, 0].T
        return self._attention.attention(caption, image)[0, :, 0]
