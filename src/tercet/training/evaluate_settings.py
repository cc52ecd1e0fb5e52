"""What `tercet evaluate` can be told. Imports nothing heavy: `--help` must be quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class EvaluateSettings:
    """Rank every positive of a split with a trained model, under a protocol that checks what it is given.

    Several models are an ensemble: the mean of their similarities. Ties count against the positive, so that a model
    that finds everything equal scores 0. Writes JSON with all it depends on, and the rank of every positive.
    """

    models: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN|MODEL ...")]]
    """Run folders or saved models."""
    data: str
    """A file or folder that `tercet data inspect` knows; or scenes."""
    protocol: Literal["flickr-1k", "coco-5k", "coco-1k", "eccv-caption", "cxc", "custom"] = "custom"
    """custom takes any set of images and captions; the others refuse what is not theirs."""
    split: str = "test"
    """coco's 5,000 test images are often called testall."""
    rerank: int | None = None
    """An X-VLM looks again at so many candidates of each query, pair by pair; published are 256 (COCO), 128 (F30K)."""
    ties: Literal["against", "expected", "optimistic"] = "against"
    features: str | None = None
    """Which features: {split}_{features}.npy of a precomp folder (default ims), or regions of scenes."""
    images: Path | None = None
    """Folder of image files, where it is not found beside the data."""
    explain_legacy: bool = False
    """Also print what the original scripts would have printed, and what is wrong about it."""
    out: Path = Path("evaluations")
    """Where the JSON and the ranks go."""
