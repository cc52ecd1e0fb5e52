"""Tokenized captions of a split."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tercet.data.text.vocabulary import PAD, UNKNOWN, Vocabulary
from tercet.hub import hub_options, transformers_for

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


@dataclass(frozen=True)
class TokenizedCaptions:
    """The token ids of all captions in one array: caption j is `token_ids[starts[j] : starts[j + 1]]`."""

    token_ids: Int[np.ndarray, " token"]
    starts: Int[np.ndarray, " caption_and_end"]
    words: Int[np.ndarray, " token"]
    """The word of its caption that a token belongs to; -1 for special tokens (BERT's CLS and SEP)."""
    pad: int = PAD
    mask: int = UNKNOWN
    """Token id of a masked word."""
    vocab_size: int = 0

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self) -> Int[np.ndarray, " caption"]:
        return np.diff(self.starts)

    def take(self, items: Int[Tensor, " item"]) -> tuple[Int[Tensor, "item word"], Int[Tensor, " item"]]:
        """Token ids, padded to the longest of these captions, and lengths."""
        padded, lengths, _ = self.padded(items)
        return padded, lengths

    def padded(
        self, items: Int[Tensor, " item"]
    ) -> tuple[Int[Tensor, "item word"], Int[Tensor, " item"], Int[Tensor, "item word"]]:
        """Token ids, lengths and word indices (-1 where padded) of these captions."""
        index = items.numpy()
        first, lengths = self.starts[index], self.lengths()[index]
        columns = np.arange(lengths.max(initial=0))
        inside = columns < lengths[:, None]
        position = np.where(inside, first[:, None] + columns, 0)
        token_ids = np.where(inside, self.token_ids[position], self.pad)
        words = np.where(inside, self.words[position], -1)
        return torch.from_numpy(token_ids), torch.from_numpy(lengths.copy()), torch.from_numpy(words)

    def subset(self, items: Int[np.ndarray, " kept"]) -> "TokenizedCaptions":
        kept = np.concatenate([np.arange(self.starts[item], self.starts[item + 1]) for item in items])
        starts = np.append(0, np.cumsum(self.lengths()[items]))
        return replace(self, token_ids=self.token_ids[kept], starts=starts, words=self.words[kept])

    def checksum(self) -> str:
        digest = hashlib.sha256(repr((self.pad, self.mask, self.vocab_size)).encode())
        for array in (self.token_ids, self.starts, self.words):
            digest.update(array.astype(np.int64).tobytes())
        return digest.hexdigest()


def tokenize_captions(texts: Sequence[str], vocabulary: Vocabulary) -> TokenizedCaptions:
    """Tokenize with a vocabulary. Start and end tokens count as words too, as in VSE-infinity's word dropout."""
    encoded = [vocabulary.encode(text) for text in texts]
    return _flat(encoded, [list(range(len(caption))) for caption in encoded], vocab_size=len(vocabulary))


def tokenize_pretrained(texts: Sequence[str], name: str, *, max_length: int | None = None) -> TokenizedCaptions:
    """Tokenize with a Hugging Face tokenizer, by name or local path, with its special tokens."""
    tokenizer = pretrained_tokenizer(name)
    encoded = tokenizer(list(texts), truncation=max_length is not None, max_length=max_length)
    words = [[-1 if word is None else word for word in encoded.word_ids(row)] for row in range(len(texts))]
    pad, mask = tokenizer.pad_token_id, tokenizer.mask_token_id
    return _flat(
        encoded["input_ids"],
        words,
        pad=0 if pad is None else pad,
        mask=tokenizer.unk_token_id if mask is None else mask,
        vocab_size=len(tokenizer),
    )


def pretrained_tokenizer(name: str) -> Any:
    AutoTokenizer = transformers_for("pretrained tokenizers").AutoTokenizer
    if Path(name).is_dir() and not any(any(Path(name).glob(pattern)) for pattern in TOKENIZER_FILES):
        # Without these files, transformers silently creates a tokenizer with an empty vocabulary.
        raise ValueError(f"{name}: no tokenizer found: expected one of {', '.join(TOKENIZER_FILES)}")
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False, **hub_options(name))
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer {name!r}, neither on this machine nor on the hub: {error}") from error


def _flat(encoded: Sequence[Sequence[int]], words: Sequence[Sequence[int]], **special: int) -> TokenizedCaptions:
    starts = np.cumsum([0, *map(len, encoded)])
    token_ids, word_indices = (
        np.fromiter(itertools.chain.from_iterable(captions), np.int64) for captions in (encoded, words)
    )
    return TokenizedCaptions(token_ids, starts, word_indices, **special)
