"""Writers for precomp folders and Parquet. Writes are atomic: a failed one leaves no target."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tercet.data.dataset import DataSet, Split
from tercet.data.feature_array import BLOCK_BYTES, FeatureArray
from tercet.data.formats.parquet import SHAPE
from tercet.data.image_io import ImageFile
from tercet.storage import atomic_directory

PRECOMP_SPLIT_NAMES = {"val": "dev"}  # as the loaders of SCAN and its successors expect


def write_precomp(data: DataSet, target: Path, advance: Callable[[int], None] = lambda images: None) -> list[str]:
    """Write a precomp folder; return warnings about what the format cannot represent. `advance` gets image counts."""
    warnings = []
    with atomic_directory(target) as folder:
        for name, split in data.splits.items():
            warnings += _write_precomp_split(folder, PRECOMP_SPLIT_NAMES.get(name, name), split)
            advance(len(split.image_names))
    return warnings


def _write_precomp_split(folder: Path, stem: str, split: Split) -> list[str]:
    rows, warnings = write_texts(folder / stem, split)
    for array, suffix in ((split.features, "ims"), (split.boxes, "boxes")):
        if array is not None:
            write_rows(folder / f"{stem}_{suffix}.npy", array, rows)
    if split.caption_features is not None:
        write_rows(folder / f"{stem}_txt.npy", split.caption_features, np.arange(len(split.texts)))
    if split.features is not None and split.features.lengths is not None:
        np.save(folder / f"{stem}_lengths.npy", split.features.lengths[rows])
    return warnings


def write_texts(stem: Path, split: Split, *, repeated: bool = True) -> tuple[np.ndarray, list[str]]:
    """Write `{stem}_caps.txt` and `{stem}_ids.txt`; return the image of each feature row, and warnings.

    One id and one row per image if all images have the same number of captions. Otherwise one id and one row per
    caption, which all loaders of the format understand; without `repeated`, the caller writes one row per image.
    """
    captions_per_image = split.captions_per_image()
    ragged = len(set(captions_per_image.tolist())) > 1
    rows = split.owners if ragged else np.arange(len(split.image_names))
    for name in split.image_names:
        if not name.strip() or re.search(r"[\r\n]", name):
            raise ValueError(f"{stem.name}: image name {name!r} cannot be written as one line of {stem.name}_ids.txt")
    texts = [re.sub(r"[\r\n]+", " ", text) for text in split.texts]
    _write_lines(Path(f"{stem}_caps.txt"), texts)
    _write_lines(Path(f"{stem}_ids.txt"), [split.image_names[row] for row in rows])
    changed = sum(new != old for new, old in zip(texts, split.texts, strict=True))
    warnings = [f"{stem.name}: replaced line breaks by spaces in {changed} captions"] if changed else []
    if ragged and repeated:
        counts = f"{captions_per_image.min()} to {captions_per_image.max()} captions per image"
        warnings.append(f"{stem.name}: {counts}: feature rows and ids are repeated for each caption")
    return rows, warnings


def _write_lines(file: Path, lines: list[str]) -> None:
    # Readers strip one byte order mark. If the first line starts with that character, write an extra one.
    starts_with_bom = bool(lines) and lines[0].startswith("\ufeff")
    with file.open("w", encoding="utf-8-sig" if starts_with_bom else "utf-8", newline="\n") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def write_rows(file: Path, rows: FeatureArray, items: np.ndarray) -> None:
    out = np.lib.format.open_memmap(file, mode="w+", dtype=rows.dtype, shape=(len(items), *rows.shape[1:]))
    for start, block in rows.blocks(items):
        out[start : start + len(block)] = block
    out.flush()


def write_parquet(data: DataSet, target: Path, advance: Callable[[int], None] = lambda images: None) -> list[str]:
    """Write a folder with one file per split and one row per image. Never returns warnings."""
    with atomic_directory(target) as folder:
        for name, split in data.splits.items():
            _write_parquet_split(folder / f"{name}.parquet", split)
            advance(len(split.image_names))
    return []


def _write_parquet_split(file: Path, split: Split) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Images that are files of their own are referenced by name; others are embedded.
    embedded = split.image_files is not None and not all(isinstance(source, ImageFile) for source in split.image_files)
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()}) if embedded else pa.string()
    fields = [pa.field("image", image), pa.field("captions", pa.list_(pa.string()))]
    for column, rows in (("features", split.features), ("boxes", split.boxes)):
        if rows is not None:
            fields.append(_field(column, pa.list_(pa.from_numpy_dtype(rows.dtype), int(np.prod(rows.shape[1:]))), rows))
    if split.features is not None and split.features.lengths is not None:
        fields.append(pa.field("lengths", pa.int64(), metadata={SHAPE: b"[]"}))
    if split.caption_features is not None:
        vector = pa.list_(
            pa.from_numpy_dtype(split.caption_features.dtype), int(np.prod(split.caption_features.shape[1:]))
        )
        fields.append(_field("caption_features", pa.list_(vector), split.caption_features))
    schema = pa.schema(fields)
    starts = np.searchsorted(split.owners, np.arange(len(split.image_names) + 1))
    step = _row_group_size(split)
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, len(split.image_names), step):
            images = np.arange(first, min(first + step, len(split.image_names)))
            writer.write_table(pa.table(_columns(split, images, starts, schema), schema=schema))


def _row_group_size(split: Split) -> int:
    """Images per row group, so that row groups have bounded size."""
    row_bytes = [
        np.prod(rows.shape[1:]) * rows.dtype.itemsize for rows in (split.features, split.boxes) if rows is not None
    ]
    return max(1, BLOCK_BYTES // int(sum(row_bytes) + 50_000))  # an embedded image may add about 50 kB


def _field(name: str, arrow_type: Any, rows: FeatureArray) -> Any:
    import pyarrow as pa

    return pa.field(name, arrow_type, metadata={SHAPE: json.dumps(rows.shape[1:]).encode()})


def _columns(split: Split, images: np.ndarray, starts: np.ndarray, schema: Any) -> dict[str, Any]:
    import pyarrow as pa

    captions = np.arange(starts[images[0]], starts[images[-1] + 1])
    names: list[Any] = [split.image_names[image] for image in images]
    if pa.types.is_struct(schema.field("image").type):
        assert split.image_files is not None
        contents = [split.image_files.sources[image].content() for image in images]
        names = [{"bytes": content, "path": name} for content, name in zip(contents, names, strict=True)]
    columns: dict[str, Any] = {
        "image": names,
        "captions": [split.texts[starts[image] : starts[image + 1]] for image in images],
    }
    for column, rows in (("features", split.features), ("boxes", split.boxes)):
        if rows is not None:
            columns[column] = _lists(rows, images, schema.field(column).type)
    if "lengths" in schema.names:
        assert split.features is not None
        assert split.features.lengths is not None
        columns["lengths"] = split.features.lengths[images]
    if split.caption_features is not None:
        inner = _lists(split.caption_features, captions, schema.field("caption_features").type.value_type)
        offsets = (starts[images[0] : images[-1] + 2] - starts[images[0]]).astype(np.int32)
        columns["caption_features"] = pa.ListArray.from_arrays(offsets, inner)
    return columns


def _lists(rows: FeatureArray, items: np.ndarray, arrow_type: Any) -> Any:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(rows.raw(items).reshape(-1)), type=arrow_type)
