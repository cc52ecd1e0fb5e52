"""Captions as sets of words, and pairs of captions with nearly the same ones."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

MIN_OVERLAP = 0.8  # Jaccard index of the word sets: shared words / all words of both

Words = frozenset[str]


def words_of(caption: str) -> Words:
    """The set of lower-case words of a caption.

    >>> sorted(words_of("A dog, a DOG's ball."))
    ['a', 'ball', 'dog', 's']
    """
    return frozenset(re.findall(r"\w+", caption.lower()))


def is_near_duplicate(one: Words, other: Words) -> bool:
    """Whether two captions have nearly the same words (Jaccard index at least MIN_OVERLAP).

    >>> is_near_duplicate(words_of("A dog runs on the grass"), words_of("a dog runs on grass."))
    True
    """
    return bool(one or other) and len(one & other) >= MIN_OVERLAP * len(one | other)


def near_duplicate_pairs(captions: Sequence[Words]) -> Iterator[tuple[int, int]]:
    """Yield every pair (earlier, later) of near-duplicates (prefix filtering). Captions without a word have none."""
    frequency: dict[str, int] = defaultdict(int)
    for words in captions:
        for word in words:
            frequency[word] += 1
    captions_with: dict[str, list[int]] = defaultdict(list)
    for index, words in enumerate(captions):
        ordered = sorted(words, key=lambda word: (frequency[word], word))
        # Two sets that overlap enough share a word of their prefixes of rarest words: the rest alone is too small.
        prefix = ordered[: len(ordered) - math.ceil(MIN_OVERLAP * len(ordered)) + 1]
        compared: set[int] = set()
        for word in prefix:
            for other in captions_with[word]:
                if other not in compared:
                    compared.add(other)
                    if is_near_duplicate(words, captions[other]):
                        yield other, index
            captions_with[word].append(index)
