"""What a data set holds, so that a person can check it."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tercet.data.ahead import ahead
from tercet.data.dataset import DataSet, Split
from tercet.data.formats.layout import first_unequal_row
from tercet.data.pictures import Picture, open_picture
from tercet.data.rows import Rows
from tercet.data.text.tokenizer import tokenize

EXAMPLES = 3


@dataclass
class SplitSummary:
    """One row of the table."""

    images: int
    captions: int
    captions_each: tuple[int, float, int]
    """Least, mean, most."""
    words_each: tuple[int, float, int]
    """Words of a caption: least, median, most."""
    shared_captions: int
    """Captions whose very words also stand under another image of the split."""
    pictures: int | None
    features: str
    caption_features: str


@dataclass
class Summary:
    splits: dict[str, SplitSummary] = field(default_factory=dict)
    shared: list[tuple[str, str, str, int]] = field(default_factory=list)
    """What two splits have in common: split, split, what, how many."""
    remarks: list[str] = field(default_factory=list)
    """Worth knowing, but no fault."""
    faults: list[str] = field(default_factory=list)
    examples: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """Split, image, captions."""


Watch = Callable[[str, int], Callable[[int], None]]
"""Told what begins and how many items it has; gives back whom to tell of progress."""


def summarise(data: DataSet, watch: Watch = lambda what, total: lambda items: None) -> Summary:
    """Decodes every picture and reads every feature."""
    summary = Summary(faults=list(data.skipped))
    contents: dict[str, dict[str, Counter[str]]] = {}
    for name, split in data.splits.items():
        contents[name] = {"image names": Counter(split.image_names), "captions": Counter(split.texts)}
        if split.pictures is not None:
            advance = watch(f"pictures of {name}", len(split.pictures))
            contents[name]["pictures"] = _pictures(name, split, summary, advance)
        if split.features is not None:
            advance = watch(f"features of {name}", len(split.features))
            contents[name]["feature rows"] = _features(name, split.features, summary, advance)
        for rows in (split.boxes, split.caption_features):
            if rows is not None:
                summary.faults += [f"{rows.place}, row {rows.row(item)}: NaN or infinity" for item in rows.bad_items()]
        summary.splits[name] = _row(split)
    _compare(contents, summary)
    summary.examples = list(_examples(data))
    return summary


def _row(split: Split) -> SplitSummary:
    each, words = split.captions_each(), np.array([len(tokenize(text)) for text in split.texts])
    return SplitSummary(
        images=len(split.image_names),
        captions=len(split.texts),
        captions_each=(int(each.min()), float(each.mean()), int(each.max())),
        words_each=(int(words.min()), float(np.median(words)), int(words.max())),
        shared_captions=_shared_captions(split),
        pictures=None if split.pictures is None else len(split.pictures),
        features=_shape(split.features),
        caption_features=_shape(split.caption_features),
    )


def _shared_captions(split: Split) -> int:
    owners: dict[str, set[int]] = {}
    for text, owner in zip(split.texts, split.owners.tolist(), strict=True):
        owners.setdefault(text, set()).add(owner)
    return sum(len(owners[text]) > 1 for text in split.texts)


def _shape(rows: Rows | None) -> str:
    if rows is None:
        return "none"
    lengths = "" if rows.lengths is None else f", {rows.lengths.min()} to {rows.lengths.max()} real"
    return f"{' x '.join(map(str, rows.shape))} {rows.dtype}{lengths}"


def _pictures(name: str, split: Split, summary: Summary, advance: Callable[[int], None]) -> Counter[str]:
    """Decodes all; returns how often each content occurs."""

    def look(picture: Picture) -> tuple[str, str | None]:
        try:
            open_picture(picture)
            return hashlib.sha256(picture.content()).hexdigest(), None
        except ValueError as error:
            return "", str(error)

    assert split.pictures is not None
    seen: Counter[str] = Counter()
    for content, fault in ahead(look, split.pictures, workers=os.cpu_count() or 1):
        advance(1)
        if fault is None:
            seen[content] += 1
        else:
            summary.faults.append(fault)
    _twice(name, "pictures", seen, summary)
    return seen


def _features(name: str, rows: Rows, summary: Summary, advance: Callable[[int], None]) -> Counter[str]:
    """Reads all; returns how often each row occurs."""
    seen: Counter[str] = Counter()
    zero = 0
    for start, block in rows.blocks(np.arange(len(rows))):
        bad = ~np.isfinite(block.reshape(len(block), -1)).all(axis=1)
        summary.faults += [
            f"{rows.place}, row {rows.row(start + int(item))}: NaN or infinity" for item in np.flatnonzero(bad)
        ]
        zero += int((~block.reshape(len(block), -1).any(axis=1)).sum())
        seen.update(hashlib.sha256(row.tobytes()).hexdigest() for row in block)
        advance(len(block))
    if zero:
        summary.remarks.append(f"{name}: {zero} feature rows are all zero")
    if len(rows.arrays) == 1 and rows.index is not None and rows.copies is not None:
        unequal = first_unequal_row(rows.arrays[0], rows.index, rows.copies, np.arange(len(rows)))
        if unequal is not None:
            summary.faults.append(f"{rows.place}, row {unequal}: differs from the row before it, of the same image")
    _twice(name, "feature rows", seen, summary)
    return seen


def _twice(name: str, what: str, seen: Counter[str], summary: Summary) -> None:
    more = sum(count - 1 for count in seen.values())
    if more:
        summary.remarks.append(f"{name}: {more} {what} are equal to another one of the split")


def _compare(contents: dict[str, dict[str, Counter[str]]], summary: Summary) -> None:
    names = list(contents)
    for position, first in enumerate(names):
        for second in names[position + 1 :]:
            for what in (what for what in contents[first] if what in contents[second]):
                known, found = contents[first][what], contents[second][what]
                common = sum(count for key, count in found.items() if key in known)
                if common:
                    summary.shared.append((first, second, what, common))


def _examples(data: DataSet) -> Iterator[tuple[str, str, list[str]]]:
    """One of each split, three in all."""
    places = [(name, split) for name, split in data.splits.items() if split.image_names]
    seen = set()
    for number in range(EXAMPLES):
        name, split = places[number % len(places)]
        image = (len(split.image_names) - 1) * number // max(1, EXAMPLES - 1)
        if (name, image) in seen:
            continue
        seen.add((name, image))
        texts = [split.texts[caption] for caption in np.flatnonzero(split.owners == image)]
        yield name, split.image_names[image], texts
