"""What `tercet analyse` can be told. Imports nothing heavy: `--help` must be quick."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated

import tyro

Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]


@dataclass(frozen=True)
class AnalyseSettings:
    """Why does this objective win? What its gradient pulls and pushes, at the weights of finished runs.

    Without a run: `--diagram` draws any objective, `--diagram --objectives goal` the figures of GOAL, `--integrability`
    says which cells of GOAL have a loss. With one or two: what is asked for, or all of it where nothing is.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders; with two, examples stand side by side."""
    cocos: bool = False
    """Count the samples behind the gradient: mean and std over shuffled training batches, no dropout."""
    diagram: bool = False
    """Draw the gradient over the plane of positive and negative similarity, with the run's own triplets on top."""
    anatomy: bool = False
    """One training batch with pictures and words: who pulls, who pushes."""
    examples: bool = False
    """What is found first, correct ones marked; of two runs where they differ most, and their cross-retrieval ranks."""
    judgements: Path | None = None
    """Folder of Flickr8k's human judgements: how much of the push falls on pairs that people call matching."""
    integrability: bool = False
    """Line integrals of GOAL's cells round closed rectangles: zero means that a loss exists. Takes some ten seconds."""

    objectives: Names = ()
    """Whose gradient: names of the catalogue or path/to/mine.py:function, with settings as in nt-xent:temperature=0.05.
    The run's own by default; any other one is looked at on the run's similarities. In a diagram goal draws GOAL's."""
    epochs: Annotated[tuple[int, ...], tyro.conf.arg(metavar="EPOCH ...")] = ()
    """Whose triplets are laid on a diagram; the first, a middle and the last by default."""
    queries: Names = ()
    """For --examples: a caption or a part of it, an image's name, caption:17 or image:3; else interesting ones."""
    mined: Path | None = None
    """The mined table of a run, if it was moved; or one for looking at off-tri, off-quin or aoq on any run."""
    mined_similarity: float = 0.3
    """Of the offline members in a diagram of off-tri, off-quin or aoq: its third dimension."""
    batch_size: int = 128
    """Pairs of a batch for --cocos, --anatomy and --judgements; images for smooth-ap, with five captions of each."""
    epsilon: float = 0.01
    """What a negative must weigh to be counted."""
    as_published: bool = False
    """Count as the released counters of the study do, errors included (docs/dissecting.md says which)."""
    batch: int = 0
    """Which training batch --anatomy shows."""

    data: str | None = None
    """Where the data of the runs lies, if it was moved."""
    images: Path | None = None
    """Folder of image files, where it is not found beside the data."""
    out: Path = Path("analysis")
    """Where pages, figures and numbers go."""

    def check(self) -> None:
        """Not while the command line is parsed: what is wrong would stand in a box of several lines."""
        for name, given, is_allowed, allowed in (
            ("--batch-size", self.batch_size, self.batch_size >= 2, "at least 2"),
            ("--batch", self.batch, self.batch >= 0, "at least 0"),
            ("--epsilon", self.epsilon, 0 <= self.epsilon < 1, "at least 0 and below 1"),
            ("--mined-similarity", self.mined_similarity, isfinite(self.mined_similarity), "a finite number"),
        ):
            if not is_allowed:
                raise ValueError(f"{name} must be {allowed}, got {given}")
