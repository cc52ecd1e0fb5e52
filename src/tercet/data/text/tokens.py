"""All captions of a split as numbers, tokenized once: a flat array and where each caption starts in it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tercet.data.text.vocabulary import PAD, UNKNOWN, Vocabulary

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


@dataclass(frozen=True)
class Tokens:
    """Caption j is `flat[starts[j] : starts[j + 1]]`."""

    flat: Int[np.ndarray, " token"]
    starts: Int[np.ndarray, " caption_and_end"]
    words: Int[np.ndarray, " token"]
    """Which word of its caption a token is part of; -1 for signs that are no words (BERT's CLS and SEP)."""
    pad: int = PAD
    mask: int = UNKNOWN
    """Stands for a hidden word."""
    size: int = 0
    """Of the vocabulary."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self) -> Int[np.ndarray, " caption"]:
        return np.diff(self.starts)

    def take(self, items: Int[Tensor, " item"]) -> tuple[Int[Tensor, "item word"], Int[Tensor, " item"]]:
        """Padded to the longest of these, and their lengths."""
        padded, lengths, _ = self.padded(items)
        return padded, lengths

    def padded(
        self, items: Int[Tensor, " item"]
    ) -> tuple[Int[Tensor, "item word"], Int[Tensor, " item"], Int[Tensor, "item word"]]:
        """Numbers, lengths and words (-1 where padded) of these captions."""
        index = items.numpy()
        first, lengths = self.starts[index], self.lengths()[index]
        columns = np.arange(lengths.max(initial=0))
        inside = columns < lengths[:, None]
        where = np.where(inside, first[:, None] + columns, 0)
        numbers = np.where(inside, self.flat[where], self.pad)
        words = np.where(inside, self.words[where], -1)
        return torch.from_numpy(numbers), torch.from_numpy(lengths.copy()), torch.from_numpy(words)

    def only(self, items: Int[np.ndarray, " kept"]) -> "Tokens":
        kept = np.concatenate([np.arange(self.starts[item], self.starts[item + 1]) for item in items])
        starts = np.append(0, np.cumsum(self.lengths()[items]))
        return replace(self, flat=self.flat[kept], starts=starts, words=self.words[kept])

    def checksum(self) -> str:
        digest = hashlib.sha256(repr((self.pad, self.mask, self.size)).encode())
        for part in (self.flat, self.starts, self.words):
            digest.update(part.astype(np.int64).tobytes())
        return digest.hexdigest()


def tokens_of(texts: Sequence[str], vocabulary: Vocabulary) -> Tokens:
    """Every token is a word, the start and end signs too, as in VSE-infinity's dropout of words."""
    encoded = [vocabulary.encode(text) for text in texts]
    return _flat(encoded, [list(range(len(caption))) for caption in encoded], size=len(vocabulary))


def pretrained_tokens_of(texts: Sequence[str], name: str, *, longest: int | None = None) -> Tokens:
    """By the Hugging Face tokenizer of that name or local path, its special signs included."""
    tokenizer = pretrained_tokenizer(name)
    encoded = tokenizer(list(texts), truncation=longest is not None, max_length=longest)
    words = [[-1 if word is None else word for word in encoded.word_ids(row)] for row in range(len(texts))]
    pad, mask = tokenizer.pad_token_id, tokenizer.mask_token_id
    return _flat(
        encoded["input_ids"],
        words,
        pad=0 if pad is None else pad,
        mask=tokenizer.unk_token_id if mask is None else mask,
        size=len(tokenizer),
    )


def pretrained_tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError("pretrained tokenizers need transformers: pip install 'tercet[hf]'") from error
    if Path(name).is_dir() and not any(any(Path(name).glob(kind)) for kind in TOKENIZER_FILES):
        # Without them transformers makes up a tokenizer that knows no word.
        raise ValueError(f"{name}: no tokenizer there, expected one of {', '.join(TOKENIZER_FILES)}")
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer {name!r}, neither on this machine nor on the hub: {error}") from error


def _flat(encoded: Sequence[Sequence[int]], words: Sequence[Sequence[int]], **signs: int) -> Tokens:
    starts = np.cumsum([0, *map(len, encoded)])
    flat, flat_words = (np.fromiter((n for caption in part for n in caption), np.int64) for part in (encoded, words))
    return Tokens(flat, starts, flat_words, **signs)
