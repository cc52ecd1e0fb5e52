"""Data given from Python: a pandas DataFrame, a Hugging Face dataset, a list of pairs, or a dict of these by split.

Neither pandas nor datasets is imported here: an object of theirs shows that it is imported already.
"""

import hashlib
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from tercet.data.dataset import SPLIT_NAMES, DataSet, Split
from tercet.data.formats import csv_tsv, parquet
from tercet.data.formats.builder import DEFAULT_SPLIT, DatasetBuilder, ImageFolder
from tercet.data.formats.columns import Columns, find_columns
from tercet.data.image_io import ImageBytes, ImageFiles, ImageSource, as_rgb, content_checksum
from tercet.data.textio import ErrorPolicy
from tercet.in_memory import full_name_of, register
from tercet.names import PREFIX

IMAGE_COLUMNS = tuple(dict.fromkeys((*csv_tsv.IMAGE_COLUMNS, *parquet.IMAGE_COLUMNS)))
CAPTION_COLUMNS = tuple(dict.fromkeys((*csv_tsv.CAPTION_COLUMNS, *parquet.CAPTION_COLUMNS)))
NAME_COLUMNS = parquet.NAME_COLUMNS
ALLOWED = "a pandas DataFrame, a Hugging Face dataset, a list of (image, caption) pairs, or a dict of these by split"

DataLike = str | Path | DataSet | Mapping[str, Any] | Iterable[Any]
"""What `open_data` takes: a path, scenes, an opened dataset, a DataFrame, a Hugging Face dataset, or pairs."""


def read_object(
    given: Any,
    images: Path | None,
    errors: ErrorPolicy,
    columns: Columns = Columns(),  # noqa: B008 - frozen
) -> DataSet:
    """Read captions and image names; embedded images of a Hugging Face dataset are read on access.

    Images are paths (relative to `images` or to the working directory) or PIL images, with any number of captions.
    """
    kind = _kind(given)
    builder, embedded = DatasetBuilder(errors), dict[tuple[str, str], ImageSource]()
    for row in _rows(given, DEFAULT_SPLIT, kind, columns):
        _add(row, builder, embedded)
    here = Path.cwd()
    folder = ImageFolder(images, [here, here / "images"], builder.images(), anywhere=True)
    # Without images there would be nothing to train on: a missing file is an error, also if all are missing.
    folder.folder = None if embedded else folder.folder or here
    splits = {name: _with_images(name, split, embedded, kind) for name, split in builder.splits(folder).items()}
    return DataSet(Path(f"{PREFIX}{kind}"), "python", splits, errors.messages)


def _with_images(name: str, split: Split, embedded: Mapping[tuple[str, str], ImageSource], kind: str) -> Split:
    """The split with its images that are in memory, if it has some."""
    sources = [embedded.get((name, image)) for image in split.image_names]
    present = [source for source in sources if source is not None]
    if not present:
        return split
    if len(present) < len(sources):
        path = split.image_names[sources.index(None)]
        raise ValueError(f"{kind}: some images of {name} are images and others paths, such as {path}")
    return replace(split, image_files=ImageFiles(present))


def register_data(data: DataSet) -> str:
    """Remember an opened dataset under a name that settings can hold; see `tercet.in_memory`."""
    digest = hashlib.sha256(f"{data.path} {data.format}".encode())
    for name, split in data.splits.items():
        digest.update("\n".join([name, *split.image_names, *split.texts]).encode() + split.owners.tobytes())
        for source in split.image_files or ():
            digest.update(content_checksum(source))
    kind, checksum = str(data.path).removeprefix(PREFIX), digest.hexdigest()
    if kind == str(
        data.path
    ):  # opened from a path or generated: it keeps that path, beside which its encoders are named
        return register(data.path.stem.partition(":")[0], checksum, data)
    return register(kind, checksum, replace(data, path=Path(full_name_of(kind, checksum))))


def _kind(given: Any) -> str:
    """The name of the data in messages and in the names of run folders."""
    if isinstance(given, (Mapping, Sequence)) and not isinstance(given, (str, bytes)):
        return type(given).__name__ if _package(given) == "datasets" else "pairs"
    if _package(given) in ("pandas", "datasets") and hasattr(given, "__getitem__"):
        return type(given).__name__
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        return "pairs"
    raise ValueError(f"data must be a path, scenes, {ALLOWED}; got {type(given).__name__}")


def _package(given: Any) -> str:
    return type(given).__module__.partition(".")[0]


@dataclass(frozen=True)
class _Row:
    """One row of the data; `cell` is a path, an image or what a Hugging Face dataset holds in its place."""

    cell: Any
    captions: Any
    split: Any
    location: str
    name: str | None = None
    stored: "_StoredRow | None" = None


def _rows(given: Any, split: str, kind: str, columns: Columns) -> Iterator[_Row]:
    if isinstance(given, Mapping):
        for name, part in given.items():
            yield from _rows(part, str(name), f"{kind} {name}", columns)
    elif _package(given) == "pandas":
        yield from _frame_rows(given, split, kind, columns)
    elif _package(given) == "datasets":
        yield from _hugging_face_rows(given, split, kind, columns)
    else:
        for position, pair in enumerate(given):
            location = f"{kind}, row {position}"
            if not isinstance(pair, (tuple, list)) or len(pair) not in (2, 3):
                got = f"{len(pair)} items" if isinstance(pair, (tuple, list)) else type(pair).__name__
                raise ValueError(f"{location}: expected (image, caption) or (image, caption, split), got {got}")
            yield _Row(pair[0], pair[1], pair[2] if len(pair) == 3 else split, location)


def _columns(names: Sequence[Any], kind: str, given: Columns) -> tuple[Any, Any, Any, Any]:
    """The columns of image, caption, split and image name, the last two or None; found like those of a CSV file."""
    found = find_columns(names, given, kind, usual_images=IMAGE_COLUMNS, usual_captions=CAPTION_COLUMNS)
    known = {str(name).strip().lower(): name for name in reversed(names)}
    name = next((known[name] for name in NAME_COLUMNS if name in known and known[name] != found.image), None)
    return found.image, found.caption, found.split, name


def _frame_rows(frame: Any, split: str, kind: str, columns: Columns) -> Iterator[_Row]:
    image, caption, split_column, _ = _columns(list(frame.columns), kind, columns)
    splits = [split] * len(frame) if split_column is None else frame[split_column].tolist()
    for position, cells in enumerate(zip(frame[image].tolist(), frame[caption].tolist(), splits, strict=True)):
        yield _Row(*cells, f"{kind}, row {position}")


def _hugging_face_rows(dataset: Any, split: str, kind: str, columns: Columns) -> Iterator[_Row]:
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "__len__"):
        raise ValueError(f"{kind}: a streamed dataset has no fixed rows; load it without streaming=True")
    image, caption, split_column, name = _columns(dataset.column_names, kind, columns)
    if dataset.split is not None and split == DEFAULT_SPLIT:
        split = str(dataset.split).partition("[")[0]
    is_image = type(dataset.features[image]).__name__ == "Image"
    if is_image:  # the bytes of the files, not decoded images
        dataset = dataset.cast_column(image, sys.modules["datasets"].Image(decode=False))
        names = dataset.flatten()[f"{image}.path"] if name is None else dataset[name]
    others = [column for column in (caption, split_column, None if is_image else image) if column is not None]
    for position, row in enumerate(dataset.select_columns(others)):
        location = f"{kind}, row {position}"
        row_split = split if split_column is None else row[split_column]
        if is_image:
            stored = _StoredRow(dataset, position, image, location)
            yield _Row(None, row[caption], row_split, location, _text_or_none(names[position]), stored)
        else:
            yield _Row(row[image], row[caption], row_split, location)


def _text_or_none(value: object) -> str | None:
    return None if value in (None, "") else str(value)


@dataclass(frozen=True)
class _StoredRow:
    """The image of a row of a Hugging Face dataset, read on access."""

    dataset: Any
    row: int
    column: str
    location: str

    def content(self) -> bytes:
        cell = self.dataset[self.row][self.column]
        if cell.get("bytes") is not None:
            return bytes(cell["bytes"])
        if cell.get("path") is None:
            raise ValueError(f"{self}: no image in the cell")
        try:
            return Path(cell["path"]).read_bytes()
        except OSError as error:
            raise ValueError(f"{self}: cannot read {cell['path']}: {error.strerror}") from error

    def __str__(self) -> str:
        return self.location


def _add(row: _Row, builder: DatasetBuilder, embedded: dict[tuple[str, str], ImageSource]) -> None:
    name = row.name
    source: ImageSource | None = row.stored
    if source is None and isinstance(row.cell, (str, Path)):
        name = str(row.cell)
    elif source is None:
        try:
            source = _encoded(row.cell, row.location)
        except ValueError as error:
            builder.errors.report(row.location, str(error))
            return
        # Images of equal content are one image: with one row per pair, it is repeated.
        name = name or f"image-{hashlib.sha256(source.content()).hexdigest()[:12]}"
    name = name or f"row-{row.location.rpartition(' ')[2]}"
    is_list = isinstance(row.captions, (list, tuple)) or type(row.captions).__name__ == "ndarray"
    texts = list(row.captions) if is_list else [row.captions]
    split = SPLIT_NAMES.get(str(row.split).lower(), row.split)
    if source is not None and (split, name) in embedded and embedded[split, name].content() != source.content():
        builder.errors.report(row.location, f"a different image with the name {name} came before")
        return
    if builder.add(split, name, texts, row.location) and source is not None:
        embedded.setdefault((split, name), source)


def _encoded(cell: Any, location: str) -> ImageSource:
    """An image in memory as a PNG file: sources of images provide bytes."""
    if isinstance(cell, bytes):
        return ImageBytes(cell, location)
    if not isinstance(cell, Image.Image):
        raise ValueError(f"expected an image path, a PIL image or bytes, got {type(cell).__name__}")
    buffer = io.BytesIO()
    as_rgb(cell).save(buffer, format="PNG", compress_level=1)
    return ImageBytes(buffer.getvalue(), location)
