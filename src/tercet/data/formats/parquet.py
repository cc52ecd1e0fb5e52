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
from tercet.data.pictures import Picture, Pictures
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
        return sorted(
            file for file in path.rglob("*") if file.suffix in SUFFIXES and not file.name.startswith("cache-")
        )
    return [path] if path.suffix in SUFFIXES and path.is_file() else []


def read(path: Path, images: Path | None, faults: Faults) -> DataSet:
    collector, stored = Collector(faults), _Stored()
    for file in files_of(path):
        _read_file(file, _split_of(file, path), collector, stored)
    folder = PictureFolder(images, guessed_folders(path), collector.first_image())
    if stored.pictures:
        folder.folder = None
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
        if content is None:
            raise ValueError(f"{self}: the cell holds no picture")
        return bytes(content)

    def __str__(self) -> str:
        return _place(self.file, self.part, self.row)


@dataclass
class _Stored:
    """What lies in the files besides names and captions."""

    pictures: dict[tuple[str, str], Picture] = field(default_factory=dict)
    numbers: dict[str, list[np.ndarray]] = field(default_factory=dict)
    rows_of: dict[tuple[str, str], int] = field(default_factory=dict)
    """(split, image) -> row in the numbers, counted over all files."""
    captions_of: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    """(split, image) -> rows in caption_features."""

    def complete(self, name: str, split: Split) -> Split:
        keys = [(name, image) for image in split.image_names]
        rows = np.array([self.rows_of[key] for key in keys], dtype=np.int64)
        captions = np.concatenate([self.captions_of[key] for key in keys]) if self.captions_of else rows
        lengths = np.concatenate(self.numbers["lengths"])[rows] if "lengths" in self.numbers else None
        return Split(
            split.image_names,
            split.texts,
            split.owners,
            Pictures([self.pictures[key] for key in keys]) if self.pictures else split.pictures,
            features=self._rows("features", name, rows, lengths),
            caption_features=self._rows("caption_features", name, captions),
            boxes=self._rows("boxes", name, rows),
        )

    def _rows(self, column: str, split: str, index: np.ndarray, lengths: np.ndarray | None = None) -> Rows | None:
        if column not in self.numbers:
            return None
        return Rows((np.concatenate(self.numbers[column])[index],), f"{column} of {split}", lengths=lengths)


def _read_file(file: Path, split: str, collector: Collector, stored: _Stored) -> None:
    schema, parts = _schema(file)
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    caption = next((name for name in CAPTION_COLUMNS if name in schema.names), None)
    if image is None or caption is None:
        raise ValueError(f"{file}: expected columns image and caption (or captions), got: {', '.join(schema.names)}")
    named = next((name for name in NAME_COLUMNS if name in schema.names and name != image), None)
    inside = not _is_text(schema.field(image).type)
    numbers = [name for name in NUMBER_COLUMNS if name in schema.names]
    others = [name for name in (caption, named, "split") if name in schema.names]
    for part in range(parts):
        table = _part(file, part, (*others, *numbers, *([] if inside else [image])))
        names = _names(file, part, image, named, table) if inside else table.column(image).to_pylist()
        splits = table.column("split").to_pylist() if "split" in others else [split] * len(names)
        first_row = sum(map(len, stored.numbers.get("features", [])))
        first_caption = sum(map(len, stored.numbers.get("caption_features", [])))
        for row, (name, where, cell) in enumerate(zip(names, splits, table.column(caption).to_pylist(), strict=True)):
            texts = [_text(text) for text in cell] if isinstance(cell, list) else [_text(cell)]
            place, key = _place(file, part, row), (SPLIT_NAMES.get(where, where), name)
            if numbers and key in stored.rows_of:
                raise ValueError(f"{place}: image {name} came before; a file with features has one row an image")
            known = len(collector.faults.listed)
            if not texts:
                collector.faults.found(place, f"image {name} has no caption")
            if collector.add(where, name, texts, place):
                if "caption_features" in numbers and len(collector.faults.listed) > known:
                    raise ValueError(f"{collector.faults.listed[-1]}; beside caption_features it cannot be left out")
                stored.rows_of.setdefault(key, first_row + row)
                stored.captions_of[key] = first_caption + np.arange(len(texts))
                if inside:
                    stored.pictures.setdefault(key, StoredPicture(file, part, row, image))
            first_caption += len(texts)
        for column in numbers:
            shape = json.loads((schema.field(column).metadata or {}).get(SHAPE, b"[-1]"))
            stored.numbers.setdefault(column, []).append(_array(table.column(column), shape))


def _array(column: Any, shape: list[int]) -> np.ndarray:
    """All numbers of a column, however deep its lists."""
    import pyarrow as pa

    flat = column.combine_chunks()
    while pa.types.is_nested(flat.type):
        flat = flat.flatten()
    numbers = flat.to_numpy(zero_copy_only=False)
    return numbers if shape == [] else numbers.reshape(-1, *shape)


def _names(file: Path, part: int, image: str, named: str | None, table: Any) -> list[str]:
    """Of pictures that lie in the file: a column of names, the path kept beside the bytes, or the row's number."""
    if named is not None:
        return [str(name) for name in table.column(named).to_pylist()]
    paths = _paths(file, part, image) or [None] * len(table)
    return [path or f"{file.stem}-{part}-{row}" for row, path in enumerate(paths)]


def _paths(file: Path, part: int, image: str) -> list[str | None]:
    import pyarrow as pa

    schema, _ = _schema(file)
    kind = schema.field(image).type
    if not pa.types.is_struct(kind) or "path" not in {kind.field(i).name for i in range(kind.num_fields)}:
        return []
    column = _part(file, part, (f"{image}.path",) if file.suffix == ".parquet" else (image,)).column(0)
    return (
        [cell.get("path") for cell in column.to_pylist()]
        if file.suffix == ".parquet"
        else [cell["path"].as_py() for cell in column]
    )


def _text(cell: Any) -> Any:
    """Some keep captions as objects with the field raw."""
    return cell.get("raw") if isinstance(cell, dict) else cell


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
            return pa.ipc.open_stream(pa.memory_map(str(file))).schema, 1
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
            return pa.ipc.open_stream(pa.memory_map(str(file))).read_all().select(list(columns))
        return pq.ParquetFile(file).read_row_group(number, columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a readable {file.suffix[1:]} file: {error}") from error
