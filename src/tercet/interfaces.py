"""The two protocols of the library: a model computes (S, positives), an objective turns them into dL/dS."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from tercet.types import PairGradient, PairMask, Similarity


@runtime_checkable
class Matcher(Protocol):
    """A retrieval model: encodes images and captions and computes their similarity (larger means closer).

    `dot_product` says that the similarity is the matrix product of the encodings, `images @ captions.T`.
    """

    dot_product: bool

    def encode_images(self, images: Tensor, lengths: Tensor | None = None) -> Tensor: ...

    def encode_captions(self, captions: Tensor, lengths: Tensor | None = None) -> Tensor: ...

    def similarity(self, encoded_images: Tensor, encoded_captions: Tensor) -> Similarity: ...


@runtime_checkable
class Objective(Protocol):
    """An objective: maps (similarity, positives) to the pair gradient G = dL/dS. See `RowObjective` for the methods."""

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
