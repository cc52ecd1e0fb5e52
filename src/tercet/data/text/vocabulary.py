"""Words to numbers: 0 pads, 1 starts, 2 ends, 3 stands for every unknown word, as in the VSE++ lineage."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tercet.data.dataset import DataSet
from tercet.data.lines import read_json
from tercet.data.text.tokenizer import tokenize

SPECIAL = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNKNOWN = range(len(SPECIAL))
LEAST_COUNT = 4  # of all published systems


@dataclass(frozen=True)
class Vocabulary:
    """`words[i]` has the number i."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"a vocabulary starts with {', '.join(SPECIAL)}, got {', '.join(self.words[:4])}")
        if len(set(self.words)) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"the word {twice!r} stands twice in the vocabulary")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, caption: str) -> list[int]:
        """Start, the words, end.

        >>> Vocabulary((*SPECIAL, "a", "dog")).encode("A dog barks")
        [1, 4, 5, 3, 2]
        """
        return [START, *(self.numbers.get(word, UNKNOWN) for word in tokenize(caption)), END]

    def save(self, file: Path) -> None:
        content = {"words": self.words}
        file.write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    @staticmethod
    def load(file: Path) -> "Vocabulary":
        """Our own file. The authors' come in by `import_vocabulary`."""
        content = read_json(file)
        words = content.get("words") if isinstance(content, dict) else None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f'{file}: expected an object with the list "words"')
        return Vocabulary(tuple(words))


def build_vocabulary(captions: Iterable[str], least_count: int = LEAST_COUNT) -> Vocabulary:
    """Of training captions only: what a model has never seen is unknown to it.

    (`vocabulary_of` can be told of further splits, to reproduce the published vocabularies, which were built on
    validation captions too, and some on test captions.) Words are sorted by count, then alphabetically: the same
    captions in any order give the same numbers.
    """
    counts = Counter(word for caption in captions for word in tokenize(caption))
    kept = sorted((word for word, count in counts.items() if count >= least_count), key=lambda w: (-counts[w], w))
    return Vocabulary((*SPECIAL, *(word for word in kept if word not in SPECIAL)))


def vocabulary_of(data: DataSet, splits: Sequence[str] = ("train",), least_count: int = LEAST_COUNT) -> Vocabulary:
    """Of the captions of these splits. More than `train` is the leak of the published vocabularies."""
    return build_vocabulary((text for name in splits for text in data.split(name).texts), least_count)
