"""Types shared by all packages: axis names, the training batch.

Axis names in tensor types:

| name | meaning |
|---|---|
| image | rows of a similarity matrix |
| caption | columns of a similarity matrix |
| anchor, candidate | rows and columns in one direction: image and caption for i2t, caption and image for t2i |
| region, word | elements of an image and of a caption; lengths give the number of real (not padded) ones |
| dim | channels of a feature or an embedding |
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Similarity = Float[Tensor, "image caption"]
PairMask = Bool[Tensor, "image caption"]
PairGradient = Float[Tensor, "image caption"]
MaskOrWeights = PairMask | Float[Tensor, "image caption"]
"""Which pairs are positive: a mask, or weights in 0..1, where a pair with a weight above 0 is a positive."""


@dataclass(frozen=True)
class Sides:
    """What the two sides of a dataset are called where people read it; keys, keywords and axis names never change."""

    image: str = "image"
    images: str = "images"
    caption: str = "caption"
    captions: str = "captions"
    units: str = "images"
    """The observations of a significance test."""
    one_unit: str = "an image with all its captions"
    kind: str = "image-text"
    """Name in files."""

    @property
    def image_is_text(self) -> bool:
        """Whether both sides are texts: what is called an image in the code is one, too."""
        return self.kind == "text-text"

    def short(self, direction: str) -> str:
        """Name of a direction in a table: i2t, or `passage -> query`."""
        if not self.image_is_text:
            return direction
        query, candidate = (self.image, self.caption) if direction == "i2t" else (self.caption, self.image)
        return f"{query} -> {candidate}"

    def long(self, direction: str) -> str:
        """Name of a direction in a text: `image to text`, or `passage to query`."""
        if not self.image_is_text:
            return {"i2t": "image to text", "t2i": "text to image"}[direction]
        return self.short(direction).replace("->", "to")


IMAGE_TEXT = Sides()
TEXT_TEXT = Sides(
    *("passage", "passages", "query", "queries"), "query groups", "all that positives connect with a query", "text-text"
)
SIDES = {sides.kind: sides for sides in (IMAGE_TEXT, TEXT_TEXT)}


@dataclass(frozen=True)
class MinedItems:
    """Mined images and captions without duplicates, and the indices of those that belong to each positive pair.

    Row k of both index tensors belongs to positive pair k, in the order of `positives().nonzero()`: columns are
    (i-, i-') and (t-, t-').
    """

    images: Shaped[Tensor, "mined_image *rest"]
    captions: Shaped[Tensor, "mined_caption *rest_of_caption"]
    image_indices: Int[Tensor, "pair 2"]
    caption_indices: Int[Tensor, "pair 2"]
    image_lengths: Int[Tensor, " mined_image"] | None = None
    caption_lengths: Int[Tensor, " mined_caption"] | None = None


@dataclass(frozen=True)
class Batch:
    """Input of one training step. An image and a caption with equal ids are positives of each other."""

    images: Shaped[Tensor, "image *rest"]
    """Features (image dim) or (image region dim), or pixels; token ids (image word) if both sides are texts."""
    captions: Shaped[Tensor, "caption *rest_of_caption"]
    """Features (caption dim), or token ids (caption word)."""
    image_ids: Int[Tensor, " image"]
    caption_ids: Int[Tensor, " caption"]
    image_lengths: Int[Tensor, " image"] | None = None
    """Number of real regions per image; None if nothing is padded."""
    caption_lengths: Int[Tensor, " caption"] | None = None
    also_positive: PairMask | None = None
    """Pairs that are known to match although their ids differ."""
    ignored: PairMask | None = None
    grades: Float[Tensor, "image caption"] | None = None
    """Weights of all pairs in 0..1; None: positives weigh 1."""
    mined: MinedItems | None = None

    def weighted_positives(self) -> MaskOrWeights:
        """The weights of the pairs if they are graded, else the mask of positives."""
        return self.positives() if self.grades is None else self.grades

    def positives(self) -> PairMask:
        """The mask of positive pairs: a weight above 0; without grades, equal ids or marked in `also_positive`."""
        if self.grades is not None:
            return self.grades > 0
        same_id = self.image_ids[:, None] == self.caption_ids[None, :]
        return same_id if self.also_positive is None else same_id | self.also_positive
