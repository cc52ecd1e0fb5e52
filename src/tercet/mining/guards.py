"""Guards against false negatives: what is left out of mined lists. Off by default, as published."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.analysis.near_duplicates import ALIKE, words_of
from tercet.data.pairs import PairedData
from tercet.similarity import Compared

TRUTH_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Guards:
    skip: int = 0
    """So many first ranks of every list."""
    near_duplicates: bool = False
    """A caption that says almost what a caption of the image says."""
    known: bool = False
    """What the data says is true of an image although it is not its own."""
    pairs: Path | None = None
    """A file of further pairs, image and caption number on a line."""
    margin: float | None = None
    """Whatever is more similar than the anchor's most similar positive less this."""


class LeftOut:
    """Pairs that no list may hold, by image: own ones, and what guards know before any similarity is known."""

    def __init__(self, data: PairedData, guards: Guards) -> None:
        self.counts: dict[str, int] = {}
        caption = torch.arange(len(data.owners))
        taken = [data.owners * len(data.owners) + caption]
        own = taken[0].sort().values
        for name, wanted, find in (
            ("near_duplicates", guards.near_duplicates, near_duplicates),
            ("known", guards.known, known_pairs),
            ("pairs", guards.pairs is not None, lambda data: pairs_of_file(guards.pairs, data)),
        ):
            if wanted:
                found = torch.unique(find(data))
                found = found[~torch.isin(found, own)]
                self.counts[name] = len(found)
                taken.append(found)
        every = torch.unique(torch.cat(taken))
        self._image, self._caption = every // len(data.owners), every % len(data.owners)

    def hide(self, block: Float[Tensor, "image caption"], images: slice, captions: slice) -> None:
        """In place, as -inf."""
        first, last = torch.searchsorted(self._image, torch.tensor([images.start, images.stop])).tolist()
        image, caption = self._image[first:last], self._caption[first:last]
        here = (caption >= captions.start) & (caption < captions.stop)
        block[image[here] - images.start, caption[here] - captions.start] = -torch.inf

    def holds(self, image: Int[Tensor, " pair"], caption: Int[Tensor, " pair"], captions: int) -> Tensor:
        """Whether these pairs are left out."""
        return torch.isin(image * captions + caption, self._image * captions + self._caption)


def caps_of(compared: Compared, data: PairedData, guards: Guards) -> tuple[Tensor, Tensor] | None:
    """What an image's and a caption's negatives may not exceed: its most similar positive, less the margin."""
    if guards.margin is None:
        return None
    positive = compared.of_pairs(data.owners, torch.arange(len(data.owners)))
    best = torch.full((len(data.images),), -torch.inf).scatter_reduce_(0, data.owners, positive, "amax")
    return best - guards.margin, positive - guards.margin


def counted(left_out: LeftOut, guards: Guards, over: list[int]) -> dict[str, int]:
    """How many each guard that was asked for has left out. `over`: by margin, both ways, and by skip."""
    counts = left_out.counts | ({"skip": over[2]} if guards.skip else {})
    return counts if guards.margin is None else counts | {"margin_i2t": over[0], "margin_t2i": over[1]}


def near_duplicates(data: PairedData) -> Int[Tensor, " pair"]:
    """Pairs of an image and a caption of another that shares 80 % of its words with one of the image's own.

    Captions alike must share their rarest words: of each only a prefix is looked up, so that few are compared.
    """
    owners = data.owners.tolist()
    alike = _alike([words_of(text) for text in data.texts])
    return torch.tensor([owners[one] * len(owners) + other for one, other in alike], dtype=torch.long)


def _alike(words: Sequence[frozenset[str]]) -> Iterable[tuple[int, int]]:
    """(a, b) and (b, a) of sets whose intersection is at least ALIKE of their union."""
    frequency: dict[str, int] = defaultdict(int)
    for each in words:
        for word in each:
            frequency[word] += 1
    holders: dict[str, list[int]] = defaultdict(list)
    for number, each in enumerate(words):
        ordered = sorted(each, key=lambda word: (frequency[word], word))
        # Who shares 80 % with me has one of my rarest words among its own rarest: the others are too few to reach it.
        prefix = ordered[: len(ordered) - int(np.ceil(ALIKE * len(ordered))) + 1]
        seen: set[int] = set()
        for word in prefix:
            for other in holders[word]:
                if other not in seen:
                    seen.add(other)
                    if len(each & words[other]) >= ALIKE * len(each | words[other]):
                        yield number, other
                        yield other, number
            holders[word].append(number)


def known_pairs(data: PairedData) -> Int[Tensor, " pair"]:
    """True although not its own, as the data knows."""
    if data.truth is None:
        raise ValueError(f"--guard-known: it is not known which captions of {data.name} are true of other images")
    captions = torch.arange(len(data.owners))
    found = []
    for images in torch.arange(len(data.images)).split(max(1, TRUTH_AT_ONCE // max(1, len(captions)))):
        image, caption = data.truth(images, captions).nonzero(as_tuple=True)
        found.append(images[image] * len(captions) + caption)
    return torch.cat(found)


def pairs_of_file(file: Path | None, data: PairedData) -> Int[Tensor, " pair"]:
    """`image,caption` on every line: numbers in the training split, from 0."""
    assert file is not None
    found = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        parts = line.replace(",", " ").split()
        if not parts or (number == 1 and parts == ["image", "caption"]):
            continue
        image, caption = _numbers(parts, file, number)
        if not (0 <= image < len(data.images) and 0 <= caption < len(data.owners)):
            raise ValueError(
                f"{file}, line {number}: {line.strip()!r} is not in the training split of {len(data.images)} images "
                f"and {len(data.owners)} captions"
            )
        found.append(image * len(data.owners) + caption)
    return torch.tensor(found, dtype=torch.long)


def _numbers(parts: list[str], file: Path, line: int) -> tuple[int, int]:
    try:
        image, caption = map(int, parts)
    except ValueError:
        raise ValueError(
            f"{file}, line {line}: expected two numbers, image and caption, got {' '.join(parts)!r}"
        ) from None
    return image, caption
