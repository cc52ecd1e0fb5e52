"""What `tercet data` and `tercet features` can be told. Imports nothing heavy: `--help` must be quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

FormatName = Literal["karpathy", "precomp", "json-list", "table", "parquet", "folder"]


@dataclass(frozen=True)
class Inspect:
    """Recognise a data set and print what it holds, with everything that looks wrong.

    Looks at all of it: every picture is decoded, every feature read. Exit code 1 if something is wrong.
    """

    path: tyro.conf.Positional[str]
    """A file or folder; or scenes, the generated world (scenes:500 for 500 training scenes)."""
    images: Path | None = None
    """Folder of image files, where it is not found beside the data."""
    format: FormatName | None = None
    """Read it as this format, where several fit."""
    features: str | None = None
    """Which features: {split}_{features}.npy of a precomp folder (default ims), or regions of scenes."""


@dataclass(frozen=True)
class Convert:
    """Write a data set as a precomp folder or as Parquet. The target appears whole or not at all."""

    path: tyro.conf.Positional[str]
    """A file or folder that `tercet data inspect` knows, or BUTD's .tsv, one or a folder of them (with --captions)."""
    target: tyro.conf.Positional[Path]
    """A folder that does not exist yet."""
    to: Literal["precomp", "parquet"] = "precomp"
    images: Path | None = None
    """Folder of image files, where it is not found beside the data."""
    format: FormatName | None = None
    """Read it as this format, where several fit."""
    features: str | None = None
    """Which features: {split}_{features}.npy of a precomp folder (default ims), or regions of scenes."""
    captions: Path | None = None
    """For a BUTD .tsv: the data set with the captions of its images."""
    first_captions: int | None = None
    """Keep only so many captions of each image. The published COCO files keep the first 5."""
    skip_bad: bool = False
    """Leave out what cannot be used, and list it, instead of stopping at it."""


@dataclass(frozen=True)
class Features:
    """Run frozen encoders once over a data set; write a precomp folder of features with a manifest.

    Stop at any moment and call again: it goes on where it was. Encoders are efficientnet-lite2 for images, minilm and
    bag-of-words for captions, which need no hub, or any model of Hugging Face by name or local path.
    """

    path: tyro.conf.Positional[str]
    """A data set with pictures."""
    target: tyro.conf.Positional[Path]
    """Where the features go; a finished folder made in the same way is kept as it is."""
    image_encoder: str = "efficientnet-lite2"
    """Or none: the features that the data has are taken over."""
    text_encoder: str = "minilm"
    """Or none."""
    grid: bool = False
    """Cells of the image encoder's last map in place of one vector."""
    splits: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SPLIT ...")] = ()
    """Only these splits; all if none is named."""
    dtype: Literal["float32", "float16"] = "float32"
    images: Path | None = None
    """Folder of image files, where it is not found beside the data."""
    format: FormatName | None = None
    """Read it as this format, where several fit."""
    features: str | None = None
    """With --image-encoder none: which features are taken over, {split}_{features}.npy (default ims)."""
    skip_bad: bool = False
    """Leave out what cannot be used, and list it, instead of stopping at it."""
