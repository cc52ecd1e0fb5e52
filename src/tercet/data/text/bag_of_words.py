"""A frozen text encoder that needs no weights: random vectors of words and of neighbouring words, added up."""

import itertools
import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from tercet.data.text.tokenizer import tokenize

BUCKETS = 1 << 14


def bag_of_words(texts: Sequence[str], dim: int) -> Float[np.ndarray, "caption dim"]:
    """Of length 1."""
    table = np.random.default_rng(0).standard_normal((BUCKETS, dim), dtype=np.float32)
    features = np.zeros((len(texts), dim), dtype=np.float32)
    for row, text in enumerate(texts):
        words = tokenize(text)
        pieces = words + [f"{first} {second}" for first, second in itertools.pairwise(words)]
        features[row] = table[[zlib.crc32(piece.encode()) % BUCKETS for piece in pieces]].sum(axis=0)
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
