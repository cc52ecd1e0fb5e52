"""BUTD's TSV: image_id, image_w, image_h, num_boxes, boxes, features, the last two as base64 of float32.

It holds no captions, so it is no data set by itself: with one that has them it becomes a precomp folder.
"""

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tercet.data.dataset import DataSet, only
from tercet.data.faults import Faults
from tercet.data.formats.write import LINEAGE_NAMES, write_texts
from tercet.data.whole import whole_or_nothing

COLUMNS = 6


@dataclass(frozen=True)
class Detections:
    """One line: an image's regions, with boxes as shares of its sides."""

    image_id: str
    boxes: np.ndarray
    features: np.ndarray


def recognise(path: Path) -> bool:
    """`karpathy_train_resnet101_faster_rcnn_genome.tsv.0` is one too, and so is a folder of such files."""
    return bool(files_of(path)) and all(map(_is_one, files_of(path)))


def files_of(path: Path) -> list[Path]:
    candidates = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in candidates if file.is_file() and ".tsv" in file.name]


def _is_one(path: Path) -> bool:
    with path.open("rb") as stream:
        columns = stream.readline().rstrip(b"\r\n").split(b"\t")
    return len(columns) == COLUMNS and (_is_header(columns) or all(c.strip().isdigit() for c in columns[1:4]))


def _is_header(columns: list[bytes]) -> bool:
    return columns[0].strip() == b"image_id"


def convert(
    files: list[Path],
    captions: DataSet,
    target: Path,
    faults: Faults,
    after: Callable[[int], None] = lambda lines: None,
) -> list[str]:
    """Features in the order of the captions' images. Two passes: the first learns how many regions there are."""
    rows = _rows_of_images(captions)
    regions, dim, seen = _survey(files, rows, faults, after)
    for split, split_data in captions.splits.items():
        for row, name in enumerate(split_data.image_names):
            if (split, row) not in seen:
                faults.found(
                    f"{captions.path}, image {name}", f"no line of {', '.join(map(str, files))} has its regions"
                )
    with whole_or_nothing(target) as folder:
        arrays, remarks = {}, []
        for split, split_data in captions.splits.items():
            stem = folder / LINEAGE_NAMES.get(split, split)
            kept = np.array([row for row in range(len(split_data.image_names)) if (split, row) in seen], dtype=np.int64)
            if not len(kept):
                continue  # told of above, image by image
            rows_written, said = write_texts(stem, only(split_data, kept))
            remarks += said
            arrays[split] = _Arrays(stem, kept[rows_written], regions, dim)
        for detections in _lines(files, Faults(skip=True), after):
            for split, row in rows.pop(detections.image_id, []):  # a second line of an image does not count
                arrays[split].put(row, detections)
        for split_arrays in arrays.values():
            split_arrays.finish()
    return remarks


class _Arrays:
    """The arrays of one split while they fill; `images` says which image each of their rows is."""

    def __init__(self, stem: Path, images: np.ndarray, regions: int, dim: int) -> None:
        self.stem, self.images = stem, images
        open_file = np.lib.format.open_memmap
        self.features = open_file(f"{stem}_ims.npy", mode="w+", dtype=np.float32, shape=(len(images), regions, dim))
        self.boxes = open_file(f"{stem}_boxes.npy", mode="w+", dtype=np.float32, shape=(len(images), regions, 4))
        self.lengths = np.zeros(len(images), dtype=np.int64)

    def put(self, row: int, detections: Detections) -> None:
        count = len(detections.features)
        for position in range(*np.searchsorted(self.images, [row, row + 1])):  # once, or once for each caption
            self.features[position, :count], self.boxes[position, :count] = detections.features, detections.boxes
            self.lengths[position] = count

    def finish(self) -> None:
        self.features.flush()
        self.boxes.flush()
        if (self.lengths < self.features.shape[1]).any():
            np.save(f"{self.stem}_lengths.npy", self.lengths)


def _rows_of_images(captions: DataSet) -> dict[str, list[tuple[str, int]]]:
    """From any id that the TSV may use to the places of an image: its name, its stem, the number at the stem's end."""
    rows: dict[str, list[tuple[str, int]]] = {}
    for split, split_data in captions.splits.items():
        for row, name in enumerate(split_data.image_names):
            stem = Path(name).stem
            number = re.search(r"\d+$", stem)
            keys = {name, stem, *([str(int(number.group()))] if number else [])}
            for key in keys:
                rows.setdefault(key, []).append((split, row))
    return rows


def _survey(
    files: list[Path], rows: dict[str, list[tuple[str, int]]], faults: Faults, after: Callable[[int], None]
) -> tuple[int, int, set[tuple[str, int]]]:
    regions, dims, seen, came = 0, set(), set(), set()
    for detections in _lines(files, faults, after):
        if detections.image_id in came:
            faults.found(
                ", ".join(map(str, files)), f"image_id {detections.image_id} comes twice; the first one counts"
            )
            continue
        came.add(detections.image_id)
        places = rows.get(detections.image_id, [])
        if len(places) > 1:
            names = ", ".join(f"{split}[{row}]" for split, row in places)
            raise ValueError(f"image_id {detections.image_id} fits several images with captions: {names}")
        if places:
            regions = max(regions, len(detections.features))
            dims.add(detections.features.shape[1])
            seen.add(places[0])
    if len(dims) > 1:
        raise ValueError(f"{', '.join(map(str, files))}: features of different sizes {sorted(dims)}")
    if not seen:
        raise ValueError(f"no image_id of {', '.join(map(str, files))} is an image with captions")
    return regions, dims.pop(), seen


def _lines(files: list[Path], faults: Faults, after: Callable[[int], None]) -> Iterator[Detections]:
    for file in files:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                after(len(line))
                if number == 1 and _is_header(line.split(b"\t")):
                    continue
                try:
                    yield _detections(line)
                except ValueError as error:
                    faults.found(f"{file}, line {number}", str(error))


def _detections(line: bytes) -> Detections:
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != COLUMNS:
        raise ValueError(f"expected {COLUMNS} columns, got {len(columns)}")
    image_id, width, height, count = columns[0].decode(), *map(int, columns[1:4])
    if width < 1 or height < 1 or count < 1:
        raise ValueError(f"expected a size and a number of boxes above 0, got {width} x {height} and {count}")
    boxes, features = (np.frombuffer(base64.b64decode(cell), dtype="<f4") for cell in columns[4:6])
    if boxes.size != count * 4 or features.size == 0 or features.size % count:
        raise ValueError(f"{boxes.size} numbers of boxes and {features.size} of features do not fit {count} boxes")
    if not np.isfinite(features).all() or not np.isfinite(boxes).all():
        raise ValueError("NaN or infinity in the boxes or features")
    shares = boxes.reshape(count, 4) / np.array([width, height, width, height], dtype=np.float32)
    if shares.min() < -0.5 or shares.max() > 1.5:
        raise ValueError(f"boxes lie far outside the image of {width} x {height}")
    return Detections(image_id.strip(), shares, features.reshape(count, -1))
