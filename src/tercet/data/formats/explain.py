"""What to do with a path that is no dataset: a spreadsheet, an archive, an image, a folder of something else."""

import itertools
from pathlib import Path

from tercet.data.formats import csv_tsv
from tercet.data.image_io import SUFFIXES
from tercet.names import suggest

MAX_LISTED = 10_000  # names in a folder that are read for an error message
SPREADSHEETS = {".xlsx", ".xls", ".xlsm", ".ods", ".numbers"}
ARCHIVES = {".zip": "unzip {} -d {}", ".tar": "tar -xf {} -C {}", ".tgz": "tar -xf {} -C {}", ".gz": "gunzip {}"}
ARCHIVES |= {".7z": "7z x {} -o{}", ".rar": "unrar x {} {}"}


def check_kind(path: Path) -> None:
    """Say how to make a dataset of what is none: a spreadsheet, an archive, a single image."""
    suffix = path.suffix.lower()
    if not path.is_file():
        return
    with path.open("rb") as stream:
        is_zip = stream.read(4) == b"PK\x03\x04"
    if suffix in SPREADSHEETS or (is_zip and suffix in csv_tsv.SUFFIXES):
        raise ValueError(
            f"{path} is a spreadsheet: save its sheet as CSV (File > Save As > CSV UTF-8, the first row naming the "
            "columns) and give that file"
        )
    if suffix in ARCHIVES:
        command = ARCHIVES[suffix].format(path, path.with_suffix(""))
        raise ValueError(f"{path} is an archive: unpack it ({command}) and give the folder or file in it")
    if suffix in SUFFIXES:
        raise ValueError(f"{path} is a single image: give a dataset of images with captions, such as a CSV")


def nearest(path: Path) -> str:
    """What is there with a similar name."""
    if not path.parent.is_dir():
        return ""
    return suggest(
        path.name, ["scenes", *(entry.name for entry in itertools.islice(path.parent.iterdir(), MAX_LISTED))]
    )


def unknown_folder(path: Path) -> str:
    """Why a folder is no dataset."""
    names = [entry.name for entry in itertools.islice(path.iterdir(), MAX_LISTED)]
    if not names:
        return "empty folder"
    if "settings.json" in names:
        return "a run folder, which is made from a dataset and is none (tercet evaluate and index take runs)"
    if "index.json" in names:
        return "a search index (tercet search and serve take indexes)"
    tables = [name for name in names if Path(name).suffix.lower() in csv_tsv.SUFFIXES]
    if tables:
        return f"no dataset in this folder: give the file, such as {path / tables[0]}"
    images = sum(1 for file in itertools.islice(path.rglob("*"), MAX_LISTED) if file.suffix.lower() in SUFFIXES)
    if images:
        return (
            f"{images:,} images without captions: write a CSV with the columns image and caption, or a .txt file "
            "beside each image (tercet index searches photos without captions)"
        )
    shown = ", ".join(sorted(names)[:5])
    return f"no dataset in this folder, which holds {shown}"
