"""Parquet, and the Parquet or Arrow files of a local Hugging Face dataset.

A row is an image with its captions, or a pair. Images are paths or embedded bytes, which are read on access. Columns
that Tercet writes (`features`, `boxes`, `lengths`, `caption_features`) are read into memory: to train on features
larger than memory, convert to a precomp folder.
"""

import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tercet.console import NO_BAR, Bar
from tercet.data.dataset import SPLIT_NAMES, DataSet, Split
from tercet.data.feature_array import BLOCK_BYTES, FeatureArray
from tercet.data.formats.builder import (
    DEFAULT_SPLIT,
    DatasetBuilder,
    ImageFolder,
    candidate_folders,
    is_below,
    outside,
    split_in_name,
)
from tercet.data.formats.columns import Columns, find_columns
from tercet.data.formats.converted import conversion_of, converted_directory
from tercet.data.image_io import ImageFile, ImageFiles, ImageSource
from tercet.data.textio import ErrorPolicy

SUFFIXES = {".parquet", ".arrow"}
IMAGE_COLUMNS = ("image", "img", "image", "jpg", "filepath", "filename", "file_name", "path")
CAPTION_COLUMNS = ("captions", "caption", "sentences", "texts", "text", "raw", "title")
NAME_COLUMNS = ("filename", "file_name", "image_name", "image_id", "img_id", "imgid")
FEATURE_COLUMNS = ("features", "boxes", "lengths", "caption_features")
SHAPE = b"tercet.shape"  # metadata key of a feature column: the shape of one item


def recognise(path: Path) -> bool:
    return bool(files_of(path))


def files_of(path: Path) -> list[Path]:
    if path.is_dir():
        files = (file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        return sorted(file for file in files if not file.name.startswith("cache-"))
    return [path] if path.suffix in SUFFIXES and path.is_file() else []


def read(path: Path, images: Path | None, errors: ErrorPolicy, columns: Columns) -> DataSet:
    builder, stored = DatasetBuilder(errors), _Stored(images)
    for file in files_of(path):
        _read_file(file, _split_of(file, path), builder, stored, columns)
    folder = ImageFolder(images, candidate_folders(path), builder.images())
    if stored.image_files:
        folder.folder = None  # embedded images need no folder
    no_images = "" if stored.image_files else builder.no_images(folder)
    splits = {name: stored.complete(name, split) for name, split in builder.splits(folder).items()}
    return DataSet(path, "parquet", splits, errors.messages, no_images)


@dataclass(frozen=True)
class StoredImage:
    """An embedded image."""

    file: Path
    group: int
    row: int
    column: str
    images: Path | None = None
    """The image folder, for cells that hold only a path."""

    def content(self) -> bytes:
        cell = _row_group(self.file, self.group, (self.column,)).column(0)[self.row].as_py()
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        if content is None and isinstance(cell, dict) and cell.get("path"):
            return self._file(str(cell["path"])).content()  # Hugging Face may store only the path
        if content is None:
            raise ValueError(f"{self}: no image in the cell")
        return bytes(content)

    def _file(self, name: str) -> ImageFile:
        """The file that the cell names, below the folder of the data or the image folder."""
        path, real = self.file.parent / name, os.path.realpath(self.file.parent / name)
        roots = [self.file.parent, *([] if self.images is None else [self.images])]
        if not any(is_below(real, os.path.realpath(root)) for root in roots):
            raise ValueError(f"{self}: {outside(name, real, roots[-1])}")
        return ImageFile(path)

    def __str__(self) -> str:
        return _location(self.file, self.group, self.row)


@dataclass
class _Stored:
    """Embedded images and feature columns by (split, image)."""

    images: Path | None
    """The image folder, if one is given."""
    image_files: dict[tuple[str, str], ImageSource] = field(default_factory=dict)
    features: dict[str, dict[tuple[str, str], Any]] = field(default_factory=dict)
    """Column -> features of each image: one row, or for caption_features one row per caption."""

    def complete(self, name: str, split: Split) -> Split:
        """The split with its embedded images and features."""
        keys = [(name, image) for image in split.image_names]
        embedded = [key in self.image_files for key in keys]
        if any(embedded) and not all(embedded):
            raise ValueError(
                f"some images of {name} are embedded and others, such as {keys[embedded.index(False)][1]}, are not"
            )
        lengths = self._stacked("lengths", keys)
        return Split(
            split.image_names,
            split.texts,
            split.owners,
            ImageFiles([self.image_files[key] for key in keys]) if any(embedded) else split.image_files,
            features=self._rows("features", keys, lengths),
            caption_features=self._rows("caption_features", keys),
            boxes=self._rows("boxes", keys),
        )

    def _rows(self, column: str, keys: list[tuple[str, str]], lengths: np.ndarray | None = None) -> FeatureArray | None:
        array = self._stacked(column, keys)
        return None if array is None else FeatureArray((array,), f"{column} of {keys[0][0]}", lengths=lengths)

    def _stacked(self, column: str, keys: list[tuple[str, str]]) -> np.ndarray | None:
        """The column for all images of the split, or None if no image has it; `ValueError` if only some have it."""
        known = self.features.get(column, {})
        present = [key in known for key in keys]
        if not any(present):
            return None
        if not all(present):
            raise ValueError(f"image {keys[present.index(False)][1]} of {keys[0][0]} has no {column}, others have")
        join = np.concatenate if column == "caption_features" else np.stack
        return join([known[key] for key in keys])


def _read_file(file: Path, split: str, builder: DatasetBuilder, stored: _Stored, given: Columns) -> None:
    schema, groups = _schema(file)
    duplicate = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if duplicate is not None:
        raise ValueError(f"{file}: duplicate column {duplicate}")
    found = find_columns(schema.names, given, str(file), usual_images=IMAGE_COLUMNS, usual_captions=CAPTION_COLUMNS)
    columns = _Columns(
        found.image,
        found.caption,
        name=next((name for name in NAME_COLUMNS if name in schema.names and name != found.image), None),
        split=found.split,
        embedded=_is_embedded(file, schema.field(found.image)),
        # Columns of these names without the metadata were not written by Tercet.
        shapes={
            name: json.loads(schema.field(name).metadata[SHAPE])
            for name in FEATURE_COLUMNS
            if name in schema.names and SHAPE in (schema.field(name).metadata or {})
        },
    )
    for group in range(groups):
        _read_row_group(file, group, columns, split, builder, stored)


@dataclass(frozen=True)
class _Columns:
    image: str
    caption: str
    name: str | None
    split: str | None
    embedded: bool
    """Whether the image column holds bytes."""
    shapes: dict[str, list[int]]
    """Feature columns and the shape of one item."""


def _read_row_group(
    file: Path, group: int, columns: _Columns, split: str, builder: DatasetBuilder, stored: _Stored
) -> None:
    needed = [columns.caption, columns.name, columns.split, None if columns.embedded else columns.image]
    table = _row_group(file, group, tuple(name for name in (*needed, *columns.shapes) if name is not None))
    names = _names(file, group, columns, table) if columns.embedded else table.column(columns.image).to_pylist()
    splits = table.column(columns.split).to_pylist() if columns.split else [split] * len(names)
    cells = table.column(columns.caption).to_pylist()
    features = {name: _features(file, group, name, table, shape, cells) for name, shape in columns.shapes.items()}
    for row, (name, row_split, cell) in enumerate(zip(names, splits, cells, strict=True)):
        location, error_count = _location(file, group, row), len(builder.errors.messages)
        texts = [_text(text) for text in cell] if isinstance(cell, list) else [_text(cell)]
        if not texts:
            builder.errors.report(location, f"image {name} has no caption")
        key = (SPLIT_NAMES.get(str(row_split).lower(), row_split), name)
        if columns.shapes and any(key in known for known in stored.features.values()):
            raise ValueError(f"{location}: duplicate image {name}: a file with features needs one row per image")
        image = StoredImage(file, group, row, columns.image, stored.images)
        # With one row per pair, the image is repeated. Only images of equal names are compared.
        known = stored.image_files.get(key) if columns.embedded else None
        if known is not None and known.content() != image.content():
            builder.errors.report(location, f"a different image with the name {name} came before")
            continue
        if not builder.add(row_split, name, texts, location):
            continue
        if "caption_features" in features and len(builder.errors.messages) > error_count:
            raise ValueError(f"{builder.errors.messages[-1]}; captions with caption_features cannot be skipped")
        for column, rows in features.items():
            stored.features.setdefault(column, {})[key] = rows[row]
        if columns.embedded:
            stored.image_files.setdefault(key, image)


def _features(file: Path, group: int, name: str, table: Any, shape: list[int], cells: list[Any]) -> list[Any]:
    """The values of a feature column for each row of the row group."""
    column = table.column(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise ValueError(f"{_location(file, group, row)}: no value in {name}")
    array = _array(column, shape)
    if name != "caption_features":
        return list(array)
    ends = np.cumsum([len(cell) if isinstance(cell, list) else 1 for cell in cells])
    if len(array) != ends[-1]:
        raise ValueError(f"{file}: expected {ends[-1]} rows of caption_features, one per caption, got {len(array)}")
    return np.split(array, ends[:-1])


def _array(column: Any, shape: list[int]) -> np.ndarray:
    """All values of a column of nested lists."""
    import pyarrow as pa

    flat = column.combine_chunks()
    while pa.types.is_nested(flat.type):
        flat = flat.flatten()
    values = flat.to_numpy(zero_copy_only=False)
    return values if shape == [] else values.reshape(-1, *shape)


def _names(file: Path, group: int, columns: _Columns, table: Any) -> list[str]:
    """Names of embedded images: from a name column, the path beside the bytes, or the row number."""
    if columns.name is not None:
        return [str(name) for name in table.column(columns.name).to_pylist()]
    paths = _paths(file, group, columns.image) or [None] * len(table)
    return [path or f"{file.stem}-{group}-{row}" for row, path in enumerate(paths)]


def _paths(file: Path, group: int, image: str) -> list[str | None]:
    import pyarrow as pa

    schema, _ = _schema(file)
    column_type = schema.field(image).type
    if not pa.types.is_struct(column_type):
        return []
    if "path" not in {column_type.field(i).name for i in range(column_type.num_fields)}:
        return []
    column = _row_group(file, group, (f"{image}.path",) if file.suffix == ".parquet" else (image,)).column(0)
    return [None if cell is None else cell.get("path") for cell in column.to_pylist()]


def _text(cell: Any) -> Any:
    """Some datasets store captions as objects with the field raw."""
    return cell.get("raw") if isinstance(cell, dict) else cell


def _is_embedded(file: Path, column: Any) -> bool:
    """True for bytes and for Hugging Face's structs of bytes and path; False for names and paths."""
    import pyarrow.types as pt

    value_type = column.type.value_type if pt.is_dictionary(column.type) else column.type
    if pt.is_string(value_type) or pt.is_large_string(value_type) or str(value_type) == "string_view":
        return False
    struct = pt.is_struct(value_type) and "bytes" in {value_type.field(i).name for i in range(value_type.num_fields)}
    if struct or pt.is_binary(value_type) or pt.is_large_binary(value_type):
        return True
    raise ValueError(
        f"{file}: expected paths, bytes or structs of bytes and path in the column {column.name}, got {column.type}"
    )


def _location(file: Path, group: int, row: int) -> str:
    return f"{file}, row {row}" + (f" of row group {group}" if group else "")


def _split_of(file: Path, root: Path) -> str:
    """From the file name, or from its folder as in `train/data-00000-of-00001.arrow`."""
    folders = file.relative_to(root).parts[:-1] if root.is_dir() else ()
    return next(filter(None, map(split_in_name, (file.stem, *reversed(folders)))), DEFAULT_SPLIT)


def _schema(file: Path) -> tuple[Any, int]:
    """The schema and the number of row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix == ".arrow":
            return _arrow(file).schema, 1
        parquet_file = pq.ParquetFile(file)
        return parquet_file.schema_arrow, parquet_file.num_row_groups
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a readable {file.suffix[1:]} file: {error}") from error


@lru_cache(maxsize=4)
def _row_group(file: Path, group: int, columns: tuple[str, ...]) -> Any:
    """One row group. The last few are cached, because images are mostly read in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix == ".arrow":
            return _arrow(file).select(list(columns))
        return pq.ParquetFile(file).read_row_group(group, columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a readable {file.suffix[1:]} file: {error}") from error


def _arrow(file: Path) -> Any:
    """Memory-map an Arrow stream, as Hugging Face writes, or an Arrow file."""
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    except pa.ArrowInvalid:
        return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def write_parquet(data: DataSet, target: Path, bar: Bar = NO_BAR) -> list[str]:
    """Write a folder with one file per split and one row per image. Never returns warnings."""
    with converted_directory(target, conversion_of(data, "parquet")) as folder:
        for name, split in data.splits.items():
            _write_parquet_split(folder / f"{name}.parquet", split)
            bar.advance(len(split.image_names))
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
