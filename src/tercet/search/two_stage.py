"""Encode images and queries for two-stage search.

Stage 1 compares one vector per image with one vector per query by dot product, over the whole index. Models without
such a similarity then re-rank the top results: SCAN and BFAN compare regions with words, X-VLM runs its cross encoder.
For these an index also stores the regions (SCAN, BFAN) or visual tokens (X-VLM) of every image.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from tercet.inference import Retriever
from tercet.interfaces import LateInteraction, Reranker

CROSS_ENCODER_BATCH_SIZE = 64  # image-query pairs of X-VLM, which encodes the query again with every image


class IndexedVectors(NamedTuple):
    vectors: Float[np.ndarray, "image dim"]
    regions: Float[np.ndarray, "image region region_dim"] | None = None
    """Regions or visual tokens, for models that re-rank."""


class EncodedQuery(NamedTuple):
    vector: Float[Tensor, " dim"]
    words: Float[Tensor, "word dim"] | None = None
    """Word embeddings, for models that re-rank."""


def needs_rerank(retriever: Retriever) -> bool:
    return isinstance(retriever.model, Reranker | LateInteraction) and (
        isinstance(retriever.model, Reranker) or not retriever.dot_product
    )


def check_indexable(retriever: Retriever) -> None:
    if not retriever.dot_product and not isinstance(retriever.model, LateInteraction):
        raise ValueError(
            f"the similarity of this {retriever.system} model is no dot product, and it has no method `pool` for the "
            "first stage of search: it cannot be indexed"
        )


@torch.inference_mode()
def encode_for_index(retriever: Retriever, images: Sequence[str | Path | Image.Image]) -> IndexedVectors:
    """Encode images, or passages if the model compares two texts."""
    model = retriever.model
    if isinstance(model, Reranker):
        tokens = model.image_tokens(retriever.preprocess_images(images)[0])
        return IndexedVectors(_to_numpy(model.image_features(tokens)), _to_numpy(tokens))
    is_text = retriever.sides.image_is_text
    embedded = retriever.embed_passages([str(text) for text in images]) if is_text else retriever.embed_images(images)
    return _indexed(retriever, embedded)


@torch.inference_mode()
def encode_features_for_index(retriever: Retriever, features: Float[Tensor, "image *rest"]) -> IndexedVectors:
    """The same from what the model's image encoder made of the images."""
    return _indexed(retriever, retriever.embed_features(features))


def _indexed(retriever: Retriever, embedded: Tensor) -> IndexedVectors:
    if retriever.dot_product:
        return IndexedVectors(_to_numpy(embedded))
    assert isinstance(retriever.model, LateInteraction)
    return IndexedVectors(_to_numpy(retriever.model.pool(embedded)), _to_numpy(embedded))


@torch.inference_mode()
def encode_queries(retriever: Retriever, texts: Sequence[str]) -> list[EncodedQuery]:
    """Encode all texts in one batch."""
    model = retriever.model
    if isinstance(model, Reranker):
        ids, lengths = retriever.tokenize(texts)
        states = model.word_states(ids, lengths)
        vectors = model.caption_features(states)
        return [
            EncodedQuery(vector, words[:length])
            for vector, words, length in zip(vectors, states, lengths.tolist(), strict=True)
        ]
    embedded = retriever.embed_texts(texts)
    if retriever.dot_product:
        return [EncodedQuery(vector) for vector in embedded]
    assert isinstance(model, LateInteraction)
    return [EncodedQuery(*row) for row in zip(model.pool(embedded), embedded, strict=True)]


@torch.inference_mode()
def rerank_similarity(
    retriever: Retriever, query: EncodedQuery, regions: Float[np.ndarray, "image region region_dim"]
) -> Float[np.ndarray, " image"]:
    """Return the similarity of the query to each of these images, computed by the full model."""
    assert query.words is not None
    model = retriever.model
    images = torch.from_numpy(np.ascontiguousarray(regions)).to(query.words.device)
    if not isinstance(model, Reranker):
        return _to_numpy(model.similarity(images, query.words[None]))[:, 0]
    similarity = []
    for batch in images.split(CROSS_ENCODER_BATCH_SIZE):
        words = query.words.expand(len(batch), -1, -1)
        lengths: Int[Tensor, " pair"] = torch.full((len(batch),), words.shape[1], device=words.device)
        similarity.append(model.match(batch, words, lengths))
    return _to_numpy(torch.cat(similarity))


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()
