"""CSV and TSV: one row per pair, with a header that names the columns image and caption.

The split comes from a column `split`, or from the file name. A folder of such files is one dataset.
"""

import csv
import io
from pathlib import Path

from tercet.data.dataset import DataSet
from tercet.data.formats.builder import DEFAULT_SPLIT, DatasetBuilder, ImageFolder, candidate_folders, split_in_name
from tercet.data.textio import ErrorPolicy, numbered_lines

SUFFIXES = {".csv", ".tsv"}
IMAGE_COLUMNS = ("image", "filepath", "filename", "file_name", "file", "path", "image_path", "image_name")
CAPTION_COLUMNS = ("caption", "text", "title", "sentence", "comment")


def recognise(path: Path) -> bool:
    return any(_columns(file) is not None for file in files_of(path))


def files_of(path: Path) -> list[Path]:
    """Table files by suffix. A .txt file counts if it has the header: Kaggle's Flickr8k has a captions.txt."""
    if path.is_dir():
        return [file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES and file.is_file()]
    table = path.suffix.lower() in SUFFIXES or (path.suffix == ".txt" and path.is_file() and _columns(path) is not None)
    return [path] if table and path.is_file() else []


def read(path: Path, images: Path | None, errors: ErrorPolicy) -> DataSet:
    builder = DatasetBuilder(errors)
    for file in files_of(path):
        _read_file(file, builder)
    folder = ImageFolder(images, candidate_folders(path), builder.images())
    return DataSet(path, "table", builder.splits(folder), errors.messages)


def _header(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.readline(4096).decode("utf-8", errors="replace").lstrip("\ufeff").rstrip("\r\n")


def _delimiter(header: str) -> str:
    return max("\t,|;", key=header.count)


def _columns(file: Path) -> tuple[int, int, int | None] | None:
    """The column indices of image, caption and split; None if the header does not name image and caption."""
    header = _header(file)
    try:
        names = [name.strip().lower() for name in next(csv.reader([header], delimiter=_delimiter(header)), [])]
    except csv.Error:
        return None
    image = next((names.index(name) for name in IMAGE_COLUMNS if name in names), None)
    caption = next((names.index(name) for name in CAPTION_COLUMNS if name in names), None)
    if image is None or caption is None:
        return None
    return image, caption, names.index("split") if "split" in names else None


def _read_file(file: Path, builder: DatasetBuilder) -> None:
    header = _header(file)
    columns = _columns(file)
    if columns is None:
        raise ValueError(f"{file}, line 1: expected a header with the columns image and caption, got {header[:80]!r}")
    image, caption, split = columns
    names = [name.strip().lower() for name in next(csv.reader([header], delimiter=_delimiter(header)))]
    for column in (image, caption):
        if names.count(names[column]) > 1:
            raise ValueError(f"{file}, line 1: duplicate column {names[column]}")
    file_split = split_in_name(file.stem) or DEFAULT_SPLIT
    # Lines that are not UTF-8 are reported and replaced by empty ones, so that line numbers stay correct.
    lines = [text or "" for _, text in numbered_lines(file, builder.errors)]
    content, delimiter = "\n".join(lines), _delimiter(header)
    # In a TSV without quoting, a caption may start with a literal quotation mark.
    unquoted = delimiter == "\t" and not _valid_quoting(content)
    rows = csv.reader(
        io.StringIO(content, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_NONE if unquoted else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        next(rows)
        for row in rows:
            location = f"{file}, line {rows.line_num}"
            if not row:
                continue  # an empty line
            if len(row) != len(names):
                builder.errors.report(location, f"expected {len(names)} columns, got {len(row)}")
                continue
            builder.add(
                row[split].strip() if split is not None else file_split, row[image].strip(), [row[caption]], location
            )
    except csv.Error as error:
        raise ValueError(f"{file}, line {rows.line_num}: {error}") from error


def _valid_quoting(content: str) -> bool:
    try:
        for _ in csv.reader(io.StringIO(content, newline=""), delimiter="\t", strict=True):
            pass
    except csv.Error:
        return False
    return True
