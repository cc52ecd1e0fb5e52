"""Command-line settings of `tercet data` and `tercet features`. No heavy imports, so that `--help` is fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Inspect:
    """Detect the format of a dataset, print a summary and list all errors.

    Decodes every image and reads every feature. Exit code 0: nothing found; 1: errors, which stop other commands (with
    --skip-bad: nothing is left); 3: no errors, but duplicate images or images that are in two splits.
    """

    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]]
    """Dataset file or folder, or scenes:N for N generated training scenes."""
    images: Path | None = None
    """Image folder, if it is not beside the data."""
    skip_bad: bool = False
    """Skip and list invalid captions, images and features instead of stopping at the first."""
    image_column: str | None = None
    """Column of the images in a CSV, TSV or Parquet file. None: image, filepath, filename or another usual name."""
    caption_column: str | None = None
    """Column of the captions. None: caption, text, title or another usual name."""
    split_column: str | None = None
    """Column of the splits. None: split, if there is one."""
    format: str | None = None
    """Format of the data, if several match: one of `tercet list formats`."""
    features: str | None = None
    """Feature name: {split}_{features}.npy in a precomp folder (ims if not given); global or regions for scenes."""


@dataclass(frozen=True)
class Convert:
    """Convert a dataset to a precomp folder or to Parquet. The write is atomic: a failed conversion leaves no files."""

    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]]
    """Dataset that `tercet data inspect` can read, or a BUTD .tsv file or a folder of them (with --captions)."""
    target: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="TARGET")]]
    """Output folder. If it already holds this conversion, nothing is written; anything else is refused."""
    to: Literal["precomp", "parquet"] = "precomp"
    """Output format."""
    images: Path | None = None
    """Image folder, if it is not beside the data."""
    skip_bad: bool = False
    """Skip and list invalid captions, images and features instead of stopping at the first."""
    image_column: str | None = None
    """Column of the images in a CSV, TSV or Parquet file. None: image, filepath, filename or another usual name."""
    caption_column: str | None = None
    """Column of the captions. None: caption, text, title or another usual name."""
    split_column: str | None = None
    """Column of the splits. None: split, if there is one."""
    format: str | None = None
    """Format of the data, if several match: one of `tercet list formats`."""
    features: str | None = None
    """Feature name: {split}_{features}.npy in a precomp folder (ims if not given); global or regions for scenes."""
    captions: Path | None = None
    """Dataset with the captions, for a BUTD .tsv."""
    limit_captions: int | None = None
    """Keep at most the first N captions per image. The published COCO files keep 5."""


@dataclass(frozen=True)
class MakeSplits:
    """Split a dataset by image into train, val and test (80/10/10), with copies and near-duplicates on one side.

    Writes a split file, which can be given to every command in place of the dataset; the dataset is not changed. Equal
    files, nearly equal images, equal captions and captions of nearly the same words stay together.
    """

    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]]
    """Dataset that `tercet data inspect` can read. If it has splits, they are kept, and only bad images left out."""
    target: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUT.json")]]
    """Split file to write."""
    seed: int = 0
    """Another seed gives other splits."""
    images: Path | None = None
    """Image folder, if it is not beside the data."""
    format: str | None = None
    """Format of the data, if several match: one of `tercet list formats`."""
    image_column: str | None = None
    """Column of the images in a CSV, TSV or Parquet file. None: image, filepath, filename or another usual name."""
    caption_column: str | None = None
    """Column of the captions. None: caption, text, title or another usual name."""
    split_column: str | None = None
    """Column of the splits. None: split, if there is one."""
    skip_bad: bool = False
    """Leave out and list invalid items instead of stopping."""


@dataclass(frozen=True)
class Features:
    """Extract features with frozen encoders into a precomp folder with a manifest.

    An interrupted extraction resumes when run again. Image encoder: efficientnet-lite2. Text encoders: minilm,
    bag-of-words. None of them needs a model hub. Any Hugging Face model name or local path works too.
    """

    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]]
    """Dataset with images."""
    target: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="TARGET")]]
    """Output folder. If it already holds features with the same manifest, nothing is written."""
    image_encoder: str = "efficientnet-lite2"
    """Image encoder. With none, the features of the dataset are copied."""
    text_encoder: str = "minilm"
    """Text encoder. With none, captions are not encoded."""
    grid: bool = False
    """Encode images as the grid cells of the last feature map instead of one vector."""
    splits: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SPLIT ...")] = ()
    """Splits to encode; all if not given."""
    dtype: Literal["float32", "float16"] = "float32"
    """Data type of the features."""
    images: Path | None = None
    """Image folder, if it is not beside the data."""
    skip_bad: bool = False
    """Skip and list invalid captions, images and features instead of stopping at the first."""
    image_column: str | None = None
    """Column of the images in a CSV, TSV or Parquet file. None: image, filepath, filename or another usual name."""
    caption_column: str | None = None
    """Column of the captions. None: caption, text, title or another usual name."""
    split_column: str | None = None
    """Column of the splits. None: split, if there is one."""
    format: str | None = None
    """Format of the data, if several match: one of `tercet list formats`."""
    features: str | None = None
    """Features to copy with --image-encoder none: {split}_{features}.npy (ims if not given)."""
