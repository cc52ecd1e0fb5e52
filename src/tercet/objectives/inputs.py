"""Inputs of objectives: setting checks, positive and negative masks, query weights, and shared numerics.

Masks and ids from the caller are checked once, in `as_rows`, `check_embeddings` and `ids_of_pairs`. The hardest
negative, the hinge and exponentials with a bounded exponent are shared by several objectives.
"""

import math
import warnings
from collections.abc import Callable
from numbers import Real
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.types import MaskOrWeights, PairMask, Similarity

Reduction = Literal["sum", "mean"]
MAX_EXPONENT = 60.0  # exp(60) and its square stay finite in float32


# Settings.


class Default(float):
    """The default of a setting: tells it from an equal number that the user gave.

    >>> Default(0.1) == 0.1, isinstance(0.1, Default)
    (True, False)
    """


def require_numbers(objective: object, *names: str) -> None:
    """Raise if one of these settings is not a finite number."""
    for name in names:
        value = getattr(objective, name)
        if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
            hint = f"; learn={name!r} trains it" if isinstance(value, Tensor) else ""
            raise ValueError(f"{name} must be a number, got {value!r}{hint}")


def require_positive(objective: object, *names: str) -> None:
    """Raise if one of these settings is not a positive finite number."""
    require_numbers(objective, *names)
    for name in names:
        if getattr(objective, name) <= 0:
            raise ValueError(f"{name} must be a positive number, got {getattr(objective, name)!r}")


def require_one_of(objective: object, name: str, allowed: tuple[str | bool, ...]) -> None:
    """Raise if this setting is not one of the allowed values."""
    value = getattr(objective, name)
    if not any(value == choice and type(value) is type(choice) for choice in allowed):  # 1 is not True
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}")


# Query weights: the reduction, as a factor of the scalar and of every gradient.


def uniform_query_weight(queries: int, reduction: Reduction) -> float:
    """The weight of each query of one direction in which every anchor is a query."""
    return 1.0 if reduction == "sum" else 0.5 / max(1, queries)


def query_weights(
    is_query: Bool[Tensor, " anchor"], reduction: Reduction, dtype: torch.dtype
) -> Float[Tensor, " anchor"]:
    """The weight of each anchor of one direction: 1 for "sum", 0.5 / queries for "mean", 0 without a positive."""
    weights = is_query.to(dtype)
    return weights if reduction == "sum" else 0.5 * weights / is_query.sum().clamp(min=1)


# Similarity and masks.


class Rows(NamedTuple):
    """One direction of a batch: rows are anchors, columns are candidates; an ignored pair is in neither mask."""

    similarity: Float[Tensor, "anchor candidate"]
    positives: Bool[Tensor, "anchor candidate"]
    negatives: Bool[Tensor, "anchor candidate"]
    ignored: Bool[Tensor, "anchor candidate"] | None = None
    grades: Float[Tensor, "anchor candidate"] | None = None
    """Weights of the positives, 0 elsewhere; None: all weigh 1."""
    image_anchors: bool = True

    def transposed(self) -> "Rows":
        """The other direction."""
        other = self.map(lambda matrix: matrix.T.contiguous())
        return Rows(*other[:5], not self.image_anchors)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Rows":
        """Apply a function to the similarity and to every mask."""
        ignored = None if self.ignored is None else function(self.ignored)
        grades = None if self.grades is None else function(self.grades)
        matrices = function(self.similarity), function(self.positives), function(self.negatives), ignored, grades
        return Rows(*matrices, self.image_anchors)

    def positive_weights(self) -> Float[Tensor, "anchor candidate"]:
        """The weight of every positive, 0 elsewhere."""
        return self.positives.to(self.similarity.dtype) if self.grades is None else self.grades


def as_rows(similarity: Tensor, positives: MaskOrWeights | None, ignored: PairMask | None) -> Rows:
    """Check the caller's input and return it with images as anchors.

    Half precision is converted to float32, in which exp(60) is finite.
    """
    _check_similarity(similarity)
    grades = None
    if positives is None:
        positives = _diagonal(similarity)
    elif isinstance(positives, Tensor) and positives.is_floating_point():
        grades = _checked_grades(positives, similarity)
        positives = grades > 0
    else:
        positives = _checked_mask("positives", positives, similarity)
    if ignored is None:
        negatives = ~positives
    else:
        ignored = _checked_mask("ignored", ignored, similarity)
        positives, negatives = positives & ~ignored, ~(positives | ignored)
        similarity = similarity.masked_fill(ignored, 0.0)  # ignored pairs may be NaN or infinite
        grades = None if grades is None else grades.masked_fill(ignored, 0.0)
    similarity = at_least_float32(similarity)
    grades = None if grades is None else grades.to(similarity.dtype)
    return Rows(similarity, positives, negatives, ignored, grades).map(Tensor.contiguous)


def as_square(similarity: Tensor) -> Float[Tensor, "pair pair"]:
    """Check a similarity whose positives are the diagonal."""
    _check_similarity(similarity)
    _check_square(similarity)
    return at_least_float32(similarity)


def positives_from_ids(image_ids: Int[Tensor, " image"], caption_ids: Int[Tensor, " caption"]) -> PairMask:
    """The mask of pairs with equal ids."""
    return image_ids[:, None] == caption_ids[None, :]


# Embeddings and ids.


class BatchFacts(NamedTuple):
    """What a user's function may ask for besides S and positives, of the batch of all processes."""

    image_ids: Int[Tensor, " image"] | None = None
    caption_ids: Int[Tensor, " caption"] | None = None
    images: Float[Tensor, "image *rest"] | None = None
    """Embeddings, without a gradient: that of an objective goes through S."""
    captions: Float[Tensor, "caption *rest_of_caption"] | None = None
    step: int | None = None


def check_embeddings(
    images: Tensor, captions: Tensor, scale: float | Tensor | None, bias: float | Tensor | None
) -> None:
    """Raise if the types, shapes or dtypes of embeddings, scale and bias do not fit together."""
    for name, embeddings in (("images", images), ("captions", captions)):
        require_tensor(name, embeddings)
        if not embeddings.is_floating_point():
            raise ValueError(f"{name} must be floating-point embeddings, got {embeddings.dtype}")
    if images.ndim != 2 or captions.ndim != 2 or images.shape[1] != captions.shape[1]:
        raise ValueError(
            f"images {tuple(images.shape)} and captions {tuple(captions.shape)} must be "
            "image x dim and caption x dim with equal dim"
        )
    if images.dtype != captions.dtype and not torch.is_autocast_enabled(images.device.type):
        raise ValueError(f"images are {images.dtype} and captions {captions.dtype}: both must have the same dtype")
    for name, factor in (("scale", scale), ("bias", bias)):
        if torch.is_tensor(factor) and factor.numel() != 1:
            raise ValueError(f"{name} must be one number, got shape {tuple(factor.shape)}")
        if factor is not None and not isinstance(factor, Tensor | Real):
            raise ValueError(f"{name} must be a number or a tensor of one number, got {type(factor).__name__}")


def warn_of_embeddings(
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    ids: tuple[Int[Tensor, " image"], Int[Tensor, " caption"]],
    *,
    paired_by_rows: bool,
) -> None:
    """Warn once per process of embeddings that are not L2-normalized, and of a batch without any positive pair.

    Only the first calls of each kind (with ids, or paired by rows) are checked: later ones cost nothing.
    """
    if torch.compiler.is_compiling() or not images.numel() or not captions.numel():
        return
    if _WARNINGS.unchecked_calls[paired_by_rows] <= 0:
        return
    _WARNINGS.unchecked_calls[paired_by_rows] -= 1
    norms = torch.cat([torch.linalg.vector_norm(x.detach().float(), dim=1) for x in (images, captions)])
    low, high = float(norms.min()), float(norms.max())
    if high > 1.01 or low < 0.99:
        _WARNINGS.warn(
            f"embeddings are not L2-normalized (norms from {low:.3g} to {high:.3g}): S is their dot product, and "
            "margins and temperatures are meant for cosines; torch.nn.functional.normalize(x, dim=1) normalizes them"
        )
    if not paired_by_rows and not bool(torch.isin(*ids).any()):
        _WARNINGS.warn("no caption id equals an image id: no query has a positive, so that loss and gradient are 0")


class _Warnings:
    def __init__(self) -> None:
        self.unchecked_calls = {True: 3, False: 3}  # by paired_by_rows
        self._given: set[str] = set()

    def warn(self, text: str) -> None:
        if text[:20] not in self._given:
            self._given.add(text[:20])
            warnings.warn(text, stacklevel=5)


_WARNINGS = _Warnings()


def ids_of_pairs(
    images: Float[Tensor, "image dim"],
    captions: Float[Tensor, "caption dim"],
    owners: Int[Tensor, " caption"] | None,
    image_ids: Int[Tensor, " image"] | None,
    caption_ids: Int[Tensor, " caption"] | None,
) -> tuple[Int[Tensor, " image"], Int[Tensor, " caption"]]:
    """Return (image_ids, caption_ids), whether the caller gave ids, owners or paired rows."""
    if (image_ids is None) != (caption_ids is None):
        raise ValueError("image_ids and caption_ids go together: give both or neither")
    if owners is not None and image_ids is not None:
        raise ValueError("give owners or image_ids with caption_ids, not both")
    if image_ids is None or caption_ids is None:
        if owners is None and len(images) != len(captions):
            raise ValueError(
                f"{len(images)} images and {len(captions)} captions are not paired row by row: "
                "give owners= or image_ids= and caption_ids="
            )
        rows = torch.arange(len(images), device=images.device)
        if owners is None:
            return rows, rows
        image_ids, caption_ids = rows, owners
    _check_ids("image_ids", image_ids, len(images))
    _check_ids("caption_ids" if owners is None else "owners", caption_ids, len(captions))
    # Captions whose owner is out of range would silently match no image. A compiled graph cannot read values.
    if owners is not None and len(owners) and not torch.compiler.is_compiling():
        lowest, highest = (int(end) for end in owners.aminmax())
        if lowest < 0 or highest >= len(images):
            raise ValueError(
                f"owners are row indices of {len(images)} images, got {lowest} to {highest}: "
                "give dataset ids as image_ids= and caption_ids="
            )
    return image_ids.long(), caption_ids.long()


def normalized(weights: Float[Tensor, "anchor candidate"]) -> Float[Tensor, "anchor candidate"]:
    """The weights of every anchor divided by their sum; 0 if all are."""
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


# Triplets.


class Hardest(NamedTuple):
    """The most similar negative of every anchor; similarity 0 where an anchor has none."""

    similarity: Float[Tensor, " anchor"]
    candidate: Int[Tensor, " anchor"]
    exists: Bool[Tensor, " anchor"]


def hardest_negative(rows: Rows) -> Hardest:
    """The most similar negative of every anchor; the lowest index in a tie."""
    # max returns the first of equal maxima, and its gradient goes to that one only.
    largest, candidate = torch.where(rows.negatives, rows.similarity, -torch.inf).max(dim=1)
    exists = ~torch.isneginf(largest)  # a NaN exists
    return Hardest(torch.where(exists, largest, 0.0), candidate, exists)


def top_negatives(similarity: Float[Tensor, "anchor candidate"], k: int) -> Bool[Tensor, "anchor candidate"]:
    """The k largest entries of every row, all of a shorter one; those with the lowest indices in a tie."""
    k = min(k, similarity.shape[1])
    similarity = torch.where(similarity.isnan(), torch.inf, similarity)
    smallest = similarity.topk(k, dim=1).values[:, -1:]
    above, equal = similarity > smallest, similarity == smallest
    return above | (equal & (equal.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)))


def hinge(s_p: Float[Tensor, "..."], s_n: Float[Tensor, "..."], margin: float | Tensor) -> Float[Tensor, "..."]:
    """max(0, margin + S_n - S_p)."""
    return (margin + s_n - s_p).relu()


def hinge_of_hardest(rows: Rows, margin: float) -> Float[Tensor, " anchor"]:
    """Sum over an anchor's positives of the hinge with its hardest negative."""
    hardest = hardest_negative(rows)
    violation = hinge(rows.similarity, hardest.similarity[:, None], margin)
    if rows.grades is not None:
        violation = violation * rows.grades
    return (violation * (rows.positives & hardest.exists[:, None])).sum(dim=1)


# Exponentials.


def bounded_exp(exponent: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """exp(exponent), with the exponent clamped to +-60."""
    return exponent.clamp(-MAX_EXPONENT, MAX_EXPONENT).exp()


def logistic(exponent: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 / (1 + exp(-exponent)), with the exponent clamped to +-60.

    The last bit of torch.sigmoid depends on the position of a number in its tensor (with AVX2): a run that is trained
    in a stack with others would depend on its position in it.
    """
    return exponent.clamp(-MAX_EXPONENT, MAX_EXPONENT).neg().exp().add(1).reciprocal()


# Helpers of the checks above.


def require_tensor(name: str, value: object) -> None:
    """Raise if this is no tensor but, for example, a numpy array."""
    if not isinstance(value, Tensor):
        hint = "; torch.from_numpy(array) makes it one" if isinstance(value, np.ndarray) else ""
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}{hint}")


def _check_ids(name: str, ids: Tensor, rows: int) -> None:
    require_tensor(name, ids)
    if ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"{name} must be a tensor of integers, got {ids.dtype}")
    if ids.ndim != 1 or len(ids) != rows:
        raise ValueError(f"{name} of shape {tuple(ids.shape)} must have one id for each of {rows} rows")


def _diagonal(similarity: Similarity) -> PairMask:
    _check_square(similarity)
    return torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)


def at_least_float32(similarity: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Half precision as float32, other precisions as they are."""
    return similarity.float() if similarity.dtype in (torch.float16, torch.bfloat16) else similarity


def _check_similarity(similarity: Tensor) -> None:
    require_tensor("similarity", similarity)
    if similarity.ndim != 2 or not similarity.is_floating_point():
        raise ValueError(
            f"similarity must be a floating-point image x caption matrix, "
            f"got {similarity.dtype} of shape {tuple(similarity.shape)}"
        )


def _check_square(similarity: Similarity) -> None:
    if similarity.shape[0] != similarity.shape[1]:
        raise ValueError(
            f"positives=None means the diagonal, which needs as many images as captions, "
            f"got {similarity.shape[0]} x {similarity.shape[1]}: give a positives mask"
        )


def _checked_mask(name: str, mask: Tensor, similarity: Similarity) -> PairMask:
    require_tensor(name, mask)
    if mask.shape != similarity.shape or mask.dtype != torch.bool:
        weights = " or weights in 0..1" if name == "positives" else ""
        raise ValueError(
            f"{name} {tuple(mask.shape)} {mask.dtype} must be a boolean mask{weights} that matches "
            f"similarity {tuple(similarity.shape)}: both are image x caption"
        )
    return mask


def _checked_grades(grades: Tensor, similarity: Similarity) -> Float[Tensor, "image caption"]:
    if grades.shape != similarity.shape:
        raise ValueError(
            f"positives {tuple(grades.shape)} must match similarity {tuple(similarity.shape)}: both are image x caption"
        )
    if grades.numel() and not torch.compiler.is_compiling():  # a compiled graph cannot read values
        low, high = (float(end) for end in grades.detach().aminmax())
        if not (low >= 0 and high <= 1):
            raise ValueError(f"weights of positives must be in 0..1, got {low:g} to {high:g}")
    return grades.detach()


def is_distributed() -> bool:
    """Whether torch.distributed is initialized with more than one rank: then a batch is that of all ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
