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
class MinedItems:
    """Mined images and captions without duplicates, and the indices of those that belong to each positive pair.

    Row k of both index tensors belongs to positive pair k, in the order of `positives().nonzero()`: columns are
    (i-, i-') and (t-, t-').
    """

    images: Float[Tensor, "mined_image *rest"]
    captions: Shaped[Tensor, "mined_caption *rest_of_caption"]
    image_indices: Int[Tensor, "pair 2"]
    caption_indices: Int[Tensor, "pair 2"]
    image_lengths: Int[Tensor, " mined_image"] | None = None
    caption_lengths: Int[Tensor, " mined_caption"] | None = None


@dataclass(frozen=True)
class Batch:
    """Input of one training step. An image and a caption with equal ids are positives of each other."""

    images: Float[Tensor, "image *rest"]
    """Features (image dim) or (image region dim), or pixels."""
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
