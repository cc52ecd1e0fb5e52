"""Settings of `tercet fit`. Imports nothing heavy, so that `--help` is fast."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import tyro

from tercet.names import coerce, suggest
from tercet.training.settings import Names

SHORT_LIST = ("nt-xent", "triplet-sh", "con/sig")


@dataclass(frozen=True)
class FitSettings:
    """From data to a model and a search index: check, split, extract features or fine-tune, compare, evaluate, index.

    The budget fixes a plan, from one measured step: how many images, objectives, seeds and epochs. The plan is printed
    and saved first; an interrupted command resumes it unchanged when it is run again. Every stage is a command of its
    own, and its results are in the usual run folders.
    """

    data: tyro.conf.Positional[str] = "scenes"
    """A file or folder that `tercet data inspect` opens. Data without splits is split by image, 80/10/10."""
    model: str | None = None
    """Folder or hub name of a CLIP or SigLIP: fine-tuned if the budget allows, else with heads on its features. None:
    one in the local cache of the hub, or else the encoders below."""
    minutes: float = 10.0
    """Budget of time, for everything."""
    objectives: Names = SHORT_LIST
    """Objectives to compare, as in `tercet compare`; with a small budget only the first."""
    image_encoder: str = "efficientnet-lite2"
    """Frozen image encoder, without a CLIP or SigLIP."""
    text_encoder: str = "minilm"
    """Frozen text encoder, without a CLIP or SigLIP."""
    images: Path | None = None
    """Folder of image files, if it is not found next to the dataset."""
    skip_bad: bool = False
    """Leave out and list what cannot be read, instead of stopping."""
    processes: int | None = None
    """Number of processes that train in parallel. None: number of cores."""
    runs: Path = Path("runs")
    """Folder for the plan, run folders, tables, the report and the index."""

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ValueError(f"--minutes must be a number above 0, got {self.minutes!r}")
        if not self.objectives:
            raise ValueError("--objectives needs at least one name")
        if self.processes is not None and self.processes < 1:
            raise ValueError(f"--processes must be a whole number of at least 1, got {self.processes!r}")


def make_fit_settings(given: Mapping[str, Any]) -> FitSettings:
    """Settings from keyword arguments; a single objective is accepted, and strings as paths."""
    names = [item.name for item in fields(FitSettings)]
    for name in given:
        if name not in names:
            raise ValueError(f"fit has no setting {name!r}{suggest(name, names)}; it has: {', '.join(names)}")
    types = get_type_hints(FitSettings)
    single = isinstance(given.get("objectives"), str)
    values = dict(given) | ({"objectives": (given["objectives"],)} if single else {})
    return FitSettings(**{name: coerce(name, value, types[name]) for name, value in values.items()})
