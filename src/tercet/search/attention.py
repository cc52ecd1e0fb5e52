"""Words x regions: which parts of a picture each word of a query looks at, for models with cross attention."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from tercet.search.looks import asked_of
from tercet.search.query import Searcher, check_query


@dataclass(frozen=True)
class WordsOverRegions:
    words: list[str]
    """As the model reads them, with its signs of start and end."""
    attention: list[list[float]]
    """A row a word, a column a region."""
    side: int | None
    """Regions are the cells of so many rows and columns over the whole picture; None where they are no grid."""


def has_attention(searcher: Searcher) -> bool:
    return searcher.index.parts is not None and hasattr(searcher.retriever.model, "attended")


@torch.inference_mode()
def words_over_regions(searcher: Searcher, text: str, number: int) -> WordsOverRegions:
    check_query(text)
    retriever, parts = searcher.retriever, searcher.index.parts
    model: Any = retriever.model
    if not has_attention(searcher):
        raise ValueError(f"a {retriever.system} has no cross attention of words over regions")
    assert parts is not None
    asked = asked_of(retriever, [text])[0]
    assert asked.words is not None
    seen = torch.from_numpy(parts[number].copy()).to(asked.words)
    seen = seen[seen.abs().amax(dim=1) > 0]
    attention = model.attended(seen, asked.words)
    cells = math.isqrt(attention.shape[1])
    side = cells if cells * cells == attention.shape[1] else None
    rounded = [[round(weight, 5) for weight in row] for row in attention.tolist()]
    return WordsOverRegions(_as_read(retriever, text), rounded, side)


def _as_read(retriever: Any, text: str) -> list[str]:
    ids = retriever.read([text])[0][0].tolist()
    return [retriever.reading.vocabulary.words[number] for number in ids]
