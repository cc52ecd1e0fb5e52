"""BUTD (bottom-up attention) TSV: image_id, image_w, image_h, num_boxes, boxes, features (both base64 of float32).

It has no captions: together with a dataset that has them, it is converted to a precomp folder.
"""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tercet.console import NO_BAR, Bar
from tercet.data.dataset import DataSet, subset
from tercet.data.formats.converted import conversion_of, converted_directory
from tercet.data.formats.precomp import PRECOMP_SPLIT_NAMES, write_texts
from tercet.data.textio import ErrorPolicy
from tercet.storage import allocated_array

COLUMNS = 6


@dataclass(frozen=True)
class Detections:
    """One line: the regions of an image, with boxes as fractions of its width and height."""

    image_id: str
    boxes: np.ndarray
    features: np.ndarray


def recognise(path: Path) -> bool:
    """Also accepts `karpathy_train_resnet101_faster_rcnn_genome.tsv.0` and a folder of such files."""
    return bool(files_of(path)) and all(map(_is_butd, files_of(path)))


def files_of(path: Path) -> list[Path]:
    candidates = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in candidates if file.is_file() and ".tsv" in file.name]


def _is_butd(path: Path) -> bool:
    with path.open("rb") as stream:
        columns = stream.readline().rstrip(b"\r\n").split(b"\t")
    return len(columns) == COLUMNS and (_is_header(columns) or all(c.strip().isdigit() for c in columns[1:4]))


def _is_header(columns: list[bytes]) -> bool:
    return columns[0].strip() == b"image_id"


def convert(
    files: list[Path],
    captions: DataSet,
    target: Path,
    errors: ErrorPolicy,
    bar: Bar = NO_BAR,
) -> list[str]:
    """Write a precomp folder in the image order of `captions`; return warnings. `bar` counts bytes read.

    Reads the files twice: the first pass determines the number of regions.
    """
    rows = _rows_of_images(captions)
    regions, dim, found = _scan(files, rows, errors, bar)
    for split, split_data in captions.splits.items():
        for row, name in enumerate(split_data.image_names):
            if (split, row) not in found:
                errors.report(f"{captions.path}, image {name}", f"no regions in {_names(files)}")
    with converted_directory(target, conversion_of(captions, "precomp", files)) as folder:
        arrays, warnings = {}, []
        for split, split_data in captions.splits.items():
            stem = folder / PRECOMP_SPLIT_NAMES.get(split, split)
            kept = np.array(
                [row for row in range(len(split_data.image_names)) if (split, row) in found], dtype=np.int64
            )
            if not len(kept):
                continue  # every image was reported above
            feature_rows, new_warnings = write_texts(stem, subset(split_data, kept))
            warnings += new_warnings
            arrays[split] = _Arrays(stem, kept[feature_rows], regions, dim)
        for detections in _lines(files, ErrorPolicy(skip=True), bar):
            for split, row in rows.pop(detections.image_id, []):  # only the first line of an image counts
                arrays[split].put(row, detections)
        for split_arrays in arrays.values():
            split_arrays.finish()
    return warnings


class _Arrays:
    """The output arrays of one split; `images` holds the image of each row."""

    def __init__(self, stem: Path, images: np.ndarray, regions: int, dim: int) -> None:
        self.stem, self.images = stem, images
        self.features = allocated_array(Path(f"{stem}_ims.npy"), np.float32, (len(images), regions, dim))
        self.boxes = allocated_array(Path(f"{stem}_boxes.npy"), np.float32, (len(images), regions, 4))
        self.lengths = np.zeros(len(images), dtype=np.int64)

    def put(self, row: int, detections: Detections) -> None:
        count = len(detections.features)
        for position in range(*np.searchsorted(self.images, [row, row + 1])):  # one row, or one per caption
            self.features[position, :count], self.boxes[position, :count] = detections.features, detections.boxes
            self.lengths[position] = count

    def finish(self) -> None:
        self.features.flush()
        self.boxes.flush()
        if (self.lengths < self.features.shape[1]).any():
            np.save(f"{self.stem}_lengths.npy", self.lengths)


def _rows_of_images(captions: DataSet) -> dict[str, list[tuple[str, int]]]:
    """Map every possible image_id to (split, row): the image name, its stem, and the number at the end of the stem."""
    rows: dict[str, list[tuple[str, int]]] = {}
    for split, split_data in captions.splits.items():
        for row, name in enumerate(split_data.image_names):
            stem = Path(name).stem
            number = re.search(r"\d+$", stem)
            keys = {name, stem, *([str(int(number.group()))] if number else [])}
            for key in keys:
                rows.setdefault(key, []).append((split, row))
    return rows


def _scan(
    files: list[Path], rows: dict[str, list[tuple[str, int]]], errors: ErrorPolicy, bar: Bar
) -> tuple[int, int, set[tuple[str, int]]]:
    """Maximum number of regions, feature dimension, and the images (split, row) that have regions."""
    regions, dims, found, image_ids = 0, set(), set(), set()
    for detections in _lines(files, errors, bar):
        if detections.image_id in image_ids:
            errors.report(_names(files), f"duplicate image_id {detections.image_id}; the first one is used")
            continue
        image_ids.add(detections.image_id)
        matches = rows.get(detections.image_id, [])
        if len(matches) > 1:
            names = ", ".join(f"{split}[{row}]" for split, row in matches)
            raise ValueError(f"{_names(files)}: image_id {detections.image_id} matches several images: {names}")
        if matches:
            regions = max(regions, len(detections.features))
            dims.add(detections.features.shape[1])
            found.add(matches[0])
    if len(dims) > 1:
        raise ValueError(f"{_names(files)}: features differ in dimension: {', '.join(map(str, sorted(dims)))}")
    if not found:
        raise ValueError(f"{_names(files)}: no image_id matches an image of --captions")
    return regions, dims.pop(), found


def _names(files: list[Path]) -> str:
    return ", ".join(map(str, files))


def _lines(files: list[Path], errors: ErrorPolicy, bar: Bar) -> Iterator[Detections]:
    for file in files:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                bar.advance(len(line))
                if number == 1 and _is_header(line.split(b"\t")):
                    continue
                try:
                    yield _detections(line)
                except ValueError as error:
                    errors.report(f"{file}, line {number}", str(error))


def _detections(line: bytes) -> Detections:
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != COLUMNS:
        raise ValueError(f"expected {COLUMNS} columns, got {len(columns)}")
    image_id, width, height, count = columns[0].decode(), *map(int, columns[1:4])
    if width < 1 or height < 1 or count < 1:
        raise ValueError(f"expected an image size and num_boxes above 0, got {width} x {height} and {count}")
    boxes, features = (np.frombuffer(base64.b64decode(cell), dtype="<f4") for cell in columns[4:6])
    if boxes.size != count * 4 or features.size == 0 or features.size % count:
        raise ValueError(f"{boxes.size} box values and {features.size} feature values do not match num_boxes {count}")
    if not np.isfinite(features).all() or not np.isfinite(boxes).all():
        raise ValueError("NaN or infinity in the boxes or features")
    relative = boxes.reshape(count, 4) / np.array([width, height, width, height], dtype=np.float32)
    if relative.min() < -0.5 or relative.max() > 1.5:
        raise ValueError(f"boxes are far outside the image of {width} x {height}")
    return Detections(image_id.strip(), relative, features.reshape(count, -1))
