"""What an index keeps of a picture, and the two looks at it.

A first look compares one vector of each side: dot products, over everything. Models that compare parts (SCAN, BFAN) or
see an image and a caption together (X-VLM) then look again at the few that the first look found. Their pictures are
kept as parts beside the vector: regions of SCAN and BFAN, tokens of X-VLM.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from tercet.retriever import Retriever

PAIRS_AT_ONCE = 64  # of X-VLM, which reads a caption anew beside every image
TINY = 1e-12


class Kept(NamedTuple):
    vectors: Float[np.ndarray, "picture dim"]
    parts: Float[np.ndarray, "picture part part_dim"] | None = None
    """Where the model looks again."""


class Asked(NamedTuple):
    """Words, read."""

    vector: Float[Tensor, " dim"]
    words: Float[Tensor, "word dim"] | None = None
    """For a second look."""


def looks_again(retriever: Retriever) -> bool:
    return _matches(retriever.model) or not retriever.dot_product


def check_indexable(retriever: Retriever) -> None:
    if not retriever.dot_product and not hasattr(retriever.model, "regions"):
        raise ValueError(f"this {retriever.system} compares by order, not by dot products: it has no vector to index")


@torch.inference_mode()
def kept_of(retriever: Retriever, pictures: Sequence[str | Path | Image.Image]) -> Kept:
    model: Any = retriever.model
    if _matches(model):
        tokens = model.image_tokens(retriever.see(pictures)[0])
        return Kept(_numbers(model.image_features(tokens)), _numbers(tokens))
    embedded = retriever.embed_pictures(pictures)
    if retriever.dot_product:
        return Kept(_numbers(embedded))
    return Kept(_numbers(mean_part(embedded)), _numbers(embedded))


@torch.inference_mode()
def asked_of(retriever: Retriever, texts: Sequence[str]) -> list[Asked]:
    """All texts together."""
    model: Any = retriever.model
    if _matches(model):
        ids, lengths = retriever.read(texts)
        states = model.word_states(ids, lengths)
        vectors = model.caption_features(states)
        lists = zip(vectors, states, lengths.tolist(), strict=True)
        return [Asked(vector, each[:length]) for vector, each, length in lists]
    embedded = retriever.embed_texts(texts)
    if retriever.dot_product:
        return [Asked(vector) for vector in embedded]
    return [Asked(*each) for each in zip(mean_part(embedded), embedded, strict=True)]


@torch.inference_mode()
def second_look(
    retriever: Retriever, asked: Asked, parts: Float[np.ndarray, "picture part part_dim"]
) -> Float[np.ndarray, " picture"]:
    """How similar the words are to each of these pictures, by all that the model has."""
    assert asked.words is not None
    model: Any = retriever.model
    seen = torch.from_numpy(np.ascontiguousarray(parts)).to(asked.words.device)
    if not _matches(model):
        return _numbers(model.similarity(seen, asked.words[None]))[:, 0]
    found = []
    for some in seen.split(PAIRS_AT_ONCE):
        words = asked.words.expand(len(some), -1, -1)
        lengths: Int[Tensor, " pair"] = torch.full((len(some),), words.shape[1], device=words.device)
        found.append(model.match(some, words, lengths))
    return _numbers(torch.cat(found))


def mean_part(parts: Float[Tensor, "item part part_dim"]) -> Float[Tensor, "item dim"]:
    """The mean of a set's parts, of length 1: padding is zeros and changes no direction."""
    total = parts.sum(dim=1)
    return total / total.norm(dim=1, keepdim=True).clamp(min=TINY)


def _matches(model: Any) -> bool:
    """X-VLM."""
    return hasattr(model, "matching")


def _numbers(found: Tensor) -> np.ndarray:
    return found.float().cpu().numpy()
