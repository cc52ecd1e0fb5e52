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
    return bool(files_of(path))


def files_of(path: Path) -> list[Path]:
    """Kaggle's Flickr8k calls its table captions.txt: a header decides there, not the suffix."""
    candidates = sorted(path.iterdir()) if path.is_dir() else [path]
    tables = [file for file in candidates if file.suffix in SUFFIXES and file.is_file()]
    texts = [file for file in candidates if file.suffix == ".txt" and file.is_file() and not path.is_dir()]
    return [file for file in tables if _columns(_header(file))] + [file for file in texts if _columns(_header(file))]


def read(path: Path, images: Path | None, faults: Faults) -> DataSet:
    collector = Collector(faults)
    files = files_of(path)
    if not files:
        raise ValueError(f"{path}: no table whose first line names the columns image and caption")
    for file in files:
        _read_file(file, collector)
    folder = PictureFolder(images, guessed_folders(path), collector.first_image())
    return DataSet(path, "table", collector.splits(folder), faults.listed)


def _header(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.readline(4096).decode("utf-8", errors="replace").lstrip("\ufeff").rstrip("\r\n")


def _delimiter(header: str) -> str:
    return max("\t,|;", key=header.count)


def _columns(header: str) -> tuple[int, int, int | None] | None:
    """Where image, caption and split stand."""
    names = [name.strip().strip('"').lower() for name in header.split(_delimiter(header))]
    image = next((names.index(name) for name in IMAGE_COLUMNS if name in names), None)
    caption = next((names.index(name) for name in CAPTION_COLUMNS if name in names), None)
    if image is None or caption is None:
        return None
    return image, caption, names.index("split") if "split" in names else None


def _read_file(file: Path, collector: Collector) -> None:
    header = _header(file)
    columns = _columns(header)
    assert columns is not None
    image, caption, split = columns
    otherwise = split_in_name(file.stem) or WITHOUT_SPLITS
    # Undecodable lines are told of one by one and read as empty, so that the numbers of the others stay true.
    lines = [text or "" for _, text in numbered_lines(file, collector.faults)]
    rows = csv.reader(io.StringIO("\n".join(lines), newline=""), delimiter=_delimiter(header), strict=True)
    try:
        width = len(next(rows))
        for row in rows:
            place = f"{file}, line {rows.line_num}"
            if not row:
                continue  # an empty line, as many files end with
            if len(row) != width:
                collector.faults.found(place, f"expected {width} columns as in the header, got {len(row)}")
                continue
            collector.add(
                row[split].strip() if split is not None else otherwise, row[image].strip(), [row[caption]], place
            )
    except csv.Error as error:
        raise ValueError(f"{file}, line {rows.line_num}: {error}") from error
