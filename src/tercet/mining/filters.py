"""False-negative filters: pairs excluded from mined lists. All are off by default, as published."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data.dataset import PairedData
from tercet.data.text.word_sets import near_duplicate_pairs, words_of
from tercet.similarity import SplitScorer

TRUTH_BATCH_ENTRIES = 1 << 22


@dataclass(frozen=True)
class FalseNegativeFilters:
    skip: int = 0
    """Exclude the first `skip` ranks of every list."""
    near_duplicates: bool = False
    """Exclude captions that are near-duplicates of a caption of the image."""
    known: bool = False
    """Exclude pairs that the dataset knows to match, although the caption belongs to another image."""
    pairs: Path | None = None
    """Exclude the pairs of a file with an image index and a caption index per line."""
    margin: float | None = None
    """Exclude candidates more similar than the anchor's most similar positive minus this."""


class ExcludedPairs:
    """Pairs that no list may contain, sorted by image: positives, and pairs of filters that need no similarity."""

    def __init__(self, data: PairedData, filters: FalseNegativeFilters) -> None:
        self.counts: dict[str, int] = {}
        pair_ids = [data.pairs[:, 0] * len(data.owners) + data.pairs[:, 1]]
        positives = pair_ids[0].sort().values
        for name, enabled, find in (
            ("near_duplicates", filters.near_duplicates, near_duplicates),
            ("known", filters.known, known_pairs),
            ("pairs", filters.pairs is not None, lambda data: read_pairs(filters.pairs, data)),
        ):
            if enabled:
                filtered = torch.unique(find(data))
                filtered = filtered[~torch.isin(filtered, positives)]
                self.counts[name] = len(filtered)
                pair_ids.append(filtered)
        excluded = torch.unique(torch.cat(pair_ids))
        self._image, self._caption = excluded // len(data.owners), excluded % len(data.owners)

    def hide(self, block: Float[Tensor, "image caption"], images: slice, captions: slice) -> None:
        """Set the excluded pairs of a block of S to -inf, in place."""
        first, last = torch.searchsorted(self._image, torch.tensor([images.start, images.stop])).tolist()
        image, caption = self._image[first:last], self._caption[first:last]
        inside = (caption >= captions.start) & (caption < captions.stop)
        block[image[inside] - images.start, caption[inside] - captions.start] = -torch.inf

    def contains(
        self, image: Int[Tensor, " pair"], caption: Int[Tensor, " pair"], captions: int
    ) -> Bool[Tensor, " pair"]:
        """Return which of these pairs are excluded; `captions` is the number of captions of the split."""
        return torch.isin(image * captions + caption, self._image * captions + self._caption)


def similarity_caps(
    split_scorer: SplitScorer, data: PairedData, filters: FalseNegativeFilters
) -> tuple[Tensor, Tensor] | None:
    """Return the maximum similarity of negatives per image and per caption: the best positive minus the margin."""
    if filters.margin is None:
        return None
    image, caption = data.pairs.unbind(dim=1)
    positive = split_scorer.of_pairs(image, caption)
    # An item without a positive has no limit.
    best = [
        torch.full((count,), -torch.inf).scatter_reduce_(0, item, positive, "amax")
        for item, count in ((image, len(data.images)), (caption, len(data.owners)))
    ]
    of_images, of_captions = (limit.masked_fill(limit == -torch.inf, torch.inf) - filters.margin for limit in best)
    return of_images, of_captions


def excluded_counts(excluded: ExcludedPairs, filters: FalseNegativeFilters, over: list[int]) -> dict[str, int]:
    """Return what each enabled filter excluded; `over` holds pairs by margin (i2t, t2i) and entries by skip."""
    counts = excluded.counts | ({"skip": over[2]} if filters.skip else {})
    return counts if filters.margin is None else counts | {"margin_i2t": over[0], "margin_t2i": over[1]}


def near_duplicates(data: PairedData) -> Int[Tensor, " pair"]:
    """Return pairs of an image and another image's caption that shares 80 % of its words with one of its captions."""
    images_of: list[list[int]] = [[] for _ in data.texts]
    for image, caption in data.pairs.tolist():
        images_of[caption].append(image)
    similar = list(near_duplicate_pairs([words_of(text) for text in data.texts]))
    both = [*similar, *((other, one) for one, other in similar)]
    pairs = [image * len(data.owners) + other for one, other in both for image in images_of[one]]
    return torch.tensor(pairs, dtype=torch.long)


def known_pairs(data: PairedData) -> Int[Tensor, " pair"]:
    """Return the pairs that match according to the dataset's own relevance annotations."""
    if data.truth is None:
        raise ValueError(f"--filter-known: {data.name} has no annotations of captions that match other images")
    captions = torch.arange(len(data.owners))
    pairs = []
    for images in torch.arange(len(data.images)).split(max(1, TRUTH_BATCH_ENTRIES // max(1, len(captions)))):
        image, caption = data.truth(images, captions).nonzero(as_tuple=True)
        pairs.append(images[image] * len(captions) + caption)
    return torch.cat(pairs)


def read_pairs(file: Path | None, data: PairedData) -> Int[Tensor, " pair"]:
    """Read a file of `image,caption` lines: 0-based indices in the training split."""
    assert file is not None
    pairs = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        fields = line.replace(",", " ").split()
        if not fields or (number == 1 and fields == ["image", "caption"]):
            continue
        image, caption = _parse_pair(fields, file, number)
        if not (0 <= image < len(data.images) and 0 <= caption < len(data.owners)):
            raise ValueError(
                f"{file}, line {number}: {line.strip()!r} is not in the training split of {len(data.images)} images "
                f"and {len(data.owners)} captions"
            )
        pairs.append(image * len(data.owners) + caption)
    return torch.tensor(pairs, dtype=torch.long)


def _parse_pair(fields: list[str], file: Path, line: int) -> tuple[int, int]:
    try:
        image, caption = map(int, fields)
    except ValueError:
        raise ValueError(
            f"{file}, line {line}: expected two integers, image and caption index, got {' '.join(fields)!r}"
        ) from None
    return image, caption
