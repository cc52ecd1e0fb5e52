"""Parquet, and the Parquet or Arrow files of a local Hugging Face data set.

A row is an image with its captions, or a pair. Pictures may be paths or lie in the file as bytes; then they stay there
until they are asked for. Columns that Tercet writes itself (`features`, `boxes`, `lengths`, `caption_features`) are
read whole: to train on features larger than memory, convert to a precomp folder.
"""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tercet.data.dataset import SPLIT_NAMES, DataSet, Split
from tercet.data.faults import Faults
from tercet.data.formats.collect import WITHOUT_SPLITS, Collector, PictureFolder, guessed_folders, split_in_name
from tercet.data.pictures import Picture, PictureFile, Pictures
from tercet.data.rows import Rows

SUFFIXES = {".parquet", ".arrow"}
IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "filepath", "filename", "file_name", "path")
CAPTION_COLUMNS = ("captions", "caption", "sentences", "texts", "text", "raw", "title")
NAME_COLUMNS = ("filename", "file_name", "image_name", "image_id", "img_id", "imgid")
NUMBER_COLUMNS = ("features", "boxes", "lengths", "caption_features")
SHAPE = b"tercet.shape"  # metadata of a column of numbers: the shape of one item


def recognise(path: Path) -> bool:
    return bool(files_of(path))


def files_of(path: Path) -> list[Path]:
    if path.is_dir():
        found = (file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        return sorted(file for file in found if not file.name.startswith("cache-"))
    return [path] if path.suffix in SUFFIXES and path.is_file() else []


def read(path: Path, images: Path | None, faults: Faults) -> DataSet:
    collector, stored = Collector(faults), _Stored()
    for file in files_of(path):
        _read_file(file, _split_of(file, path), collector, stored)
    folder = PictureFolder(images, guessed_folders(path), collector.images())
    if stored.pictures:
        folder.folder = None  # what lies in the files needs no folder
    splits = {name: stored.complete(name, split) for name, split in collector.splits(folder).items()}
    return DataSet(path, "parquet", splits, faults.listed)


@dataclass(frozen=True)
class StoredPicture:
    """The bytes in a cell."""

    file: Path
    part: int
    row: int
    column: str

    def content(self) -> bytes:
        cell = _part(self.file, self.part, (self.column,)).column(0)[self.row].as_py()
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        if content is None and isinstance(cell, dict) and cell.get("path"):
            return PictureFile(self.file.parent / cell["path"]).content()  # Hugging Face may keep only the path
        if content is None:
            raise ValueError(f"{self}: the cell holds no picture")
        return bytes(content)

    def __str__(self) -> str:
        return _place(self.file, self.part, self.row)


@dataclass
class _Stored:
    """What lies in the files besides names and captions, by (split, image)."""

    pictures: dict[tuple[str, str], Picture] = field(default_factory=dict)
    numbers: dict[str, dict[tuple[str, str], Any]] = field(default_factory=dict)
    """Column -> its numbers for each image: one row, or for caption_features as many as it has captions."""

    def complete(self, name: str, split: Split) -> Split:
        keys = [(name, image) for image in split.image_names]
        pictures = [key in self.pictures for key in keys]
        if any(pictures) and not all(pictures):
            raise ValueError(
                f"some images of {name} lie in the file and others, such as {keys[pictures.index(False)][1]}, do not"
            )
        lengths = self._stacked("lengths", keys)
        return Split(
            split.image_names,
            split.texts,
            split.owners,
            Pictures([self.pictures[key] for key in keys]) if any(pictures) else split.pictures,
            features=self._rows("features", keys, lengths),
            caption_features=self._rows("caption_features", keys),
            boxes=self._rows("boxes", keys),
        )

    def _rows(self, column: str, keys: list[tuple[str, str]], lengths: np.ndarray | None = None) -> Rows | None:
        numbers = self._stacked(column, keys)
        return None if numbers is None else Rows((numbers,), f"{column} of {keys[0][0]}", lengths=lengths)

    def _stacked(self, column: str, keys: list[tuple[str, str]]) -> np.ndarray | None:
        """Of all images of the split, or of none: one without would get those of another."""
        known = self.numbers.get(column, {})
        there = [key in known for key in keys]
        if not any(there):
            return None
        if not all(there):
            raise ValueError(f"image {keys[there.index(False)][1]} of {keys[0][0]} has no {column}, others have")
        join = np.concatenate if column == "caption_features" else np.stack
        return join([known[key] for key in keys])


def _read_file(file: Path, split: str, collector: Collector, stored: _Stored) -> None:
    schema, parts = _schema(file)
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{file}: the column {twice} comes more than once")
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    caption = next((name for name in CAPTION_COLUMNS if name in schema.names), None)
    if image is None or caption is None:
        raise ValueError(f"{file}: expected columns image and caption (or captions), got: {', '.join(schema.names)}")
    columns = _Columns(
        image,
        caption,
        named=next((name for name in NAME_COLUMNS if name in schema.names and name != image), None),
        split="split" if "split" in schema.names else None,
        inside=_holds_pictures(file, schema.field(image)),
        # Columns of that name that somebody else wrote are not ours to understand.
        shapes={
            name: json.loads(schema.field(name).metadata[SHAPE])
            for name in NUMBER_COLUMNS
            if name in schema.names and SHAPE in (schema.field(name).metadata or {})
        },
    )
    for part in range(parts):
        _read_part(file, part, columns, split, collector, stored)


@dataclass(frozen=True)
class _Columns:
    image: str
    caption: str
    named: str | None
    split: str | None
    inside: bool
    """Pictures lie in the file."""
    shapes: dict[str, list[int]]
    """Of numbers: the shape of one item."""


def _read_part(file: Path, part: int, columns: _Columns, split: str, collector: Collector, stored: _Stored) -> None:
    wanted = [columns.caption, columns.named, columns.split, None if columns.inside else columns.image]
    table = _part(file, part, tuple(name for name in (*wanted, *columns.shapes) if name is not None))
    names = _names(file, part, columns, table) if columns.inside else table.column(columns.image).to_pylist()
    splits = table.column(columns.split).to_pylist() if columns.split else [split] * len(names)
    cells = table.column(columns.caption).to_pylist()
    numbers = {name: _numbers(file, part, name, table, shape, cells) for name, shape in columns.shapes.items()}
    for row, (name, where, cell) in enumerate(zip(names, splits, cells, strict=True)):
        place, known = _place(file, part, row), len(collector.faults.listed)
        texts = [_text(text) for text in cell] if isinstance(cell, list) else [_text(cell)]
        if not texts:
            collector.faults.found(place, f"image {name} has no caption")
        key = (SPLIT_NAMES.get(str(where).lower(), where), name)
        if columns.shapes and any(key in found for found in stored.numbers.values()):
            raise ValueError(f"{place}: image {name} came before; a file with features has one row an image")
        if (
            columns.inside
            and key in stored.pictures
            and not _same_picture(stored.pictures[key], file, part, row, columns)
        ):
            collector.faults.found(place, f"another picture called {name} came before")
            continue
        if not collector.add(where, name, texts, place):
            continue
        if "caption_features" in numbers and len(collector.faults.listed) > known:
            raise ValueError(f"{collector.faults.listed[-1]}; beside caption_features it cannot be left out")
        for column, found in numbers.items():
            stored.numbers.setdefault(column, {})[key] = found[row]
        if columns.inside:
            stored.pictures.setdefault(key, StoredPicture(file, part, row, columns.image))


def _same_picture(known: Picture, file: Path, part: int, row: int, columns: _Columns) -> bool:
    """A row a pair repeats its picture; only equal names are looked into."""
    return known.content() == StoredPicture(file, part, row, columns.image).content()


def _numbers(file: Path, part: int, name: str, table: Any, shape: list[int], cells: list[Any]) -> list[Any]:
    column = table.column(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise ValueError(f"{_place(file, part, row)}: {name} is empty")
    array = _array(column, shape)
    if name != "caption_features":
        return list(array)
    ends = np.cumsum([len(cell) if isinstance(cell, list) else 1 for cell in cells])
    if len(array) != ends[-1]:
        raise ValueError(f"{file}: {len(array)} rows of caption_features for {ends[-1]} captions")
    return np.split(array, ends[:-1])


def _array(column: Any, shape: list[int]) -> np.ndarray:
    """All numbers of a column, however deep its lists."""
    import pyarrow as pa

    flat = column.combine_chunks()
    while pa.types.is_nested(flat.type):
        flat = flat.flatten()
    numbers = flat.to_numpy(zero_copy_only=False)
    return numbers if shape == [] else numbers.reshape(-1, *shape)


def _names(file: Path, part: int, columns: _Columns, table: Any) -> list[str]:
    """Of pictures that lie in the file: a column of names, the path kept beside the bytes, or the row's number."""
    if columns.named is not None:
        return [str(name) for name in table.column(columns.named).to_pylist()]
    paths = _paths(file, part, columns.image) or [None] * len(table)
    return [path or f"{file.stem}-{part}-{row}" for row, path in enumerate(paths)]


def _paths(file: Path, part: int, image: str) -> list[str | None]:
    import pyarrow as pa

    schema, _ = _schema(file)
    kind = schema.field(image).type
    if not pa.types.is_struct(kind) or "path" not in {kind.field(i).name for i in range(kind.num_fields)}:
        return []
    column = _part(file, part, (f"{image}.path",) if file.suffix == ".parquet" else (image,)).column(0)
    return [None if cell is None else cell.get("path") for cell in column.to_pylist()]


def _text(cell: Any) -> Any:
    """Some keep captions as objects with the field raw."""
    return cell.get("raw") if isinstance(cell, dict) else cell


def _holds_pictures(file: Path, column: Any) -> bool:
    """Bytes, or Hugging Face's pairs of bytes and path; False for names and paths."""
    import pyarrow.types as kinds

    kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    if kinds.is_string(kind) or kinds.is_large_string(kind) or str(kind) == "string_view":
        return False
    struct = kinds.is_struct(kind) and "bytes" in {kind.field(number).name for number in range(kind.num_fields)}
    if struct or kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return True
    raise ValueError(
        f"{file}: the column {column.name} holds {column.type}; expected paths, bytes or bytes with a path"
    )


def _place(file: Path, part: int, row: int) -> str:
    return f"{file}, row {row}" + (f" of row group {part}" if part else "")


def _split_of(file: Path, root: Path) -> str:
    """From its name, or from its folder as in `train/data-00000-of-00001.arrow`."""
    folders = file.relative_to(root).parts[:-1] if root.is_dir() else ()
    return next(filter(None, map(split_in_name, (file.stem, *reversed(folders)))), WITHOUT_SPLITS)


def _schema(file: Path) -> tuple[Any, int]:
    """Its columns, and how many parts (row groups) it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix == ".arrow":
            return _arrow(file).schema, 1
        opened = pq.ParquetFile(file)
        return opened.schema_arrow, opened.num_row_groups
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a readable {file.suffix[1:]} file: {error}") from error


@lru_cache(maxsize=4)
def _part(file: Path, number: int, columns: tuple[str, ...]) -> Any:
    """One row group. The last few are kept: pictures are mostly asked for in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix == ".arrow":
            return _arrow(file).select(list(columns))
        return pq.ParquetFile(file).read_row_group(number, columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a readable {file.suffix[1:]} file: {error}") from error


def _arrow(file: Path) -> Any:
    """Mapped: a stream, as Hugging Face writes, or Arrow's file format."""
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    except pa.ArrowInvalid:
        return pa.ipc.open_file(pa.memory_map(str(file))).read_all()
