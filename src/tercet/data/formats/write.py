"""A data set to disk: as a precomp folder or as Parquet. The target appears whole or not at all."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tercet.data.dataset import DataSet, Split
from tercet.data.formats.parquet import SHAPE
from tercet.data.pictures import PictureFile
from tercet.data.rows import BLOCK_BYTES, Rows
from tercet.data.whole import whole_or_nothing

LINEAGE_NAMES = {"val": "dev"}  # what the loaders of SCAN and its heirs look for


def write_precomp(data: DataSet, target: Path, after: Callable[[int], None] = lambda images: None) -> list[str]:
    """Returns remarks on what the format could not hold. `after` hears how many images are done."""
    remarks = []
    with whole_or_nothing(target) as folder:
        for name, split in data.splits.items():
            remarks += _write_precomp_split(folder, LINEAGE_NAMES.get(name, name), split)
            after(len(split.image_names))
    return remarks


def _write_precomp_split(folder: Path, stem: str, split: Split) -> list[str]:
    rows, remarks = write_texts(folder / stem, split)
    for part, end in ((split.features, "ims"), (split.boxes, "boxes")):
        if part is not None:
            write_rows(folder / f"{stem}_{end}.npy", part, rows)
    if split.caption_features is not None:
        write_rows(folder / f"{stem}_txt.npy", split.caption_features, np.arange(len(split.texts)))
    if split.features is not None and split.features.lengths is not None:
        np.save(folder / f"{stem}_lengths.npy", split.features.lengths[rows])
    return remarks


def write_texts(stem: Path, split: Split, *, repeated: bool = True) -> tuple[np.ndarray, list[str]]:
    """`{stem}_caps.txt` and `{stem}_ids.txt`; returns which image each feature row is, and remarks.

    One row an image where all have as many captions. Otherwise there is an id for every caption, and the row is
    repeated with it, which all loaders of that format understand; or, without `repeated`, there is still one row.
    """
    each = split.captions_each()
    ragged = len(set(each.tolist())) > 1
    rows = split.owners if ragged else np.arange(len(split.image_names))
    for name in split.image_names:
        if not name.strip() or re.search(r"[\r\n]", name):
            raise ValueError(f"{stem.name}: the image name {name!r} cannot be a line of {stem.name}_ids.txt")
    texts = [re.sub(r"[\r\n]+", " ", text) for text in split.texts]
    _write_lines(Path(f"{stem}_caps.txt"), texts)
    _write_lines(Path(f"{stem}_ids.txt"), [split.image_names[row] for row in rows])
    changed = sum(new != old for new, old in zip(texts, split.texts, strict=True))
    remarks = [f"{stem.name}: {changed} captions hold line breaks, written as spaces"] if changed else []
    if ragged and repeated:
        remarks.append(f"{stem.name}: {each.min()} to {each.max()} captions an image, so its row is repeated for each")
    return rows, remarks


def _write_lines(file: Path, lines: list[str]) -> None:
    # A first line that begins with the sign of a byte order mark would lose it to whoever reads: give it one to lose.
    marked = bool(lines) and lines[0].startswith("\ufeff")
    with file.open("w", encoding="utf-8-sig" if marked else "utf-8", newline="\n") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def write_rows(file: Path, rows: Rows, items: np.ndarray) -> None:
    out = np.lib.format.open_memmap(file, mode="w+", dtype=rows.dtype, shape=(len(items), *rows.shape[1:]))
    for start, block in rows.blocks(items):
        out[start : start + len(block)] = block
    out.flush()


def write_parquet(data: DataSet, target: Path, after: Callable[[int], None] = lambda images: None) -> list[str]:
    """A folder with one file a split, one row an image."""
    with whole_or_nothing(target) as folder:
        for name, split in data.splits.items():
            _write_parquet_split(folder / f"{name}.parquet", split)
            after(len(split.image_names))
    return []


def _write_parquet_split(file: Path, split: Split) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Pictures in files stay there; those that are in no file would be lost.
    inside = split.pictures is not None and not all(isinstance(source, PictureFile) for source in split.pictures)
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()}) if inside else pa.string()
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
    step = _images_a_group(split)
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, len(split.image_names), step):
            images = np.arange(first, min(first + step, len(split.image_names)))
            writer.write_table(pa.table(_columns(split, images, starts, schema), schema=schema))


def _images_a_group(split: Split) -> int:
    """Row groups of bounded size."""
    widths = [
        np.prod(rows.shape[1:]) * rows.dtype.itemsize for rows in (split.features, split.boxes) if rows is not None
    ]
    return max(1, BLOCK_BYTES // int(sum(widths) + 50_000))  # a photo, perhaps


def _field(name: str, kind: Any, rows: Rows) -> Any:
    import pyarrow as pa

    return pa.field(name, kind, metadata={SHAPE: json.dumps(rows.shape[1:]).encode()})


def _columns(split: Split, images: np.ndarray, starts: np.ndarray, schema: Any) -> dict[str, Any]:
    import pyarrow as pa

    captions = np.arange(starts[images[0]], starts[images[-1] + 1])
    names: list[Any] = [split.image_names[image] for image in images]
    if pa.types.is_struct(schema.field("image").type):
        assert split.pictures is not None
        contents = [split.pictures.sources[image].content() for image in images]
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


def _lists(rows: Rows, items: np.ndarray, kind: Any) -> Any:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(rows.raw(items).reshape(-1)), type=kind)
