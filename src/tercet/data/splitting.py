"""Splits for data without any: by image, with copies and near-duplicates on one side.

Images are linked if their files are equal, if their thumbnails are nearly equal, if they have an equal caption, or
captions with nearly the same words. Images that are linked, also through others, stay together: a test image is never
in training under another name, and no test caption was trained on. If too many are linked for a test split of that
size, the weakest kind of link is given up, and the result says so.

Groups are ordered by a hash of the seed and of the smallest name in them, and fill test and validation as far as they
fit. So the splits depend on the seed and the images alone, not on the order of rows, and a few more images move only a
few others.
"""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from PIL import Image

from tercet.console import SILENT, Progress
from tercet.data.collate import prefetch
from tercet.data.dataset import DataSet, Split, subset
from tercet.data.formats.builder import DEFAULT_SPLIT
from tercet.data.formats.split_file import (
    KINDS,
    WHAT,
    DataSource,
    SplitFileSummary,
    read_split_file,
    read_summary,
    some_of,
)
from tercet.data.image_io import ImageFiles, ImageSource, content_checksum, open_image
from tercet.data.text.word_sets import near_duplicate_pairs, words_of
from tercet.storage import FORMAT_VERSION, atomic_path

HELD_OUT = {"test": 0.1, "val": 0.1}  # shares of the images; training gets the rest
MIN_IMAGES = 10
MIN_HELD_OUT = 2  # images: significance tests need as many
THUMBNAIL_SIDE = 16
SAME_IMAGE = 0.98  # correlation of two grey thumbnails from which two images count as one
BLOCK = 2048  # thumbnails compared at once
MAX_COMPARED = 200_000  # images: the comparison of all pairs of more would take hours

Link = tuple[int, int]
Grey = Float[np.ndarray, " pixel"]


class Links(NamedTuple):
    """Pairs of images that belong on one side, by kind, the strongest first."""

    equal_files: Sequence[Link]
    equal_images: Sequence[Link]
    equal_captions: Sequence[Link]
    near_captions: Sequence[Link]


class Decoded(NamedTuple):
    """What a split needs to know of an image: a checksum of its file, and a small grey thumbnail."""

    checksum: bytes
    thumbnail: Grey


@dataclass(frozen=True)
class Assignment:
    """Split -> images, ascending."""

    images: dict[str, list[int]]
    together: tuple[str, ...]
    """Kinds of links that are kept on one side."""
    apart: tuple[str, ...]
    """Kinds that had to be given up."""
    linked: dict[str, int]
    """Kind -> number of images that have such a link."""


def split_images(split: Split, decoded: Sequence[Decoded] | None, seed: int = 0) -> Assignment:
    """Assign every image to train, val or test. `decoded`: of every image, None if there are only features."""
    count = len(split.image_names)
    if count < MIN_IMAGES:
        raise ValueError(f"{count} images are too few for splits: at least {MIN_IMAGES} are needed")
    links = find_links(split, decoded)
    for kept in range(len(links), -1, -1):
        groups = connected(count, (link for kind in links[:kept] for link in kind))
        images = assign(groups, split.image_names, seed)
        if all(2 * len(images[name]) >= _target(count, share) for name, share in HELD_OUT.items()):
            break
    linked = {kind: len({image for link in pairs for image in link}) for kind, pairs in links._asdict().items()}
    kinds = [kind for kind in KINDS if linked[kind]]
    together = tuple(kind for kind in kinds if kind in links._fields[:kept])
    return Assignment(images, together, tuple(kind for kind in kinds if kind not in together), linked)


def assign(groups: Sequence[Sequence[int]], names: Sequence[str], seed: int) -> dict[str, list[int]]:
    """Split -> images. A group that does not fit into what test and val still need goes to train."""
    count = sum(map(len, groups))
    needed = {name: _target(count, share) for name, share in HELD_OUT.items()}
    images: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for group in sorted(groups, key=lambda group: _order(min(names[image] for image in group), seed)):
        chosen = next((name for name in HELD_OUT if len(images[name]) + len(group) <= needed[name]), "train")
        images[chosen] += group
    return {name: sorted(each) for name, each in images.items()}


def _target(count: int, share: float) -> int:
    return max(MIN_HELD_OUT, round(share * count))


def _order(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\n{name}".encode()).digest()


def find_links(split: Split, decoded: Sequence[Decoded] | None) -> Links:
    """Every pair that is needed to connect linked images: of several equal ones, each with the first."""
    checksums = [] if decoded is None else [image.checksum for image in decoded]
    thumbnails = [] if decoded is None else [image.thumbnail for image in decoded]
    owners = split.owners.tolist()
    texts: dict[str, list[int]] = defaultdict(list)  # captions without case and surrounding space, each compared once
    for text, owner in zip(split.texts, owners, strict=True):
        texts[text.strip().lower()].append(owner)
    distinct = list(texts)
    near = near_duplicate_pairs([words_of(text) for text in distinct])
    return Links(
        _equal(zip(checksums, range(len(checksums)), strict=True)),
        list(equal_images(np.stack(thumbnails))) if 0 < len(thumbnails) <= MAX_COMPARED else [],
        _equal((text, owner) for text, images in texts.items() for owner in images),
        _between((texts[distinct[one]][0], texts[distinct[other]][0]) for one, other in near),
    )


def _equal(keyed: Iterable[tuple[object, int]]) -> list[Link]:
    first: dict[object, int] = {}
    return _between((first.setdefault(key, image), image) for key, image in keyed)


def _between(links: Iterable[Link]) -> list[Link]:
    """Without the links of an image with itself."""
    return [(one, other) for one, other in links if one != other]


def equal_images(thumbnails: Float[np.ndarray, "image pixel"]) -> Iterator[Link]:
    """Pairs of images whose grey thumbnails correlate; an image of one color equals no other."""
    centered = thumbnails - thumbnails.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centered, axis=1, keepdims=True)
    normalized = np.divide(centered, norms, out=np.zeros_like(centered), where=norms > thumbnails.shape[1] ** 0.5)
    for start in range(0, len(normalized), BLOCK):
        rows = normalized[start : start + BLOCK]
        for row, column in np.argwhere(rows @ normalized[start:].T >= SAME_IMAGE).tolist():
            if row < column:
                yield start + row, start + column


def connected(count: int, links: Iterable[Link]) -> list[list[int]]:
    """The groups of images that are linked, also through others; ascending."""
    parent = list(range(count))

    def root(image: int) -> int:
        while parent[image] != image:
            parent[image] = parent[parent[image]]
            image = parent[image]
        return image

    for one, other in links:
        first, second = sorted((root(one), root(other)))
        parent[second] = first
    groups: dict[int, list[int]] = {}
    for image in range(count):
        groups.setdefault(root(image), []).append(image)
    return list(groups.values())


def decode(files: ImageFiles, progress: Progress = SILENT) -> list[Decoded | ValueError]:
    """Read every image; the error in place of one that cannot be read."""
    bar = progress.bar("checking images", len(files))
    results = []
    for result in prefetch(_decoded, files, workers=os.cpu_count() or 1):
        results.append(result)
        bar.advance()
    return results


def _decoded(source: ImageSource) -> Decoded | ValueError:
    try:
        return Decoded(content_checksum(source), thumbnail(open_image(source)))
    except ValueError as error:
        return error


def thumbnail(image: Image.Image) -> Grey:
    """The brightness of an image, warped to a small square."""
    small = image.convert("L").resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32).ravel()


def write_split_file(
    file: Path,
    data: DataSet,
    source: DataSource,
    seed: int = 0,
    progress: Progress = SILENT,
    remedy: str = "",
) -> SplitFileSummary:
    """Decode the images of a dataset and write its split file.

    Data with splits keeps them; then only unreadable images are left out. `ValueError` in one line that names
    unreadable images, with the `remedy`, unless the source skips bad items.
    """
    if data.no_images:
        raise ValueError(f"{data.path}: {data.no_images}; without images, copies cannot be kept on one side of a split")
    readable, left_out, errors = {}, list[str](), list[str]()
    decoded: list[Decoded] | None = None
    for name, split in data.splits.items():
        images = split.images()
        kept = list(range(len(split.image_names)))
        if images is not None:
            results = decode(images, progress)
            kept = [row for row, result in enumerate(results) if not isinstance(result, ValueError)]
            errors += [str(result) for result in results if isinstance(result, ValueError)]
            left_out += [split.image_names[row] for row in set(range(len(results))) - set(kept)]
            decoded = [result for result in results if not isinstance(result, ValueError)]
        readable[name] = subset(split, np.array(kept, dtype=np.int64))
    skipped = [*data.skipped, *errors]
    if skipped and not source.skip_bad:
        count = "1 item" if len(skipped) == 1 else f"{len(skipped):,} items"
        raise ValueError(f"{data.path}: {count} cannot be read: {some_of(skipped)}{remedy}")
    if list(readable) == [DEFAULT_SPLIT]:
        whole = readable[DEFAULT_SPLIT]
        made = split_images(whole, decoded, seed)
        names = {name: [whole.image_names[row] for row in rows] for name, rows in made.images.items()}
    else:
        made = Assignment({}, (), (), {})
        names = {name: list(split.image_names) for name, split in readable.items()}
    content = {
        "what": WHAT,
        "format_version": FORMAT_VERSION,
        "source": vars(source),
        "seed": seed,
        "together": made.together,
        "apart": made.apart,
        "linked": made.linked,
        "skipped": skipped,
        "left_out": sorted(left_out),
        "splits": names,
    }
    _write(file, content)
    return read_summary(file)


def reduce_split_file(file: Path, target: Path, sizes: Mapping[str, int]) -> Path:
    """A split file with fewer images of each split, drawn by a hash of the seed and the name; the rest is left out."""
    content = read_split_file(file)
    kept = {}
    for name, images in content["splits"].items():
        drawn = set(sorted(images, key=lambda image: _order(image, content["seed"] + 1))[: sizes.get(name, 0)])
        kept[name] = [image for image in images if image in drawn]
        content["left_out"] = [*content["left_out"], *(image for image in images if image not in drawn)]
    _write(target, content | {"splits": kept})
    return target


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as temporary:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
