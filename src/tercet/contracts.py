"""The types that all parts share: the axis legend, a batch, and the two protocols that meet at the waist.

Axes, as words in the types:

| word | meaning |
|---|---|
| image | rows of a similarity |
| caption | columns of a similarity |
| anchor, candidate | rows and columns in one direction: image and caption for i2t, caption and image for t2i |
| region, word | parts of an image and of a caption; lengths say which are real |
| dim | channels of a feature or an embedding |
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Similarity = Float[Tensor, "image caption"]
PairMask = Bool[Tensor, "image caption"]
PairGradient = Float[Tensor, "image caption"]


@dataclass(frozen=True)
class MinedItems:
    """Images and captions mined offline, each once, and which of them are whose members.

    Row k of both places is of pair k, in the order of `positives().nonzero()`: (i-, i-') and (t-, t-').
    """

    images: Float[Tensor, "mined_image *rest"]
    captions: Shaped[Tensor, "mined_caption *rest_of_caption"]
    image_places: Int[Tensor, "pair 2"]
    caption_places: Int[Tensor, "pair 2"]
    image_lengths: Int[Tensor, " mined_image"] | None = None
    caption_lengths: Int[Tensor, " mined_caption"] | None = None


@dataclass(frozen=True)
class Batch:
    """What one step sees. An image and a caption with equal ids are positives of each other."""

    images: Float[Tensor, "image *rest"]
    """Features (image dim) or (image region dim), or pixels."""
    captions: Shaped[Tensor, "caption *rest_of_caption"]
    """Features (caption dim), or numbers of words (caption word)."""
    image_ids: Int[Tensor, " image"]
    caption_ids: Int[Tensor, " caption"]
    image_lengths: Int[Tensor, " image"] | None = None
    """How many regions are real; None where all are."""
    caption_lengths: Int[Tensor, " caption"] | None = None
    also_positive: PairMask | None = None
    """Pairs that are known to match although their ids differ."""
    ignored: PairMask | None = None
    mined: MinedItems | None = None

    def positives(self) -> PairMask:
        own = self.image_ids[:, None] == self.caption_ids[None, :]
        return own if self.also_positive is None else own | self.also_positive


@runtime_checkable
class Matcher(Protocol):
    """Left of the waist: turns images and captions into a similarity, larger is closer."""

    dot_product: bool

    def encode_images(self, images: Tensor, lengths: Tensor | None = None) -> Tensor: ...

    def encode_captions(self, captions: Tensor, lengths: Tensor | None = None) -> Tensor: ...

    def similarity(self, encoded_images: Tensor, encoded_captions: Tensor) -> Similarity: ...


@runtime_checkable
class Objective(Protocol):
    """Right of the waist: maps (similarity, positives) to the pair gradient G = dL/dS."""

    @property
    def name(self) -> str: ...

    @property
    def has_value(self) -> bool: ...

    def on_similarity(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> Float[Tensor, ""]: ...

    def pair_gradient(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> PairGradient: ...

    def pair_gradients(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> tuple[PairGradient, PairGradient]: ...

    def value(
        self,
        similarity: Similarity,
        positives: PairMask | None = None,
        ignored: PairMask | None = None,
        *,
        mined: Float[Tensor, "pair 4"] | None = None,
    ) -> Float[Tensor, ""] | None: ...

    def monitor(
        self, similarity: Similarity, positives: PairMask | None = None, ignored: PairMask | None = None
    ) -> Float[Tensor, ""]: ...
