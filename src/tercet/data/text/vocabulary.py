"""Vocabularies: words to token ids, with <pad> 0, <start> 1, <end> 2 and <unk> 3, as in VSE++ and its successors.

The published vocabularies can be imported: JSON of SCAN, BFAN and VSE-infinity; pickles of VSE++ and VSRN, which are
read by a restricted unpickler.
"""

import functools
import io
import json
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tercet.data.dataset import DataSet
from tercet.data.text.tokenizer import tokenize
from tercet.data.textio import read_json

SPECIAL = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNKNOWN = range(len(SPECIAL))
MIN_COUNT = 4  # as in all published systems


@dataclass(frozen=True)
class Vocabulary:
    """`words[i]` has the token id i."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"a vocabulary must start with {', '.join(SPECIAL)}, got {', '.join(self.words[:4])}")
        if len(set(self.words)) < len(self.words):
            duplicate = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"duplicate word {duplicate!r} in the vocabulary")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def word_to_id(self) -> Mapping[str, int]:
        return {word: token_id for token_id, word in enumerate(self.words)}

    def encode(self, caption: str) -> list[int]:
        """Token ids of a caption, with start and end token.

        >>> Vocabulary((*SPECIAL, "a", "dog")).encode("A dog barks")
        [1, 4, 5, 3, 2]
        """
        return [START, *(self.word_to_id.get(word, UNKNOWN) for word in tokenize(caption)), END]

    def save(self, file: Path) -> None:
        content = {"words": self.words}
        file.write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    @staticmethod
    def load(file: Path) -> "Vocabulary":
        """Read a file written by `save`; `import_vocabulary` reads the published files."""
        content = read_json(file)
        words = content.get("words") if isinstance(content, dict) else None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f'{file}: expected an object with the list "words"')
        return Vocabulary(tuple(words))


def build_vocabulary(captions: Iterable[str], min_count: int = MIN_COUNT) -> Vocabulary:
    """Build a vocabulary from training captions; words with a lower count become <unk>.

    Words are sorted by count, then alphabetically, so the token ids do not depend on the order of the captions.
    (`vocabulary_of` accepts further splits, to reproduce the published vocabularies, which also include validation
    captions and some of them test captions.)
    """
    counts = Counter(word for caption in captions for word in tokenize(caption))
    kept = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
    return Vocabulary((*SPECIAL, *(word for word in kept if word not in SPECIAL)))


def vocabulary_of(data: DataSet, splits: Sequence[str] = ("train",), min_count: int = MIN_COUNT) -> Vocabulary:
    """Build a vocabulary from these splits. More than `train` reproduces the leak of the published vocabularies."""
    return build_vocabulary((text for name in splits for text in data.split(name).texts), min_count)


def import_vocabulary(file: Path) -> Vocabulary:
    """Read a published vocabulary: `.json` with word2idx, or a pickled `vocab.Vocabulary` with the same fields."""
    fields = read_json(file) if file.suffix == ".json" else _unpickle(file)
    word_to_id = fields.get("word2idx") if isinstance(fields, dict) else None
    if not isinstance(word_to_id, dict) or not word_to_id:
        raise ValueError(f"{file}: expected word2idx, a mapping of words to token ids")
    if not all(isinstance(token_id, int) for token_id in word_to_id.values()):
        raise ValueError(f"{file}: expected integer token ids in word2idx")
    words = {token_id: word for word, token_id in word_to_id.items()}
    if sorted(words) != list(range(len(word_to_id))):
        raise ValueError(f"{file}: expected the token ids 0 to {len(word_to_id) - 1}, each once, in word2idx")
    return Vocabulary(tuple(str(words[token_id]) for token_id in range(len(words))))


class _Pickled:
    """Replaces the authors' class; holds only its fields."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fields = state


class _Object:
    """Replaces `object`, which Python 2 pickles name as the base class."""


class _RestrictedUnpickler(pickle._Unpickler):
    """Finds no class but the authors' one, so that a pickle cannot run any code.

    Based on the unpickler in Python: the one in C allocates whatever size a few bytes claim.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module.split(".")[-1], name) in {("vocab", "Vocabulary"), ("__main__", "Vocabulary")}:
            return _Pickled
        if (module, name) in {("copy_reg", "_reconstructor"), ("copyreg", "_reconstructor")}:
            return functools.partial(_reconstruct)  # a new object each time, because a pickle can set attributes on it
        if (module, name) in {("__builtin__", "object"), ("builtins", "object")}:
            return _Object
        raise ValueError(f"unsafe pickle: it loads {module}.{name}; only vocab.Vocabulary is allowed")


def _reconstruct(cls: type, base: type, state: object) -> _Pickled:
    """Creates an object as pickle protocol 0 of Python 2 does."""
    if cls is not _Pickled:
        raise ValueError(f"unsafe pickle: it creates {cls!r}; only vocab.Vocabulary is allowed")
    return _Pickled()


def _unpickle(file: Path) -> Any:
    try:
        loaded = _RestrictedUnpickler(io.BytesIO(file.read_bytes()), encoding="utf-8").load()
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    except Exception as error:  # a damaged pickle can raise any exception
        raise ValueError(f"{file}: not a readable pickle: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, _Pickled):
        raise ValueError(f"{file}: expected a pickled vocab.Vocabulary, got {type(loaded).__name__}")
    return getattr(loaded, "fields", None)
