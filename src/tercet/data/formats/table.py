"""CSV and TSV: one row a pair, images repeated, with a header that names the columns image and caption.

The split comes from a column `split`, else from the file's name; a folder of such files is a data set.
"""

import csv
import io
from pathlib import Path

from tercet.data.dataset import DataSet
from tercet.data.faults import Faults
from tercet.data.formats.collect import WITHOUT_SPLITS, Collector, PictureFolder, guessed_folders, split_in_name
from tercet.data.lines import numbered_lines

SUFFIXES = {".csv", ".tsv"}
IMAGE_COLUMNS = ("image", "filepath", "filename", "file_name", "file", "path", "image_path", "image_name")
CAPTION_COLUMNS = ("caption", "text", "title", "sentence", "comment")


def recognise(path: Path) -> bool:
    return any(_columns(file) is not None for file in files_of(path))


def files_of(path: Path) -> list[Path]:
    """Kaggle's Flickr8k calls its table captions.txt: a header decides there, not the suffix."""
    if path.is_dir():
        return [file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES and file.is_file()]
    table = path.suffix.lower() in SUFFIXES or (path.suffix == ".txt" and path.is_file() and _columns(path) is not None)
    return [path] if table and path.is_file() else []


def read(path: Path, images: Path | None, faults: Faults) -> DataSet:
    collector = Collector(faults)
    for file in files_of(path):
        _read_file(file, collector)
    folder = PictureFolder(images, guessed_folders(path), collector.images())
    return DataSet(path, "table", collector.splits(folder), faults.listed)


def _header(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.readline(4096).decode("utf-8", errors="replace").lstrip("\ufeff").rstrip("\r\n")


def _delimiter(header: str) -> str:
    return max("\t,|;", key=header.count)


def _columns(file: Path) -> tuple[int, int, int | None] | None:
    """Where image, caption and split stand."""
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


def _read_file(file: Path, collector: Collector) -> None:
    header = _header(file)
    columns = _columns(file)
    if columns is None:
        raise ValueError(
            f"{file}, line 1: expected a header that names the columns image and caption, got {header[:80]!r}"
        )
    image, caption, split = columns
    names = [name.strip().lower() for name in next(csv.reader([header], delimiter=_delimiter(header)))]
    for column in (image, caption):
        if names.count(names[column]) > 1:
            raise ValueError(f"{file}, line 1: the column {names[column]} comes more than once")
    otherwise = split_in_name(file.stem) or WITHOUT_SPLITS
    # Undecodable lines are told of one by one and read as empty, so that the numbers of the others stay true.
    lines = [text or "" for _, text in numbered_lines(file, collector.faults)]
    content, delimiter = "\n".join(lines), _delimiter(header)
    # In a TSV a caption may start with a quotation mark that is just one.
    plain = delimiter == "\t" and not _quoted_well(content)
    rows = csv.reader(
        io.StringIO(content, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        next(rows)
        for row in rows:
            place = f"{file}, line {rows.line_num}"
            if not row:
                continue  # an empty line, as many files end with
            if len(row) != len(names):
                collector.faults.found(place, f"expected {len(names)} columns as in the header, got {len(row)}")
                continue
            collector.add(
                row[split].strip() if split is not None else otherwise, row[image].strip(), [row[caption]], place
            )
    except csv.Error as error:
        raise ValueError(f"{file}, line {rows.line_num}: {error}") from error


def _quoted_well(content: str) -> bool:
    try:
        for _ in csv.reader(io.StringIO(content, newline=""), delimiter="\t", strict=True):
            pass
    except csv.Error:
        return False
    return True
