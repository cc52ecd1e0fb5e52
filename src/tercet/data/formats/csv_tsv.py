"""CSV and TSV: one row per pair, with a header that names the columns image and caption.

The split comes from a column `split`, or from the file name. A folder of such files is one dataset.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from tercet.data.dataset import DataSet
from tercet.data.formats.builder import DEFAULT_SPLIT, DatasetBuilder, ImageFolder, candidate_folders, split_in_name
from tercet.data.formats.columns import Columns, find_columns
from tercet.data.textio import ErrorPolicy, numbered_lines

SUFFIXES = {".csv", ".tsv"}
IMAGE_COLUMNS = ("image", "filepath", "filename", "file_name", "file", "path", "image_path", "image_name")
CAPTION_COLUMNS = ("caption", "text", "title", "sentence", "comment")
QUERY_COLUMNS = ("query", "question")
PASSAGE_COLUMNS = ("passage", "context", "document", "answer")


def recognise(path: Path) -> bool:
    return any(_has_columns(file) for file in files_of(path))


def is_query_table(path: Path) -> bool:
    """Whether a file has the columns query and passage: `beir` reads it."""
    names = header_names(path) if path.is_file() and path.suffix.lower() in SUFFIXES else []
    return column(names, QUERY_COLUMNS) is not None and column(names, PASSAGE_COLUMNS) is not None


def files_of(path: Path) -> list[Path]:
    """Table files by suffix. A .txt file counts if it has the header: Kaggle's Flickr8k has a captions.txt."""
    if path.is_dir():
        return [file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES and file.is_file()]
    table = path.suffix.lower() in SUFFIXES or (path.suffix == ".txt" and path.is_file() and _has_columns(path))
    return [path] if table and path.is_file() else []


def read(path: Path, images: Path | None, errors: ErrorPolicy, columns: Columns) -> DataSet:
    builder = DatasetBuilder(errors)
    for file in files_of(path):
        _read_file(file, builder, columns)
    folder = ImageFolder(images, candidate_folders(path), builder.images())
    return DataSet(path, "table", builder.splits(folder), errors.messages, builder.no_images(folder))


def _header(file: Path) -> str:
    with file.open("rb") as stream:
        line = stream.readline(4096)
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{file}: the file is UTF-16, as Excel's Unicode text is: save it as CSV UTF-8")
    return line.decode("utf-8", errors="replace").lstrip("\ufeff").rstrip("\r\n")


def _delimiter(header: str) -> str:
    return max("\t,|;", key=header.count)


def _names(header: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([header], delimiter=_delimiter(header)), [])]


def header_names(file: Path) -> list[str]:
    """The cells of the first line, in lower case; none if it is not a row of a table."""
    try:
        return [name.lower() for name in _names(_header(file))]
    except (ValueError, csv.Error):
        return []


def column(names: Sequence[str], known: Sequence[str]) -> int | None:
    """The index of the first of these names in a header; None if it has none of them."""
    return next((names.index(name) for name in known if name in names), None)


def _has_columns(file: Path) -> bool:
    names = header_names(file)
    return column(names, IMAGE_COLUMNS) is not None and column(names, CAPTION_COLUMNS) is not None


def _read_file(file: Path, builder: DatasetBuilder, given: Columns) -> None:
    if file.stat().st_size == 0:
        raise ValueError(f"{file}: empty file (0 bytes): expected a header such as image,caption and one row per pair")
    header = _header(file)
    try:
        names = _names(header)
    except csv.Error as error:
        raise ValueError(f"{file}, line 1: not a header: {error}") from error
    columns = find_columns(names, given, f"{file}, line 1", usual_images=IMAGE_COLUMNS, usual_captions=CAPTION_COLUMNS)
    image, caption = names.index(columns.image), names.index(columns.caption)
    split = None if columns.split is None else names.index(columns.split)
    delimiter = _delimiter(header)
    hint = f"; a caption that contains {delimiter!r} must be in quotation marks" if delimiter != "\t" else ""
    file_split = split_in_name(file.stem) or DEFAULT_SPLIT
    rows = table_rows(file, builder.errors)
    next(rows)
    for location, row in rows:
        if len(row) != len(names):
            builder.errors.report(
                location, f"expected {len(names)} columns, got {len(row)}{hint * (len(row) > len(names))}"
            )
            continue
        builder.add(
            row[split].strip() if split is not None else file_split, row[image].strip(), [row[caption]], location
        )


def table_rows(file: Path, errors: ErrorPolicy) -> Iterator[tuple[str, list[str]]]:
    """File and line, and cells of every row that is not empty, the header included."""
    # Lines that are not UTF-8 are reported and replaced by empty ones, so that line numbers stay correct.
    lines = [text or "" for _, text in numbered_lines(file, errors)]
    content, delimiter = "\n".join(lines), _delimiter(_header(file))
    # In a TSV without quoting, a caption may start with a literal quotation mark.
    unquoted = delimiter == "\t" and not _valid_quoting(content)
    rows = csv.reader(
        io.StringIO(content, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_NONE if unquoted else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        for row in rows:
            if row:
                yield f"{file}, line {rows.line_num}", row
    except csv.Error as error:
        raise ValueError(f"{file}, line {rows.line_num}: {error}") from error


def _valid_quoting(content: str) -> bool:
    try:
        for _ in csv.reader(io.StringIO(content, newline=""), delimiter="\t", strict=True):
            pass
    except csv.Error:
        return False
    return True
