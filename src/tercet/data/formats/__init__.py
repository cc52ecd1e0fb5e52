"""Dataset formats: one module per format, each reads into a `DataSet`."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tercet.data.dataset import DataSet
from tercet.data.formats import beir, csv_tsv, folder, json_list, karpathy, parquet, precomp, split_file
from tercet.data.formats.columns import Columns
from tercet.data.formats.converted import CONVERTED, check_converted
from tercet.data.formats.explain import check_kind, nearest, unknown_folder
from tercet.data.formats.from_python import DataLike, read_object
from tercet.data.scenes import scenes_data_set
from tercet.data.textio import ErrorPolicy
from tercet.in_memory import find_in_memory
from tercet.names import is_in_memory
from tercet.plugins import all_of, find

ENTRY_POINTS = "tercet.formats"
GIVE_AGAIN = "give it again, as data=... of tercet.train, or as a path to the same images and captions"


class Format(NamedTuple):
    """How to read a format. `read` takes the path, the folder of the images if it is elsewhere, what to do with invalid
    items and, if `has_columns`, the `Columns` that the user named."""

    recognise: Callable[[Path], bool]
    read: Callable[..., DataSet]
    description: str
    suffixes: tuple[str, ...] | None = None
    """Suffixes of the files it may recognise, besides folders; None for any. Only then `recognise` is called."""
    has_columns: bool = False


FORMATS = {
    "split": Format(split_file.recognise, split_file.read, "split file of `tercet data split`", (".json",)),
    "karpathy": Format(
        karpathy.recognise, karpathy.read, "Karpathy's JSON (dataset_coco.json) with a folder of images", (".json",)
    ),
    "precomp": Format(precomp.recognise, precomp.read, "SCAN's {split}_ims.npy, {split}_caps.txt, {split}_ids.txt", ()),
    "json-list": Format(
        json_list.recognise, json_list.read, "JSON lists of image, caption, image_id, as in X-VLM and BLIP", (".json",)
    ),
    "table": Format(
        csv_tsv.recognise,
        csv_tsv.read,
        "CSV or TSV with the columns image and caption",
        (*csv_tsv.SUFFIXES, ".txt"),
        has_columns=True,
    ),
    "parquet": Format(
        parquet.recognise,
        parquet.read,
        "Parquet or a local Hugging Face dataset",
        tuple(parquet.SUFFIXES),
        has_columns=True,
    ),
    "beir": Format(
        beir.recognise, beir.read, "passages and queries: BEIR's corpus.jsonl, queries.jsonl, qrels/", beir.SUFFIXES
    ),
    "query-table": Format(
        csv_tsv.is_query_table, beir.read, "CSV or TSV with the columns query and passage", tuple(csv_tsv.SUFFIXES)
    ),
    "folder": Format(folder.recognise, folder.read, "images, each with a .txt file of captions beside it", ()),
}


ALL_USUAL = Columns()


def open_data(
    path: DataLike,
    *,
    format: str | None = None,  # noqa: A002 - the usual name
    images: str | Path | None = None,
    features: str | None = None,
    skip_bad: bool = False,
    columns: Columns = ALL_USUAL,
) -> DataSet:
    """Detect the format of a dataset and open it. Features are memory-mapped, images are decoded on access.

    `path` is a file, a folder or `scenes`; or the data itself: a pandas DataFrame with the columns image and caption, a
    Hugging Face dataset, a list of (image, caption) pairs with paths or PIL images, or a dict of these by split.
    `images` is the image folder, if it is not beside the data. `features` selects the feature files
    `{split}_{features}.npy` of a precomp folder. With `skip_bad`, invalid items are skipped and listed in `skipped`;
    without it, the first one raises `ValueError`. `columns` names those of a table, if they are not the usual ones.
    """
    if not isinstance(path, (str, Path)):
        return _open_object(path, images, features, columns, skip_bad=skip_bad)
    if is_in_memory(str(path)):
        return _open_object(find_in_memory(str(path), GIVE_AGAIN), images, features, columns, skip_bad=skip_bad)
    generated = re.fullmatch(r"scenes(?::(\d+))?", str(path))
    if generated and not Path(path).exists():
        return scenes_data_set(int(generated[1] or 3000), features or "global")
    return _open_path(Path(path), format, images, features, columns, ErrorPolicy(skip=skip_bad))


def _open_path(
    path: Path,
    format: str | None,  # noqa: A002
    images: str | Path | None,
    features: str | None,
    columns: Columns,
    errors: ErrorPolicy,
) -> DataSet:
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder{nearest(path)}")
    check_kind(path)
    folder = path if path.is_dir() else path.parent
    if (folder / CONVERTED).is_file():  # written by `tercet data convert`
        check_converted(folder, path)
    name = detect_format(path) if format is None else format
    known = find("format", name, FORMATS, ENTRY_POINTS)
    image_folder = None if images is None else Path(images)
    if columns and not known.has_columns:
        raise ValueError(f"{path} has format {name}, which has no columns: --image-column is for tables")
    if features is not None:
        if name != "precomp":
            raise ValueError(f"{path} has format {name}: feature files can only be selected in a precomp folder")
        return precomp.read(path, image_folder, errors, features)
    try:
        more = (columns,) if known.has_columns else ()
        data = known.read(path, image_folder, errors, *more)
    except (TypeError, AttributeError, KeyError, IndexError) as error:  # valid syntax with unexpected content
        raise ValueError(f"{path}: invalid content for format {name}: {type(error).__name__}: {error}") from error
    if not any(len(split.texts) for split in data.splits.values()):
        raise ValueError(f"{path}: no valid captions (format {name})" + _first_error(data))
    return data


def _open_object(
    given: Any, images: str | Path | None, features: str | None, columns: Columns, *, skip_bad: bool
) -> DataSet:
    if features is not None:
        raise ValueError(f"features={features!r} selects files of a precomp folder; the data was given from Python")
    if isinstance(given, DataSet):
        return given
    data = read_object(given, None if images is None else Path(images), ErrorPolicy(skip=skip_bad), columns)
    if not data.splits:
        raise ValueError(f"{data.path}: no valid captions" + _first_error(data))
    return data


def all_formats() -> dict[str, Format]:
    """Name -> format: Tercet's own and those of installed packages."""
    return all_of(FORMATS, ENTRY_POINTS, Format)


def detect_format(path: Path) -> str:
    """The one format that matches; `ValueError` if none or several do."""
    if (path / precomp.MANIFEST).is_file():  # written by `tercet features`
        return "precomp" if precomp.recognise(path) else "beir"
    matching = _matching(path, FORMATS) or _matching(path, all_formats())
    if len(matching) == 1:
        return matching[0]
    if not matching and path.is_file() and path.suffix.lower() in csv_tsv.SUFFIXES:
        return "table"  # whose reader says which columns are missing
    if not matching and path.is_dir():
        raise ValueError(
            f"{path}: unknown dataset format: {unknown_folder(path)}; known formats: {', '.join(all_formats())}"
        )
    if not matching:
        known = "; ".join(f"{name}: {fmt.description}" for name, fmt in all_formats().items())
        raise ValueError(f"{path}: unknown dataset format; known formats are {known}")
    raise ValueError(
        f"{path} matches the formats {' and '.join(matching)}: pass --format, or the file instead of the folder"
    )


def _matching(path: Path, formats: Mapping[str, Format]) -> list[str]:
    return [
        name
        for name, known in formats.items()
        if (path.is_dir() or known.suffixes is None or path.suffix.lower() in known.suffixes) and known.recognise(path)
    ]


def _first_error(data: DataSet) -> str:
    return f"; first of {len(data.skipped)} errors: {data.skipped[0]}" if data.skipped else ""
