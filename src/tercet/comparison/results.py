"""What the runs of a comparison found, read from their folders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from tercet import runs
from tercet.comparison.contestants import Contestant
from tercet.evaluation.by_image import contributions


@dataclass(frozen=True)
class Run:
    """A finished run of a contestant."""

    seed: int
    folder: Path
    metrics: dict[str, float]
    final: dict[str, Any]
    machine: dict[str, Any]
    ranks: Mapping[str, np.ndarray]
    learning_rate: float

    @property
    def clipped(self) -> float:
        """Share of steps whose gradient was clipped."""
        return float(self.final["clipped_steps"] / max(1, self.final["step"]))


def read_run(folder: Path, seed: int) -> Run:
    final = runs.read_final(folder)
    if "rsum" not in final:
        raise ValueError(f"{folder.name} was evaluated on nothing: the data has neither a test nor a validation split")
    rate = runs.read_settings(folder).get("learning_rate")
    if not isinstance(rate, float):
        raise ValueError(f"{folder / runs.SETTINGS} is damaged: remove the folder {folder.name} and train it again")
    machine, ranks = runs.read_machine(folder), runs.read_ranks(folder)
    return Run(seed, folder, runs.read_metrics(folder), final, machine, ranks, rate)


@dataclass(frozen=True)
class Failure:
    name: str
    why: str
    trial: bool = False
    """It was to choose a learning rate: no number of the comparison is missing."""


@dataclass(frozen=True)
class Results:
    """Runs of every contestant by seed; contestants without a finished run are only in `failures`."""

    contestants: Sequence[Contestant]
    runs: dict[str, dict[int, Run]]
    failures: Sequence[Failure] = field(default=())

    def names(self) -> list[str]:
        """In the order they were asked for."""
        return [contestant.name for contestant in self.contestants if self.runs.get(contestant.name)]

    def numbers(self, name: str, metric: str) -> list[float]:
        """One a seed."""
        return [run.metrics[metric] for _, run in sorted(self.runs[name].items())]

    def mean(self, name: str, metric: str) -> float:
        return float(np.mean(self.numbers(name, metric)))

    def std(self, name: str, metric: str) -> float | None:
        """Over seeds, n-1; None for one seed."""
        numbers = self.numbers(name, metric)
        return float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None

    def ordered(self, metric: str) -> list[str]:
        """Best first."""
        return sorted(self.names(), key=lambda name: -self.mean(name, metric))

    def shared_seeds(self, first: str, second: str) -> list[int]:
        return sorted(self.runs[first].keys() & self.runs[second].keys())

    def by_image(self, name: str, seeds: Sequence[int], metric: str) -> Float[np.ndarray, "seed image"]:
        return np.stack([contributions(self.runs[name][seed].ranks, metric) for seed in seeds])

    @property
    def split(self) -> str:
        """What the metrics are of."""
        any_run = next(iter(self.runs[self.names()[0]].values()))
        return str(any_run.final["split"])
