"""Dataset summary and thorough checks, for `tercet data inspect`."""

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tercet.console import SILENT, Bar, Progress
from tercet.data.collate import prefetch
from tercet.data.dataset import DataSet, Split, shared_texts
from tercet.data.feature_array import FeatureArray
from tercet.data.formats.precomp import first_unequal_row
from tercet.data.image_io import ImageSource, open_image
from tercet.data.text.tokenizer import tokenize

MAX_EXAMPLES = 3

Contents = dict[str, dict[str, Counter[str]]]
"""Split -> kind of item -> how often each occurs."""


@dataclass
class SplitSummary:
    """One row of the summary table."""

    images: int
    captions: int
    captions_per_image: tuple[int, float, int]
    """Minimum, mean, maximum."""
    words_per_caption: tuple[int, float, int]
    """Minimum, median, maximum."""
    shared_captions: int
    """Number of captions whose exact text also captions another image of the split."""
    image_files: int | None
    features: str
    caption_features: str


@dataclass
class DatasetSummary:
    splits: dict[str, SplitSummary] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Worth knowing: equal captions in two splits, features that are all zero."""
    findings: list[str] = field(default_factory=list)
    """No errors, but results may be wrong: images that are in two splits, or twice in one."""
    errors: list[str] = field(default_factory=list)
    equal_images: list[str] = field(default_factory=list)
    """The first of the images whose files are equal: name (split) = name (split)."""
    first_names: dict[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    """Checksum of an image file -> the split and name where it occurs first."""
    examples: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """Split, image, captions."""


def summarise(data: DataSet, progress: Progress = SILENT) -> DatasetSummary:
    """Summarise a dataset. Decodes every image and reads every feature."""
    summary = DatasetSummary(errors=list(data.skipped))
    if data.no_images:
        summary.errors.append(f"{data.path}: {data.no_images}")
    contents: Contents = {}
    first = next(iter(data.splits.values()))
    for name, split in data.splits.items():
        contents[name] = {split.sides.captions: Counter(split.texts)}
        if split.image_texts is None:  # all splits have the same passages
            contents[name]["image names"] = Counter(split.image_names)
        elif split is first:
            _warn_of_duplicates(name, split.sides.images, Counter(split.image_texts), summary)
        if split.image_files is not None:
            bar = progress.bar(f"images of {name}", len(split.image_files))
            contents[name]["images"] = _check_images(name, split, summary, bar)
        if split.features is not None and (split.image_texts is None or split is first):
            bar = progress.bar(f"features of {name}", len(split.features))
            contents[name]["feature rows"] = _check_features(name, split.features, summary, bar)
        for rows in (split.boxes, split.caption_features):
            if rows is not None:
                summary.errors += _nonfinite_errors(rows, rows.nonfinite_items())
        summary.splits[name] = _summarise_split(split)
    _find_overlaps(contents, notes={first.sides.captions}, summary=summary)
    summary.examples = list(_examples(data))
    return summary


def _summarise_split(split: Split) -> SplitSummary:
    captions, words = split.captions_per_image(), np.array([len(tokenize(text)) for text in split.texts])
    shared = shared_texts(split.texts, split.pairs().tolist())
    return SplitSummary(
        images=len(split.image_names),
        captions=len(split.texts),
        captions_per_image=(int(captions.min()), float(captions.mean()), int(captions.max())),
        words_per_caption=(int(words.min()), float(np.median(words)), int(words.max())),
        shared_captions=sum(text in shared for text in split.texts),
        image_files=None if split.image_files is None else len(split.image_files),
        features=_shape(split.features),
        caption_features=_shape(split.caption_features),
    )


def _shape(rows: FeatureArray | None) -> str:
    if rows is None:
        return "none"
    lengths = "" if rows.lengths is None else f", {rows.lengths.min()} to {rows.lengths.max()} regions"
    return f"{' x '.join(map(str, rows.shape))} {rows.dtype}{lengths}"


def _check_images(name: str, split: Split, summary: DatasetSummary, bar: Bar) -> Counter[str]:
    """Decode all images; return how often each file content occurs."""

    def check(image_file: ImageSource) -> tuple[str, str | None]:
        try:
            open_image(image_file)
            return hashlib.sha256(image_file.content()).hexdigest(), None
        except ValueError as error:
            return "", str(error)

    assert split.image_files is not None
    counts: Counter[str] = Counter()
    for image, (checksum, error) in enumerate(prefetch(check, split.image_files, workers=os.cpu_count() or 1)):
        bar.advance()
        if error is None:
            counts[checksum] += 1
            known = summary.first_names.setdefault(checksum, (name, split.image_names[image]))
            if len(summary.equal_images) < MAX_EXAMPLES and known != (name, split.image_names[image]):
                summary.equal_images.append(f"{known[1]} ({known[0]}) = {split.image_names[image]} ({name})")
        else:
            summary.errors.append(error)
    _warn_of_duplicates(name, "images", counts, summary)
    return counts


def _check_features(name: str, rows: FeatureArray, summary: DatasetSummary, bar: Bar) -> Counter[str]:
    """Read all rows; return how often each occurs."""
    counts: Counter[str] = Counter()
    zero_rows = 0
    for start, block in rows.blocks(np.arange(len(rows))):
        bad = ~np.isfinite(block.reshape(len(block), -1)).all(axis=1)
        summary.errors += _nonfinite_errors(rows, (start + np.flatnonzero(bad)).tolist())
        zero_rows += int((~block.reshape(len(block), -1).any(axis=1)).sum())
        counts.update(hashlib.sha256(row.tobytes()).hexdigest() for row in block)
        bar.advance(len(block))
    if zero_rows:
        summary.notes.append(f"{name}: {zero_rows} all-zero feature rows")
    if len(rows.arrays) == 1 and rows.index is not None and rows.copies is not None:
        unequal = first_unequal_row(rows.arrays[0], rows.index, rows.copies, np.arange(len(rows)))
        if unequal is not None:
            summary.errors.append(f"{rows.location}, row {unequal}: differs from the previous row of the same image")
    _warn_of_duplicates(name, "feature rows", counts, summary)
    return counts


def _nonfinite_errors(rows: FeatureArray, items: Iterable[int]) -> list[str]:
    return [f"{rows.location}, row {rows.row(item)}: NaN or infinity" for item in items]


def _warn_of_duplicates(name: str, kind: str, counts: Counter[str], summary: DatasetSummary) -> None:
    duplicates = sum(count - 1 for count in counts.values())
    if duplicates:
        summary.findings.append(
            f"{name}: {duplicates:,} duplicate {kind}: each is a negative of what matches the other"
        )


def _find_overlaps(contents: Contents, notes: set[str], summary: DatasetSummary) -> None:
    for first, second in itertools.combinations(contents, 2):
        for kind in (kind for kind in contents[first] if kind in contents[second]):
            known, counts = contents[first][kind], contents[second][kind]
            common = sum(count for key, count in counts.items() if key in known)
            if common:
                message = f"{first} and {second} share {common:,} {kind}"
                # Names may be row numbers; what the images are decides where it is known.
                is_known = {"images", "feature rows"} & contents[first].keys() & contents[second].keys()
                is_note = kind in notes or (kind == "image names" and is_known)
                (summary.notes if is_note else summary.findings).append(message)


def _examples(data: DataSet) -> Iterator[tuple[str, str, list[str]]]:
    """Up to three images with their captions, from the splits in turn."""
    splits = [(name, split) for name, split in data.splits.items() if split.image_names]
    chosen = set()
    for example in range(MAX_EXAMPLES):
        name, split = splits[example % len(splits)]
        image = (len(split.image_names) - 1) * example // max(1, MAX_EXAMPLES - 1)
        if (name, image) in chosen:
            continue
        chosen.add((name, image))
        if split.image_texts is not None:  # one that has a query
            image = int(split.owners[(len(split.owners) - 1) * example // max(1, MAX_EXAMPLES - 1)])
        texts = [split.texts[caption] for caption in split.captions_of(image)]
        text = "" if split.image_texts is None else f": {split.image_texts[image]}"
        yield name, f"{split.image_names[image]}{text}", texts
