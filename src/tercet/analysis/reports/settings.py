"""Settings of `tercet analyse` and `tercet doctor`. Imports nothing heavy, so that `--help` is fast."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated

import tyro

Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]


@dataclass(frozen=True)
class AnalyseSettings:
    """Explain an objective: analyse its gradient and the retrieved results at the weights of finished runs.

    With one or two runs: the selected analyses, or cocos, diagram, breakdown and examples if none is selected. Without
    a run: `--diagram` draws any objective, `--diagram --objectives goal` draws GOAL's figures, and `--integrability`
    computes which GOAL cells have a loss.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """One or two run folders; examples of two runs are shown side by side."""
    cocos: bool = False
    """COCOS: samples that contribute to the gradient, mean and std over shuffled training batches, no dropout."""
    diagram: bool = False
    """Triplet diagram: the gradient over positive and negative similarity, with the run's own triplets as points."""
    breakdown: bool = False
    """Gradient breakdown of one training batch: which positives pull, which negatives push, with images."""
    examples: bool = False
    """Top results with correct ones marked. For two runs: where they differ most, and cross-retrieval ranks."""
    judgments: Path | None = None
    """Folder with Flickr8k's human judgments: share of the push that falls on pairs that people judged as matching."""
    integrability: bool = False
    """Circulation (closed line integrals) of the gradient of GOAL's cells: 0 if a loss exists. Takes 10 seconds."""

    objectives: Names = ()
    """Objectives to analyse on the run's similarities: names or path/to/mine.py:function, as for `tercet compare`.
    With settings: nt-xent:temperature=0.05. Default: the run's own. With --diagram, goal adds GOAL's Figures 2, 3."""
    epochs: Annotated[tuple[int, ...], tyro.conf.arg(metavar="EPOCH ...")] = ()
    """Epochs whose triplets --diagram shows. Default: the first, the middle and the last."""
    queries: Names = ()
    """Queries of --examples: a caption or part of one, an image name, caption:17, image:3. Default: chosen by rank."""
    mined: Path | None = None
    """Mined table: the run's own, if it was moved, or a table to analyse off-tri, off-quin or aoq on any run."""
    mined_similarity: float = 0.3
    """Similarity of the mined negatives in a diagram of off-tri, off-quin or aoq."""
    batch_size: int = 128
    """Pairs per batch for --cocos, --breakdown and --judgments; for smooth-ap, images with five captions each."""
    epsilon: float = 0.01
    """Weight above which a negative is counted."""
    as_published: bool = False
    """Count with the study's released counters, including their errors (see docs/dissecting.md)."""
    batch: int = 0
    """Index of the training batch for --breakdown."""

    data: str | None = None
    """New path of the runs' data, if it was moved."""
    images: Path | None = None
    """Folder of image files, if it is not found next to the data."""
    out: Path = Path("analysis")
    """Output folder for pages, figures and numbers."""

    trust: tuple[Path, ...] = ()
    """Python files that may be run although only a saved model or a run names them (`--model mine.py:Class`)."""

    def check(self) -> None:
        """Raise `ValueError` for values out of range. Not in `__post_init__`: tyro would print it as a box of lines."""
        for name, value, is_allowed, allowed in (
            ("--batch-size", self.batch_size, self.batch_size >= 2, "at least 2"),
            ("--batch", self.batch, self.batch >= 0, "at least 0"),
            ("--epsilon", self.epsilon, 0 <= self.epsilon < 1, "at least 0 and below 1"),
            ("--mined-similarity", self.mined_similarity, isfinite(self.mined_similarity), "a finite number"),
        ):
            if not is_allowed:
                raise ValueError(f"{name} must be {allowed}, got {value}")


@dataclass(frozen=True)
class DoctorSettings:
    """Diagnose a finished run: check it for common faults, with measurements and advice.

    Writes doctor.json and doctor.html. Findings are not errors: the exit code is 0 with and without them.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Run folder."""
    data: str | None = None
    """New path of the run's data, if it was moved."""
    images: Path | None = None
    """Folder of image files, if it is not found next to the data."""
    out: Path | None = None
    """Output folder. Default: analysis/<run name>."""
    trust: tuple[Path, ...] = ()
    """Python files that may be run although only a saved model or a run names them (`--model mine.py:Class`)."""
