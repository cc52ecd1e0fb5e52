"""Data without splits gets some before it is used: a split file beside the run folders, with one line that says so."""

import os
from collections.abc import Iterable
from pathlib import Path

from tercet import runs
from tercet.console import ConsoleProgress, print_lines
from tercet.data.dataset import DataSet
from tercet.data.formats import ALL_USUAL, open_data
from tercet.data.formats.builder import DEFAULT_SPLIT
from tercet.data.formats.columns import Columns
from tercet.data.formats.split_file import DataSource, checksum, read_summary
from tercet.data.splitting import write_split_file
from tercet.names import is_in_memory, short_name

FOLDER = "splits"
REMEDY = "; --skip-bad leaves them out"


def with_splits(
    data: str,
    root: Path,
    *,
    images: Path | None = None,
    features: str | None = None,
    skip_bad: bool = False,
    columns: Columns = ALL_USUAL,
) -> tuple[str, DataSet]:
    """The data to use and what it contains: as given, or a split file below `root` if it has no splits of its own.

    The file's name has the checksum of the names and captions: the same data gets the same splits, and is not decoded
    again.
    """
    opened = open_data(data, images=images, features=features, skip_bad=skip_bad, columns=columns)
    if not needs_splits(opened.splits):
        return data, opened
    seed = 0
    runs.make_root(root)
    file = root / FOLDER / checksum(opened, seed) / f"{stem_of(data)}.json"
    if not file.is_file():
        named = vars(columns) if columns else None
        source = DataSource(data, skip_bad=skip_bad, columns=named)
        if not is_in_memory(data):
            folder = None if images is None else str(images.resolve())
            source = DataSource(str(Path(data).resolve()), opened.format, folder, skip_bad, named)
        with ConsoleProgress() as progress:
            write_split_file(file, opened, source, seed, progress, REMEDY)
    if os.environ.get("RANK", "0") == "0":  # under torchrun every process makes the same file
        print_lines(f"{data} has no splits: {read_summary(file)}, in {file}", to_stderr=True)
    return str(file), open_data(file, images=images)


def needs_splits(splits: Iterable[str]) -> bool:
    """Whether data with these splits has none of its own: nothing named one."""
    return list(splits) == [DEFAULT_SPLIT]


def stem_of(data: str) -> str:
    """A dataset's name as part of file names."""
    if is_in_memory(data):
        return short_name(data).lower()
    return data.rstrip("/").rpartition("/")[2].partition(".")[0].partition(":")[0] or "data"
